"""Tracing: what is recorded of a loss and its gradients, and for which later calls a trace holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autogen.errors import (
    AutogenError,
    SourceLine,
    StateChangeError,
    TraceError,
    UnsupportedOpError,
    ValueBranchError,
)
from autogen.lowering import decompositions
from autogen.sizes import Evaluator
from autogen.tracing import Trace, trace
from autogen.tracing.formulas import multi_margin_loss
from autogen.tracing.recorder import Reads
from autogen.tracing.source import statement_at
from tests.unit.pipeline import Reference, binding_of, ops_of, plan_of, program_of, trace_of


def floats(*shape: int, grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.rand(shape, generator=generator).requires_grad_(grad)


def pointwise(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1).mean()


def labels(count: int, classes: int) -> Tensor:
    return torch.arange(count) % classes


class TestJointGraph:
    """A graph holds torch's own ops and torch's own derivatives, not ones that we made up."""

    @pytest.mark.parametrize(
        ("loss", "args", "forward", "backward"),
        [
            (
                nn.BCELoss(),
                (floats(3, 4), floats(3, 4, grad=False)),
                ["binary_cross_entropy.default"],
                ["binary_cross_entropy_backward.default"],
            ),
            (
                nn.HuberLoss(),
                (floats(5), floats(5, grad=False)),
                ["huber_loss.default"],
                ["huber_loss_backward.default"],
            ),
            (
                nn.CrossEntropyLoss(),
                (floats(3, 4), labels(3, 4)),
                ["_log_softmax.default", "nll_loss_forward.default"],
                ["nll_loss_backward.default", "_log_softmax_backward_data.default"],
            ),
        ],
    )
    def test_of_a_torch_loss(self, loss: nn.Module, args: Any, forward: list[str], backward: list[str]) -> None:
        traced = trace_of(loss, *args)
        assert [op for op in ops_of(traced) if op != "detach.default"] == forward
        assert [op for op in ops_of(traced, backward=True) if op != "detach.default"] == backward

    def test_has_a_gradient_for_each_input_that_asks(self) -> None:
        traced = trace_of(F.mse_loss, floats(3), floats(3))
        assert [each.name for each in traced.gradients if each] == ["grad_input", "grad_target"]
        assert [each.name for each in traced.upstream if each] == ["grad_loss"]
        traced = trace_of(F.mse_loss, floats(3), floats(3, grad=False))
        assert [each.name if each else None for each in traced.gradients] == ["grad_input", None]

    def test_without_gradients_is_forward_only(self) -> None:
        with torch.no_grad():
            traced = trace_of(lambda x: x.exp().sum(), floats(3))
        assert ops_of(traced, backward=True) == []
        assert traced.gradients == [None] and traced.upstream == [None]

    def test_leaves_out_what_no_grad_hides(self) -> None:
        def loss(x: Tensor) -> Tensor:
            with torch.no_grad():
                weight = x.exp()
            return (weight * x).sum()

        assert "exp.default" in ops_of(trace_of(loss, floats(3)))
        # d(w x) = w: neither exp nor x comes into it.
        assert set(ops_of(trace_of(loss, floats(3)), backward=True)) <= {"expand.default", "mul.Tensor"}

    def test_follows_a_custom_autograd_function(self) -> None:
        class Reversed(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                return grad.sin()

        assert "sin.default" in ops_of(trace_of(lambda x: Reversed.apply(x).sum(), floats(3)), backward=True)

    def test_breaks_down_what_has_no_lowering(self) -> None:
        recorded = ops_of(trace_of(lambda x: F.softplus(x).sum(), floats(3)))
        assert "softplus.default" not in recorded and "exp.default" in recorded

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.parametrize(
        "target", [labels(3, 4), torch.tensor([2]), torch.tensor(2)], ids=["batch", "one", "scalar"]
    )
    def test_the_formula_of_multi_margin_loss_is_torchs(self, target: Tensor, reduction: str) -> None:
        x = floats(3, 4) if len(target.shape) and len(target) > 1 else floats(4)
        for p, weight in [(1, None), (2, floats(4, grad=False))]:
            options: dict[str, Any] = {"p": p, "weight": weight, "reduction": reduction}
            torch.testing.assert_close(
                multi_margin_loss(x, target, **options), F.multi_margin_loss(x, target, **options)
            )


class TestInputs:
    def test_are_arguments_parameters_buffers_and_attributes(self) -> None:
        class Loss(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.temperature = nn.Parameter(torch.ones(()))
                self.register_buffer("scale", torch.ones(3))
                self.offset = torch.ones(3)

            def forward(self, x: Tensor) -> Tensor:
                return (x * self.temperature * self.scale + self.offset).sum()

        traced = trace_of(Loss(), floats(3))
        assert {each.name for each in traced.inputs} == {"x", "temperature", "scale", "offset"}
        assert [each.name for each in traced.gradients if each] == ["grad_x", "grad_temperature"]

    def test_from_nowhere_are_refused(self) -> None:
        hidden = iter([torch.ones(3)])

        def loss(x: Tensor) -> Tensor:
            return (x * next(hidden)).sum()

        with pytest.raises(UnsupportedOpError, match="neither an argument") as caught:
            trace_of(loss, floats(3))
        assert caught.value.where is not None and caught.value.where.code == "return (x * next(hidden)).sum()"

    def test_may_be_numbers_made_into_tensors(self) -> None:
        assert "full.default" in ops_of(trace_of(lambda x: (x * torch.tensor(2.0)).sum(), floats(3)))

    def test_are_only_looked_at_for_their_shape(self) -> None:
        traced = trace_of(lambda x: x.sum(), torch.full((3,), float("nan"), requires_grad=True))
        assert traced.domain.predicates == []


class TestResult:
    def test_keeps_the_structure_that_the_loss_returns(self) -> None:
        def loss(x: Tensor) -> Any:
            return {"loss": x.sum(), "parts": (x * 2, "note", 3)}

        traced = trace_of(loss, floats(3))
        assert [each.name for each in traced.outputs] == ["loss_0", "loss_1"]
        total, double = torch.ones(()), torch.ones(3)
        assert traced.result([total, double], {}) == {"loss": total, "parts": (double, "note", 3)}

    def test_that_is_no_tensor_is_refused(self) -> None:
        with pytest.raises(TraceError, match="it returned float"):
            trace_of(lambda x: 1.0, floats(3))

    def test_an_error_of_the_loss_is_chained(self) -> None:
        with pytest.raises(TraceError) as caught:
            trace_of(pointwise, floats(2, 3), floats(2, 4))
        assert isinstance(caught.value.__cause__, RuntimeError)


def holds(traced: Trace, *tensors: Tensor) -> bool:
    return traced.domain.sizes(tensors) is not None


class TestGuards:
    def test_sizes_are_symbols_with_readable_names(self) -> None:
        traced = trace_of(pointwise, floats(3, 4), floats(3, 4))
        assert [str(size) for size in traced.inputs[0].shape] == ["N", "C"]
        assert traced.inputs[1].shape == traced.inputs[0].shape
        assert all(size.is_positive and size.is_integer for size in traced.inputs[0].shape)

    def test_read_the_sizes_of_a_call(self) -> None:
        traced = trace_of(pointwise, floats(3, 4), floats(3, 4))
        sizes = traced.domain.sizes((floats(7, 9), floats(7, 9)))
        assert sizes is not None and (sizes["N"], sizes["C"]) == (7, 9)

    def test_reject_shapes_that_the_loss_would(self) -> None:
        traced = trace_of(pointwise, floats(3, 4), floats(3, 4))
        assert holds(traced, floats(5, 2), floats(5, 2))
        assert not holds(traced, floats(5, 2), floats(5, 3))

    @pytest.mark.parametrize("shape", [(3, 1), (1, 4), (0, 4)])
    def test_sizes_zero_and_one_are_constants(self, shape: tuple[int, int]) -> None:
        traced = trace_of(pointwise, floats(*shape), floats(3, 4)) if 0 not in shape else None
        if traced is None:
            traced = trace_of(pointwise, floats(*shape), floats(*shape))
        constant = shape.index(min(shape))
        assert traced.inputs[0].shape[constant] == shape[constant]

    def test_reject_another_layout(self) -> None:
        traced = trace_of(pointwise, floats(3, 4), floats(3, 4))
        assert not holds(traced, floats(4, 3).t(), floats(3, 4))

    def test_the_stride_of_a_dimension_of_size_one_may_be_anything(self) -> None:
        odd = torch.zeros(16).as_strided((1, 4, 4), (7, 1, 4))
        assert holds(trace_of(lambda x, y: x * y, odd, torch.zeros(1, 4, 4)), odd, torch.zeros(1, 4, 4))

    def test_strides_are_symbols_where_nothing_is_known(self) -> None:
        wide = floats(6, 8)
        traced = trace_of(pointwise, wide[::2, ::2], floats(3, 4))
        sizes = traced.domain.sizes((floats(30, 50)[::5, ::2], floats(6, 25)))
        assert sizes is not None
        strides = Evaluator(traced.inputs[0].strides)(sizes)
        assert strides == (250, 2)

    def test_a_size_that_python_counted_with_is_fixed(self) -> None:
        def loss(x: Tensor) -> Tensor:
            return sum((x[k] * (k + 1) for k in range(x.shape[0])), torch.zeros(())).sum()

        traced = trace_of(loss, floats(3, 4))
        assert holds(traced, floats(3, 9)) and not holds(traced, floats(4, 4))

    def test_a_branch_on_a_size_is_a_relation(self) -> None:
        traced = trace_of(lambda x: x.sum() if x.shape[0] > 4 else x.exp().sum(), floats(6))
        assert holds(traced, floats(5)) and not holds(traced, floats(4))

    def test_sizes_that_must_be_equal_get_one_letter(self) -> None:
        traced = trace_of(lambda x: x.sum() if x.shape[0] == x.shape[1] else x.mean(), floats(3, 3))
        assert traced.inputs[0].shape[0] == traced.inputs[0].shape[1]
        assert holds(traced, floats(5, 5)) and not holds(traced, floats(5, 4))

    def test_expressions_of_recorded_sizes(self) -> None:
        program, sizes = program_of(lambda x: x.reshape(-1) * x.shape[0], floats(3, 4))
        (total,) = program.outputs[0].buffer.shape
        assert {str(symbol) for symbol in total.free_symbols} == {"N", "C"} and sizes["N"] == 3


class TestValueBranches:
    @staticmethod
    def branching(x: Tensor) -> Tensor:
        if (x < 0).any():
            return x.abs().sum()
        return x.sum()

    def test_become_predicates_that_later_calls_must_meet(self) -> None:
        traced = trace_of(self.branching, floats(3))
        assert [each.value for each in traced.domain.predicates] == [False]
        assert holds(traced, floats(5)) and not holds(traced, -floats(5))
        assert "abs.default" not in ops_of(traced)

    def test_follow_the_branch_that_this_call_takes(self) -> None:
        traced = trace_of(self.branching, (-floats(3)).detach().requires_grad_())
        assert [each.value for each in traced.domain.predicates] == [True]
        assert holds(traced, -floats(5)) and not holds(traced, floats(5))
        assert "abs.default" in ops_of(traced)

    def test_may_depend_on_sizes(self) -> None:
        traced = trace_of(lambda x: x.sum() if (x.sum() > x.shape[0]).item() else x.mean(), torch.full((3,), 2.0))
        assert holds(traced, torch.full((9,), 2.0)) and not holds(traced, torch.full((9,), 0.5))

    def test_that_raise_are_the_losss_own_error(self) -> None:
        with pytest.raises(TraceError, match="negative entry"):
            trace_of(nn.GaussianNLLLoss(), floats(3), floats(3), -floats(3))

    @pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
    @pytest.mark.parametrize(
        "loss",
        [
            lambda x: x * float(x.sum()),
            lambda x: x.sum() if x.sum() else x.mean(),
            lambda x: torch.tensor(x.sum().tolist()) * x,
        ],
        ids=["float", "truth of a float", "tolist"],
    )
    def test_values_that_become_python_numbers_are_refused(self, loss: Callable[..., Any]) -> None:
        with pytest.raises(ValueBranchError) as caught:
            trace_of(loss, floats(3))
        assert caught.value.where is not None and caught.value.where.filename == __file__

    def test_shapes_of_results_that_depend_on_values_are_refused(self) -> None:
        with pytest.raises(ValueBranchError) as caught:
            program_of(lambda x: x[x > 0.5], floats(3))
        assert caught.value.where is not None and caught.value.where.filename == __file__


class TestAhead:
    @staticmethod
    def found(x: Tensor) -> Tensor:
        places = (x > 0).nonzero()[:, 0]
        return x[places].exp().sum() if len(places) > 0 else x.sum()

    def test_what_is_found_is_an_input_of_its_own_size(self) -> None:
        traced = trace_of(self.found, torch.tensor([1.0, -1.0, 2.0, 3.0], requires_grad=True))
        assert [each.name for each in traced.inputs] == ["x", "gt", "nonzero"]
        assert "nonzero.default" not in ops_of(traced)[ops_of(traced).index("index.Tensor") :]
        bound = traced.domain.bind((torch.tensor([-1.0, 2.0, 3.0, 4.0, -5.0]),))
        assert bound is not None and (bound.sizes["N"], bound.sizes["nonzero_size0"]) == (5, 3)
        assert [each.tolist() for each in bound.found] == [[False, True, True, True, False], [[1], [2], [3]]]

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

        traced = trace_of(loss, floats(4))
        assert len([each for each in traced.inputs if each.name.startswith("nonzero")]) == (1 if same else 2)

    def test_the_key_of_a_long_chain(self) -> None:
        def loss(x: Tensor) -> Tensor:
            y = x.detach()
            for _ in range(1000):
                y = y + y
            return x[(y > 0).nonzero()[:, 0]].sum()

        assert holds(trace_of(loss, floats(4)), floats(5))

    def test_numbers_are_symbols_only_where_they_have_to_be_known(self) -> None:
        def loss(x: Tensor, count: Tensor) -> Tensor:
            return x[: count.item()].sum()

        binding = binding_of(loss, floats(9), torch.tensor(4))
        reads = Reads(numbers=True)
        known = trace(binding.replay, binding.names, binding.tensors, [True, False], decompositions(), reads=reads)
        assert known.domain.predicates == []
        assert known.domain.sizes((floats(9), torch.tensor(7))) is not None
        assert known.domain.sizes((floats(9), torch.tensor(1))) is None


class TestInPlace:
    def test_ops_are_recorded_as_functional_ones(self) -> None:
        def loss(x: Tensor) -> Tensor:
            y = x * 2
            y.add_(1.0)
            y.clamp_(min=0.0)
            return y.sum()

        recorded = [op for op in ops_of(trace_of(loss, floats(3))) if op != "clone.default"]  # autograd's own
        assert recorded == ["mul.Tensor", "add.Tensor", "clamp.default", "sum.default"]

    @pytest.mark.parametrize(
        "take",
        [
            lambda y: y[0],
            lambda y: y[:, 1:],
            lambda y: y[1, ::2],
            lambda y: y.t()[1],
            lambda y: y.permute(1, 0)[2],
            lambda y: y.view(-1)[2:5],
            lambda y: y.unsqueeze(0),
            lambda y: y.unsqueeze(1).squeeze(1)[0],
            lambda y: y[:, :3].diagonal(),
            lambda y: y.detach()[1],
            lambda y: y.as_strided((2, 2), (4, 1), 1),
        ],
    )
    def test_writes_reach_all_views_of_a_memory(self, take: Callable[[Tensor], Tensor]) -> None:
        def loss(x: Tensor) -> Tensor:
            y = x * 2
            before, view = y.view(-1), take(y)
            view.mul_(3.0)
            again = take(y) + 1
            view.add_(1.0)
            return (before * y.view(-1)).sum() + again.sum() + (view * view).sum()

        plan, sizes = plan_of(loss, floats(4, 4, grad=False))
        Reference(loss, floats(4, 4, grad=False)).check_plan(plan, sizes)

    def test_writes_to_views_are_differentiated(self) -> None:
        def loss(x: Tensor) -> Tensor:
            y = x * 2
            y[1:] = y[1:] - y[:-1]
            y[:, 0] += x[:, 1]
            return (y * y).sum()

        plan, sizes = plan_of(loss, floats(4, 4))
        Reference(loss, floats(4, 4)).check_plan(plan, sizes)

    def test_a_view_taken_afterwards_is_read(self) -> None:
        def loss(x: Tensor) -> Tensor:
            y = x * 2
            y.add_(1.0)
            return y.view(-1).sum()

        trace_of(loss, floats(3))

    def test_a_write_to_an_expanded_view_is_refused(self) -> None:
        with pytest.raises(AutogenError):
            trace_of(lambda x: x.sum().expand(3).add_(1.0).sum(), floats(3, grad=False))

    @pytest.mark.parametrize("loss", [lambda x: x.add_(1.0).sum(), lambda x: x.view(-1).add_(1.0).sum()])
    def test_an_argument_that_is_written_is_one_more_output(self, loss: Any) -> None:
        traced = trace_of(loss, floats(3, grad=False))
        assert [each.name for each in traced.outputs] == ["loss", "new_0_data"]
        (written,) = traced.state.written
        assert (written.position, written.output, written.is_replaced) == (0, 1, False)
        assert traced.inputs[0].node.op == "placeholder" and traced.outputs[1].node.op == "call_function"

    @pytest.mark.parametrize(
        "loss",
        [
            lambda x: x.t_().sum(),  # it would have another shape
            lambda x: x.requires_grad_().sum(),
            lambda x: x.add_(1.0),  # what it returns is the argument
            lambda x: x.add_(1.0)[0],
        ],
    )
    def test_other_changes_of_an_argument_are_refused(self, loss: Any) -> None:
        with pytest.raises((StateChangeError, UnsupportedOpError)):
            trace_of(loss, floats(3, 4, grad=False))

    def test_memory_that_is_seen_in_another_way_is_not_written(self) -> None:
        def loss(x: Tensor) -> Tensor:
            y = x * 2
            first = y[0]
            y.t_()
            first.add_(1.0)
            return y.sum()

        with pytest.raises(UnsupportedOpError, match="seen in another way"):
            trace_of(loss, floats(3, 4))


def weighted(prediction: Tensor, target: Tensor) -> Tensor:
    error = (prediction - target).abs()  # a remark
    scaled = error * 4.0
    weight: Tensor = torch.sigmoid(
        scaled,
    )
    return (weight * error).mean()


class TestProvenance:
    def test_every_op_knows_its_line(self) -> None:
        traced = trace_of(weighted, floats(3), floats(3))
        lines = [node.meta["origin"].code for node in traced.graph.nodes if "geometry" in node.meta]
        assert set(lines) == {
            "error = (prediction - target).abs()",
            "scaled = error * 4.0",
            "weight: Tensor = torch.sigmoid(scaled)",
            "return (weight * error).mean()",
        }

    def test_an_op_inside_a_statement_over_several_lines_knows_the_statement(self) -> None:
        def loss(x: Tensor) -> Tensor:
            return torch.sum(
                x.exp(),
            )

        (node,) = (n for n in trace_of(loss, floats(3)).graph.nodes if str(n.target) == "aten.exp.default")
        assert node.meta["origin"].code == "return torch.sum(x.exp())"

    def test_a_gradient_knows_the_line_it_derives(self) -> None:
        traced = trace_of(weighted, floats(3), floats(3))
        of_sigmoid = [n for n in traced.graph.nodes if str(n.target) == "aten.sigmoid_backward.default"]
        assert [node.meta["origin"].code for node in of_sigmoid] == ["weight: Tensor = torch.sigmoid(scaled)"]

    def test_variables_give_values_their_names(self) -> None:
        program, _ = program_of(weighted, floats(3), floats(3))
        assert {"error", "weight"} <= set(program.provenance.names.values())

    def test_a_loss_of_torch_names_the_line_in_torch(self) -> None:
        traced = trace_of(nn.MSELoss(), floats(3), floats(3))
        (node,) = (n for n in traced.graph.nodes if str(n.target) == "aten.mse_loss.default")
        assert "mse_loss(" in node.meta["origin"].code

    def test_a_step_of_torch_names_its_line(self) -> None:
        def loss(x: Tensor) -> Tensor:
            order = torch.cummax(x, 0).values
            return order.sum()

        program, _ = program_of(loss, floats(3))
        assert program.steps[0].name == "cummax" and program.steps[0].line is not None
        assert program.steps[0].line.code == "order = torch.cummax(x, 0).values"


def test_a_statement_over_several_lines_is_joined(tmp_path: Any) -> None:
    file = tmp_path / "loss.py"
    text = "x = f(\n    a,  # first\n    [b, c],\n)  # done\ny = '#'  # one\n"
    file.write_text(text)
    code = compile(text, str(file), "exec")
    for line in (1, 2, 3):
        assert statement_at(code, line) == SourceLine(str(file), 1, "x = f(a, [b, c])")
    assert statement_at(code, 5) == SourceLine(str(file), 5, "y = '#'")


def test_the_replay_of_a_trace_is_the_loss_itself() -> None:
    binding = binding_of(weighted, floats(3), floats(3))
    torch.testing.assert_close(binding.replay(binding.tensors), weighted(*binding.tensors))
