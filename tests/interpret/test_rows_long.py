"""Rows too long for the chip: the looped kernels, forced on short rows, and once on a long one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import autogen.losses
from autogen import explain
from tests.interpret.agreement import agree
from tests.interpret.compare import Call, check
from tests.interpret.long_rows import ALIGNED, SPECIAL, C, N, logits
from tests.interpret.samples import Samples

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight": {"weight": Samples(torch.float64).probability(ALIGNED)},
    "smoothing": {"label_smoothing": 0.1},
    "both": {"weight": Samples(torch.float64).probability(ALIGNED), "label_smoothing": 0.1},
}


def _labels() -> Tensor:
    found = Samples().label(C, N)
    found[0] = C - 1
    return found


def in_dtype(options: dict[str, Any], dtype: torch.dtype, columns: int = C) -> dict[str, Any]:
    return {name: each[:columns].to(dtype) if isinstance(each, Tensor) else each for name, each in options.items()}


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("reduction", "columns"), [("mean", C), ("none", C), ("mean", ALIGNED)])
def test_cross_entropy(special: str, form: str, reduction: str, columns: int) -> None:
    options = {**in_dtype(FORMS[form], torch.float32, columns), "reduction": reduction}
    x = logits(special, torch.float32, N, columns)
    check(Call("CrossEntropyLoss", options, (x, _labels())))


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("form", FORMS)
def test_class_probabilities(special: str, form: str) -> None:
    target = Samples().probability(N, C)
    target = target / target.sum(1, keepdim=True)
    wanted = (True, True, False)
    check(Call("CrossEntropyLoss", in_dtype(FORMS[form], torch.float32), (logits(special), target), wanted))


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_dtypes(dtype: torch.dtype, form: str) -> None:
    options = in_dtype(FORMS[form], dtype)
    check(Call("CrossEntropyLoss", options, (logits("plain", dtype), _labels()), (True,)))


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("form", FORMS)
def test_classes_apart_in_memory(form: str) -> None:
    """Neighbouring rows, not neighbouring classes, are neighbours in memory."""
    target = Samples().label(C, 2, 5, 3)
    check(Call("CrossEntropyLoss", in_dtype(FORMS[form], torch.float32), (Samples().real(2, C, 5, 3), target)))


def others(loss: str, reduction: str) -> Iterator[Call]:
    s = Samples()
    x, target = s.real(N, C), s.label(C, N)
    match loss:
        case "MultiMarginLoss":
            for p in (1, 2):
                yield Call(loss, {"reduction": reduction, "p": p, "weight": s.probability(C)}, (x, target))
        case "MultiLabelSoftMarginLoss":
            yield Call(loss, {"reduction": reduction}, (x, s.probability(N, C)))
        case "TripletMarginLoss":
            for p in (1.0, 2.0, 3.0):
                yield Call(loss, {"reduction": reduction, "p": p}, (x, s.real(N, C), s.real(N, C)))


OTHERS = ("MultiMarginLoss", "MultiLabelSoftMarginLoss", "TripletMarginLoss")


@pytest.mark.cases(len(OTHERS))
@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", OTHERS)
def test_other_losses(loss: str, reduction: str) -> None:
    for call in others(loss, reduction):
        check(call)


OWN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logsumexp": lambda x, m: m.squeeze(1) + (x - m).exp().sum(1).log(),
    "scaled": lambda x, m: (x.sin().nan_to_num() * (x - m).exp()).sum(1),
    "shifted": lambda x, m: (x - m).mean(1),
    "weighted": lambda x, m: (torch.arange(x.shape[1]) * (x - m)).sum(1),
}


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("form", OWN)
def test_sums_that_follow_a_maximum(special: str, form: str) -> None:
    """Unlike torch's logsumexp, they are nan in a row of -inf."""
    agree(lambda x: OWN[form](x, x.amax(1, keepdim=True)), logits(special), launches=None)


def test_a_long_vocabulary() -> None:
    """40 000 columns loop without being forced to, if there are many rows."""
    s = Samples()
    x, target = s.real(2, 40_000).requires_grad_(), s.label(40_000, 2)
    check(Call("CrossEntropyLoss", {}, (x, target)))
    x, target = torch.empty(200, 40_000, requires_grad=True), torch.empty(200, dtype=torch.long)  # not few
    report = explain(autogen.losses.CrossEntropyLoss(), x, target)
    assert report.forward is not None and report.backward is not None
    # One walk over the columns each way; backward needs no loop for it.
    assert report.forward.source.count("for first_col in") == 1
    assert "for " not in report.backward.source
