"""`static_graph=True`: one graph for all calls, and an error that says how another differs; `retrace="every"`."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autogen import GraphChangedError, autogen_loss, explain, retracing, trace_count
from tests.interpret.agreement import draw, labels
from tests.interpret.launches import Launches

X, Y = draw("real", 6, 5), draw("real", 6, 5, seed=1).detach()


class Switched(nn.Module):
    """A loss whose graph its attributes decide."""

    def __init__(self) -> None:
        super().__init__()
        self.way, self.power, self.terms = "abs", 2, [1.0]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        error = x - y
        if self.way == "more":
            error = error.exp().tanh()
        if self.way == "other":
            return error.sin().sum()
        if self.way == "fewer":
            return error.sum()
        if self.way == "power":
            return (error**self.power).sum()
        if self.way == "terms":
            return sum((error * term).sum() for term in self.terms)
        if self.way == "value":
            return error.sum() / math.hypot(y.max(), 0.0)
        if self.way == "list":
            self.terms.append(1.0)
        return error.abs().sum()


def loss_of(way: str) -> Any:
    loss = autogen_loss(Switched(), static_graph=True)
    loss.way = way
    return loss


@pytest.mark.parametrize(
    ("first", "then", "difference"),
    [
        ("abs", "more", "6 more operations, from exp.default on, at "),
        ("more", "abs", "fewer operations, from exp.default on, at "),
        ("abs", "other", "another operation: sin.default, first abs.default, at "),
    ],
)
def test_what_has_changed(first: str, then: str, difference: str) -> None:
    loss = loss_of(first)
    for _ in range(3):
        loss(X, Y).backward()
    loss.way = then
    with pytest.raises(GraphChangedError) as caught:
        loss(X, Y)
    assert difference in str(caught.value) and caught.value.loss == "Switched"
    loss.way = first
    loss(X, Y)


def test_a_loss_that_never_had_a_graph_runs_in_torch() -> None:
    loss = loss_of("value")
    torch.testing.assert_close(loss(X, Y), (X - Y).sum() / Y.max())


def test_faults_of_a_call_are_torchs_to_report() -> None:
    loss = loss_of("abs")
    loss(X, Y)
    with pytest.raises(RuntimeError, match="must match the size"):
        loss(X, Y[:, :2])


def test_other_numbers() -> None:
    loss = loss_of("power")
    loss.power = 3
    loss(X, Y)
    loss.power = 5
    with pytest.raises(
        GraphChangedError, match=r"other arguments of pow.Tensor_Scalar: \(%\d+, (5|a size)\), first \(%\d+, 3\)"
    ):
        loss(X, Y)


def test_other_operands() -> None:
    def loss(x: Tensor, y: Tensor, is_swapped: bool) -> Tensor:
        return torch.sub(*((y, x) if is_swapped else (x, y))).sum()

    ours = autogen_loss(loss, static_graph=True)
    with torch.no_grad():
        ours(X, Y, False)
        with pytest.raises(
            GraphChangedError, match=r"other tensors: y: float32 of 2 dimensions, first x: float32 of 2 dimensions"
        ):
            ours(X, Y, True)


def test_other_constants() -> None:
    def loss(x: Tensor, y: Tensor, is_other: bool) -> Tensor:
        return ((x - y) * torch.tensor([1.0, 2.0, 3.0, 4.0, 6.0 if is_other else 5.0])).sum()

    ours = autogen_loss(loss, static_graph=True)
    ours(X, Y, False)
    for _ in range(2):
        with pytest.raises(GraphChangedError, match=r"other tensors: another constant, float32 of 1 dimensions, at "):
            ours(X, Y, True)
        torch.testing.assert_close(ours(X, Y, False), loss(X, Y, False))


def test_another_number_of_tensors() -> None:
    ours = autogen_loss(lambda xs: sum(each.square().sum() for each in xs), static_graph=True)
    ours([X, X, X])
    with pytest.raises(GraphChangedError, match=r"other tensors|more operations"):
        ours([X] * 5)


def test_a_constant_of_another_dtype() -> None:
    def loss(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
        return ((x - y) * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=dtype)[: x.shape[1], None].sum()).sum()

    ours = autogen_loss(loss, static_graph=True)
    with torch.no_grad():
        ours(X, Y, torch.float32)
        with pytest.raises(GraphChangedError, match="other tensors: another constant, float64"):
            ours(X, Y, torch.float64)


def test_constants_of_other_sizes_may_have_other_numbers() -> None:
    def loss(x: Tensor) -> Tensor:
        return (x * torch.tensor([1 / (k + 1) for k in range(len(x))])[:, None]).sum()

    ours = autogen_loss(loss, static_graph=True)
    for rows in (6, 4, 6):  # a gradient would be expanded to that many rows
        torch.testing.assert_close(ours(Y[:rows]), loss(Y[:rows]))


def test_other_results() -> None:
    def loss(x: Tensor, y: Tensor, is_swapped: bool) -> tuple[Tensor, ...]:
        found = (x - y).abs().sum(), (x - y).square().sum()
        return found[::-1] if is_swapped else found

    ours = autogen_loss(loss, static_graph=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(ours(X, Y, False), loss(X, Y, False))
            with pytest.raises(GraphChangedError, match=r"other results: \(%(\d+), %(\d+)\), first \(%\2, %\1\)"):
                ours(X, Y, True)


def test_loops_are_as_long_as_in_the_first_call() -> None:
    loss = loss_of("terms")
    loss.terms = [1.0, 2.0, 3.0]
    loss(X, Y)
    loss.terms = [1.0, 2.0, 3.0, 4.0, 5.0]
    with pytest.raises(GraphChangedError, match=r"more operations, from mul\.Tensor on"):
        loss(X, Y)


@pytest.mark.parametrize("other", [X.double(), X[None]], ids=["dtype", "rank"])
def test_other_tensors(other: Tensor) -> None:
    loss = loss_of("abs")
    loss(X, Y)
    with pytest.raises(GraphChangedError, match="other tensors: x: float"):
        loss(other.detach().requires_grad_(), Y.to(other.dtype))


def test_sizes_modes_and_modules_may_differ(launches: Launches) -> None:
    loss = loss_of("abs")
    for rows in (6, 4, 9, 1000):
        x, y = draw("real", rows, 5), draw("real", rows, 5, seed=1).detach()
        torch.testing.assert_close(loss(x, y), (x - y).abs().sum())
    loss.eval()
    with torch.no_grad():
        loss(X, Y)
    other = loss_of("more")
    other(X, Y)
    assert launches.take() == 6
    assert trace_count(loss) <= 3


def test_strides_may_differ() -> None:
    @autogen_loss(static_graph=True)
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return (x - y).square().mean()  # whose gradient is expanded to sizes of the call

    columns = draw("real", 3, 5).detach().t().requires_grad_()
    for x in (draw("real", 4, 3), columns):
        y = draw("real", *x.shape, seed=1).detach()
        torch.testing.assert_close(loss(x, y), (x - y).square().mean())
    assert trace_count(loss) == 2


def test_a_branch_on_a_size_is_an_error_each_time() -> None:
    def loss(x: Tensor) -> Tensor:
        return x.exp().sum() if x.shape[0] > 4 else x.sum()

    ours = autogen_loss(loss, static_graph=True)
    small, large = draw("real", 3, 5), draw("real", 6, 5)
    for _ in range(4):
        ours(small)
    for _ in range(3):
        with pytest.raises(GraphChangedError):
            ours(large)
    ours(small)


def test_what_does_not_change_the_graph_may_change() -> None:
    loss = loss_of("abs")
    loss(X, Y)
    loss.power, loss.unread = 7, "anything"
    loss(X, Y)


def test_explain_does_not_raise() -> None:
    loss = loss_of("abs")
    loss(X, Y)
    loss.way = "more"
    report = explain(loss, X, Y)
    assert report.path == "eager" and "has changed" in report.reason


def test_a_decorated_class_has_a_graph_per_module() -> None:
    @autogen_loss(static_graph=True)
    class Loss(Switched):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return super().forward(x, y)

    one, two = Loss(), Loss()
    one(X, Y)
    two.way = "more"
    two(X, Y)
    one.way = "more"  # has been compiled, for the other
    with pytest.raises(GraphChangedError):
        one(X, Y)


def test_one_trace_for_many_calls() -> None:
    loss = autogen_loss(Switched())
    for _ in range(100):
        loss(X, Y)
    assert trace_count(loss) == 1


def test_every_call_is_traced() -> None:
    loss = autogen_loss(nn.MSELoss(), retrace="every")
    for _ in range(4):
        torch.testing.assert_close(loss(X, Y), nn.functional.mse_loss(X, Y))
    assert trace_count(loss) == 4


def test_every_call_in_a_block_is_traced() -> None:
    loss = autogen_loss(nn.MSELoss(), policy="mandatory")
    with retracing():
        for count in (1, 2):
            loss(X, Y)
            assert trace_count(loss) == count
        with retracing():
            loss(X, Y)
        with ThreadPoolExecutor(1) as other:  # one at a time, as Triton's interpreter needs it
            other.submit(loss, X, Y).result()
            other.submit(loss, X, Y).result()
    assert trace_count(loss) == 3
    for _ in range(4):
        loss(X, Y).backward()
    assert trace_count(loss) == 3
    with pytest.raises(ZeroDivisionError), retracing():
        raise ZeroDivisionError
    loss(X, Y)
    assert trace_count(loss) == 3


def test_numbers_are_assigned_in_every_call(launches: Launches) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.weight, self.last = 0, 1.0, "none"

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            self.calls += 1
            self.weight *= 0.9
            self.last = f"call {self.calls}"
            return (x - y).abs().sum() * self.weight + self.calls

    ours, theirs = autogen_loss(Counting(), retrace="every", policy="mandatory"), Counting()
    for _ in range(5):
        results = []
        for each in (ours, theirs):
            value = each(X, Y)
            results.append([value, *torch.autograd.grad(value, X)])
        torch.testing.assert_close(*results)
        assert (ours.calls, ours.weight, ours.last) == (theirs.calls, theirs.weight, theirs.last)
    assert trace_count(ours) == 5 and launches.take() == 10


def test_both_together() -> None:
    loss = autogen_loss(Switched(), static_graph=True, retrace="every")
    for _ in range(3):
        loss(X, Y)
    loss.way = "more"
    with pytest.raises(GraphChangedError):
        loss(X, Y)


@pytest.mark.slow
@pytest.mark.interpreted  # by a process of its own
def test_the_environment_asks_for_it() -> None:
    program = """
import torch
from autogen import autogen_loss, trace_count
loss = autogen_loss(torch.nn.MSELoss())
for _ in range(3):
    loss(torch.ones(3), torch.zeros(3))
print(trace_count(loss))
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "AUTOGEN_RETRACE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "3"


def test_training_steps_are_torchs() -> None:
    weights = []
    for make in (lambda loss: autogen_loss(loss, static_graph=True, policy="mandatory"), lambda loss: loss):
        torch.manual_seed(0)
        model, loss = nn.Linear(5, 7), make(nn.CrossEntropyLoss())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(20):
            optimizer.zero_grad()
            loss(model(draw("real", 6, 5, seed=step).detach()), labels(7, 6, seed=step)).backward()
            optimizer.step()
        weights.append(list(model.parameters()))
    torch.testing.assert_close(*weights)


def test_only_decorated_losses_are_counted() -> None:
    with pytest.raises(TypeError, match="MSELoss is not decorated"):
        trace_count(nn.MSELoss())


def test_another_value_of_the_option() -> None:
    with pytest.raises(ValueError, match='at "changes" or at "every" call'):
        autogen_loss(nn.MSELoss(), retrace="never")  # type: ignore[call-overload]
