"""Render a report as one HTML element with its styles, for notebooks with light or dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

# Text takes the page's own colours; code brings a background, which its colours are made for.
_CODE = (
    "background:#f6f8fa;color:#24292f;padding:.8em;border-radius:6px;overflow-x:auto;"
    "font:12px/1.45 ui-monospace,Menlo,Consolas,monospace;white-space:pre;margin:.4em 0"
)
_BADGE = "border:1px solid currentColor;border-radius:1em;padding:0 .6em;font-size:85%"
_CELL = "text-align:left;padding:.15em 1.2em .15em 0;vertical-align:top"


def section(report: Mapping[str, Any]) -> str:
    """The HTML of a report, given as `Report.to_dict` has it."""
    head = f'<b>{escape(report["loss"])}</b> <span style="{_BADGE}">{escape(report["path"])}</span>'
    parts = [f"<div>{head}</div>", f"<div>{escape(report['reason'])}</div>"]
    parts += [f"<div>a graph ends: {escape(each)}</div>" for each in report["breaks"]]
    directions = {name: report[name] for name in ("forward", "backward") if report[name] is not None}
    if directions:
        parts.append(_table(directions))
    parts += [_details(f"{name}: source", highlighted(each["source"])) for name, each in directions.items()]
    parts += [_details("graph of torch", highlighted(each)) for each in report["graphs"]]
    return f'<div style="max-width:100%">{"".join(parts)}</div>'


def page(report: Mapping[str, Any]) -> str:
    """A whole page with a report."""
    title = f"{report['loss']}: {report['path']}"
    scheme = '<meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    head = f"<head>{scheme}<title>{escape(title)}</title></head>"
    style = "font:15px/1.5 system-ui,sans-serif;max-width:72em;margin:2em auto;padding:0 1em"
    return f'<!doctype html>\n<html lang="en">{head}<body style="{style}">{section(report)}</body></html>\n'


def highlighted(source: str) -> str:
    """Python source with colours."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    text = highlight(source.strip("\n"), PythonLexer(), HtmlFormatter(noclasses=True, nowrap=True, style="friendly"))
    return f'<pre style="{_CODE}">{text}</pre>'


def _details(title: str, content: str) -> str:
    return f'<details><summary style="cursor:pointer">{escape(title)}</summary>{content}</details>'


def _table(directions: Mapping[str, Mapping[str, Any]]) -> str:
    """What the directions do, one in each row."""
    heads = ("", "launches", "kernels", "bytes moved", "least bytes", "tiles", "torch runs", "cut, as")
    rows = [
        (
            name,
            str(each["launches"]),
            each["kernels"],
            f"{each['bytes_moved']:,}",
            f"{each['bytes_minimum']:,}",
            each["configs"],
            each["torch_steps"],
            each["cuts"],
        )
        for name, each in directions.items()
    ]
    shown = [k for k in range(len(heads)) if any(row[k] for row in rows)]
    lines = ["".join(f'<th style="{_CELL}">{escape(heads[k])}</th>' for k in shown)]
    lines += ["".join(f'<td style="{_CELL}">{_lines(row[k])}</td>' for k in shown) for row in rows]
    return f'<table style="border-collapse:collapse">{"".join(f"<tr>{line}</tr>" for line in lines)}</table>'


def _lines(cell: str | Sequence[str]) -> str:
    return escape(cell) if isinstance(cell, str) else "<br>".join(map(escape, cell))
