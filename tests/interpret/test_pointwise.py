"""Scalar functions of torch in a loss: value and gradient, whole in one kernel each way."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss, policy
from autogen.errors import UnsupportedOpError
from tests.interpret.agreement import agree, draw

special = torch.special
REAL, POSITIVE, ABOVE_ONE, UNIT, WITHIN = "real", "positive", "above one", "unit", "within"

FUNCTIONS: dict[str, tuple[Callable[..., Tensor], Sequence[str]]] = {
    "abs": (lambda x: x.abs(), [REAL]),
    "acos": (lambda x: x.acos(), [WITHIN]),
    "acosh": (lambda x: x.acosh(), [ABOVE_ONE]),
    "addcdiv": (lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), [REAL, REAL, POSITIVE]),
    "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=0.5), [REAL, REAL, REAL]),
    "angle": (lambda x: x.angle() + x, [REAL]),
    "asin": (lambda x: x.asin(), [WITHIN]),
    "asinh": (lambda x: x.asinh(), [REAL]),
    "atan": (lambda x: x.atan(), [REAL]),
    "atan2": (lambda x, y: torch.atan2(x, y), [REAL, REAL]),
    "atanh": (lambda x: x.atanh(), [WITHIN]),
    "bitwise": (lambda x: x * ((x.detach() * 8).int() & 3 | 4 ^ 1) + x * ~(x.detach() * 8).int(), [REAL]),
    "ceil": (lambda x: x.ceil() * x, [REAL]),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), [REAL]),
    "clamp by tensors": (lambda x, y, z: x.clamp(y, z), [REAL, REAL, REAL]),
    "clamp from below": (lambda x, y: x.clamp(min=y), [REAL, REAL]),
    "clamp from above": (lambda x, y: x.clamp(max=y), [REAL, REAL]),
    "copysign": (lambda x, y: torch.copysign(x, y), [REAL, REAL]),
    "copysign of a number": (lambda x: torch.copysign(x, -1.0), [REAL]),
    "cos": (lambda x: x.cos(), [REAL]),
    "cosh": (lambda x: x.cosh(), [REAL]),
    "deg2rad": (lambda x: x.deg2rad(), [REAL]),
    "digamma": (lambda x: x.digamma(), [POSITIVE]),
    "digamma on the left": (lambda x: x.digamma() + torch.polygamma(1, x), [REAL]),
    "div, rounded": (lambda x, y: x * torch.div(x, y, rounding_mode="floor"), [REAL, POSITIVE]),
    "div, truncated": (lambda x, y: x * torch.div(x, y, rounding_mode="trunc"), [REAL, POSITIVE]),
    "entr": (lambda x: special.entr(x), [POSITIVE]),
    "erf": (lambda x: x.erf(), [REAL]),
    "erfc": (lambda x: x.erfc(), [REAL]),
    "erfcx": (lambda x: special.erfcx(x), [REAL]),
    "erfinv": (lambda x: x.erfinv(), [WITHIN]),
    "exp2": (lambda x: x.exp2(), [REAL]),
    "expm1": (lambda x: x.expm1(), [REAL]),
    "float_power": (lambda x, y: torch.float_power(x, y), [POSITIVE, REAL]),
    "floor": (lambda x: x.floor() * x, [REAL]),
    "fmax": (lambda x, y: torch.fmax(x, y), [REAL, REAL]),
    "fmin": (lambda x, y: torch.fmin(x, y), [REAL, REAL]),
    "fmod": (lambda x, y: torch.fmod(x, y), [REAL, POSITIVE]),
    "frac": (lambda x: x.frac(), [REAL]),
    "heaviside": (lambda x, y: torch.heaviside(x.detach(), y.detach()) * x, [REAL, REAL]),
    "hypot": (lambda x, y: torch.hypot(x, y), [REAL, REAL]),
    "isfinite": (lambda x: x * x.isfinite() + x * x.isinf() + x * x.log().isnan(), [REAL]),
    "lerp": (lambda x, y, w: torch.lerp(x, y, w), [REAL, REAL, UNIT]),
    "lgamma": (lambda x: x.lgamma(), [POSITIVE]),
    "log10": (lambda x: x.log10(), [POSITIVE]),
    "log1p": (lambda x: x.log1p(), [POSITIVE]),
    "log2": (lambda x: x.log2(), [POSITIVE]),
    "log_ndtr": (lambda x: special.log_ndtr(x * 4), [REAL]),
    "logaddexp": (lambda x, y: torch.logaddexp(x, y), [REAL, REAL]),
    "logaddexp2": (lambda x, y: torch.logaddexp2(x, y), [REAL, REAL]),
    "logical_xor": (lambda x: x * torch.logical_xor(x > 0, x < 1), [REAL]),
    "logit": (lambda x: x.logit(), [UNIT]),
    "logit within bounds": (lambda x: x.logit(0.1), [UNIT]),
    "logit within crossed bounds": (lambda x: x.logit(0.7), [UNIT]),
    "logsigmoid": (lambda x: F.logsigmoid(x), [REAL]),
    "mvlgamma": (lambda x: torch.mvlgamma(x + 2, 3), [POSITIVE]),
    "nan_to_num": (lambda x: x.log().nan_to_num(nan=1.0, posinf=2.0, neginf=3.0), [REAL]),
    "ndtr": (lambda x: special.ndtr(x), [REAL]),
    "polygamma of order 0": (lambda x: torch.polygamma(0, x), [POSITIVE]),
    "polygamma of order 1": (lambda x: torch.polygamma(1, x), [POSITIVE]),
    "pow": (lambda x, y: x**y, [POSITIVE, REAL]),
    "reciprocal": (lambda x: x.reciprocal(), [POSITIVE]),
    "remainder": (lambda x, y: torch.remainder(x, y), [REAL, POSITIVE]),
    "round": (lambda x: x.round() * x, [REAL]),
    "round to decimals": (lambda x: x * torch.round(x, decimals=2) + x * torch.round(x * 30, decimals=-1), [REAL]),
    "rsqrt": (lambda x: x.rsqrt(), [POSITIVE]),
    "rsub": (lambda x: torch.rsub(x, 2.0, alpha=3), [REAL]),
    "sgn": (lambda x: x.sgn() * x.exp(), [REAL]),
    "sign": (lambda x: x.sign() * x.exp(), [REAL]),
    "signbit": (lambda x: x * x.signbit(), [REAL]),
    "sin": (lambda x: x.sin(), [REAL]),
    "sinc": (lambda x: x.sinc(), [REAL]),
    "sinh": (lambda x: x.sinh(), [REAL]),
    "softplus": (lambda x: F.softplus(x, beta=2, threshold=3), [REAL]),
    "square": (lambda x: x.square(), [REAL]),
    "tan": (lambda x: x.tan(), [WITHIN]),
    "tanh": (lambda x: x.tanh(), [REAL]),
    "threshold": (lambda x: F.threshold(x, 0.1, 0.5), [REAL]),
    "trunc": (lambda x: x.trunc() * x, [REAL]),
    "where": (lambda x: torch.where(x > 0, x, 0.0) + torch.where(x > 0, 1, x), [REAL]),
    "xlog1py": (lambda x, y: special.xlog1py(x, y), [POSITIVE, POSITIVE]),
    "xlog1py of a number": (lambda x: special.xlog1py(2.0, x) + special.xlog1py(x, 2.0), [POSITIVE]),
    "xlogy": (lambda x, y: torch.xlogy(x, y), [POSITIVE, POSITIVE]),
    "xlogy of a number": (lambda x: torch.xlogy(2.0, x) + torch.xlogy(x, 2.0), [POSITIVE]),
}  # fmt: skip


def inputs(kinds: Sequence[str], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [draw(kind, 6, 10, dtype=dtype, seed=seed) for seed, kind in enumerate(kinds)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementwise(name: str) -> None:
    function, kinds = FUNCTIONS[name]
    agree(function, *inputs(kinds))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_under_a_mean(name: str) -> None:
    function, kinds = FUNCTIONS[name]
    losses = [
        lambda x: (function(x) - 1.5).pow(2).mean(),
        lambda x, y: (function(x, y) - 1.5).pow(2).mean(),
        lambda x, y, z: (function(x, y, z) - 1.5).pow(2).mean(),
    ]
    agree(losses[len(inspect.signature(function).parameters) - 1], *inputs(kinds))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["erfc", "lgamma", "xlogy", "hypot", "log1p", "logaddexp"])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    function, kinds = FUNCTIONS[name]
    agree(function, *inputs(kinds, dtype))


def written(x: Tensor) -> Tensor:
    y = x * 1.0
    y[0] = 0.3
    return y.sum()


@pytest.mark.parametrize("loss", [written, lambda x: torch.full_like(x, 0.1), lambda x: x.new_tensor(0.7)])
def test_a_number_in_double_precision_is_stored_as_it_is(loss: Callable[[Tensor], Tensor]) -> None:
    x = draw("real", 1, dtype=torch.float64).detach()
    assert torch.equal(autogen_loss(loss)(x), loss(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_quotient_that_is_rounded_down_is_whole(dtype: torch.dtype) -> None:
    """Without its remainder a number is rounded, and its quotient then may be next to an integer."""
    x, y = ((draw("real", 500, dtype=dtype, seed=seed) * 10).detach() for seed in range(2))
    assert torch.equal(autogen_loss(lambda x, y: x // y)(x, y), x // y)


def test_nan_is_passed_over_as_by_torch() -> None:
    x = torch.tensor([torch.nan, 1.0, torch.nan, 2.0]).requires_grad_()
    y = torch.tensor([1.0, torch.nan, torch.nan, 2.0]).requires_grad_()
    agree(lambda x, y: torch.fmax(x, y) + torch.fmin(x, y) * 2, x, y)


ON_INTEGERS = [
    "abs", "bitwise_not", "ceil", "exp", "floor", "isfinite", "isinf", "isnan", "log", "logical_not", "neg",
    "round", "sgn", "sigmoid", "sign", "signbit", "sqrt", "square", "trunc",
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("name", ON_INTEGERS)
def test_integers(name: str, dtype: torch.dtype) -> None:
    function: Any = getattr(torch, name)
    x = torch.arange(6).to(dtype)
    try:
        function(x)
    except RuntimeError:
        return  # not in torch either
    agree(lambda x: function(x), x, launches=(1, 0))


def test_what_there_is_no_formula_for_is_torchs() -> None:
    with policy("mandatory"), pytest.raises(UnsupportedOpError, match="pow"):
        autogen_loss(lambda x: x**x)(torch.arange(1, 5))
    agree(lambda x: torch.polygamma(5, x / 1).exp(), torch.arange(1, 5), launches=(2, 0))
