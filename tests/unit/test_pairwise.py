"""Values per pair: no kernel stores them, and what is computed of a pair is computed once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor

from autogen import ir
from autogen.ir.sizes import evaluator_of
from autogen.scheduling.launches.kernel import Kernel
from autogen.scheduling.plan import Plan
from autogen.scheduling.rewrites.pairwise import coordinates_apart
from autogen.scheduling.schedule import backward_of
from autogen.tiling.space import Space
from autogen.tiling.tiler import Tiler
from bench.losses import chamfer, discrepancy, ranked
from tests.unit.pipeline import Loss, Reference, floats, plan_of, program_of


def kernels(plan: Plan) -> list[Kernel]:
    return [step for step in (*plan.forward, *backward_of(plan)) if isinstance(step, Kernel)]


def sums_over_few(plan: Plan, sizes: dict[str, int]) -> list[ir.Node]:
    """The reductions over at most eight elements."""
    order = ir.topological(root.node for kernel in kernels(plan) for root in kernel.roots)
    counts = {node: evaluator_of(*(a.size for a in node.attrs[1]))(sizes) for node in order if node.op == "reduce"}
    return [node for node, count in counts.items() if math.prod(count) <= 8]


def nearest(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] - b).norm(dim=-1).amin(1).mean()


def farthest_coordinate(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] - b).abs().amax(-1).logsumexp(1)


def matrices(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] - b).square().sum((-2, -1)).sqrt()


def weighted(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    return ((a[:, None] - b).square() * weight).sum(-1).amin(0)


def attention(a: Tensor, b: Tensor) -> Tensor:
    return (a[..., :, None, :] - b[..., None, :, :]).square().sum(-1).softmax(-1).square().sum(-1)


def contrastive(a: Tensor, label: Tensor) -> Tensor:
    distance = (a[:, None] - a).square().sum(-1)
    is_same = (label[:, None] == label).to(a.dtype)
    return (distance * is_same + (1 - distance.clamp(min=1e-6).sqrt()).relu() ** 2 * (1 - is_same)).mean()


LOSSES: dict[str, tuple[Loss, tuple[Tensor, ...]]] = {
    "chamfer": (chamfer, (floats(2, 7, 3), floats(2, 5, 3, seed=1))),
    "one nearest": (nearest, (floats(7, 2), floats(5, 2, seed=1))),
    "a maximum": (farthest_coordinate, (floats(7, 3), floats(5, 3, seed=1))),
    "one coordinate": (farthest_coordinate, (floats(7, 1), floats(5, 1, seed=1))),
    "two dimensions": (matrices, (floats(7, 2, 3), floats(5, 2, 3, seed=1))),
    "a weight": (weighted, (floats(7, 3), floats(5, 3, seed=1), floats(3, seed=2))),
    "several batches": (attention, (floats(2, 3, 7, 2), floats(2, 3, 5, 2, seed=1))),
    "pairs of one tensor": (contrastive, (floats(7, 5), torch.arange(7) % 3)),
    "kernels of pairs": (discrepancy, (floats(7, 3), floats(5, 3, seed=1))),
    "no coordinates": (ranked, (floats(2, 7), floats(2, 7, seed=1).detach())),
}


@pytest.mark.parametrize("name", LOSSES)
def test_values_are_torchs(name: str) -> None:
    loss, tensors = LOSSES[name]
    plan, sizes = plan_of(loss, *tensors)
    Reference(loss, *tensors).check_plan(plan, sizes)


def large(tensor: Tensor) -> Tensor:
    """The same with 700 elements along the dimensions that are 7 or 5."""
    shape = [700 if n in (5, 7) and d < tensor.dim() - 1 else n for d, n in enumerate(tensor.shape)]
    return torch.zeros(shape, dtype=torch.float32).requires_grad_(tensor.requires_grad)


@pytest.mark.parametrize("name", ["chamfer", "one nearest", "a maximum", "two dimensions", "a weight"])
def test_nothing_of_a_pair_is_kept(name: str) -> None:
    loss, tensors = LOSSES[name]
    plan, sizes = plan_of(loss, *map(large, tensors))
    assert plan.fixed and not sums_over_few(plan, sizes)
    written = {root.buffer for kernel in kernels(plan) for root in kernel.roots}
    results = {*plan.outputs, *(root.buffer for root in plan.gradients)}
    numbers = {sympy.Symbol(name, integer=True, positive=True): value for name, value in sizes.items()}
    elements = [buffer.numel().xreplace(numbers) for buffer in written - results]
    assert max(elements, default=0) < 700 * 700, "one element per pair, or more"
    assert len(plan.forward) == 1


def test_all_gradients_of_a_pair_are_made_of_what_is_computed_once() -> None:
    plan, _ = plan_of(chamfer, *map(large, LOSSES["chamfer"][1]))
    (kernel,) = backward_of(plan)
    assert isinstance(kernel, Kernel) and len(kernel.parts) == 2
    for part, gradient in zip(kernel.parts, plan.gradients, strict=True):
        assert [str(root.index[-1]) for root in part.stores] == ["0", "1", "2"]
        assert {root.buffer for root in part.stores} == {gradient.buffer}
        assert not {str(axis) for axis in (*part.rows, *part.columns)} & {"d1"}


@pytest.mark.parametrize(
    ("loss", "tensors"),
    [
        (lambda x: x.softmax(1).square().mean(), (floats(50, 3),)),  # one value per row of what has all elements
        (lambda x, w: (x * w).sum(1).exp().mean(), (floats(50, 3), floats(3, seed=1))),
        (nearest, (floats(7, 9), floats(5, 9, seed=1))),  # too many
        (lambda x: x.exp().sum() / len(x) + torch.zeros(x.shape[0]).sum(), (floats(7, 3),)),  # of no tensor
        (lambda a, b: torch.stack([(a[:, None] - b).square()] * 3).sum(0).sum(-1).exp().sum(), (floats(7, 3), 1)),
    ],
    ids=["a softmax", "a weight", "nine coordinates", "no tensor", "no pairs"],
)
def test_other_sums_are_sums(loss: Loss, tensors: tuple[Any, ...]) -> None:
    assert not plan_of(loss, *tensors)[0].fixed


def tiling(loss: Loss, *tensors: Tensor) -> dict[str, int]:
    plan, sizes = plan_of(loss, *tensors)
    (kernel,) = plan.forward
    assert isinstance(kernel, Kernel) and kernel.is_of_pairs
    return dict(Tiler(kernel, Space(kernel)).default(sizes).tiles)


@pytest.mark.slow
def test_a_tile_of_pairs_is_a_square() -> None:
    assert tiling(nearest, floats(300, 3), floats(5000, 3)) == {"ROWS": 16, "COLS": 32}  # in double precision
    single = floats(5000, 3).float()
    assert tiling(nearest, single[:300], single) == {"ROWS": 32, "COLS": 32}
    assert tiling(nearest, single[:300], single[:100]) == {"ROWS": 32, "COLS": 32}
    assert tiling(nearest, single[:300], single[:20]) == {"ROWS": 32, "COLS": 32}
    assert tiling(nearest, single[:3], single) == {"ROWS": 4, "COLS": 256}


def test_a_sum_over_pairs_is_that_of_rows() -> None:
    plan, _ = plan_of(ranked, floats(4, 700), floats(4, 700, grad=False))
    (kernel,) = plan.forward
    assert isinstance(kernel, Kernel) and kernel.is_of_pairs and kernel.whole_rows


def test_a_tensor_of_pairs_is_read_as_any_other() -> None:
    (kernel,) = plan_of(lambda a, b, m: ((a[:, None] - b).abs() * m).mean(), floats(30), floats(40), floats(30, 40))[
        0
    ].forward
    assert isinstance(kernel, Kernel) and not kernel.is_of_pairs and not kernel.whole_rows


def test_a_last_block_has_registers_for_all_that_it_adds_up() -> None:
    def soft_ranks(a: Tensor, b: Tensor) -> Tensor:
        of_a, of_b = ((each[:, :, None] - each[:, None]).sigmoid().sum(-1) for each in (a, b))
        return (of_a - of_b).square().mean()

    for rows, is_small in ((16, True), (64, False)):
        (kernel,) = plan_of(soft_ranks, floats(rows, 256), floats(rows, 256, seed=1))[0].forward
        assert isinstance(kernel, Kernel) and (kernel.last_block is not None) is is_small


def balanced(x: Tensor) -> Tensor:
    x = x.narrow(1, 0, 4).narrow(2, 0, 4)
    for _ in range(12):
        x = x / x.sum(1, keepdim=True)
        x = x / x.sum(2, keepdim=True)
    return x


@pytest.mark.slow
def test_a_result_is_walked_once_however_many_reductions_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    (root,) = program_of(balanced, floats(2, 5, 5))[0].outputs
    walks: list[list[ir.Node]] = []
    topological = ir.topological

    def counted(roots: Sequence[ir.Node]) -> list[ir.Node]:
        walks.append(topological(roots))
        return walks[-1]

    monkeypatch.setattr(ir, "topological", counted)
    assert coordinates_apart(root) == [root]
    assert len(walks) == 1 and sum(node.op == "reduce" for node in walks[0]) == 24


def test_what_a_value_comes_from_is_looked_up_once() -> None:
    program, _ = program_of(lambda a, b: (a.exp() + b).log().sum(), floats(5), floats(5))
    known: dict[ir.Node, tuple[str, ...]] = {}
    order = ir.topological([program.outputs[0].node])
    found = [program.provenance.qualified(node, known) for node in order]
    assert set(known) == set(order)
    assert found == [program.provenance.qualified(node, {}) for node in order]
    assert any(name.endswith("_a_b") for name in found)
