"""The domain of a trace: for which later calls it holds, by their sizes, their values and what is found ahead."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autogen.errors import (
    TraceError,
    ValueBranchError,
)
from autogen.lowering import decompositions
from autogen.sizes import Evaluator
from autogen.tracing.domain.entries import Reads
from autogen.tracing.trace import Trace
from autogen.tracing.tracer import trace
from tests.unit.pipeline import binding_of, ops_of, pointwise, positive, program_of, trace_of


def holds(traced: Trace, *tensors: Tensor) -> bool:
    return traced.domain.sizes(tensors) is not None


class TestGuards:
    def test_sizes_are_symbols_with_readable_names(self) -> None:
        traced = trace_of(pointwise, positive(3, 4), positive(3, 4))
        assert [str(size) for size in traced.inputs[0].shape] == ["N", "C"]
        assert traced.inputs[1].shape == traced.inputs[0].shape
        assert all(size.is_positive and size.is_integer for size in traced.inputs[0].shape)

    def test_read_the_sizes_of_a_call(self) -> None:
        traced = trace_of(pointwise, positive(3, 4), positive(3, 4))
        sizes = traced.domain.sizes((positive(7, 9), positive(7, 9)))
        assert sizes is not None and (sizes["N"], sizes["C"]) == (7, 9)

    def test_reject_shapes_that_the_loss_would(self) -> None:
        traced = trace_of(pointwise, positive(3, 4), positive(3, 4))
        assert holds(traced, positive(5, 2), positive(5, 2))
        assert not holds(traced, positive(5, 2), positive(5, 3))

    @pytest.mark.parametrize("shape", [(3, 1), (1, 4), (0, 4)])
    def test_sizes_zero_and_one_are_constants(self, shape: tuple[int, int]) -> None:
        traced = trace_of(pointwise, positive(*shape), positive(3, 4)) if 0 not in shape else None
        if traced is None:
            traced = trace_of(pointwise, positive(*shape), positive(*shape))
        constant = shape.index(min(shape))
        assert traced.inputs[0].shape[constant] == shape[constant]

    def test_reject_another_layout(self) -> None:
        traced = trace_of(pointwise, positive(3, 4), positive(3, 4))
        assert not holds(traced, positive(4, 3).t(), positive(3, 4))

    def test_the_stride_of_a_dimension_of_size_one_may_be_anything(self) -> None:
        odd = torch.zeros(16).as_strided((1, 4, 4), (7, 1, 4))
        assert holds(trace_of(lambda x, y: x * y, odd, torch.zeros(1, 4, 4)), odd, torch.zeros(1, 4, 4))

    def test_strides_are_symbols_where_nothing_is_known(self) -> None:
        wide = positive(6, 8)
        traced = trace_of(pointwise, wide[::2, ::2], positive(3, 4))
        sizes = traced.domain.sizes((positive(30, 50)[::5, ::2], positive(6, 25)))
        assert sizes is not None
        strides = Evaluator(traced.inputs[0].strides)(sizes)
        assert strides == (250, 2)

    def test_a_size_that_python_counted_with_is_fixed(self) -> None:
        def loss(x: Tensor) -> Tensor:
            return sum((x[k] * (k + 1) for k in range(x.shape[0])), torch.zeros(())).sum()

        traced = trace_of(loss, positive(3, 4))
        assert holds(traced, positive(3, 9)) and not holds(traced, positive(4, 4))

    def test_a_branch_on_a_size_is_a_relation(self) -> None:
        traced = trace_of(lambda x: x.sum() if x.shape[0] > 4 else x.exp().sum(), positive(6))
        assert holds(traced, positive(5)) and not holds(traced, positive(4))

    def test_sizes_that_must_be_equal_get_one_letter(self) -> None:
        traced = trace_of(lambda x: x.sum() if x.shape[0] == x.shape[1] else x.mean(), positive(3, 3))
        assert traced.inputs[0].shape[0] == traced.inputs[0].shape[1]
        assert holds(traced, positive(5, 5)) and not holds(traced, positive(5, 4))

    def test_expressions_of_recorded_sizes(self) -> None:
        program, sizes = program_of(lambda x: x.reshape(-1) * x.shape[0], positive(3, 4))
        (total,) = program.outputs[0].buffer.shape
        assert {str(symbol) for symbol in total.free_symbols} == {"N", "C"} and sizes["N"] == 3


class TestValueBranches:
    @staticmethod
    def branching(x: Tensor) -> Tensor:
        if (x < 0).any():
            return x.abs().sum()
        return x.sum()

    def test_become_predicates_that_later_calls_must_meet(self) -> None:
        traced = trace_of(self.branching, positive(3))
        assert [each.value for each in traced.domain.predicates] == [False]
        assert holds(traced, positive(5)) and not holds(traced, -positive(5))
        assert "abs.default" not in ops_of(traced)

    def test_follow_the_branch_that_this_call_takes(self) -> None:
        traced = trace_of(self.branching, (-positive(3)).detach().requires_grad_())
        assert [each.value for each in traced.domain.predicates] == [True]
        assert holds(traced, -positive(5)) and not holds(traced, positive(5))
        assert "abs.default" in ops_of(traced)

    def test_may_depend_on_sizes(self) -> None:
        traced = trace_of(lambda x: x.sum() if (x.sum() > x.shape[0]).item() else x.mean(), torch.full((3,), 2.0))
        assert holds(traced, torch.full((9,), 2.0)) and not holds(traced, torch.full((9,), 0.5))

    def test_that_raise_are_the_losss_own_error(self) -> None:
        with pytest.raises(TraceError, match="negative entry"):
            trace_of(nn.GaussianNLLLoss(), positive(3), positive(3), -positive(3))

    @pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
    @pytest.mark.parametrize(
        "loss",
        [
            lambda x: x * float(x.sum()),
            lambda x: x.sum() if x.sum() else x.mean(),
            lambda x: torch.tensor(x.tolist()).prod() * math.hypot(*x.tolist()),
        ],
        ids=["float", "truth of a float", "tolist"],
    )
    def test_values_that_become_python_numbers_are_refused(self, loss: Callable[..., Any]) -> None:
        with pytest.raises(ValueBranchError) as caught:
            trace_of(loss, positive(3))
        assert caught.value.where is not None and caught.value.where.filename == __file__

    def test_shapes_of_results_that_depend_on_values_are_refused(self) -> None:
        with pytest.raises(ValueBranchError) as caught:
            program_of(lambda x: x[x > 0.5], positive(3))
        assert caught.value.where is not None and caught.value.where.filename == __file__


class TestAhead:
    @staticmethod
    def found(x: Tensor) -> Tensor:
        places = (x > 0).nonzero()[:, 0]
        return x[places].exp().sum() if len(places) > 0 else x.sum()

    def test_what_is_found_is_an_input_of_its_own_size(self) -> None:
        traced = trace_of(self.found, torch.tensor([1.0, -1.0, 2.0, 3.0], requires_grad=True))
        assert [each.name for each in traced.inputs] == ["x", "gt", "nonzero", "sub"]  # the last for the gradient
        assert "nonzero.default" not in ops_of(traced)[ops_of(traced).index("index.Tensor") :]
        bound = traced.domain.bind((torch.tensor([-1.0, 2.0, 3.0, 4.0, -5.0]),))
        assert bound is not None and (bound.sizes["N"], bound.sizes["nonzero_size0"]) == (5, 3)
        mask, places, order = (each.tolist() for each in bound.found)
        assert (mask, places) == ([False, True, True, True, False], [[1], [2], [3]])
        assert order == [-1, 0, 1, 2, 2]

    def test_sizes_of_0_and_1_are_other_traces(self) -> None:
        for number in range(4):
            traced = trace_of(self.found, torch.tensor([1.0] * number + [-1.0] * (5 - number), requires_grad=True))
            for other in range(4):
                call = torch.tensor([1.0] * other + [-1.0] * (6 - other))
                assert holds(traced, call) == (min(number, 2) == min(other, 2))

    def test_relations_are_checked_before_more_is_computed(self) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            a, b = (x > 0).nonzero()[:, 0], (y > 0).nonzero()[:, 0]
            return x[(a + b).clamp(max=2).unique()].sum()

        positive, mixed = torch.ones(4, requires_grad=True), torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0])
        traced = trace_of(loss, positive, torch.ones(4))
        assert holds(traced, mixed, mixed) and not holds(traced, mixed, torch.ones(7))

    @pytest.mark.parametrize("same", [True, False])
    def test_what_is_computed_alike_is_computed_once(self, same: bool) -> None:
        def loss(x: Tensor) -> Tensor:
            return x[(x > 0).nonzero()[:, 0]].sum() + (x > (0 if same else 1)).nonzero().sum()

        traced = trace_of(loss, positive(4))
        assert len([each for each in traced.inputs if each.name.startswith("nonzero")]) == (1 if same else 2)

    def test_the_key_of_a_long_chain(self) -> None:
        def loss(x: Tensor) -> Tensor:
            y = x.detach()
            for _ in range(1000):
                y = y + y
            return x[(y > 0).nonzero()[:, 0]].sum()

        assert holds(trace_of(loss, positive(4)), positive(5))

    def test_numbers_are_symbols_only_where_they_have_to_be_known(self) -> None:
        def loss(x: Tensor, count: Tensor) -> Tensor:
            return x[: count.item()].sum()

        binding = binding_of(loss, positive(9), torch.tensor(4))
        reads = Reads(numbers=True)
        known = trace(binding.replay, binding.names, binding.tensors, [True, False], decompositions(), reads=reads)
        assert known.domain.predicates == []
        assert known.domain.sizes((positive(9), torch.tensor(7))) is not None
        assert known.domain.sizes((positive(9), torch.tensor(1))) is None

    @staticmethod
    def cut(x: Tensor) -> Tensor:
        """Sizes, and floats made of them, are among the arguments of what torch finds."""
        n = len(x)
        first = (x[: n // 2] > 1 / n).nonzero()[:, 0]
        if n % 2:
            first = first.flip(0)
        later = (x[len(first) : n - 1] > n / 2 - 1).nonzero()[:, 0]
        return x[first].sum() + x[later].exp().sum()

    def test_sizes_are_those_of_each_call(self) -> None:
        def draw(n: int) -> Tensor:
            return n * torch.rand(n, generator=torch.Generator().manual_seed(n))

        traced = trace_of(self.cut, draw(18))
        for n in range(20, 40, 2):
            x = draw(n)
            first = (x[: n // 2] > 1 / n).nonzero()
            later = (x[len(first) : n - 1] > n / 2 - 1).nonzero()
            bound = traced.domain.bind((x,))
            assert bound is not None
            assert [each.tolist() for each in bound.found if each.dim() == 2] == [first.tolist(), later.tolist()]
        assert not holds(traced, draw(19)) and not holds(traced, draw(16))  # an odd size; only one that is later

    def test_sizes_that_are_rounded(self) -> None:
        """The hardest part of the elements, as losses with online mining take it."""

        def loss(x: Tensor) -> Tensor:
            kept = math.ceil(len(x) * 0.7) - math.floor(len(x) / 7)
            return x[(x.detach()[:kept] > 0.5).nonzero()[:, 0]].sum()

        traced = trace_of(loss, torch.rand(30).requires_grad_())
        for n in range(20, 60):
            x = torch.rand(n, generator=torch.Generator().manual_seed(n))
            bound = traced.domain.bind((x,))
            assert bound is not None
            assert bound.found[-1].tolist() == (x[: math.ceil(n * 0.7) - n // 7] > 0.5).nonzero().tolist()

    def test_the_sizes_of_numbers_that_are_read(self) -> None:
        def loss(x: Tensor, count: Tensor) -> Tensor:
            n = count.item()
            return x[(x[: 2 * n - 1] > 0).nonzero()[:, 0]].sum()

        binding = binding_of(loss, positive(9), torch.tensor(4))
        reads = Reads(numbers=True)
        known = trace(binding.replay, binding.names, binding.tensors, [True, False], decompositions(), reads=reads)
        for n in (2, 3, 5):
            bound = known.domain.bind((positive(11), torch.tensor(n)))
            assert bound is not None and bound.found[-1].tolist() == [[k] for k in range(2 * n - 1)]

    def test_gradients_and_autocast_are_as_they_were(self) -> None:
        x = torch.tensor([1.0, -1.0, 2.0, 3.0], requires_grad=True)
        traced = trace_of(self.found, x)
        for given in (x, -x):
            with torch.autocast("cpu", torch.bfloat16):
                bound = traced.domain.bind((given,))
                assert torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
            assert (bound is None) == (given is not x)
        with pytest.raises(ValueError, match="not enough values to unpack"):
            traced.domain.bind((torch.tensor(1.0),))
        assert torch.is_grad_enabled()

    def test_a_trace_is_kept_without_what_was_written_for_it(self) -> None:
        traced = trace_of(self.found, torch.tensor([1.0, 2.0, 3.0]))
        assert holds(traced, torch.ones(5))
        assert "_binder" not in traced.domain.__getstate__() and "_binder" in vars(traced.domain)
