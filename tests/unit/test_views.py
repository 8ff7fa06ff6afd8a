"""Views: a chain of them reads the elements that torch reads, in however many dimensions they end up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.tiers import examples
from tests.unit.pipeline import Loss, check, floats, program_of

Step = tuple[str, tuple[Any, ...]]


def _regrouped(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """A shape of the given number of elements."""
    shape = []
    for factor in (2, 2, 2, 3, 3, 5, 7):
        if size % factor == 0:
            size //= factor
            shape.append(factor)
    shape.append(size)
    joined = [1]
    for factor in draw(st.permutations(shape)):
        joined = [*joined, factor] if draw(st.booleans()) else [*joined[:-1], joined[-1] * factor]
    return tuple(joined)


def _step(draw: st.DrawFn, shape: Sequence[int]) -> Step:
    rank = len(shape)
    kinds = ["unsqueeze", "squeeze", "reshape"]
    kinds += ["permute", "select", "narrow", "flatten", "expand", "stride", "unflatten", "transpose"] * bool(rank)
    kind = draw(st.sampled_from(kinds))
    dim = draw(st.integers(0, max(rank - 1, 0)))
    match kind:
        case "unsqueeze":
            return kind, (draw(st.integers(0, rank)),)
        case "squeeze":
            return kind, (dim - rank,) if rank and draw(st.booleans()) else ()
        case "reshape":
            return kind, (_regrouped(draw, math.prod(shape)),)
        case "permute":
            return kind, tuple(draw(st.permutations(range(rank))))
        case "select":
            return kind, (dim, draw(st.integers(-shape[dim], shape[dim] - 1)))
        case "narrow":
            start = draw(st.integers(0, shape[dim] - 1))
            return kind, (dim, start, draw(st.integers(1, shape[dim] - start)))
        case "flatten":
            return kind, (dim, draw(st.integers(dim, rank - 1)))
        case "expand":
            sizes = [draw(st.integers(2, 3)) if size == 1 and draw(st.booleans()) else -1 for size in shape]
            return kind, tuple([2] * draw(st.integers(0, 1)) + sizes)
        case "stride":
            index = [slice(None)] * rank
            last = 0 if shape[dim] == 1 else shape[dim] - 2  # two are left: see QUOTIENTS
            index[dim] = slice(draw(st.integers(0, last)), None, draw(st.integers(1, 3)) if last == 0 else 1)
            return "__getitem__", (tuple(index),)
        case "unflatten":
            divisors = [d for d in range(1, shape[dim]) if shape[dim] % d == 0]  # not the size itself: see QUOTIENTS
            divisor = draw(st.sampled_from(divisors or [1]))
            return kind, (dim, (divisor, -1))
        case _:
            return "transpose", (dim, draw(st.integers(-rank, rank - 1)))


def viewed(x: Tensor, steps: Sequence[Step]) -> Tensor:
    for name, args in steps:
        x = getattr(x, name)(*args)
    return x


@st.composite
def view_chains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Step]]:
    """A shape, and views to be taken one of the other."""
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=4)))
    x = torch.empty(shape)
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 5))):
        step = _step(draw, x.shape)
        steps.append(step)
        x = viewed(x, [step])
    return shape, steps


QUOTIENTS: dict[str, Loss] = {
    "squeeze": lambda x: -x.unflatten(0, (2, -1)).squeeze(),
    "expand": lambda x: -x.unflatten(0, (2, -1)).expand(2, 3),
    "broadcast": lambda x: x.unflatten(0, (2, -1)) * torch.ones(2, 3),
}


class TestViews:
    @settings(max_examples=examples(30))
    @given(view_chains(), st.booleans())
    @example(((2, 2, 2), [("flatten", (0, 2)), ("select", (0, -1))]), False)  # C * C - 1 is no multiple of C less 1
    def test_chains_read_what_torch_reads(self, chain: tuple[tuple[int, ...], list[Step]], reverse: bool) -> None:
        shape, steps = chain
        x = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
        if reverse:  # another layout in memory
            order = tuple(range(x.dim()))[::-1]
            x = x.permute(order).contiguous().permute(order)
        check(lambda x: -viewed(x, steps), x)  # a view alone computes nothing

    @pytest.mark.parametrize("view", QUOTIENTS)
    def test_a_quotient_that_is_one_is_a_one(self, view: str) -> None:
        check(QUOTIENTS[view], torch.arange(2.0))

    @pytest.mark.slow
    def test_regrouping_by_sizes_needs_no_division_where_terms_separate(self) -> None:
        for regroup in (
            lambda x: -x.flatten(1),
            lambda x: -x.flatten().reshape(x.shape),
            lambda x: -x.flatten(0, 1).unflatten(0, (x.shape[0], -1)),
            lambda x: -x[:, 1:].flatten(0, 1),
            lambda x: -x.permute(0, 2, 1).reshape(-1, x.shape[1]).reshape(x.shape[0], x.shape[2], -1),
        ):
            x = floats(2, 3, 5)
            check(regroup, x)
            program, _ = program_of(regroup, x)
            assert "//" not in repr(program.outputs[0].node) and "Mod" not in repr(program.outputs[0].node)

    @pytest.mark.parametrize(
        "view",
        [
            lambda x: x[1:] * x[:-1],
            lambda x: x.select(1, 0) + x[:, -1],
            lambda x: x.expand(4, *x.shape).sum(0),
            lambda x: x.permute(2, 0, 1).reshape(-1) ** 2,
            lambda x: x.unsqueeze(1) - x.unsqueeze(0),
            lambda x: x.mT.flatten(1).exp(),
        ],
        ids=["shifted", "select", "expand", "permute", "pairs", "transposed"],
    )
    def test_gradients_find_their_way_back(self, view: Loss) -> None:
        check(view, floats(3, 2, 4))
