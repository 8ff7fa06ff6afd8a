"""`python -m examples.coverage`: on which path every loss runs, for which dtypes and options, and what falls back.

Nothing in the table is typed in but the calls that are known to fall back: paths, launches and reasons are what
`autogen.explain` finds.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
_LEGACY = {"size_average", "reduce", "use_autogen"}
Call = tuple[nn.Module, tuple[Any, ...]]


def calls(dtype: torch.dtype) -> Iterator[Call]:
    """One call of every loss."""
    from autogen import losses

    generator = torch.Generator().manual_seed(0)

    def real(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    def x() -> Tensor:
        return real(6, 5).requires_grad_()

    probability, log_probability = real(6, 5).softmax(1), real(6, 5).log_softmax(1).requires_grad_()
    signs, labels = real(6).sign(), torch.tensor([0, 1, 2, 3, 4, 0])
    yield losses.L1Loss(), (x(), real(6, 5))
    yield losses.MSELoss(), (x(), real(6, 5))
    yield losses.SmoothL1Loss(), (x(), real(6, 5))
    yield losses.HuberLoss(), (x(), real(6, 5))
    yield losses.BCELoss(), (probability.clone().requires_grad_(), probability)
    yield losses.BCEWithLogitsLoss(), (x(), probability)
    yield losses.PoissonNLLLoss(), (x(), real(6, 5).abs())
    yield losses.GaussianNLLLoss(), (x(), real(6, 5), real(6, 5).abs() + 0.1)
    yield losses.HingeEmbeddingLoss(), (x(), real(6, 5).sign())
    yield losses.SoftMarginLoss(), (x(), real(6, 5).sign())
    yield losses.KLDivLoss(), (log_probability, probability)
    yield losses.MarginRankingLoss(), (real(6).requires_grad_(), real(6), signs)
    yield losses.CrossEntropyLoss(), (x(), labels)
    yield losses.NLLLoss(), (log_probability, labels)
    yield losses.NLLLoss2d(), (real(2, 5, 3, 3).requires_grad_(), torch.ones(2, 3, 3, dtype=torch.long))
    yield losses.MultiMarginLoss(), (x(), labels)
    yield losses.MultiLabelSoftMarginLoss(), (x(), probability.round())
    yield losses.TripletMarginLoss(), (x(), real(6, 5), real(6, 5))
    yield losses.TripletMarginWithDistanceLoss(), (x(), real(6, 5), real(6, 5))
    yield losses.CosineEmbeddingLoss(), (x(), real(6, 5), signs)
    yield losses.MultiLabelMarginLoss(), (x(), torch.tensor([[0, 2, -1, 0, 0]] * 6))
    yield losses.CTCLoss(), (real(9, 2, 5).log_softmax(2).requires_grad_(), torch.ones(2, 3).long(), (9, 9), (3, 3))
    if hasattr(losses, "LinearCrossEntropyLoss"):
        yield losses.LinearCrossEntropyLoss(5, 7, dtype=dtype), (x(), labels)
    yield losses.AdaptiveLogSoftmaxWithLoss(5, 7, [2, 4], dtype=dtype), (x(), labels)


def falling_back() -> dict[str, tuple[str, Callable[[], Call]]]:
    """Calls that torch takes, but our kernels do not, or not all of it, by loss; and what is the matter with them."""
    from autogen import losses

    def wide(*shape: int) -> Tensor:
        return torch.zeros(shape).requires_grad_()

    return {
        "CTCLoss": (
            "a target of more than 8192 states",
            lambda: (losses.CTCLoss(), (wide(9000, 1, 3), torch.ones(1, 5000).long(), (9000,), (5000,))),
        ),
        "MultiLabelMarginLoss": (
            "more than 8192 classes",
            lambda: (losses.MultiLabelMarginLoss(), (wide(1, 40_000), -torch.ones(1, 40_000).long())),
        ),
    }


def table() -> str:
    """The table as Markdown."""
    from autogen import explain

    rows: dict[str, dict[str, Any]] = {}
    for name, dtype in DTYPES.items():
        for loss, inputs in calls(dtype):
            report = explain(loss, *inputs)
            row = rows.setdefault(type(loss).__name__, {"class": type(loss), "report": report, "dtypes": []})
            if report.path == row["report"].path != "eager":
                row["dtypes"].append(name)
    lines = ["| loss | path | launches | dtypes | options | runs in torch |", "|---|---|---|---|---|---|"]
    for name, row in rows.items():
        report = row["report"]
        launches = f"{report.forward.launches} + {report.backward.launches}"
        options = ", ".join(f"`{option}`" for option in _options(row["class"]))
        cells = [name, report.path, launches, " ".join(row["dtypes"]), options, _fallback(name)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _options(cls: type[nn.Module]) -> list[str]:
    """The arguments of a constructor but the old ones."""
    if cls.__name__ == "NLLLoss2d":
        cls = nn.NLLLoss
    parameters = inspect.signature(cls).parameters.values()
    return [each.name for each in parameters if each.name not in _LEGACY]


def _fallback(name: str) -> str:
    from autogen import explain

    found = falling_back().get(name)
    if found is None:
        return ""
    what, call = found
    loss, inputs = call()
    report = explain(loss, *inputs)
    assert report.path in ("eager", "partial"), f"{name} has kernels for a call that is listed as falling back"
    return f"{what}: {report.reason}" if report.path == "partial" else what


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        print(table())
