"""Every nonlinearity of torch.nn, as a loss of its own and inside one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.interpret.agreement import agree, draw

NONLINEARITIES: dict[str, nn.Module] = {
    "CELU": nn.CELU(0.7),
    "ELU": nn.ELU(0.7),
    "GELU": nn.GELU(),
    "GELU by tanh": nn.GELU(approximate="tanh"),
    "GLU": nn.GLU(),
    "GLU of rows": nn.GLU(0),
    "Hardsigmoid": nn.Hardsigmoid(),
    "Hardswish": nn.Hardswish(),
    "Hardtanh": nn.Hardtanh(-0.5, 0.7),
    "LeakyReLU": nn.LeakyReLU(0.1),
    "LogSigmoid": nn.LogSigmoid(),
    "LogSoftmax": nn.LogSoftmax(-1),
    "Mish": nn.Mish(),
    "PReLU": nn.PReLU(),
    "PReLU per channel": nn.PReLU(6),
    "ReLU": nn.ReLU(),
    "ReLU6": nn.ReLU6(),
    "SELU": nn.SELU(),
    "SiLU": nn.SiLU(),
    "Sigmoid": nn.Sigmoid(),
    "Softmax": nn.Softmax(-1),
    "Softmax2d": nn.Softmax2d(),
    "Softmin": nn.Softmin(-1),
    "Softplus": nn.Softplus(2, 1),
    "Softsign": nn.Softsign(),
    "Tanh": nn.Tanh(),
    "Tanhshrink": nn.Tanhshrink(),
    "Threshold": nn.Threshold(0.1, 0.3),
}
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


@pytest.mark.parametrize("name", NONLINEARITIES)
def test_alone(name: str) -> None:
    agree(NONLINEARITIES[name], inputs(name))


@pytest.mark.parametrize("name", NONLINEARITIES)
def test_inside_a_loss(name: str) -> None:
    agree(SquaredError(NONLINEARITIES[name]), inputs(name))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["GELU", "GLU", "SiLU", "Softplus", "Softmax"])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    agree(NONLINEARITIES[name], inputs(name, dtype))


@pytest.mark.parametrize("name", ["ReLU", "ReLU6", "Hardtanh", "ELU", "Hardswish", "LeakyReLU"])
def test_at_the_kinks(name: str) -> None:
    agree(NONLINEARITIES[name], torch.tensor([0.0, -0.0, 6.0, 3.0, -3.0, 0.7, -0.5, torch.nan]).requires_grad_())
