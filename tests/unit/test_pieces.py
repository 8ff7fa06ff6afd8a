"""What is too much for one kernel: pieces of bearable work, which leave few values to each other."""

from __future__ import annotations

import pytest

from autogen.scheduling.launches.demand import demand_of, is_bearable
from autogen.scheduling.launches.kernel import Kernel
from autogen.scheduling.schedule import backward_of
from bench import large
from tests.unit.pipeline import plan_of


@pytest.mark.slow
def test_pieces_of_a_chain_leave_a_value_for_each_segment() -> None:
    loss, inputs = large.chain(400, 64, 64)
    plan, _ = plan_of(loss, *inputs)
    steps = {"forward": plan.forward, "backward": backward_of(plan)}
    for direction, most in (("forward", 1), ("backward", 2)):  # of each, a piece has two segments at most
        kernels = [step for step in steps[direction] if isinstance(step, Kernel)]
        left = [sum(root.buffer.role == "scratch" for root in kernel.roots) for kernel in kernels]
        assert len(kernels) > 2 and all(map(is_bearable, map(demand_of, kernels)))
        assert max(left) <= most and left[-1] == 0


@pytest.mark.slow
def test_a_cut_is_where_the_fewest_bytes_are_left() -> None:
    """Sums of whole tensors, of which each piece hands on one number."""
    loss, inputs = large.reductions(100, 64, 64)
    plan, _ = plan_of(loss, *inputs)
    kernels = [step for step in plan.forward if isinstance(step, Kernel)]
    left = [root for kernel in kernels for root in kernel.roots if root.buffer.role == "scratch"]
    assert left and not any(root.buffer.shape for root in left)
