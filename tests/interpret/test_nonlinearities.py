"""Every nonlinearity of torch.nn, as a loss of its own and inside one."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autogen import autogen_loss, explain
from tests.interpret.agreement import agree, draw
from tests.interpret.launches import Launches

NONLINEARITIES: dict[str, nn.Module] = {
    "CELU": nn.CELU(0.7),
    "ELU": nn.ELU(0.7),
    "GELU": nn.GELU(),
    "GELU by tanh": nn.GELU(approximate="tanh"),
    "GLU": nn.GLU(),
    "GLU of rows": nn.GLU(0),
    "Hardshrink": nn.Hardshrink(0.6),
    "Hardsigmoid": nn.Hardsigmoid(),
    "Hardswish": nn.Hardswish(),
    "Hardtanh": nn.Hardtanh(-0.5, 0.7),
    "LeakyReLU": nn.LeakyReLU(0.1),
    "LogSigmoid": nn.LogSigmoid(),
    "LogSoftmax": nn.LogSoftmax(-1),
    "Mish": nn.Mish(),
    "PReLU": nn.PReLU(),
    "PReLU per channel": nn.PReLU(6),
    "RReLU": nn.RReLU().eval(),
    "ReLU": nn.ReLU(),
    "ReLU6": nn.ReLU6(),
    "SELU": nn.SELU(),
    "SiLU": nn.SiLU(),
    "Sigmoid": nn.Sigmoid(),
    "Softmax": nn.Softmax(-1),
    "Softmax2d": nn.Softmax2d(),
    "Softmin": nn.Softmin(-1),
    "Softplus": nn.Softplus(2, 1),
    "Softshrink": nn.Softshrink(0.6),
    "Softsign": nn.Softsign(),
    "Tanh": nn.Tanh(),
    "Tanhshrink": nn.Tanhshrink(),
    "Threshold": nn.Threshold(0.1, 0.3),
}
SHRINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "Hardshrink by 0": lambda x: F.hardshrink(x, 0.0),
    "Hardshrink by less than 0": lambda x: F.hardshrink(x, -0.5),
    "Softshrink": NONLINEARITIES["Softshrink"],
    "Hardshrink": NONLINEARITIES["Hardshrink"],
    "Softshrink by 0": lambda x: F.softshrink(x, 0.0),
}
# What torch keeps beside them and is none: a layer of products, of queries, keys and values.
OTHERS = {"MultiheadAttention"}
PER_CHANNEL = {"PReLU per channel", "Softmax2d"}


class SquaredError(nn.Module):
    """The mean squared error of a nonlinearity's result."""

    def __init__(self, nonlinearity: nn.Module) -> None:
        super().__init__()
        self.nonlinearity = nonlinearity

    def forward(self, x: Tensor) -> Tensor:
        return (self.nonlinearity(x) - 1.5).pow(2).mean()


def inputs(name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return draw("real", *((2, 6, 3, 4) if name in PER_CHANNEL else (6, 10)), dtype=dtype)


def test_that_none_is_left_out() -> None:
    listed = {type(each).__name__ for each in NONLINEARITIES.values()}
    assert listed == set(nn.modules.activation.__all__) - OTHERS
    assert all(inspect.signature(each.forward).parameters.keys() <= {"input", "x"} for each in NONLINEARITIES.values())


@pytest.mark.parametrize("name", NONLINEARITIES)
def test_alone(name: str) -> None:
    agree(NONLINEARITIES[name], inputs(name))


@pytest.mark.parametrize("name", NONLINEARITIES)
def test_inside_a_loss(name: str) -> None:
    agree(SquaredError(NONLINEARITIES[name]), inputs(name))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NONLINEARITIES)
def test_generated(name: str, training: bool) -> None:
    """Training is another mode for the one that draws random slopes alone: torch draws, a kernel does the rest."""
    loss = SquaredError(copy.deepcopy(NONLINEARITIES[name])).train(training)
    draws = training and isinstance(loss.nonlinearity, nn.RReLU)
    assert explain(loss, inputs(name) * 1).path == ("partial" if draws else "generated")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["GELU", "GLU", "SiLU", "Softplus", "Softmax", "Hardshrink", "Softshrink", "RReLU"])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    agree(NONLINEARITIES[name], inputs(name, dtype))


@pytest.mark.parametrize("name", ["ReLU", "ReLU6", "Hardtanh", "ELU", "Hardswish", "LeakyReLU", "RReLU", *SHRINKS])
def test_at_the_kinks(name: str) -> None:
    points = [0.0, -0.0, 6.0, 3.0, -3.0, 0.7, -0.5, 0.6, -0.6, torch.inf]
    points += [] if name == "Softshrink by 0" else [torch.nan]  # where torch's own formula has another gradient
    agree({**NONLINEARITIES, **SHRINKS}[name], torch.tensor(points).requires_grad_())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("inplace", [False, True])
def test_random_slopes(inplace: bool, training: bool, launches: Launches) -> None:
    """In training the slopes are drawn, from eager's stream, and the gradient knows them."""

    def loss(x: Tensor) -> Tensor:
        return (F.rrelu(x * 2, 0.1, 0.9, training, inplace) - 1.5).pow(2).sum()

    x = inputs("RReLU")
    found = []
    for function in (autogen_loss(loss, policy="mandatory"), loss):
        torch.manual_seed(4)
        value = function(x)
        found.append([value, *torch.autograd.grad(value, x), torch.rand(1)])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
    assert launches.take() >= 2
