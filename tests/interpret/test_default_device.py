"""`torch.set_default_device` and `with torch.device`: losses keep their kernels, and what they make has that device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

import autogen.losses
from autogen import autogen_loss, explain, policy
from autogen.errors import AutogenError
from tests.interpret.launches import Launches

X, Y = torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(0, 1, 12).reshape(3, 4)


@pytest.fixture
def default_device() -> Iterator[Callable[[Any], None]]:
    yield torch.set_default_device
    torch.set_default_device(None)


def weighted(x: Tensor, y: Tensor) -> Tensor:
    return ((x - y).square() * torch.arange(1, x.shape[1] + 1)).mean() + torch.tensor(0.5) * torch.zeros(()).exp()


def where_it_is_made(x: Tensor) -> Tensor:
    return x.sum() * (2.0 if torch.empty(2).device.type == "meta" else 3.0)


def test_kernels_run(default_device: Callable[[Any], None], launches: Launches) -> None:
    losses = [autogen_loss(F.mse_loss, policy="mandatory"), autogen_loss(weighted, policy="mandatory")]
    for device in ("cpu", None, torch.device("cpu")):
        default_device(device)
        for loss, own in zip(losses, (F.mse_loss, weighted), strict=True):
            for n in (3, 2, 3):
                x = X[:n].clone().requires_grad_()
                value = loss(x, Y[:n])
                torch.testing.assert_close(value, own(x, Y[:n]))
                mine, expected = (torch.autograd.grad(each(x, Y[:n]), x)[0] for each in (loss, own))
                torch.testing.assert_close(mine, expected)
            assert launches.take() == 9
            assert explain(loss, X, Y).path == "generated"


def test_handwritten_kernels_run(launches: Launches) -> None:
    loss = autogen.losses.MultiLabelMarginLoss()
    target = torch.tensor([[1, 0, -1, -1]] * 3)
    with torch.device("cpu"):
        for _ in range(3):
            torch.testing.assert_close(loss(X, target), F.multilabel_margin_loss(X, target))
    assert launches.take() == 3


def test_what_a_trace_computes_is_on_the_cpu(launches: Launches) -> None:
    """On a GPU it would be waited for."""
    loss = autogen_loss(lambda x: x.sum() * torch.full((), 3.0, device=x.device).exp(), policy="mandatory")
    with torch.device("meta"):
        torch.testing.assert_close(loss(Y), Y.sum() * math.exp(3.0))
    assert launches.take() == 1


def test_labels_are_checked_where_they_are(launches: Launches) -> None:
    scores, labels, lengths = torch.randn(5, 2, 4).log_softmax(2), torch.tensor([[1, 2], [3, 1]]), ([5, 4], [2, 1])
    expected = F.ctc_loss(scores, labels, *lengths)
    with torch.device("meta"), policy("mandatory"):
        torch.testing.assert_close(autogen.losses.CTCLoss()(scores, labels, *lengths), expected)
    assert launches.take() == 1


def test_another_device_is_another_call(launches: Launches) -> None:
    loss = autogen_loss(where_it_is_made)
    for device, factor in (("cpu", 3.0), ("meta", 2.0), ("cpu", 3.0), ("meta", 2.0)):
        with torch.device(device):
            value = loss(Y)
        torch.testing.assert_close(value, Y.sum() * factor)


def test_a_second_derivative_is_of_the_device_of_the_call() -> None:
    """Where backward runs, another one may be the default."""

    def loss(x: Tensor) -> Tensor:
        return (x.exp() * torch.ones(4)).sum()

    x = X.clone().requires_grad_()
    with torch.device("cpu"):
        value = autogen_loss(loss)(x)
    with torch.device("meta"):
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, x.exp())
    with torch.device("meta"):
        torch.testing.assert_close(torch.autograd.grad(autogen_loss(loss_of_numbers)(x), x)[0], 2 * x)


def loss_of_numbers(x: Tensor) -> Tensor:
    return x.square().sum()


class Silent(TorchFunctionMode):
    """A mode that does nothing, as far as anybody knows."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_other_modes_hear_of_torchs_functions(launches: Launches) -> None:
    loss = autogen_loss(F.mse_loss)
    with Silent(), torch.device("cpu"):
        torch.testing.assert_close(loss(X, Y), F.mse_loss(X, Y))
    assert launches.take() == 0


def test_what_is_made_elsewhere_has_no_kernel(launches: Launches) -> None:
    loss = autogen_loss(weighted, policy="mandatory")
    with torch.device("meta"), pytest.raises((AutogenError, RuntimeError)):
        loss(X, Y)
    assert launches.take() == 0
