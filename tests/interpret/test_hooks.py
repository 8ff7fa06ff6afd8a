"""What runs in backward: hooks, and the backward of functions of the user's own. What they read, a loss reads."""

from __future__ import annotations

import copy
import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autogen import autogen_loss, explain, policy
from autogen.decorator import dispatcher_of
from tests.interpret.launches import Launches
from tests.interpret.steps import C, N, compare, inputs

SCHEDULE = types.SimpleNamespace(scale=0.1)


class Loss(nn.Module):
    """A loss whose gradient goes through a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.1
        self.scales = [0.1, 0.2]
        self.register_buffer("bank", torch.ones(5, C))
        self.register_buffer("factor", torch.tensor(0.1))
        self.register_buffer("count", torch.zeros(()))
        self.last: Any = None
        self.steps = 0
        self.seen: list[Any] = []
        self.table: dict[str, Any] = {"norm": torch.zeros(())}

    def hook(self, gradient: Tensor) -> Tensor | None:
        """What becomes of the gradient."""
        raise NotImplementedError

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = x * 1.0
        if hidden.requires_grad:
            hidden.register_hook(self.hook)
        return F.mse_loss(hidden, t, reduction="sum") + self.bank.square().mean()


class Reversed(Loss):
    def hook(self, gradient: Tensor) -> Tensor:
        return -self.scale * gradient


class Clipped(Loss):
    def hook(self, gradient: Tensor) -> Tensor:
        return gradient.clamp(-self.scale, self.scale)


class Annealed(Loss):
    def hook(self, gradient: Tensor) -> Tensor:
        return gradient * (2 / (1 + 0.5**self.scale) - 1)


class OfList(Loss):
    def hook(self, gradient: Tensor) -> Tensor:
        return gradient * self.scales[0] + self.scales[1]


class OfGlobal(Loss):
    def hook(self, gradient: Tensor) -> Tensor:
        return gradient * SCHEDULE.scale


class OfBuffer(Loss):
    def hook(self, gradient: Tensor) -> Tensor:
        return gradient * self.factor


class BothWays(Loss):
    def hook(self, gradient: Tensor) -> Tensor:
        return gradient / self.scale

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return super().forward(x * self.scale, t)


class OfForward(Loss):
    """A hook that reads what forward has written."""

    def hook(self, gradient: Tensor) -> Tensor:
        return gradient * self.count + gradient * self.last

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.count += t.mean()
        self.last = t.std()
        return super().forward(x, t)


class OfModule(Loss):
    """The hook of an inner module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()
        self.inner.register_full_backward_hook(_scaled)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return F.mse_loss(self.inner(x), t)


def _scaled(module: nn.Module, inward: Any, outward: Any) -> tuple[Tensor]:
    return (inward[0] * SCHEDULE.scale,)


class Branching(Loss):
    def hook(self, gradient: Tensor) -> Tensor:
        return gradient if self.factor > 0.25 else gradient * 2


class OfFunction(Loss):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return F.mse_loss(_Reversal.apply(x), t)


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return -SCHEDULE.scale * gradient


def set_scale(loss: Loss, value: float) -> None:
    """Everything that a hook of these losses may read, but for sizes."""
    loss.scale = loss.scales[0] = SCHEDULE.scale = value
    loss.factor.fill_(value)


READING = [
    Reversed,
    Clipped,
    Annealed,
    OfList,
    OfGlobal,
    OfBuffer,
    BothWays,
    OfForward,
    OfModule,
    Branching,
    OfFunction,
]


