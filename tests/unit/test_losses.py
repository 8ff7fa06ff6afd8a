"""Every loss of torch, one pass after the other: as lowered and as planned it computes what torch computes.

No kernel runs here: the IR is evaluated in double precision, and forward keeps for backward what the plan says.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autogen.scheduling.schedule import backward_of, schedule
from tests.interpret.samples import Samples
from tests.interpret.table import ROWS, C, Row
from tests.unit.evaluate import stored
from tests.unit.pipeline import Reference, check, floats, program_of
from tests.unit.verify import verify

pytestmark = pytest.mark.filterwarnings("ignore:reduction")

FIRST = {row.loss: row for row in reversed(ROWS)}
REDUCTIONS = ("mean", "sum", "none")
# Each loss with two reductions, and of all further options every fifth: the tests of kernels know them all.
CALLS = [(row, reduction) for row in FIRST.values() for reduction in ("mean", "none")]
CALLS += [(row, REDUCTIONS[k % 3]) for k, row in enumerate(ROWS[2::5])]
CALLS = [call for call in CALLS if call[0].loss != "GaussianNLLLoss"]  # whose check of values ends a graph of torch's


def call_of(row: Row, reduction: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """A loss of torch and its inputs, all of which ask for their gradient where torch gives one."""
    samples = Samples(torch.float64)
    loss = getattr(nn, row.loss)(**row.options(samples), reduction=reduction)
    inputs = row.inputs(samples)
    for each in inputs:
        if isinstance(each, Tensor) and each.is_floating_point():
            each.requires_grad_()
            try:
                loss(*inputs)
            except RuntimeError:
                each.requires_grad_(False)
    return loss, inputs


@pytest.mark.parametrize(("row", "reduction"), CALLS, ids=lambda each: each if isinstance(each, str) else each.loss)
def test_every_pass_keeps_the_loss(row: Row, reduction: str) -> None:
    loss, inputs = call_of(row, reduction)
    reference = Reference(loss, *inputs)
    program, sizes = program_of(loss, *inputs)
    reference.check(program.outputs, program.gradients, sizes)
    plan = schedule(program, "loss", sizes, training=bool(program.gradients))
    reference.check_plan(plan, sizes)

    kernels = (*plan.forward, *backward_of(plan))
    assert len(plan.forward) == 1 and len(backward_of(plan)) == bool(program.gradients)
    for kernel in kernels:
        verify([root.node for root in kernel.roots])
    # Kept is at most one number per row, and a row has C elements.
    largest = max(tensor.numel() for tensor in inputs if isinstance(tensor, Tensor))
    kept = stored([root for root in plan.forward[0].roots if root.buffer in plan.saved], reference.tensors, sizes)
    assert all(tensor.numel() <= max(1, largest // C) for tensor in kept.values())


def test_an_all_ignored_mean_is_nan() -> None:
    check(nn.CrossEntropyLoss(ignore_index=1), floats(3, 4), torch.ones(3, dtype=torch.long))


def test_infinite_logits_are_as_in_torch() -> None:
    x = floats(3, 4).detach()
    x[0, 1], x[1], x[2, 0] = float("-inf"), float("-inf"), float("inf")
    check(nn.CrossEntropyLoss(reduction="none"), x.requires_grad_(), torch.tensor([0, 1, 2]))
