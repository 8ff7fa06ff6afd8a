"""How often kernels walk their rows, and what waits for what."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from autogen import autogen_loss, explain
from autogen.ir.sizes import evaluator_of
from autogen.scheduling.launches.kernel import Kernel
from examples import written
from tests.unit.pipeline import plan_of

CALLS = {
    name: (loss, inputs)
    for name, loss, inputs in written.calls(torch.float32)
    if name not in ("few_rows", "signal_to_distortion", "spread")  # which several programs share
}


def kernels(loss: Callable[..., object], *tensors: Tensor) -> list[Kernel]:
    plan, _ = plan_of(loss, *tensors)
    return [step for step in plan.forward if isinstance(step, Kernel)]


@pytest.mark.parametrize("name", CALLS)
def test_losses_read_their_rows_once(name: str) -> None:
    loss, inputs = CALLS[name]
    (kernel,) = kernels(loss, *inputs())
    assert len(kernel.passes) == 1 + (name == "jensen_shannon")


def test_what_waits_and_for_what() -> None:
    def loss(x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        return (x - mean).abs().sum(1)

    x = torch.empty(400, 50_000, requires_grad=True)
    (kernel,) = kernels(loss, x)
    first, second = kernel.passes
    assert not first.waits and set(second.waits.values()) == set(first.reductions)
    report = explain(autogen_loss(loss), x)
    assert report.forward is not None
    (reason,) = report.forward.passes
    line = loss.__code__.co_firstlineno
    assert reason.startswith("reads `x` twice: `")
    assert f"test_running.py:{line + 2}) waits for `" in reason and reason.endswith(f"test_running.py:{line + 1})")
    assert reason in report.summary


def test_what_fits_on_chip_is_read_once() -> None:
    report = explain(autogen_loss(lambda x: (x - x.mean(1, keepdim=True)).abs().sum(1)), torch.randn(40, 50))
    assert report.forward is not None and report.forward.passes == ()


def test_an_element_waits_for_its_row() -> None:
    x = torch.empty(400, 50_000)
    report = explain(autogen_loss(lambda x: x.softmax(1).square()), x)
    assert report.forward is not None
    (reason,) = report.forward.passes
    assert reason.startswith("reads `x` twice: each element waits for `")


def test_few_long_rows_are_split_and_many_are_not() -> None:
    def rows(n: int) -> Kernel:
        (kernel,) = kernels(written.logsumexp, torch.empty(n, 128_256, requires_grad=True))
        return kernel

    assert rows(8).ends is not None and rows(2048).ends is None
    assert rows(2048).holds({"N": 4096, "C": 128_256}) and not rows(2048).holds({"N": 8, "C": 128_256})


@pytest.mark.parametrize("rows", [slice(10), slice(5, 9)], ids=str)
def test_forward_of_a_slice_reads_no_other_rows(rows: slice) -> None:
    """Though backward, which walks all rows, could make use of what it would find there."""

    def loss(x: Tensor) -> Tensor:
        return x[rows].logsumexp(-1).sum(1).sigmoid().sum()

    plan, sizes = plan_of(loss, torch.empty(400, 16, 5000, requires_grad=True))
    (kernel,) = plan.forward
    assert isinstance(kernel, Kernel)
    assert list(evaluator_of(*(axis.size for axis in kernel.rows))(sizes)) == [len(range(400)[rows]), 16]


def test_forward_of_chunks_keeps_one_table_for_all_rows() -> None:
    (kernel,) = kernels(written.preferred, torch.empty(4, 8, 50_000, requires_grad=True), torch.empty(4, 8).long())
    assert str(kernel.rows[0].size) == "N" and len(kernel.totals) == 2
