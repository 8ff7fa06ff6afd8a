"""Write the demo's findings as one HTML file that needs no other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from examples.demo import words
from examples.demo.chart import GENERATED, ROUNDING, TORCH, Line, chart
from examples.demo.findings import Findings
from examples.demo.heads import curve_of, memory_of
from examples.demo.training import Difference, Training

# Below what single precision can show; logarithms need something above zero.
_NOTHING = 1e-9


def write_page(findings: Findings, path: Path) -> Path:
    """Write the page to `path`, whose folder is made if need be; returns the path."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["python"] = _highlighted
    environment.filters["error"] = words.error_text
    text = environment.get_template("page.html.jinja").render(
        findings=findings,
        training=findings.training,
        worst=Difference.largest(findings.training.differences),
        rounding=Difference.largest(findings.training.rounding),
        cases=list(zip(findings.rows, findings.verdicts, strict=True)),
        losses=len({row.case.loss for row in findings.rows}),
        launches=Counter(words.launches_text(row) for row in findings.rows),
        curve=_curve(findings.training),
        drift=_drift(findings.training),
        heads=findings.heads,
        head_curve=curve_of(findings.heads),
        head_memory=memory_of(findings.heads),
        words=words,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _highlighted(source: str) -> Markup:
    return Markup(highlight(source, PythonLexer(), HtmlFormatter(nowrap=True)))


def _curve(training: Training) -> Markup:
    lines = [
        Line("torch", TORCH, training.torch.losses, 5),
        Line("generated kernels", GENERATED, training.generated.losses),
    ]
    return chart("loss", lines)


def _drift(training: Training) -> Markup:
    pairs = [
        ("torch, single and double precision", ROUNDING, training.rounding),
        ("generated and torch", GENERATED, training.differences),
    ]
    lines = [Line(name, color, [max(each.parameter, _NOTHING) for each in found]) for name, color, found in pairs]
    return chart("largest difference", lines, logarithmic=True)
