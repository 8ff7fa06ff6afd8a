"""Rows that nothing depends on, such as those of ignored labels, are not read; what is in them is as if it were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder

import autogen
from tests.interpret.samples import Samples

Loss = Callable[..., Tensor]
ROWS, IGNORED, VALID = 7, (1, 2, 5), (0, 3, 4, 6)
SHORT, LONG = 48, 8208  # columns: whole rows on chip, and rows in steps
inf, nan = float("inf"), float("nan")


def plain(x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(x, labels)


def smoothed(x: Tensor, labels: Tensor) -> Tensor:
    weight = torch.linspace(0.5, 1.5, x.shape[1], dtype=x.dtype)
    return F.cross_entropy(x, labels, weight, label_smoothing=0.1, ignore_index=-100)


def per_row(x: Tensor, labels: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(x, -1), labels, reduction="none")


def by_hand(x: Tensor, labels: Tensor) -> Tensor:
    loss = torch.logsumexp(x, -1) - x.gather(-1, labels.clamp(min=0)[:, None])[:, 0]
    return torch.where(labels != -100, loss, 0.0).sum()


def flags(x: Tensor, labels: Tensor) -> Tensor:
    return torch.where(labels != -100, F.relu(1 - x).sum(-1), 0.0).sum()


def inputs(columns: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Logits, and labels of which some are ignored."""
    x, labels = (Samples(torch.float64).real(ROWS, columns) * 3).to(dtype), Samples().label(columns, ROWS)
    labels[list(IGNORED)] = -100
    return x, labels


def gradient(loss: Loss, x: Tensor, labels: Tensor, *, between: Callable[[Tensor], None] = lambda x: None) -> Tensor:
    """The gradient of a loss, with something done to the logits after forward."""
    x = x.clone().requires_grad_()
    value = loss(x, labels)
    between(x.detach())  # behind autograd's back
    value.sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("columns", [SHORT, LONG])
@pytest.mark.parametrize("loss", [plain, smoothed, per_row])
def test_backward_reads_no_ignored_row(loss: Loss, columns: int) -> None:
    x, labels = inputs(columns)

    def poison(own: Tensor) -> None:
        own.data[list(IGNORED)] = nan

    found = gradient(autogen.autogen_loss(loss, policy="mandatory"), x, labels, between=poison)
    assert found[list(IGNORED)].eq(0).all()
    torch.testing.assert_close(found, gradient(loss, x, labels))


@pytest.mark.interpreted
@pytest.mark.parametrize("loss", [plain, smoothed, per_row, by_hand, flags])
@pytest.mark.parametrize("columns", [SHORT, LONG])
def test_forward_without_gradients_reads_no_ignored_row(
    loss: Loss, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, labels = inputs(columns)
    read = list[Any]()
    load = InterpreterBuilder.create_masked_load

    def noted(self: InterpreterBuilder, pointers: Any, mask: Any, *args: Any) -> Any:
        read.append(pointers.data[mask.data])
        return load(self, pointers, mask, *args)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", noted)
    found = autogen.autogen_loss(loss, policy="mandatory")(x, labels)
    torch.testing.assert_close(found, loss(x, labels))
    begins = [x[row].data_ptr() for row in range(ROWS)]
    elements = [sum(((at <= each) & (each < at + x[0].nbytes)).sum() for each in read) for at in begins]
    # An element of a row is picked by a label, or by what a loss puts in the place of an ignored one.
    assert all(elements[row] >= columns if row in VALID else elements[row] <= 1 for row in range(ROWS))


@pytest.mark.parametrize("columns", [SHORT, SHORT + 1, LONG, LONG + 1])
@pytest.mark.parametrize("loss", [plain, smoothed, by_hand])
@pytest.mark.parametrize("special", ["nan", "inf", "-inf", "all -inf", "far below 0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_ignored_row_means_what_it_means_to_torch(
    special: str, loss: Loss, columns: int, dtype: torch.dtype
) -> None:
    x, labels = inputs(columns, dtype)
    if special == "far below 0":
        x[1] = x[1] - 2000
    elif special == "all -inf":
        x[1] = -inf
    else:
        x[1, 5] = float(special)
    compiled = autogen.autogen_loss(loss, policy="mandatory")
    torch.testing.assert_close(compiled(x, labels), loss(x, labels), atol=0, rtol=2 * torch.finfo(dtype).eps)
    ours, theirs = gradient(compiled, x, labels), gradient(loss, x, labels)
    if loss is by_hand:  # a select of the loss's own, which leaves the row out
        theirs[1] = 0
    torch.testing.assert_close(ours[1], theirs[1], atol=0, rtol=0, equal_nan=True)
    if dtype == torch.float32:
        torch.testing.assert_close(ours, theirs, equal_nan=True)