@pytest.mark.parametrize("kind", READING, ids=lambda each: each.__name__)
def test_what_a_hook_reads_may_change(kind: type[Loss]) -> None:
    ours, theirs = autogen_loss(kind()), kind()
    with policy("mandatory"):
        for step in range(6):
            for each in (ours, theirs):
                set_scale(each, 0.1 * (step + 1))
            compare(ours, theirs, step, N + step // 4)
    found = dispatcher_of(ours)
    assert found is not None
    assert found[0].compilations.traces <= 3


class BySize(Loss):
    def hook(self, gradient: Tensor) -> Tensor:
        return gradient / self.bank.shape[0]


class ByLength(Loss):
    def hook(self, gradient: Tensor) -> Tensor:
        return gradient / len(self.bank)


@pytest.mark.parametrize("kind", [BySize, ByLength])
def test_a_hook_may_read_a_size(kind: type[Loss]) -> None:
    ours, theirs = autogen_loss(kind()), kind()
    with policy("mandatory"):
        for step, rows in enumerate((5, 5, 7, 9)):
            for each in (ours, theirs):
                each.bank = torch.ones(rows, C)
            compare(ours, theirs, step)
    found = dispatcher_of(ours)
    assert found is not None
    assert found[0].compilations.traces == 1


def test_what_a_hook_reads_is_that_of_forward() -> None:
    loss = autogen_loss(Reversed())
    for _ in range(2):
        x, t = inputs(0)
        loss.scale = 0.5
        value = loss(x, t)
        loss.scale = 0.25
        value.backward()
        torch.testing.assert_close(x.grad, -0.5 * 2 * (x - t).detach())


def test_second_derivatives_through_a_hook() -> None:
    ours, theirs = autogen_loss(Reversed()), Reversed()
    for step in range(5):
        found = []
        for each in (ours, theirs):
            each.scale = 0.1 * (step + 1)
            x, t = inputs(step)
            (first,) = torch.autograd.grad(each(x, t), x, create_graph=True)
            found.append((first, *torch.autograd.grad(first.square().sum(), x)))
        torch.testing.assert_close(*found)


class Counting(Loss):
    def hook(self, gradient: Tensor) -> None:
        self.steps += 1


class Keeping(Loss):
    def hook(self, gradient: Tensor) -> None:
        self.last = gradient.norm()


class Flagging(Loss):
    def hook(self, gradient: Tensor) -> None:
        self.last = not self.last


class Appending(Loss):
    def hook(self, gradient: Tensor) -> None:
        self.seen.append(1)


class Filing(Loss):
    def hook(self, gradient: Tensor) -> None:
        self.table["norm"] = gradient.norm()


class Writing(Loss):
    def hook(self, gradient: Tensor) -> None:
        self.count.add_(1)


class WritingTheGradient(Loss):
    def hook(self, gradient: Tensor) -> None:
        self.factor.copy_(gradient.norm())


class Replacing(Loss):
    def hook(self, gradient: Tensor) -> None:
        self.factor.data = gradient.norm()


class PuttingBack(Loss):
    """A hook that undoes what forward has done."""

    def hook(self, gradient: Tensor) -> None:
        self.last = None

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.last = t.mean()
        return super().forward(x, t)


class Overwriting(PuttingBack):
    def hook(self, gradient: Tensor) -> None:
        self.last = gradient.mean()


@pytest.mark.parametrize(
    "kind",
    [
        *(Counting, Keeping, Flagging, Appending, Filing, Writing, WritingTheGradient, Replacing, PuttingBack),
        Overwriting,
    ],
    ids=lambda each: each.__name__,
)
def test_what_a_hook_changes_is_left_to_torch(kind: type[Loss], launches: Launches) -> None:
    theirs = kind()
    ours = autogen_loss(copy.deepcopy(theirs))
    for step in range(4):
        compare(ours, theirs, step)
        assert (ours.steps, len(ours.seen)) == (theirs.steps, len(theirs.seen))
        for own, their in ((ours.last, theirs.last), (ours.table["norm"], theirs.table["norm"])):
            assert type(own) is type(their)
            torch.testing.assert_close(own, their) if isinstance(own, Tensor) else None
        torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))
    assert launches.take() == 0
    assert explain(ours, *inputs(0)).path == "eager"


class Freezing(Loss):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def hook(self, gradient: Tensor) -> None:
        self.weight.requires_grad_(False)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return super().forward(x * self.weight, t)


def test_a_hook_that_freezes_a_parameter_is_left_to_torch() -> None:
    ours, theirs = autogen_loss(Freezing()), Freezing()
    for step in range(3):
        compare(ours, theirs, step)
        assert ours.weight.requires_grad is theirs.weight.requires_grad is False


class OnArgument(Loss):
    """A hook on what others have, too."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x.register_hook(lambda gradient: gradient * 2)
        return F.mse_loss(x, t)


class OnParameter(Loss):
    """One more hook in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.weight.register_hook(lambda gradient: gradient * 2)
        return F.mse_loss(x * self.weight, t)


