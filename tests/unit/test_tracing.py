"""Tracing: what is recorded of a loss and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autogen.errors import (
    AutogenError,
    ResultError,
    SourceLine,
    StateChangeError,
    TraceError,
    UnsupportedOpError,
)
from autogen.tracing.formulas.functions import multi_margin_loss
from autogen.tracing.source import statement_at
from tests.unit.pipeline import Reference, binding_of, ops_of, plan_of, pointwise, positive, program_of, trace_of


def labels(count: int, classes: int) -> Tensor:
    return torch.arange(count) % classes


class TestJointGraph:
    """A graph holds torch's own ops and torch's own derivatives, not ones that we made up."""

    @pytest.mark.parametrize(
        ("loss", "args", "forward", "backward"),
        [
            (
                nn.BCELoss(),
                (positive(3, 4), positive(3, 4, grad=False)),
                ["binary_cross_entropy.default"],
                ["binary_cross_entropy_backward.default"],
            ),
            (
                nn.HuberLoss(),
                (positive(5), positive(5, grad=False)),
                ["huber_loss.default"],
                ["huber_loss_backward.default"],
            ),
            (
                nn.CrossEntropyLoss(),
                (positive(3, 4), labels(3, 4)),
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
        traced = trace_of(F.mse_loss, positive(3), positive(3))
        assert [each.name for each in traced.gradients if each] == ["grad_input", "grad_target"]
        assert [each.name for each in traced.upstream if each] == ["grad_loss"]
        traced = trace_of(F.mse_loss, positive(3), positive(3, grad=False))
        assert [each.name if each else None for each in traced.gradients] == ["grad_input", None]

    def test_without_gradients_is_forward_only(self) -> None:
        with torch.no_grad():
            traced = trace_of(lambda x: x.exp().sum(), positive(3))
        assert ops_of(traced, backward=True) == []
        assert traced.gradients == [None] and traced.upstream == [None]

    def test_leaves_out_what_no_grad_hides(self) -> None:
        def loss(x: Tensor) -> Tensor:
            with torch.no_grad():
                weight = x.exp()
            return (weight * x).sum()

        assert "exp.default" in ops_of(trace_of(loss, positive(3)))
        # d(w x) = w: neither exp nor x comes into it.
        assert set(ops_of(trace_of(loss, positive(3)), backward=True)) <= {"expand.default", "mul.Tensor"}

    def test_follows_a_custom_autograd_function(self) -> None:
        class Reversed(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                return grad.sin()

        assert "sin.default" in ops_of(trace_of(lambda x: Reversed.apply(x).sum(), positive(3)), backward=True)

    def test_breaks_down_what_has_no_lowering(self) -> None:
        recorded = ops_of(trace_of(lambda x: F.softplus(x).sum(), positive(3)))
        assert "softplus.default" not in recorded and "exp.default" in recorded

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.parametrize(
        "target", [labels(3, 4), torch.tensor([2]), torch.tensor(2)], ids=["batch", "one", "scalar"]
    )
    def test_the_formula_of_multi_margin_loss_is_torchs(self, target: Tensor, reduction: str) -> None:
        x = positive(3, 4) if len(target.shape) and len(target) > 1 else positive(4)
        for p, weight in [(1, None), (2, positive(4, grad=False))]:
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

        traced = trace_of(Loss(), positive(3))
        assert {each.name for each in traced.inputs} == {"x", "temperature", "scale", "offset"}
        assert [each.name for each in traced.gradients if each] == ["grad_x", "grad_temperature"]

    def test_from_nowhere_are_refused(self) -> None:
        hidden = iter([torch.ones(3)])

        def loss(x: Tensor) -> Tensor:
            return (x * next(hidden)).sum()

        with pytest.raises(UnsupportedOpError, match="from elsewhere than an argument") as caught:
            trace_of(loss, positive(3))
        assert caught.value.where is not None and caught.value.where.code == "return (x * next(hidden)).sum()"

    def test_may_be_numbers_made_into_tensors(self) -> None:
        assert "full.default" in ops_of(trace_of(lambda x: (x * torch.tensor(2.0)).sum(), positive(3)))

    def test_are_only_looked_at_for_their_shape(self) -> None:
        traced = trace_of(lambda x: x.sum(), torch.full((3,), float("nan"), requires_grad=True))
        assert traced.domain.predicates == []


class TestResult:
    def test_keeps_the_structure_that_the_loss_returns(self) -> None:
        def loss(x: Tensor) -> Any:
            return {"loss": x.sum(), "parts": (x * 2, "note", 3)}

        traced = trace_of(loss, positive(3))
        assert [each.name for each in traced.outputs] == ["loss_0", "loss_1"]
        total, double = torch.ones(()), torch.ones(3)
        assert traced.result([total, double], {}, []) == {"loss": total, "parts": (double, "note", 3)}

    def test_that_is_no_tensor_is_refused(self) -> None:
        with pytest.raises(ResultError, match="returns no tensor"):
            trace_of(lambda x: 1.0, positive(3))

    def test_an_error_of_the_loss_is_chained(self) -> None:
        with pytest.raises(TraceError) as caught:
            trace_of(pointwise, positive(2, 3), positive(2, 4))
        assert isinstance(caught.value.__cause__, RuntimeError)


class TestInPlace:
    def test_ops_are_recorded_as_functional_ones(self) -> None:
        def loss(x: Tensor) -> Tensor:
            y = x * 2
            y.add_(1.0)
            y.clamp_(min=0.0)
            return y.sum()

        recorded = [op for op in ops_of(trace_of(loss, positive(3))) if op != "clone.default"]  # autograd's own
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

        plan, sizes = plan_of(loss, positive(4, 4, grad=False))
        Reference(loss, positive(4, 4, grad=False)).check_plan(plan, sizes)

    def test_writes_to_views_are_differentiated(self) -> None:
        def loss(x: Tensor) -> Tensor:
            y = x * 2
            y[1:] = y[1:] - y[:-1]
            y[:, 0] += x[:, 1]
            return (y * y).sum()

        plan, sizes = plan_of(loss, positive(4, 4))
        Reference(loss, positive(4, 4)).check_plan(plan, sizes)

    def test_a_view_taken_afterwards_is_read(self) -> None:
        def loss(x: Tensor) -> Tensor:
            y = x * 2
            y.add_(1.0)
            return y.view(-1).sum()

        trace_of(loss, positive(3))

    def test_a_write_to_an_expanded_view_is_refused(self) -> None:
        with pytest.raises(AutogenError):
            trace_of(lambda x: x.sum().expand(3).add_(1.0).sum(), positive(3, grad=False))

    @pytest.mark.parametrize("loss", [lambda x: x.add_(1.0).sum(), lambda x: x.view(-1).add_(1.0).sum()])
    def test_an_argument_that_is_written_is_one_more_output(self, loss: Any) -> None:
        traced = trace_of(loss, positive(3, grad=False))
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
            trace_of(loss, positive(3, 4, grad=False))

    def test_memory_that_is_seen_in_another_way_is_not_written(self) -> None:
        def loss(x: Tensor) -> Tensor:
            y = x * 2
            first = y[0]
            y.t_()
            first.add_(1.0)
            return y.sum()

        with pytest.raises(UnsupportedOpError, match="seen in another way"):
            trace_of(loss, positive(3, 4))


def weighted(prediction: Tensor, target: Tensor) -> Tensor:
    error = (prediction - target).abs()  # a remark
    scaled = error * 4.0
    weight: Tensor = torch.sigmoid(
        scaled,
    )
    return (weight * error).mean()


class TestProvenance:
    def test_every_op_knows_its_line(self) -> None:
        traced = trace_of(weighted, positive(3), positive(3))
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

        (node,) = (n for n in trace_of(loss, positive(3)).graph.nodes if str(n.target) == "aten.exp.default")
        assert node.meta["origin"].code == "return torch.sum(x.exp())"

    def test_a_gradient_knows_the_line_it_derives(self) -> None:
        traced = trace_of(weighted, positive(3), positive(3))
        of_sigmoid = [n for n in traced.graph.nodes if str(n.target) == "aten.sigmoid_backward.default"]
        assert [node.meta["origin"].code for node in of_sigmoid] == ["weight: Tensor = torch.sigmoid(scaled)"]

    def test_variables_give_values_their_names(self) -> None:
        program, _ = program_of(weighted, positive(3), positive(3))
        assert {"error", "weight"} <= set(program.provenance.names.values())

    def test_a_loss_of_torch_names_the_line_in_torch(self) -> None:
        traced = trace_of(nn.MSELoss(), positive(3), positive(3))
        (node,) = (n for n in traced.graph.nodes if str(n.target) == "aten.mse_loss.default")
        assert "mse_loss(" in node.meta["origin"].code

    def test_a_step_of_torch_names_its_line(self) -> None:
        def loss(x: Tensor) -> Tensor:
            order = torch.cummax(x, 0).values
            return order.sum()

        program, _ = program_of(loss, positive(3))
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
    binding = binding_of(weighted, positive(3), positive(3))
    torch.testing.assert_close(binding.replay(binding.tensors), weighted(*binding.tensors))


def test_what_a_users_op_returns_is_asked_as_a_loss_is() -> None:
    """Its code hears of sizes as the loss's does, and fixes none by asking for the length."""
    heard: list[bool] = []

    @torch.library.custom_op("autogen_tests::doubled", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    @doubled.register_fake
    def _(x: Tensor) -> Tensor:
        heard.append(isinstance(x.shape[0], int))
        return x.new_empty(len(x))

    traced = trace_of(lambda x: doubled(x).sum(), torch.zeros(5))
    assert heard and all(heard)
    assert traced.domain.guards.read([torch.zeros(7)]) is not None
