"""Calls that torch runs, and that are known by a shortcut to be such."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autogen import UnsupportedOpError, autogen_loss, availability, explain, policy, trace_count
from tests.interpret.conftest import Launches


class Refused(nn.Module):
    """Asks where its input lies in memory, which no trace knows."""

    def __init__(self) -> None:
        super().__init__()
        self.margin = 0.5
        self.most = 0
        self.least_margin = 0.0

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        difference = (x - y).abs() + self.margin
        if x.shape[0] > self.most and self.margin >= self.least_margin:
            assert x.data_ptr()
        return difference.mean()


def pair(rows: int, *, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    x = torch.linspace(-1, 1, 5 * rows).reshape(rows, 5)
    return (x + offset).requires_grad_(), x.cos()


def agree(ours: Any, theirs: Any, x: Tensor, y: Tensor) -> None:
    """As one module, and its gradient, are those of another one, under the default policy."""
    with policy("default"):
        values = [loss(x, y) for loss in (ours, theirs)]
    torch.testing.assert_close(*values, rtol=0, atol=0)
    torch.testing.assert_close(*[torch.autograd.grad(value, x)[0] for value in values], rtol=0, atol=0)


def test_the_third_call_is_not_taken_apart(binds: list[str]) -> None:
    ours, theirs = autogen_loss(Refused()), Refused()
    for rows in (3, 3, 3, 4, 7, 3, 7, 2):
        agree(ours, theirs, *pair(rows))
    assert len(binds) == 2
    ours.margin = theirs.margin = 0.75
    for _ in range(4):
        agree(ours, theirs, *pair(3))
    assert 2 < len(binds) <= 4
    with pytest.raises(UnsupportedOpError, match="data_ptr"):  # as policies are asked before
        ours(*pair(3))


def test_a_float_that_changes_with_each_call(binds: list[str]) -> None:
    ours, theirs = autogen_loss(Refused()), Refused()
    for step in range(8):
        ours.margin = theirs.margin = 0.1 * step
        agree(ours, theirs, *pair(3))
    assert len(binds) < 8


def test_floats_that_are_not_refused_have_kernels(launches: Launches) -> None:
    ours, theirs = autogen_loss(Refused()), Refused()
    ours.least_margin = theirs.least_margin = 1.0
    for margin in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.5, 0.25, 7.0, 0.75):
        ours.margin = theirs.margin = margin
        x, y = pair(3)
        torch.testing.assert_close(ours(x, y), theirs(x, y))
        assert launches.take() == (margin < 1)


def test_sizes_that_are_not_refused_have_kernels(launches: Launches) -> None:
    ours, theirs = autogen_loss(Refused()), Refused()
    ours.most = theirs.most = 5
    for rows in (7, 8, 9, 7, 3, 4, 8, 3, 9):
        x, y = pair(rows)
        torch.testing.assert_close(ours(x, y), theirs(x, y))
        assert launches.take() == (rows <= 5)


def test_values_that_are_not_refused_have_kernels(launches: Launches) -> None:
    def theirs(x: Tensor, y: Tensor) -> Tensor:
        if (x > 0).all():
            assert x.data_ptr()
        return (x - y).square().mean()

    ours = autogen_loss(theirs)
    for offset in (2.0, 2.0, 2.0, 0.0, 2.0, 0.0, 0.0):
        x, y = pair(3, offset=offset)
        torch.testing.assert_close(ours(x, y), theirs(x, y))
        assert launches.take() == (offset == 0)


def test_a_number_that_is_read_decides_nothing(binds: list[str]) -> None:
    def theirs(x: Tensor, y: Tensor) -> Tensor:
        return (x - y).abs().mean() / math.hypot(x.detach().exp().sum(), 0.0)

    ours = autogen_loss(theirs)
    for rows, offset in ((3, 0.0), (3, 1.0), (3, 2.0), (4, 1.0), (7, 0.0), (3, 3.0)):
        agree(ours, theirs, *pair(rows, offset=offset))
    assert len(binds) == 3 and trace_count(ours) == 2


def test_a_number_that_is_a_case_of_its_own(launches: Launches) -> None:
    def theirs(x: Tensor, y: Tensor) -> Tensor:
        if y.sum().item() == 0.0:
            return x.sum() * 0.0
        return (x - y).abs().mean()

    ours = autogen_loss(theirs)
    for step, scale in enumerate((0.0, 1.0, 2.0, 0.0, 3.0, 0.0, 0.0, 1.0)):
        x, y = pair(3)
        torch.testing.assert_close(ours(x, y * scale), theirs(x, y * scale))
        assert launches.take() == (scale != 0), step


def test_tensors_that_no_kernel_reads(binds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = autogen_loss(nn.L1Loss()), nn.L1Loss()
    monkeypatch.setattr(availability, "has_interpreter", lambda: False)
    for rows in (3, 3, 3, 4, 7, 3):
        agree(ours, theirs, *pair(rows))
    assert len(binds) == 2
    with policy("default"):
        assert explain(ours, *pair(3)).path == "eager"


def test_an_error_of_the_loss_is_torchs(binds: list[str]) -> None:
    ours, (x, y) = autogen_loss(Refused()), pair(3)
    for _ in range(4):
        agree(ours, Refused(), x, y)
    with policy("default"), pytest.raises(RuntimeError, match="must match"):
        ours(x, y[:2])
    agree(ours, Refused(), x, y)
