"""What torch captures of a loss: how often, in how many graphs, and what happens where it does not."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen.dispatch.site
from autogen import FallbackWarning, GraphBreakError, autogen_loss, explain, policy, trace_count
from tests.interpret.launches import Launches


def real(*shape: int, seed: int = 0, grad: bool = True) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


def agree(ours: Any, theirs: Any, *inputs: Any) -> None:
    """Equal values, and equal gradients of all inputs that ask for one."""
    found, wanted = ours(*inputs), theirs(*inputs)
    torch.testing.assert_close(found, wanted)
    leaves = [each for each in torch.utils._pytree.tree_leaves(inputs) if isinstance(each, Tensor)]
    leaves = [each for each in leaves if each.requires_grad]
    if leaves:
        torch.testing.assert_close(*(torch.autograd.grad(each, leaves, allow_unused=True) for each in (found, wanted)))


class Output:
    """A model's output, as libraries have it: with methods that ask for types, and that no loss calls."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def summary(self) -> dict[str, str]:
        return {key: type(value).__name__ for key, value in vars(self).items()}


class TestSizes:
    def test_fifty_batch_sizes_are_at_most_two_captures(self) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            return (x - y).abs().sum(-1).log1p().mean()

        ours = autogen_loss(loss, policy="mandatory")
        for size in range(1, 51):
            agree(ours, loss, real(size, 3), real(size, 3, seed=1))
        assert trace_count(ours) <= 2

    def test_forty_lengths_of_an_object_with_tensors(self) -> None:
        def loss(output: Output, labels: Tensor) -> Tensor:
            return F.cross_entropy(output.logits.flatten(0, 1), labels.flatten())

        ours = autogen_loss(loss, policy="mandatory")
        for length in range(2, 42):
            logits, labels = real(1, length, 7), torch.randint(0, 7, (1, length))
            wanted = loss(Output(logits), labels)
            torch.testing.assert_close(ours(Output(logits), labels), wanted)
        assert trace_count(ours) <= 3

    def test_the_four_of_a_box_stays_a_number(self) -> None:
        def loss(x: Tensor) -> Tensor:
            left, top, right, bottom = x.unbind(-1)
            return ((right - left) * (bottom - top)).clamp(min=0).mean()

        ours = autogen_loss(loss, policy="mandatory")
        for size in (5, 7, 9):
            agree(ours, loss, real(size, 4))
        assert trace_count(ours) == 1

    def test_a_batch_of_names_that_the_loss_does_not_read(self) -> None:
        def loss(x: Tensor, batch: dict[str, Any]) -> Tensor:
            return F.cross_entropy(x, batch["labels"])

        ours = autogen_loss(loss, policy="mandatory")
        for step in range(30):
            batch = {"labels": torch.randint(0, 7, (6,)), "file": [f"{step}_{k}.txt" for k in range(6)]}
            agree(ours, loss, real(6, 7, seed=step), batch)
        assert trace_count(ours) <= 2

    def test_floats_that_vary_are_arguments_of_kernels(self) -> None:
        def loss(x: Tensor, weight: float) -> Tensor:
            return (x.abs() * weight).mean()

        ours = autogen_loss(loss, policy="mandatory")
        for step in range(1, 12):
            agree(ours, loss, real(4, 3), 0.1 * step)
        assert trace_count(ours) <= 2


