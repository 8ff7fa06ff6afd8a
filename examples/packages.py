"""`python -m examples.packages`: find out how the losses of public packages run under `autogen_loss`.

Writes the tables of docs/packages.md anew. Each loss is decorated, called, and compared with itself as it was, value
and gradients; launches are counted at Triton's interpreter, paths and reasons are what `autogen.explain` finds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import inspect
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from examples.demo.counting import counted_launches

PAGE = Path(__file__).parent.parent / "docs" / "packages.md"
TABLES = re.compile(r"(?<=<!-- packages -->\n).*?(?=<!-- /packages -->)", re.DOTALL)

# Where a package keeps its losses.
MODULES = {
    "timm": "timm.loss",
    "monai": "monai.losses",
    "kornia": "kornia.losses",
    "torchvision": "torchvision.ops",
    "transformers": "transformers.loss.loss_utils",
}
_MATCHING = "not called: it matches boxes with SciPy first, on the host"
NOT_CALLED = {
    "PerceptualLoss": "not called: it downloads a network",
    "SURELoss": "not called: it calls a network that it is given",
    "PocketTTSForConditionalGenerationLoss": "not called: it calls a network that it is given",
    "ParakeetForRNNTLoss": "not called: torchaudio computes it",
    "ParakeetForTDTLoss": "not called: a loop in Python over time",
    **dict.fromkeys(
        [
            "DFineForObjectDetectionLoss",
            "DeformableDetrForObjectDetectionLoss",
            "DeformableDetrForSegmentationLoss",
            "Deimv2ForObjectDetectionLoss",
            "ForObjectDetectionLoss",
            "ForSegmentationLoss",
            "GroundingDinoForObjectDetectionLoss",
            "LwDetrForObjectDetectionLoss",
            "RTDetrForObjectDetectionLoss",
            "RfDetrForSegmentationLoss",
        ],
        _MATCHING,
    ),
}


def _plain(name: str) -> str:
    return name.replace("_", "").lower().removesuffix("loss")


def public_losses(module: Any) -> list[str]:
    """The losses of a module, each once: neither aliases nor functions that a class has the formula of."""
    found: dict[str, Any] = {}
    names = [name for name in getattr(module, "__all__", dir(module)) if not name.startswith("_")]
    for name in sorted(names, key=lambda name: (not name[0].isupper(), name)):
        value = getattr(module, name)
        is_own = getattr(value, "__module__", "").split(".")[0] == module.__name__.split(".")[0]
        is_class = inspect.isclass(value) and issubclass(value, nn.Module) and value.__name__ == name and is_own
        is_function = inspect.isfunction(value) and re.search("loss|cross_entropy|For", name) and "create" not in name
        if is_function or (is_class and "loss" in module.__name__):
            found.setdefault(_plain(name), name)
    return sorted(found.values())


def _run(loss: Callable[..., Tensor], arguments: tuple[Any, ...]) -> tuple[list[Tensor | None], list[int]]:
    """The value of a loss and its gradients; how many kernels each direction launched."""
    wanted = [each for each in arguments if isinstance(each, Tensor) and each.requires_grad]
    with counted_launches(torch.device("cpu")) as forward:
        value = loss(*arguments).sum()
    with counted_launches(torch.device("cpu")) as backward:
        gradients = torch.autograd.grad(value, wanted, allow_unused=True)
    return [value.detach(), *gradients], [forward.count, backward.count]


def _note(report: Any) -> str:
    """Why not all of a loss is a kernel, or why torch captures it in parts; without the folders of this machine."""
    if report.path not in ("generated", "handwritten"):
        return re.sub(r",? at \S+/(\S+:\d+)\s+(.*)", r" (\1)", report.reason)
    places = dict.fromkeys(re.sub(r".*, at \S+/(\S+:\d+)\s+.*", r"\1", each, flags=re.DOTALL) for each in report.breaks)
    return f"torch's capture ends at {', '.join(places)}" if places else ""


def row(name: str, make: Callable[[], Any]) -> str:
    """A line of a table.

    Raises:
        AssertionError: the decorated loss computes something else, or launches other kernels than `explain` tells of.
    """
    from autogen import autogen_loss, explain
    from examples.package_calls import seed

    seed()
    expected, _ = _run(*make())
    seed()
    loss, arguments = make()
    decorated = autogen_loss(loss)
    found, launches = _run(decorated, arguments)
    for ours, torchs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    seed()
    report = explain(decorated, *make()[1])
    seen = [each.launches if each else 0 for each in (report.forward, report.backward)]
    assert seen == launches, f"{name} launches {launches} kernels, and explain tells of {seen}"
    return f"| {name} | {report.path} | {launches[0]} + {launches[1]} | {_note(report)} |"


def table(package: str) -> str:
    """The table of a package as Markdown."""
    from examples.package_calls import calls

    known = calls()[package]
    lines = [
        f"## {package} {importlib.metadata.version(package)}",
        "",
        f"Of `{MODULES[package]}`:",
        "",
        "| loss | path | launches | why not all of it, or not at once |",
        "|---|---|---|---|",
    ]
    for name in public_losses(importlib.import_module(MODULES[package])):
        lines.append(f"| {name} | | | {NOT_CALLED[name]} |" if name in NOT_CALLED else row(name, known[name]))
    return "\n".join([*lines, "", ""])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m examples.packages")
    parser.add_argument("--print", action="store_true", help="print the tables, and leave the page alone")
    options = parser.parse_args()
    os.environ["TRITON_INTERPRET"] = "1"
    warnings.simplefilter("ignore")
    tables = "".join(map(table, MODULES))
    if options.print:
        print(tables, end="")
        return
    PAGE.write_text(TABLES.sub(lambda _: tables, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
