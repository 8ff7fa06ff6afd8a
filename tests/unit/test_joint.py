"""AOTAutograd's graph as lowering reads it: what is an input, an output or a number, and how ops are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor, nn

from autogen import autogen_loss
from autogen.capture.joint import Segment
from autogen.capture.masks import masked_read, masked_write
from autogen.capture.sizes import Size
from autogen.decorator import call_of
from autogen.errors import UnsupportedOpError
from tests.unit.pipeline import (
    Loss,
    Reference,
    check,
    floats,
    joint_of,
    ops_of,
    plan_of,
    positive,
    program_of,
    run_of,
)

LABELS = torch.tensor([0, 1, 2, 0])


def segment_of(loss: Loss, *args: Any) -> Segment:
    return run_of(loss, *args)[1].segment


def targets_of(loss: Loss, *args: Any) -> list[Any]:
    return [node.target for node in joint_of(loss, *args).graph.nodes if node.op == "call_function"]


class TestGraph:
    """A graph holds torch's own ops and torch's own derivatives."""

    @pytest.mark.parametrize(
        ("loss", "forward", "backward"),
        [
            (nn.BCELoss(), "binary_cross_entropy.default", "binary_cross_entropy_backward.default"),
            (nn.HuberLoss(), "huber_loss.default", "huber_loss_backward.default"),
            (nn.MSELoss(), "mse_loss.default", "mse_loss_backward.default"),
        ],
    )
    def test_of_a_torch_loss(self, loss: Loss, forward: str, backward: str) -> None:
        joint = joint_of(loss, positive(3, 4), positive(3, 4, grad=False))
        assert (ops_of(joint), ops_of(joint, backward=True)) == ([forward], [backward])

    def test_has_a_gradient_for_each_input_that_asks(self) -> None:
        joint = joint_of(nn.MSELoss(), positive(3), positive(3))
        assert [each.name for each in joint.gradients if each] == ["grad_input", "grad_target"]
        assert joint.reached == [frozenset({0, 1})]
        assert not any(joint_of(nn.MSELoss(), positive(3, grad=False), positive(3, grad=False)).gradients)

    def test_leaves_out_what_is_detached(self) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad():
                weight = y.exp()
            return (x.detach() * weight * y).sum()

        joint = joint_of(loss, positive(3), positive(3))
        assert [each.name for each in joint.gradients if each] == ["grad_y"]

    def test_breaks_down_what_has_no_lowering(self) -> None:
        assert "softplus.default" not in ops_of(joint_of(lambda x: nn.functional.softplus(x).sum(), positive(3)))

    def test_writes_are_functional_and_differentiated(self) -> None:
        def loss(x: Tensor) -> Tensor:
            y = x * 2
            y[1:] = y[1:] - y[:-1]
            y.t()[0].add_(x[:, 1])
            return (y.clamp_(min=0.0) * y).sum()

        plan, sizes = plan_of(loss, positive(4, 4))
        Reference(loss, positive(4, 4)).check_plan(plan, sizes)

    def test_equal_nodes_are_one(self) -> None:
        assert ops_of(joint_of(lambda x: ((x > 1) * (x > 1) * x).sum(), floats(3, grad=False))).count("gt.Scalar") == 1
        assert targets_of(lambda x: x.sum() + torch.rand(3) - torch.rand(3), floats(3)).count(
            torch.ops.aten.rand.default
        ) in (0, 2)

    def test_equal_numbers_of_other_types_are_not_one(self) -> None:
        check(lambda x: ((x + 1) * (x + 1.0) * (x + True)).sum() + (x / -0.0 + x / 0.0).exp().isnan().sum(), floats(3))


class TestEdge:
    def test_inputs_are_arguments_parameters_buffers_and_attributes(self) -> None:
        class Loss(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.temperature = nn.Parameter(torch.ones(()))
                self.register_buffer("scale", torch.ones(3))
                self.offset = torch.ones(3)

            def forward(self, x: Tensor) -> Tensor:
                return (x * self.temperature * self.scale + self.offset).sum()

        joint = joint_of(Loss(), positive(3))
        assert {each.name for each in joint.inputs} == {"x", "temperature", "scale", "offset"}
        assert {each.name for each in joint.gradients if each} == {"grad_x", "grad_temperature"}

    def test_results_are_outputs_arguments_and_numbers(self) -> None:
        def loss(x: Tensor) -> Any:
            total = x.sum()
            return total, total, x.shape[0] + 1, x * 2

        segment = segment_of(loss, floats(3, grad=False))
        assert [each.output for each in segment.returned] == [0, None, 1]  # Dynamo returns the first once more
        assert str(segment.returned[1].number) == "N + 1"
        assert [each.name for each in segment.graph.outputs] == ["loss_0", "loss_1"]

    def test_constants(self) -> None:
        joint = joint_of(lambda x: (x * torch.tensor([1.0, 2.0, 3.0])).sum(), floats(3))
        assert [each.tolist() for each in joint.constant_values] == [[1.0, 2.0, 3.0]]
        joint = joint_of(lambda x: (x * torch.tensor(2.0)).sum(), floats(3))
        assert not joint.constants and "full.default" in ops_of(joint)

    @pytest.mark.parametrize(
        "formula",
        [
            lambda x, margin: (x - margin).clamp(min=0).sum(),
            lambda x, margin: (margin - x).clamp(min=0).sum(),
        ],
    )
    def test_numbers_that_change_are_numbers(self, formula: Loss) -> None:
        loss = autogen_loss(lambda x, margin: formula(x, margin))
        dispatcher, _ = call_of(loss, ())
        for margin in (0.5, 0.3, 0.2, 0.1):
            ((run,), _) = dispatcher.look("loss", (floats(3), margin), {})
        assert dispatcher.captures == 2 and run.captured.runner is not None
        sizes = run.captured.runner.kernels_for(run.arguments)[1]
        assert sorted(sizes.values()) == [0.1, 3] and len(run.captured.runner.segment.tensors) == 1


class TestPlaces:
    @pytest.mark.parametrize(
        "loss",
        [
            lambda x: x[-2:].exp().sum(),
            lambda x: x[:, -1].exp().sum(),
            lambda x: x[-9:].exp().sum(),
            lambda x: x[7:].exp().sum() + x.sum(),
            lambda x: x.select_scatter(x[0], 0, -1).exp().sum(),
            lambda x: x[x.shape[0] - 1].exp().sum(),
        ],
    )
    def test_are_counted_from_the_beginning(self, loss: Loss) -> None:
        check(loss, floats(4, 3))
        for node in joint_of(loss, floats(4, 3)).graph.nodes:
            if str(node.target).split(".")[1:2] in (["select"], ["slice"]):
                place = node.args[2]
                place = place.expression if isinstance(place, Size) else sympy.sympify(place)
                assert not place.is_negative

    def test_a_gather_has_them_for_all_rows(self) -> None:
        """So its gradient is a kernel: no sum over rows of which some have none."""
        x, y = floats(4, 3), LABELS.unsqueeze(1)
        assert not program_of(lambda x, y: -x.gather(1, y).exp().mean(), x, y)[0].steps

    def test_a_gather_of_fewer_rows(self) -> None:
        plan, sizes = plan_of(lambda x, y: x.gather(1, y).exp().mean(), floats(4, 3), LABELS[:2, None])
        Reference(lambda x, y: x.gather(1, y).exp().mean(), floats(4, 3), LABELS[:2, None]).check_plan(plan, sizes)


class TestValues:
    """What values decide: masks, numbers that are read, and what is found before the kernels."""

    def test_a_mask_is_read_and_written_as_such(self) -> None:
        def loss(x: Tensor) -> Tensor:
            return x[x > 0].square().mean()

        found = targets_of(loss, floats(5, 4))
        assert masked_read in found and masked_write in found and segment_of(loss, floats(5, 4)).chooses
        assert joint_of(loss, floats(5, 4)).prologue is None

    def test_masked_select(self) -> None:
        check(lambda x: x.masked_select(x > 0).sum(), floats(5, 4))
        assert masked_read in targets_of(lambda x: x.masked_select(x > 0).sum(), floats(5, 4))

    def test_masks_that_differ_choose_before_the_kernels(self) -> None:
        """Equal sizes of what two masks choose do not make the masks equal."""
        loss: Callable[..., Tensor] = lambda x, y: (x[x > 0] * y[y > 0]).sum()  # noqa: E731
        joint = joint_of(loss, floats(5, grad=False), floats(5, grad=False) * 2)
        assert joint.prologue is not None

    def test_a_number_that_is_read(self) -> None:
        joint = joint_of(lambda x: x * (x > 0).sum().item(), floats(3, grad=False))
        ((symbol, node),) = joint.numbers.items()
        assert str(node.target) == "aten.sum.default" and symbol.is_integer and joint.prologue is None

    def test_a_number_that_is_returned(self) -> None:
        segment = segment_of(lambda x: (x.exp(), (x > 0).sum().item()), floats(3, grad=False))
        assert len(segment.graph.outputs) == 2 and list(segment.reads.values()) == [1]

    def test_what_is_found_before_the_kernels(self) -> None:
        run, segment = run_of(lambda x, y: x[y.nonzero()[:, 0]].exp().sum(), floats(4, 3), LABELS)
        prologue = segment.segment.graph.prologue
        assert prologue is not None and [str(node.target) for node in prologue.steps] == ["aten.nonzero.default"]
        (found,), numbers = prologue(run.arguments)
        assert found.tolist() == [[1], [2]] and not numbers
        assert segment.segment.graph.inputs[-1].name.startswith("nonzero")

    def test_what_is_found_in_backward_is_torchs(self) -> None:
        class Found(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x.sum()

            @staticmethod
            def backward(ctx: Any, upstream: Tensor) -> Any:
                return upstream.expand(3).nonzero()[:, 0].sum() * upstream.new_ones(3)

        with pytest.raises(Exception, match=r"backward|graph"):
            joint_of(lambda x: Found.apply(x), floats(3))


def test_an_op_on_another_device_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="on the device meta"):
        joint_of(lambda x: x.exp().sum().to("meta") + 1, floats(3, grad=False))
