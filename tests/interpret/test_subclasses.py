"""Subclasses of tensors that say what torch's functions do, and nothing of its operators, run on kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen
from autogen import autogen_loss, explain, trace_count


class Image(Tensor):
    """As torch makes subclasses: what is computed of one is one, without its attributes."""

    unit: str


class Boxes(Tensor):
    """As torchvision's: what is computed of one is a plain tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(cls, each) for each in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    __torch_function__.__func__.__module__ = "torchvision.tv_tensors._tv_tensor"  # type: ignore[attr-defined]


class Twice(Tensor):
    """One with an exponential of its own, computed by what asks it again."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result + args[0].exp_() if func is torch.exp else result * 2 if func is Tensor.exp_ else result


class Weight(nn.Parameter):
    pass


def dice(x: Tensor, y: Tensor) -> Tensor:
    return 1 - (2 * (x * y).sum() + 1) / ((x**2).sum() + (y**2).sum() + 1) + x.exp().mean()


def several(x: Tensor, y: Tensor) -> Any:
    scale = 2.0 if isinstance(x, Image) and x.unit == "grey" else 3.0
    return F.cross_entropy(x, y.argmax(-1), reduction="none") * scale, x[0], torch.exp(x).detach()


def in_place(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        y.mul_(2)
    return F.mse_loss(x, y) / x.abs().max()


def plain(tensor: Any) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        found: Tensor = tensor.as_subclass(Tensor).detach()
    return found


def given(kind: type, values: Tensor) -> Any:
    tensor: Any = kind(values.clone()) if kind is Weight else values.clone().as_subclass(kind).requires_grad_()
    if kind is Image:
        tensor.unit = "grey"
    return tensor


def agree(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    torch.testing.assert_close(plain(found), plain(expected), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", [Image, Boxes, Weight])
def test_results_and_gradients_are_those_of_the_loss_as_written(kind: type) -> None:
    for loss in (dice, several, in_place):
        ours = autogen_loss(loss)
        for size in (5, 8):
            values, other = torch.rand(size, 4, dtype=torch.float64), torch.rand(size, 4, dtype=torch.float64)
            runs = []
            for function in (ours, loss):
                x, y = given(kind, values), other.clone()
                results = function(x, y)
                results = results if isinstance(results, tuple) else (results,)
                results[0].sum().backward()
                runs.append((*results, x.grad, y))
            for found, expected in zip(*runs, strict=True):
                agree(found, expected)
        assert trace_count(ours) == 1
        report = explain(ours, given(kind, values), other)
        assert report.path == "generated" and not report.breaks, report.reason


def test_second_derivatives() -> None:
    def loss(x: Tensor) -> Tensor:
        return (x.exp() ** 3).mean()

    values, found = torch.rand(6, dtype=torch.float64), []
    for function in (autogen_loss(loss), loss):
        x = given(Image, values)
        (gradient,) = torch.autograd.grad(function(x), x, create_graph=True)
        gradient.sum().backward()
        found += [gradient, x.grad]
    agree(found[0], found[2])
    agree(found[1], found[3])


def test_the_fast_path_tells_them_apart() -> None:
    ours, torchs = autogen.losses.HuberLoss(), nn.HuberLoss()
    values, target = torch.rand(6, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    for kind in (Tensor, Tensor, Image, Image, Boxes, Tensor, Twice, Image):
        agree(ours(given(kind, values), target), torchs(given(kind, values), target))
        agree(ours(values, target.as_subclass(kind)), torchs(values, target.as_subclass(kind)))


class Logged(Tensor):
    """One whose operators are its own."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs or {})
        return result + 1 if func is torch.ops.aten.exp.default else result


@pytest.mark.parametrize("kind", [Logged, Twice])
def test_what_computes_in_its_own_way_is_left_to_torch(kind: type) -> None:
    def loss(x: Tensor) -> Tensor:
        return torch.exp(x * 2).sum()

    values = torch.rand(6, dtype=torch.float64)
    ours = autogen_loss(loss)
    for _ in range(2):
        agree(ours(values.as_subclass(kind)), loss(values.as_subclass(kind)))
        agree(ours(values), loss(values))


def test_what_dynamo_cannot_trace_of_one_runs_in_torch() -> None:
    def loss(x: Tensor) -> Tensor:
        return (x @ x.T).exp().mean()

    values = torch.rand(3, 4, dtype=torch.float64)
    with pytest.warns(autogen.FallbackWarning):
        found = autogen_loss(loss)(given(Image, values))
    agree(found, loss(given(Image, values)))


def test_two_kinds_that_do_not_mix_are_refused_as_by_torch() -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return (x - y).abs().mean()

    refused: list[Callable[..., Any]] = [loss, autogen_loss(loss)]
    for function in refused:
        with pytest.raises(TypeError, match="'Image' and 'Boxes'"):
            function(given(Image, torch.rand(3)), given(Boxes, torch.rand(3)))
