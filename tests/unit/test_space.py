"""The iteration space: axes that memory walks as one are merged, and every offset is still torch's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import sympy
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from autogen.scheduling.launches.kernel import Kernel
from autogen.tiling.space import Group, Space
from tests.tiers import examples
from tests.unit.evaluate import integer
from tests.unit.pipeline import Loss, floats, plan_of


def space_of(loss: Loss, *args: Tensor) -> Space:
    return Space(plan_of(loss, *args)[0].forward[0])


def parts(groups: Sequence[Group]) -> list[str]:
    return ["".join(map(str, group.parts)) for group in groups]


# Any layout.


@st.composite
def layouts(draw: st.DrawFn, shape: Sequence[int]) -> Tensor:
    """A tensor of a shape whose dimensions lie in memory in any order, with gaps, some of them expanded."""
    strides = [int(size == 1) for size in shape]
    step = 1
    for dim in draw(st.permutations(range(len(shape)))):
        if shape[dim] > 1 and draw(st.integers(0, 4)):  # else this dimension is expanded
            strides[dim] = step
            step *= shape[dim] * draw(st.sampled_from([1, 1, 1, 2]))
    needed = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    return torch.zeros(needed).as_strided(shape, strides)


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[Tensor], int]:
    """Three tensors of one shape, and a dimension to sum over, or one past the last for none."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    return [draw(layouts(shape)) for _ in range(3)], draw(st.integers(0, len(shape)))


def walk(kernel: Kernel, space: Space, sizes: dict[str, int]) -> tuple[dict[sympy.Symbol, Tensor], ...]:
    """The values of the merged axes over the whole space, and those of the axes that they stand for."""
    groups = (*space.rows, *space.columns)
    counts = [int(integer(group.size, {}, sizes)) for group in groups]
    line = torch.arange(math.prod(counts))
    merged: dict[sympy.Symbol, Tensor] = {}
    single: dict[sympy.Symbol, Tensor] = {}
    inside = 1
    for group, count in zip(reversed(groups), reversed(counts), strict=True):
        merged[group.axis] = line // inside % count
        rest = merged[group.axis]
        for part in reversed(group.parts):
            size = int(integer(part.size, {}, sizes))
            single[part], rest = rest % size, rest // size
        inside *= count
    assert single.keys() == {*kernel.rows, *kernel.columns}
    return merged, single


@settings(max_examples=examples(30))
@given(calls())
def test_offsets_are_torchs(call: tuple[list[Tensor], int]) -> None:
    tensors, dim = call

    def loss(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        product = x * y + z
        return product if dim == product.dim() else product.sum(dim)

    plan, sizes = plan_of(loss, *tensors)
    assume(not plan.fixed)  # a sum of expanded tensors, term by term
    (kernel,) = plan.forward
    space = Space(kernel)
    merged, single = walk(kernel, space, sizes)
    count = max([1, *(len(values) for values in merged.values())])
    walked = []
    for node in kernel.loads():
        buffer, index = node.attrs
        own = buffer.offset(index)
        offsets = torch.as_tensor(integer(space.merged(own), merged, sizes)).expand(count)
        torch.testing.assert_close(offsets, torch.as_tensor(integer(own, single, sizes)).expand(count))
        walked.append(offsets)
        if not kernel.columns:
            step = space.flat(space.merged(own))
            if step is not None:
                torch.testing.assert_close(offsets, int(integer(step, {}, sizes)) * torch.arange(count))
    # All tensors are walked together, element by element.
    memory = [torch.arange(x.untyped_storage().size() // 4).as_strided(x.shape, x.stride()) for x in tensors]
    expected = {tuple(offsets.tolist()) for offsets in torch.stack([m.flatten() for m in memory], 1)}
    assert {tuple(offsets.tolist()) for offsets in torch.stack(walked, 1)} == expected


# What is merged.

IMAGE = (2, 3, 4, 5)


def test_contiguous_tensors_are_one_line() -> None:
    space = space_of(lambda x, y: x * y, floats(*IMAGE), floats(*IMAGE))
    assert parts(space.rows) == ["ncd1d2"] and space.columns == ()
    assert space.rows[0].size == sympy.Mul(*sympy.symbols("N C D1 D2", integer=True, positive=True))


def test_a_dense_tensor_in_another_order_is_one_line_too() -> None:
    x = floats(*IMAGE).detach().to(memory_format=torch.channels_last)
    space = space_of(lambda x, y: (x * y).sum(), x, x.clone())
    assert parts(space.rows) == ["nd1d2c"]


def test_tensors_in_different_orders_are_not() -> None:
    x = floats(*IMAGE).detach()
    space = space_of(lambda x, y: x * y, x, x.to(memory_format=torch.channels_last))
    assert parts(space.rows) == ["n", "c", "d1d2"]


def test_classes_in_the_middle_leave_one_line_of_pixels() -> None:
    space = space_of(nn.CrossEntropyLoss(), floats(*IMAGE), torch.ones(2, 4, 5).long())
    assert (parts(space.rows), parts(space.columns)) == (["n", "d1d2"], ["c"])
    assert not space.columns_adjacent


def test_a_gap_in_memory_ends_a_line() -> None:
    space = space_of(lambda x: x * 2, floats(3, 8).detach()[:, :5])
    assert parts(space.rows) == ["n", "c"]


def test_an_axis_that_a_value_is_computed_from_is_not_merged() -> None:
    space = space_of(lambda x: (x * torch.arange(x.shape[1])).sum(), floats(3, 4).detach())
    assert parts(space.rows) == ["n", "c"]


def test_columns_that_one_tensor_skips_are_merged_among_themselves() -> None:
    space = space_of(lambda x, w: x * w, floats(*IMAGE), floats(2, 1, 1, 1, grad=False))
    assert (parts(space.rows), parts(space.columns)) == (["n"], ["cd1d2"])
    assert space.columns_adjacent


@pytest.mark.parametrize(("dim", "adjacent"), [(1, True), (0, False)])
def test_knows_whether_rows_or_columns_are_neighbours_in_memory(dim: int, adjacent: bool) -> None:
    assert space_of(lambda x: x.logsumexp(dim), floats(3, 4)).columns_adjacent == adjacent


def test_an_even_step_is_one_line_with_that_step() -> None:
    (kernel,) = plan_of(lambda x: (x * 2).sum(), floats(3, 8).detach()[:, ::2])[0].forward
    space = Space(kernel)
    (node,) = kernel.loads()
    assert parts(space.rows) == ["nc"]
    assert str(space.flat(space.merged(node.attrs[0].offset(node.attrs[1])))) == "x_stride1"


def test_an_uneven_step_is_none() -> None:
    (kernel,) = plan_of(lambda x: (x * 2).sum(), floats(3, 8).detach()[:, :5])[0].forward
    space = Space(kernel)
    (node,) = kernel.loads()
    assert space.flat(space.merged(node.attrs[0].offset(node.attrs[1]))) is None


def test_merged_axes_have_names_of_their_own() -> None:
    x = floats(*IMAGE).detach()
    space = space_of(lambda x, y: (x * y).logsumexp(1), x, x.to(memory_format=torch.channels_last))
    names = [str(group.axis) for group in (*space.rows, *space.columns)]
    assert len(set(names)) == len(names) > 2
