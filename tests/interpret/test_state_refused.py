"""Changes that are left to torch, as nothing could make them as torch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen
from autogen import autogen_loss, explain, policy
from autogen.calls.settings import unchanged
from tests.interpret.launches import Launches
from tests.interpret.stateful import Loss, Twins, inputs


class Counter(Loss):
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def change(self, x: Tensor, t: Tensor) -> Tensor:
        self.steps += 1
        return x.sum() * self.steps


class Shrinking(Loss):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def change(self, x: Tensor, t: Tensor) -> None:
        self.seen.append(t.mean())
        self.seen[:] = self.seen[-2:]


class Deleting(Loss):
    def __init__(self) -> None:
        super().__init__()
        self.extra: Any = 1

    def change(self, x: Tensor, t: Tensor) -> None:
        if hasattr(self, "extra"):
            del self.extra


class Viewing(Loss):
    def change(self, x: Tensor, t: Tensor) -> None:
        self.last = t[0]


class Overlapping(Loss):
    def change(self, x: Tensor, t: Tensor) -> None:
        mean = t.mean(0)
        self.last, self.previous = mean, mean[:2]


class OfClass(Loss):
    total: Any = 0.0

    def change(self, x: Tensor, t: Tensor) -> None:
        type(self).total = t.sum()


class NewBuffer(Loss):
    def change(self, x: Tensor, t: Tensor) -> None:
        self.register_buffer("extra", t.mean(0), persistent=False)


class NewParameter(Loss):
    def change(self, x: Tensor, t: Tensor) -> None:
        self.last = nn.Parameter(t.mean(0))


class FloatOfTime(Loss):
    def change(self, x: Tensor, t: Tensor) -> Tensor:
        before = self.last
        self.last = 0.5
        return x.sum() * (before or 1.0)


class Restored(Loss):
    def change(self, x: Tensor, t: Tensor) -> Tensor:
        before = self.center.detach()
        self.center.data = self.center.data + 1
        self.center.data = before
        return (x * self.center).sum()


class DataOfAnother(Loss):
    def change(self, x: Tensor, t: Tensor) -> Tensor:
        self.center.data = t[:1]
        return (x * self.center).sum()


class DataReturned(Loss):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        new = t.mean(0, keepdim=True)
        self.center.data = new
        return new if len(x) else x


@pytest.mark.parametrize(
    "kind",
    [
        DataOfAnother,
        DataReturned,
        Counter,
        Shrinking,
        Deleting,
        Viewing,
        Overlapping,
        OfClass,
        NewBuffer,
        NewParameter,
        FloatOfTime,
        Restored,
    ],
)
def test_what_is_in_doubt_is_left_to_torch(kind: type[Loss], launches: Launches) -> None:
    with pytest.raises(autogen.AutogenError), policy("mandatory"):
        autogen_loss(kind())(*inputs(0))
    twins = Twins(kind())
    twins.call(0)
    assert launches.take() == 0
    twins.call(1)


def _double() -> None:
    torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize(
    "change",
    [
        _double,
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: torch._C._set_grad_enabled(False),
        lambda: torch.set_autocast_enabled("cpu", True),
        lambda: torch.set_default_device("meta"),
        lambda: torch.set_num_threads(2),
        lambda: torch.set_anomaly_enabled(True),
    ],
    ids=["dtype", "deterministic", "grad", "autocast", "device", "threads", "anomaly"],
)
def test_settings_of_torch_are_changed_by_each_call(change: Callable[[], None]) -> None:
    @autogen_loss
    def loss(x: Tensor) -> Tensor:
        value = x.square().mean()
        change()
        return value

    x = torch.ones(3)
    for _ in range(3):
        with pytest.raises(autogen.AutogenError, match="the loss changes torch's"), unchanged():
            loss(x)
    with unchanged():
        assert explain(loss, x).path == "eager"


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: (x.as_strided_((3, 4), (1, 3)) * 2).sum(),
        lambda x: (x.unsqueeze_(0) * 2).sum(),
        lambda x: (x - x.squeeze_(1)).sum(),
        lambda x: x.t_().sum() + x.set_().sum(),
    ],
)
def test_an_argument_that_is_given_other_sizes(loss: Callable[[Tensor], Tensor]) -> None:
    ours = autogen_loss(loss)
    for _ in range(3):
        x, y = torch.ones(4, 3), torch.ones(4, 3)
        assert ours(x) == loss(y)
        assert x.shape == y.shape and x.stride() == y.stride()
    assert "on an argument of the loss" in explain(ours, torch.ones(4, 3)).reason


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y[1:].add_(y[:-1]),
        lambda y: y[1:].copy_(y[:-1]),
        lambda y: y.t().add_(y),
        lambda y: y.add_(y[0]),
    ],
)
def test_writes_to_what_is_read_in_part(write: Callable[[Tensor], Tensor]) -> None:
    """torch refuses them, as the result would depend on the order."""

    def loss(x: Tensor) -> Tensor:
        y = x.clone()
        write(y)
        return y.sum()

    for _ in range(3):
        with pytest.raises(RuntimeError, match="unsupported operation"):
            autogen_loss(loss)(torch.ones(3, 3))


def test_writes_to_what_is_read_beside_it_or_whole() -> None:
    def loss(x: Tensor) -> Tensor:
        y = x.clone()
        y[0].add_(y[1])
        y[:, 0] += y[:, 1]
        y.mul_(y)
        return y.sum()

    with policy("mandatory"):
        torch.testing.assert_close(autogen_loss(loss)(torch.ones(3, 3)), loss(torch.ones(3, 3)))


def test_a_buffer_that_is_written_to_and_returned() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            self.n += 1
            return x.square().mean(), {"n": self.n}

    ours = autogen_loss(Counting())
    with policy("mandatory"), pytest.raises(autogen.StateChangeError, match="Return or assign a clone"):
        ours(torch.ones(3))
    results = [ours(torch.ones(3))[1]["n"] for _ in range(3)]
    assert all(each is ours.n for each in results) and ours.n == 3


def test_ops_of_the_users_that_do_more_than_make_tensors() -> None:
    """One that returns nothing is called for what it does; a number is none that a fake tensor tells."""
    heard: list[float] = []
    with torch.library._scoped_library("ops_of_a_test", "FRAGMENT") as library:
        library.define("hear(Tensor x) -> ()")
        library.impl("hear", lambda x: heard.append(float(x.sum())), "CPU")
        library.define("count() -> int")
        library.impl("count", lambda: len(heard), "CompositeExplicitAutograd")
        library.define("halves(Tensor x) -> Tensor[]")
        library.impl("halves", lambda x: [x / 2, x - x / 2], "CPU")
        torch.library.register_fake("ops_of_a_test::hear", lambda x: None, lib=library)
        torch.library.register_fake("ops_of_a_test::halves", lambda x: [x / 2, x / 2], lib=library)
        ops: Any = torch.ops.ops_of_a_test

        def loss(x: Tensor) -> Tensor:
            ops.hear(x)
            return x.mean() * ops.count()

        ours = autogen_loss(loss)
        for k in range(1, 5):
            x = torch.full((3,), float(k))
            torch.testing.assert_close(ours(x), x.mean() * k)
        assert heard == [3.0, 6.0, 9.0, 12.0]
        assert "hear.default, which does not return tensors alone" in explain(ours, x).reason
        assert explain(lambda x: ops.halves(x)[0].sum(), x).path == "partial"
