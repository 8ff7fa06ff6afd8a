"""What torch does with a loss beside calling it: second derivatives, transforms, modes, copies."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import autogen.losses
from autogen import FallbackWarning, autogen_loss, explain, policy
from tests.interpret.beyond import BEYOND
from tests.interpret.launches import Launches
from tests.interpret.pairs import FIRST, pair
from tests.interpret.samples import Samples
from tests.interpret.table import Row

pytestmark = pytest.mark.filterwarnings("ignore")

FEW = FIRST[::5]  # where it is torch that transforms


def of_first(loss: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """The loss as a function of its first input."""
    return lambda x: loss(x, *inputs[1:])


@pytest.mark.parametrize("row", FEW, ids=lambda row: row.loss)
def test_gradcheck(row: Row, launches: Launches) -> None:
    ours, _, inputs = pair(row)
    with policy("mandatory"):
        assert torch.autograd.gradcheck(of_first(ours, inputs), inputs[0].detach().requires_grad_(), fast_mode=True)
    assert launches.take() > 2


@pytest.mark.parametrize("row", FEW, ids=lambda row: row.loss)
def test_second_derivatives(row: Row) -> None:
    ours, theirs, inputs = pair(row)
    found = []
    for loss in (theirs, ours):
        (grad,) = torch.autograd.grad(loss(*inputs), inputs[0], create_graph=True)
        try:
            found.append(torch.autograd.grad(grad.square().sum(), inputs[0])[0])
        except RuntimeError as error:
            found.append(type(error))
    if isinstance(found[0], Tensor):
        torch.testing.assert_close(found[1], found[0])
        x = inputs[0].detach().requires_grad_()
        assert torch.autograd.gradgradcheck(of_first(ours, inputs), x, fast_mode=True)
    else:
        assert found[1] is found[0]


@pytest.mark.parametrize("row", FEW, ids=lambda row: row.loss)
def test_func_grad_and_vmap(row: Row) -> None:
    ours, theirs, inputs = pair(row)
    batch = torch.stack([inputs[0].detach(), inputs[0].detach() * 0.5])
    for transform in (
        lambda loss: torch.func.grad(of_first(loss, inputs))(batch[0]),
        lambda loss: torch.func.vmap(of_first(loss, inputs))(batch),
        lambda loss: torch.func.vmap(torch.func.grad(of_first(loss, inputs)))(batch),
    ):
        try:
            expected = transform(theirs)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            with pytest.raises(type(error)):
                transform(ours)
        else:
            torch.testing.assert_close(transform(ours), expected)


@pytest.mark.parametrize("row", FEW, ids=lambda row: row.loss)
def test_forward_mode(row: Row) -> None:
    ours, theirs, inputs = pair(row)
    tangents = []
    for loss in (theirs, ours):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(inputs[0].detach(), torch.ones_like(inputs[0]))
            try:
                tangents.append(forward_ad.unpack_dual(loss(dual, *inputs[1:])).tangent)
            except (RuntimeError, NotImplementedError) as error:
                tangents.append(type(error))
    if isinstance(tangents[0], Tensor):
        torch.testing.assert_close(tangents[1], tangents[0])
    else:
        assert tangents[1] is tangents[0]


@pytest.mark.parametrize("row", FEW, ids=lambda row: row.loss)
def test_modes_without_gradients(row: Row, launches: Launches) -> None:
    ours, theirs, inputs = pair(row, torch.float32)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), policy("mandatory"):
            value = ours(*inputs)
        assert launches.take() == 1 and not value.requires_grad
        torch.testing.assert_close(value, theirs(*inputs).detach())


@contextlib.contextmanager
def _enabled_in_inference() -> Iterator[None]:
    with torch.inference_mode(), torch.enable_grad():
        yield


def test_gradients_that_are_enabled_in_inference_mode() -> None:
    """There are none there all the same, and nothing is kept for them."""
    ours = autogen_loss(lambda x: x.softmax(1).square().sum(1).log().mean(), policy="mandatory")
    for mode in (_enabled_in_inference, torch.enable_grad) * 4:
        x = torch.linspace(0, 1, 12).view(3, 4).requires_grad_()
        with mode():
            assert ours(x).requires_grad is (mode is torch.enable_grad)


def test_what_a_loss_asks_about_gradients() -> None:
    """Under `no_grad`, tensors require gradients as before."""

    def loss(x: Tensor) -> Tensor:
        return x.sum() * (2 if x.requires_grad else 3) * (5 if torch.is_grad_enabled() else 7)

    ours = autogen_loss(loss, policy="mandatory")
    for _ in range(3):
        for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
            for requires_grad in (False, True):
                x = torch.ones(3, requires_grad=requires_grad)
                with mode():
                    found, expected = ours(x), loss(x)
                torch.testing.assert_close(found.detach(), expected.detach())
                assert found.requires_grad is expected.requires_grad


@pytest.mark.parametrize("row", FEW, ids=lambda row: row.loss)
def test_tensors_of_inference_mode(row: Row) -> None:
    ours, theirs, inputs = pair(row, torch.float32)
    with torch.inference_mode():
        made = tuple(each.detach().clone() if isinstance(each, Tensor) else each for each in inputs)
        torch.testing.assert_close(ours(*made), theirs(*made))


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum()


def test_tensors_of_inference_mode_that_ask_for_gradients(recwarn: pytest.WarningsRecorder) -> None:
    """Torch never computes these gradients, and says so where it has to."""
    ours, theirs = autogen_loss(nn.MSELoss()), nn.MSELoss()
    with torch.inference_mode():
        made = torch.ones(3).requires_grad_()
        torch.testing.assert_close(ours(made, made * 2), theirs(made, made * 2))
    for loss in (ours, theirs):
        with pytest.raises(RuntimeError, match="cannot be saved for backward"):
            loss(torch.zeros(3, requires_grad=True), made)
    assert not [each for each in recwarn if each.category is FallbackWarning]


def test_tensors_of_inference_mode_beside_parameters() -> None:
    loss = autogen_loss(Weighted(), policy="mandatory")
    with torch.inference_mode():
        made = torch.ones(3)
    for mode in (torch.no_grad, torch.inference_mode):
        for _ in range(3):
            with mode():
                assert loss(made).item() == 6


@pytest.mark.parametrize("row", FEW, ids=lambda row: row.loss)
def test_autocast(row: Row) -> None:
    """The dtypes of torch under autocast, for inputs in half precision too."""
    for dtype in (torch.float32, torch.bfloat16):
        ours, theirs, inputs = pair(row, dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            try:
                expected = theirs(*inputs)
            except RuntimeError:
                continue
            found = ours(*inputs)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found.float(), expected.float(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("row", FEW, ids=lambda row: row.loss)
def test_backward_twice_and_accumulation(row: Row) -> None:
    ours, theirs, inputs = pair(row)
    for loss in (theirs, ours):
        inputs[0].grad = None
        value = loss(*inputs)
        value.backward(retain_graph=True)
        value.backward()
        if loss is theirs:
            expected = inputs[0].grad
    torch.testing.assert_close(inputs[0].grad, expected)


@pytest.mark.parametrize("row", FEW, ids=lambda row: row.loss)
@pytest.mark.parametrize("reentrant", [True, False])
def test_under_checkpoints(row: Row, reentrant: bool, launches: Launches) -> None:
    """Forward runs a second time in backward; nothing of the trace is for the checkpoint to keep."""
    ours, theirs, inputs = pair(row)
    for loss in (theirs, ours, ours, ours):
        inputs[0].grad = None
        with policy("mandatory"):
            checkpoint(loss, *inputs, use_reentrant=reentrant).backward()
        if loss is theirs:
            expected = inputs[0].grad
        else:
            assert launches.take() == 3
            torch.testing.assert_close(inputs[0].grad, expected)


@pytest.mark.parametrize("row", FEW, ids=lambda row: row.loss)
def test_under_deterministic_algorithms(row: Row, launches: Launches) -> None:
    """torch then fills new memory with nan, so this also shows that every result is written whole."""
    ours, theirs, inputs = pair(row)
    expected = theirs(*inputs)
    wanted = torch.autograd.grad(expected, inputs[0])
    torch.use_deterministic_algorithms(True)
    try:
        with policy("mandatory"):
            value = ours(*inputs)
            found = torch.autograd.grad(value, inputs[0])
    finally:
        torch.use_deterministic_algorithms(False)
    assert launches.take() > 1
    torch.testing.assert_close([value, *found], [expected, *wanted])


@pytest.mark.parametrize("row", FEW, ids=lambda row: row.loss)
def test_an_input_changed_before_backward_is_noticed(row: Row) -> None:
    ours, _, inputs = pair(row)
    base = inputs[0].detach().requires_grad_()
    x = base * 1.0
    value = ours(x, *inputs[1:])
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@pytest.mark.parametrize("row", FIRST, ids=lambda row: row.loss)
def test_copies_and_state(row: Row) -> None:
    ours, theirs, inputs = pair(row)
    assert isinstance(ours, type(theirs)) and repr(ours) == repr(theirs)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert [name for name, _ in ours.named_buffers()] == [name for name, _ in theirs.named_buffers()]
    expected = ours(*inputs)
    saved = io.BytesIO()
    torch.save(ours, saved)
    saved.seek(0)
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), torch.load(saved, weights_only=False)):
        assert type(again) is type(ours) and again.use_autogen
        torch.testing.assert_close(again(*inputs), expected, rtol=0, atol=0)
    off = getattr(autogen.losses, row.loss)(**row.options(Samples(torch.float64)), use_autogen=False)
    torch.testing.assert_close(off(*inputs), theirs(*inputs), rtol=0, atol=0)


def test_every_loss_of_torch_is_there() -> None:
    wanted = {*torch.nn.modules.loss.__all__, "AdaptiveLogSoftmaxWithLoss"}
    assert wanted == set(autogen.losses.__all__) - BEYOND
    for name in wanted:
        assert issubclass(getattr(autogen.losses, name), getattr(nn, name))


# NLLLoss2d takes whatever NLLLoss takes, and does not say what.
@pytest.mark.parametrize("name", sorted(set(torch.nn.modules.loss.__all__) - {"NLLLoss2d"}))
def test_signatures_are_torchs(name: str) -> None:
    ours = inspect.signature(getattr(autogen.losses, name)).parameters
    theirs = inspect.signature(getattr(nn, name)).parameters
    assert ours.keys() - theirs.keys() == {"use_autogen"}
    assert ours["use_autogen"].kind is inspect.Parameter.KEYWORD_ONLY and ours["use_autogen"].default is True
    for mine, parameter in zip(ours.values(), theirs.values(), strict=False):  # use_autogen comes last
        assert (mine.name, mine.kind, mine.default) == (parameter.name, parameter.kind, parameter.default)


@pytest.mark.parametrize("make", [autogen.losses.SmoothL1Loss, autogen.losses.CosineEmbeddingLoss])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_upstream_gradients_in_a_batch(make: Any, reduction: str) -> None:
    is_cosine = make is autogen.losses.CosineEmbeddingLoss
    ours, theirs = (of(reduction=reduction) for of in (make, make.__mro__[1]))
    x, rest = torch.randn(4, 3), (torch.rand(4, 3), *([torch.tensor([1, -1, 1, -1])] if is_cosine else []))
    for _ in range(4):  # taken apart, and by a shortcut
        found = []
        for loss in (ours, theirs):
            own = x.clone().requires_grad_()
            value = loss(own, *rest)
            upstream = torch.stack([torch.full_like(value, k) for k in (1.0, 2.0, 3.0)])
            (batch,) = torch.autograd.grad(value, own, upstream, is_grads_batched=True, retain_graph=True)
            mapped = torch.func.vmap(lambda u, v=value, o=own: torch.autograd.grad(v, o, u, retain_graph=True)[0])(
                upstream
            )
            (single,) = torch.autograd.grad(value, own, upstream[1])
            found.append((batch, mapped, single))
        torch.testing.assert_close(*found)


def test_vectorized_jacobian() -> None:
    ours, x, y = autogen.losses.MSELoss(reduction="none"), torch.randn(5), torch.rand(5)
    for _ in range(3):
        found = torch.autograd.functional.jacobian(lambda x: ours(x, y), x, vectorize=True)
        torch.testing.assert_close(found, torch.diag(2 * (x - y)))


def test_gradients_that_forward_has_made_are_not_those_of_a_batch() -> None:
    ours, y = autogen_loss(nn.MSELoss(), gradient="forward"), torch.rand(5)
    for _ in range(4):
        x = torch.randn(5, requires_grad=True)
        (found,) = torch.autograd.grad(ours(x, y), x, torch.tensor([1.0, 2.0]), is_grads_batched=True)
        torch.testing.assert_close(found, torch.stack([2 * (x - y) / 5, 4 * (x - y) / 5]))


@pytest.mark.filterwarnings("ignore")
def test_jit_trace() -> None:
    def squares(x: Tensor, y: Tensor) -> Tensor:
        return (x - y).square().mean()

    x, y = torch.arange(6.0), torch.ones(6)
    for calls in (0, 4):
        loss = autogen_loss(squares)
        for _ in range(calls):
            loss(x, y)
        traced = torch.jit.trace(loss, (x, y))
        assert traced(x, x) == 0 and traced(x, y) == squares(x, y)
        assert explain(loss, x, y).path == "generated"


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("calls", [1, 3])  # the long way, and the short one
def test_derivatives_by_upstream_gradients(calls: int, reduction: str) -> None:
    """Backward is run where the upstream gradient has a tangent, or is one that torch.func differentiates by."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(x.exp(), y, reduction=reduction)

    x, y = torch.linspace(-1, 1, 12, requires_grad=True), torch.linspace(0, 1, 12)
    found: list[list[Tensor]] = []
    for each in (loss, autogen_loss(loss)):
        for _ in range(calls):
            value = each(x, y)
        one = torch.ones_like(value).detach()

        def backward(upstream: Tensor, value: Tensor = value, *, again: bool = True) -> Tensor:
            return torch.autograd.grad(value, x, upstream, retain_graph=True, create_graph=again)[0]

        with forward_ad.dual_level():
            dual = forward_ad.make_dual(one, 2 * one)
            tangent = forward_ad.unpack_dual(backward(dual, again=False)).tangent
        of_one = torch.func.grad(lambda g, f=backward: f(g).square().sum())(one)
        (of_x,) = torch.autograd.grad(of_one.sum(), x, retain_graph=True)
        found.append([
            tangent,
            torch.func.jvp(backward, (one,), (one,))[1],
            torch.func.grad(lambda g, f=backward: f(g).square().sum())(one),
            torch.func.vjp(backward, one)[1](torch.ones_like(x))[0],
            torch.func.vmap(backward)(torch.stack([one, 3 * one])),
            of_x,
        ])  # fmt: skip
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