class TestValues:
    """Sizes and numbers that values decide."""

    def test_a_mask_is_never_chosen(self, launches: Launches) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            keep = y > 0
            return (x[keep] - y[keep]).square().sum() / keep.sum()

        ours = autogen_loss(loss, policy="mandatory")
        for size in (5, 8):
            agree(ours, loss, real(size, 3), real(size, 3, seed=1, grad=False))
        assert launches.take() == 4
        assert explain(ours, real(5, 3), real(5, 3, grad=False)).path == "generated"

    def test_masks_that_differ_are_chosen_by_torch(self) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            return (x[x > 0] - x[y > 0][: len(x[x > 0])].sum()).abs().mean()

        x, y = real(6, 4), real(6, 4, seed=3, grad=False)
        agree(autogen_loss(loss), loss, x, y)

    def test_masks_of_one_count_that_are_not_one_mask(self) -> None:
        """Elements go together by their order, not by their place."""

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return (x[x > 0] * y[y > 0]).sum()

        x = torch.tensor([1.0, -1.0, 2.0, -3.0], requires_grad=True)
        y = torch.tensor([-1.0, 5.0, -2.0, 7.0], requires_grad=True)
        agree(autogen_loss(loss), loss, x, y)

    def test_places_are_found_before_the_kernels(self) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            rows, columns = torch.where(y > 0)
            return (x[rows, columns] * 2).sum() / len(rows)

        ours = autogen_loss(loss, policy="mandatory")
        for seed in range(4):
            agree(ours, loss, real(5, 4), real(5, 4, seed=seed, grad=False))
        report = explain(ours, real(5, 4), real(5, 4, seed=7, grad=False))
        assert report.path == "partial" and "nonzero" in report.reason

    def test_numbers_in_a_dictionary_of_metrics(self, launches: Launches) -> None:
        def loss(x: Tensor) -> tuple[Tensor, dict[str, Any]]:
            value = x.square().mean()
            return value, {"mse": value.item(), "count": x.shape[0], "largest": float(x.max())}

        ours = autogen_loss(loss, policy="mandatory")
        for size in (4, 6):
            x = real(size, 3)
            (found, metrics), (wanted, expected) = ours(x), loss(x)
            torch.testing.assert_close(found, wanted)
            assert metrics.keys() == expected.keys() and type(metrics["mse"]) is float
            assert metrics == pytest.approx(expected)
        assert launches.take() == 2

    def test_a_denominator_that_is_read(self) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            return (x * y).sum() / max(y.sum().item(), 1.0)

        ours = autogen_loss(loss, policy="mandatory")
        for seed in range(3):
            agree(ours, loss, real(5, 4), (real(5, 4, seed=seed, grad=False) > 0).float())


