"""The fast path: which calls are those that are known, and which are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autogen import autogen_loss, losses, policy
from autogen.decorator import call_of
from autogen.dispatch.fast import FastPath
from tests.unit.pipeline import floats

X, T = floats(4, 3, dtype=torch.float32), floats(4, 3, dtype=torch.float32, grad=False, seed=1)

pytestmark = pytest.mark.skipif("not __import__('autogen.runtime.availability').runtime.availability.has_interpreter()")


@autogen_loss(reads="arguments")
def hinge(x: Tensor, t: Tensor, margin: float = 1.0, weight: Tensor | None = None) -> Tensor:
    error = (margin - x * t).clamp(min=0)
    return (error if weight is None else error * weight).mean()


@autogen_loss(reads="arguments")
class Hinge(nn.Module):
    def __init__(self, margin: float = 1.0, weight: Tensor | None = None) -> None:
        super().__init__()
        self.margin = margin
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        error = (self.margin - x * t).clamp(min=0)
        return (error if self.weight is None else error * self.weight).mean()


@pytest.fixture(autouse=True)
def mandatory() -> Iterator[None]:
    with policy("mandatory"):
        yield


def path_of(loss: Any) -> FastPath:
    fast = call_of(loss, ())[0].fast
    assert fast is not None
    return fast


def knows(*args: Any, **kwargs: Any) -> bool:
    return path_of(hinge).find(args, kwargs) is not None


@pytest.fixture
def known() -> Callable[..., bool]:
    """The path after one call of `hinge(X, T, 0.5)`."""
    path_of(hinge)._entries.clear()
    hinge(X, T, 0.5)
    return knows


def test_a_call_of_the_same_kind_goes_past_dynamo(known: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    assert known(X, T, 0.5) and known(X.detach().clone().requires_grad_(), T, 0.5)
    monkeypatch.setattr(call_of(hinge, ())[0], "site", None)
    x = X.detach().clone().requires_grad_()
    hinge(x, T * 2, 0.5).backward()
    wanted = torch.autograd.grad((0.5 - X * T * 2).clamp(min=0).mean(), X)[0]
    torch.testing.assert_close(x.grad, wanted)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X, T, 0.25), {}),
        ((X, T, 1), {}),
        ((X, T, True), {}),
        ((X, T), {}),
        ((X, T), {"margin": 0.5}),
        ((X, T, 0.5, T), {}),
        ((X, T, 0.5), {"weight": None}),
        ((X, T, 0.5, "text"), {}),
        ((X, T, [0.5]), {}),
        ((X.double(), T, 0.5), {}),
        ((X, T.double(), 0.5), {}),
        ((X[:3], T[:3], 0.5), {}),
        ((X, T[0], 0.5), {}),
        ((X.detach().t().contiguous().t().requires_grad_(), T, 0.5), {}),
        ((X.detach(), T, 0.5), {}),
        ((X, T.clone().requires_grad_(), 0.5), {}),
        ((X, T.to("meta"), 0.5), {}),
    ],
)
def test_another_kind_is_not_known(args: Any, kwargs: Any, known: Callable[..., bool]) -> None:
    assert not known(*args, **kwargs)


def test_another_state_of_torch_is_not_known(known: Callable[..., bool]) -> None:
    with torch.no_grad():
        assert not known(X, T, 0.5)
    with torch.inference_mode():
        assert not known(X, T, 0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hinge(X, T, 0.5)
        with torch.autocast("cpu", enabled=False):
            assert known(X, T, 0.5)


@autogen_loss(reads="arguments")
def scores(x: Tensor, t: Tensor) -> Tensor:
    return (x @ t.mT) * 2


def test_another_dtype_of_autocast_is_not_known() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            assert scores(X, T).dtype == dtype


def test_a_call_without_gradients_is_known_where_gradients_are_on(known: Callable[..., bool]) -> None:
    hinge(X.detach(), T, 0.5)
    assert known(X.detach(), T, 0.5) and not hinge(X.detach(), T, 0.5).requires_grad


def test_numbers_that_change_are_known(known: Callable[..., bool]) -> None:
    for margin in (0.3, 0.2, 0.1):
        hinge(X, T, margin)
        assert known(X, T, margin)


def test_zeros_of_both_signs_differ(known: Callable[..., bool]) -> None:
    hinge(X, T, 0.0)
    assert known(X, T, 0.0) and not known(X, T, -0.0)


def test_the_attributes_of_a_module() -> None:
    def is_known(loss: Hinge) -> bool:
        return path_of(loss).find((loss, X, T), {}) is not None

    loss = Hinge(0.5)
    path_of(loss)._entries.clear()
    loss(X, T)
    assert is_known(loss) and is_known(Hinge(0.5))
    assert not is_known(Hinge(0.25)) and not is_known(Hinge(0.5, T[0]))
    loss.margin = 0.25
    assert not is_known(loss)
    loss.margin = 0.5
    assert is_known(loss)
    loss.register_buffer("weight", T[0])
    assert not is_known(loss)
    torch.testing.assert_close(loss(X, T), ((0.5 - X * T).clamp(min=0) * T[0]).mean())
    loss.register_buffer("weight", T[1])
    assert is_known(loss)
    torch.testing.assert_close(loss(X, T), ((0.5 - X * T).clamp(min=0) * T[1]).mean())
    loss.eval()
    assert not is_known(loss)
    loss.train()
    loss.others = [1]
    assert not is_known(loss)


def test_a_decorated_instance() -> None:
    loss = autogen_loss(nn.SmoothL1Loss(beta=0.5), reads="arguments")
    for _ in range(2):  # what comes first is not kept
        loss(X, T)
    assert path_of(loss).find((loss, X, T), {}) is not None
    loss.beta = 0.25
    assert path_of(loss).find((loss, X, T), {}) is None
    torch.testing.assert_close(loss(X, T), nn.SmoothL1Loss(beta=0.25)(X, T))


def test_what_is_not_learned() -> None:
    @autogen_loss(reads="arguments")
    def several(x: Tensor, t: Tensor) -> Any:
        return x.exp().mean(), (x * t).mean()

    several(X, T)
    assert not path_of(several)._entries
    path = path_of(hinge)
    hinge(X, X)  # a tensor that is given twice
    assert path.find((X, X), {}) is None


def test_the_oldest_is_forgotten() -> None:
    from autogen.dispatch import fast

    path = path_of(hinge)
    for rows in range(2, fast._MOST_ENTRIES + 4):
        for _ in range(2):  # launches for sizes that come first are not kept
            hinge(torch.ones(rows, 3), torch.ones(rows, 3))
    assert len(path._entries) == fast._MOST_ENTRIES


def test_calls_of_handwritten_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    loss, reference = losses.CosineEmbeddingLoss(0.25), nn.CosineEmbeddingLoss(0.25)
    sign = torch.tensor([1, -1, 1, -1])
    dispatcher, _ = call_of(loss, ())
    for _ in range(2):  # what comes first is not kept
        loss(X, T, sign)
    monkeypatch.setattr(dispatcher.handwritten, "run", None)
    x = X.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(x, T, -sign), x, create_graph=True)
    (wanted,) = torch.autograd.grad(reference(x, T, -sign), x, create_graph=True)
    torch.testing.assert_close(gradient, wanted)
    (second,) = torch.autograd.grad(gradient.square().sum(), x)
    torch.testing.assert_close(second, torch.autograd.grad(wanted.square().sum(), x)[0])
    monkeypatch.undo()
    torch.testing.assert_close(losses.CosineEmbeddingLoss(0.5)(X, T, sign), nn.CosineEmbeddingLoss(0.5)(X, T, sign))


def test_other_numbers_of_handwritten_kernels() -> None:
    for temperature in (0.5, 1.0, 0.5, 2.0):
        ours, eager = losses.InfoNCELoss(temperature), losses.InfoNCELoss(temperature, use_autogen=False)
        torch.testing.assert_close(ours(X, T), eager(X, T))