class AfterTheGradient(OnParameter):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.weight.register_post_accumulate_grad_hook(_double)
        return F.mse_loss(x * self.weight, t)


def _double(parameter: Tensor) -> None:
    parameter.grad.mul_(2)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [OnArgument, OnParameter, AfterTheGradient])
def test_a_hook_on_an_input_is_left_to_torch(kind: type[Loss]) -> None:
    found = []
    for loss in (autogen_loss(kind()), kind()):
        gradients = []
        for step in range(3):
            x, t = inputs(step)
            hidden = x.tanh()
            (loss(hidden, t) + hidden.square().sum()).backward()
            gradients += [x.grad, *(each.grad.clone() for each in loss.parameters())]
        found.append(gradients)
    torch.testing.assert_close(*found)


class ByValue(Loss):
    def hook(self, gradient: Tensor) -> Tensor | None:
        return gradient * 2 if gradient.norm() > 1 else None


def test_a_hook_that_branches_on_the_gradient_is_left_to_torch() -> None:
    ours, theirs = autogen_loss(ByValue()), ByValue()
    for step in range(4):
        compare(ours, theirs, step)
    assert explain(ours, *inputs(0)).path == "eager"


class Backward(nn.Module):
    """A loss that sets gradients itself."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.weight = how, nn.Parameter(torch.ones(C))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        loss = F.mse_loss(x * self.weight, t)
        if self.how == "backward":
            loss.backward(retain_graph=True)
        elif self.how == "function":
            torch.autograd.backward([loss], inputs=[self.weight], retain_graph=True)
        elif self.how == "None":
            self.weight.grad = None
        elif self.how == "tensor":
            self.weight.grad = torch.ones(C)
        else:
            del x.grad
        return loss * 2


@pytest.mark.parametrize("how", ["backward", "function", "None", "tensor", "deleted"])
def test_a_loss_that_sets_gradients(how: str) -> None:
    theirs = Backward(how)
    ours = autogen_loss(copy.deepcopy(theirs))
    for step in range(3):
        compare(ours, theirs, step)
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    assert explain(ours, *inputs(0)).path == "eager"


def test_a_gradient_that_is_kept() -> None:
    class Loss(nn.Module):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            self.difference = x - t
            self.difference.retain_grad()
            return self.difference.square().sum()

    loss = autogen_loss(Loss())
    x, t = inputs(0)
    loss(x, t).backward()
    torch.testing.assert_close(loss.difference.grad, 2 * (x - t).detach())
    assert explain(loss, x, t).path == "eager"


def test_a_gradient_of_its_own_is_no_change() -> None:
    """Of a tensor that the loss has made, as where a direction is searched for."""

    def loss(x: Tensor, t: Tensor) -> Tensor:
        direction = torch.ones_like(t).requires_grad_()
        (gradient,) = torch.autograd.grad((direction * t).square().sum(), direction)
        return F.mse_loss(x + gradient.detach(), t)

    x, t = inputs(0)
    torch.testing.assert_close(autogen_loss(loss)(x, t), loss(x, t))
    assert explain(autogen_loss(loss), x, t).path == "generated"


@pytest.mark.parametrize("name", ["register_module_full_backward_hook", "register_module_full_backward_pre_hook"])
def test_hooks_of_all_modules(name: str) -> None:
    """They are seen to come, and to go."""

    class OfTanh(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tanh = nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.tanh(x).sum()
            return result

    def times_ten(module: nn.Module, *gradients: tuple[Tensor, ...]) -> Any:
        return (gradients[0][0] * 10,) if isinstance(module, nn.Tanh) else None

    loss, own = autogen_loss(OfTanh()), OfTanh()
    x = torch.linspace(-1, 1, 5, requires_grad=True)

    def gradients() -> list[Tensor]:
        return [torch.autograd.grad(each(x), x)[0] for each in (loss, own)]

    for _ in range(3):
        torch.testing.assert_close(*gradients())
    handle = getattr(nn.modules.module, name)(times_ten)
    try:
        mine, expected = gradients()
        torch.testing.assert_close(mine, expected)
        assert (mine > 3).all()
    finally:
        handle.remove()
    torch.testing.assert_close(*gradients())