class TestBreaks:
    """Where torch ends a graph."""

    def test_a_check_that_raises_costs_no_kernel(self, launches: Launches) -> None:
        @autogen_loss
        def loss(x: Tensor) -> Tensor:
            if (x < -100).any():
                raise ValueError("too low")
            return x.square().mean()

        loss(real(5, 4)).backward()
        assert launches.take() == 2
        with pytest.raises(ValueError, match="too low"):
            loss(real(5, 4) - 1000)
        report = explain(loss, real(5, 4))
        assert report.path == "generated"
        assert len(report.breaks) == 1 and "if (x < -100).any():" in report.breaks[0]
        assert "a graph ends, as" in str(report)

    def test_mandatory_makes_a_break_an_error(self) -> None:
        @autogen_loss(policy="mandatory")
        def loss(x: Tensor) -> Tensor:
            return x.square().mean() if x.sum() > 0 else x.abs().mean()

        with pytest.raises(GraphBreakError, match="one graph") as caught:
            loss(real(5, 4))
        assert caught.value.where is not None and "if x.sum() > 0" in caught.value.where.code
        report = explain(loss, real(5, 4))
        assert report.path == "eager" and "one graph" in report.reason

    def test_both_sides_of_a_branch_have_kernels(self, launches: Launches) -> None:
        def loss(x: Tensor) -> Tensor:
            return x.square().mean() if x.sum() > 0 else x.abs().mean()

        ours = autogen_loss(loss)
        for sign in (1, -1, 1):
            agree(ours, loss, (torch.rand(5, 4) * sign).requires_grad_())
        assert launches.take() == 6

    def test_printing_ends_nothing_and_a_logger_ends_a_graph(self, capsys: Any, caplog: Any) -> None:
        logger = logging.getLogger("test_capture")

        @autogen_loss
        def loss(x: Tensor) -> Tensor:
            value = x.square().mean()
            print("a loss of", "two words")
            return value * 2

        @autogen_loss
        def logging_loss(x: Tensor) -> Tensor:
            value = loss(x)
            logger.warning("a loss")
            return value / 2

        for _ in range(2):
            torch.testing.assert_close(loss(torch.ones(4)), torch.tensor(2.0))
        assert capsys.readouterr().out == "a loss of two words\n" * 2
        assert explain(loss, torch.ones(4)).breaks == ()
        torch.testing.assert_close(logging_loss(torch.ones(4)), torch.tensor(1.0))
        assert caplog.messages.count("a loss") == 1

    def test_explain_tells_of_parts_that_are_functions_of_their_own(self) -> None:
        def part(x: Tensor) -> Tensor:
            total = x.square().sum()
            torch._dynamo.graph_break()
            return (total.sin() + x).mean()

        @autogen_loss
        def loss(x: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            return part(x).exp()

        report = explain(loss, real(4, 3))
        assert report.forward is not None and report.forward.launches == 3


class TestBudget:
    def test_past_the_budget_torch_runs_the_loss_with_one_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(autogen.dispatch.site, "MOST_CAPTURES", 4)

        def loss(x: Tensor, how: str) -> Tensor:
            return x.square().mean() * len(how)

        ours = autogen_loss(loss)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for k in range(1, 10):
                agree(ours, loss, real(3, 2), "x" * k)
        (warning,) = [each for each in caught if issubclass(each.category, FallbackWarning)]
        assert "how" in str(warning.message) and "4 times" in str(warning.message)
        assert trace_count(ours) == 4

    def test_the_budget_is_not_shared_with_other_constants(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(autogen.dispatch.site, "MOST_CAPTURES", 2)

        @autogen_loss(policy="mandatory")
        class Loss(nn.Module):
            def __init__(self, kind: str) -> None:
                super().__init__()
                self.kind = kind

            def forward(self, x: Tensor) -> Tensor:
                return x.square().mean() * len(self.kind)

        for k in range(1, 7):
            x = real(3, 2)
            torch.testing.assert_close(Loss("x" * k)(x), x.square().mean() * k)

    @pytest.mark.slow
    def test_a_loss_of_numpy_costs_no_capture_each_call(self) -> None:
        numpy = pytest.importorskip("numpy")

        @autogen_loss
        def loss(boxes: list[Tensor]) -> Tensor:
            scale = numpy.quantile(torch.cat(boxes).detach().numpy(), 0.5)
            return sum((each.square().sum() for each in boxes), torch.tensor(0.0)) / float(scale)

        draws = random.Random(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            for _ in range(40):
                loss([torch.rand(draws.randrange(1, 4), 4, requires_grad=True) for _ in range(3)]).backward()
        assert trace_count(loss) <= 20


class TestDerivatives:
    def test_second_derivatives_are_those_of_the_captured_graph(self) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            return ((x - y).square() * x.exp()).mean()

        ours = autogen_loss(loss, policy="mandatory")
        x, y = real(4, 3).double().detach().requires_grad_(), real(4, 3, seed=1, grad=False).double()
        assert torch.autograd.gradgradcheck(lambda x: ours(x, y), x)

    def test_torch_func(self) -> None:
        def loss(x: Tensor) -> Tensor:
            return x.square().sum()

        x = real(4, grad=False)
        torch.testing.assert_close(torch.func.grad(autogen_loss(loss))(x), 2 * x)
        torch.testing.assert_close(torch.func.vmap(autogen_loss(loss))(x[:, None]), x * x)

    def test_dropout_is_drawn_once_for_both_directions(self) -> None:
        def loss(x: Tensor) -> Tensor:
            return F.dropout(x, 0.5).square().sum()

        for function in (loss, autogen_loss(loss)):
            torch.manual_seed(3)
            x = real(40)
            value = function(x)
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
            torch.testing.assert_close((gradient * x).sum() / 2, value)

    def test_inference_mode_and_no_grad(self) -> None:
        ours = autogen_loss(lambda x: x.square().mean(), policy="mandatory")
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode():
                assert ours(real(3, 2)).requires_grad is (mode is torch.enable_grad)


class TestState:
    def test_a_buffer_that_is_updated(self) -> None:
        class Centred(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("centre", torch.zeros(3))

            def forward(self, x: Tensor) -> Tensor:
                loss = (x - self.centre).square().mean()
                with torch.no_grad():
                    self.centre.mul_(0.9).add_(x.mean(0), alpha=0.1)
                return loss

        theirs, ours = Centred(), autogen_loss(Centred())
        for step in range(3):
            agree(ours, theirs, real(5, 3, seed=step))
            torch.testing.assert_close(ours.centre, theirs.centre)

    def test_an_input_that_is_changed(self) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            y.add_(1.0)
            return (x - y).square().mean()

        ours = autogen_loss(loss)
        for size in (4, 6):
            x, own = real(size, 3), torch.ones(size, 3)
            other = own.clone()
            found, wanted = ours(x, own), loss(x, other)
            torch.testing.assert_close((found, own), (wanted, other))
            torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(wanted, x))

    def test_a_number_that_is_counted(self) -> None:
        @autogen_loss
        class Counting(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.step = 0

            def forward(self, x: Tensor) -> Tensor:
                self.step += 1
                return x.square().mean() * self.step

        loss = Counting()
        for step in range(1, 5):
            torch.testing.assert_close(loss(torch.ones(3)), torch.tensor(float(step)))
        assert loss.step == 4

    def test_what_a_loss_returns_of_what_it_was_given_is_that(self) -> None:
        ours = autogen_loss(lambda x: (x.square().mean(), x), policy="mandatory")
        x = real(4, 3)
        value, same = ours(x)
        assert same is x
        torch.testing.assert_close(value, x.square().mean())

    def test_views_among_the_results(self) -> None:
        def loss(x: Tensor) -> tuple[Tensor, Tensor]:
            parts = x.square()
            return parts.mean(), parts[0]

        x = real(4, 3)
        torch.testing.assert_close(autogen_loss(loss)(x), loss(x))


def test_a_wrong_call_raises_what_torch_raises_and_spoils_nothing() -> None:
    ours = autogen_loss(lambda x, y: (x - y).square().mean())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="must match the size"):
            ours(real(4, 3), real(5, 2))
        ours(real(4, 3), real(4, 3))
    with policy("mandatory"):
        ours(real(4, 3), real(4, 3))


def test_a_constant_that_nobody_may_write_to_is_in_reach() -> None:
    """As in the code of scipy, which many losses reach."""
    masked = pytest.importorskip("numpy.ma").masked

    def loss(x: Tensor, y: Tensor) -> Tensor:
        distance = (x - y).abs()
        return distance.sum() if masked is None else distance.mean()

    ours = autogen_loss(loss, policy="mandatory")
    agree(ours, loss, real(8), real(8, seed=1))
    assert explain(ours, real(8), real(8)).path == "generated"


def test_padded_sequences_of_any_lengths() -> None:
    def loss(prediction: Tensor, targets: list[Tensor]) -> Tensor:
        target = nn.utils.rnn.pad_sequence(targets, batch_first=True)
        return (prediction[:, : target.shape[1]] - target).abs().mean()

    ours = autogen_loss(loss)
    draws = random.Random(0)
    for _ in range(8):
        lengths = draws.sample(range(2, 20), 3)
        agree(ours, loss, real(3, 20), [torch.rand(length) for length in lengths])
    assert trace_count(ours) <= 3


@pytest.mark.slow
def test_tensors_on_the_cpu_by_torchs_own_compiler(tmp_path: Path) -> None:
    """Without the interpreter, and only if asked for."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from autogen import autogen_loss, explain\n"
        "def loss(x, y):\n"
        "    return (x - y).abs().log1p().mean()\n"
        "x, y = torch.rand(8, 3, requires_grad=True), torch.rand(8, 3)\n"
        "for cpu in ('eager', 'inductor'):\n"
        "    ours = autogen_loss(loss, cpu=cpu)\n"
        "    value = ours(x, y)\n"
        "    torch.testing.assert_close(value, loss(x, y))\n"
        "    torch.testing.assert_close(*(torch.autograd.grad(each, x) for each in (value, loss(x, y))))\n"
        "    print(explain(ours, x, y).path)\n"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout.split() == ["eager", "inductor"]


def test_backend_of_torch_compile(launches: Launches) -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(x, y)

    ours = torch.compile(loss, backend="autogen")
    for size in (4, 6):
        agree(ours, loss, real(size, 3), torch.rand(size, 3))
    assert launches.take() == 4


def test_calls_that_the_loss_refuses_cost_no_kernels() -> None:
    @autogen_loss
    def checked(x: Tensor, y: Tensor) -> Tensor:
        if x.shape != y.shape:
            raise ValueError("other shapes")
        return (x - y).square().mean()

    for size in range(3, 9):
        with pytest.raises(ValueError, match="other shapes"):
            checked(torch.ones(2), torch.ones(size))
        assert explain(checked, torch.ones(2), torch.zeros(2)).path == "generated"


def test_calls_that_torch_does_not_capture_cost_others_no_kernels() -> None:
    @autogen_loss
    def summed(x: Tensor, names: Any = None) -> Tensor:
        if names is None:
            return x.square().mean()
        return sum((x.square() * len(os.listdir(each)) for each in names), x).mean()

    for _ in range(3):
        assert explain(summed, torch.ones(2)).path == "generated"
        assert explain(summed, torch.ones(2), (each for each in ())).path == "eager"
        torch.testing.assert_close(summed(torch.ones(2), (each for each in ())), torch.tensor(1.0))
