"""Functions as exact as results in half precision need them, and where none are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import ir
from autogen.ir.ops import OPS
from autogen.runtime.launch import Launcher
from autogen.scheduling.launches.kernel import Kernel
from autogen.scheduling.plan import Step
from autogen.scheduling.schedule import backward_of
from tests.unit.pipeline import plan_of

EXACT = {op.name for op in OPS.values() if op.half} | {"exp_summand"}
HALVES = {op.half for op in OPS.values() if op.half}
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


def x(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


def functions(loss: Callable[..., Any], *tensors: Tensor) -> tuple[set[str], set[str]]:
    """The exponentials and logarithms of forward and of backward."""
    plan, _ = plan_of(loss, *tensors)

    def of(steps: Sequence[Step]) -> set[str]:
        kernels = [step for step in steps if isinstance(step, Kernel)]
        roots = [root.node for kernel in kernels for root in kernel.roots]
        return {node.op for node in ir.topological(roots)} & (HALVES | EXACT)

    return of(plan.forward), of(backward_of(plan))


def labels(n: int) -> Tensor:
    return torch.arange(n)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_where_all_results_are_halves(dtype: torch.dtype) -> None:
    assert functions(F.cross_entropy, x(5, 7, dtype=dtype), labels(5)) == ({"exp_half", "log_half"}, {"exp_half"})
    t = x(5, dtype=dtype).detach().sigmoid()
    assert functions(F.binary_cross_entropy_with_logits, x(5, dtype=dtype), t)[0] == {"log_sigmoid_half"}
    parts = {"clamped_log_half", "clamped_log1m_half"}
    assert functions(F.binary_cross_entropy, t.clone().requires_grad_(), t)[0] == parts
    assert functions(lambda a, b: F.kl_div(a, b, reduction="sum"), x(5, dtype=dtype), t)[0] == {"xlogy_half"}
    assert functions(lambda a: a.sigmoid().mean(), x(5, dtype=dtype))[0] == {"sigmoid_half"}


@pytest.mark.parametrize("dtype", [F32, F64])
def test_where_results_are_not(dtype: torch.dtype) -> None:
    forward, backward = functions(F.cross_entropy, x(5, 7, dtype=dtype), labels(5))
    assert not (forward | backward) & HALVES


def test_one_result_in_single_precision_keeps_what_it_depends_on() -> None:
    """A gradient in half precision has exponentials of its own."""

    def loss(a: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(a.float(), target)

    assert functions(loss, x(5, 7), labels(5)) == ({"exp_summand", "log"}, {"exp_half"})

    def binary(a: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(a.float(), target)

    assert functions(binary, x(5), x(5, dtype=F32).detach()) == ({"log_sigmoid"}, {"sigmoid_half"})

    def two(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a.sigmoid().mean(), b.sigmoid().mean()

    assert functions(two, x(5), x(5, dtype=F32))[0] == {"sigmoid_half", "sigmoid"}


@pytest.mark.parametrize(
    "loss",
    [
        lambda a: a.exp().where(a.exp() > 1, 0).mean(),
        lambda a: a.exp().amax(),
        lambda a: (a.exp() * a.exp().floor()).mean(),
    ],
    ids=["compared", "compared with its extreme", "rounded"],
)
def test_what_decides_something_is_exact(loss: Callable[..., Any]) -> None:
    forward, backward = functions(loss, x(5))
    assert not (forward | backward) & HALVES


def test_what_a_cast_of_the_loss_rounds_is_exact() -> None:
    assert functions(lambda a: a.float().exp().to(BF16).mean(), x(5)) == ({"exp"}, {"exp_half"})


def test_exponentials_in_sums_that_are_at_least_1() -> None:
    assert functions(F.cross_entropy, x(5, 7, dtype=F32), labels(5)) == ({"exp_summand", "log"}, {"exp_nonpositive"})
    assert functions(lambda a: a.log_softmax(1).square().sum(), x(5, 7, dtype=F32))[0] == {"exp_summand", "log"}
    assert functions(F.cross_entropy, x(5, 7, dtype=F64), labels(5))[0] == {"exp_nonpositive", "log"}


@pytest.mark.parametrize(
    "exponent",
    [
        lambda a: a - a.amax(1, keepdim=True),
        lambda a: -a.abs(),
        lambda a: -(a * a / 2 + 0.5 * a.abs() * a.abs()),
    ],
    ids=["a softmax's", "a magnitude", "a sum of squares"],
)
def test_exponentials_of_nothing_above_zero(exponent: Callable[[Tensor], Tensor]) -> None:
    forward, backward = functions(lambda a: exponent(a).exp().square().sum(), x(5, 7, dtype=F32))
    assert forward == {"exp_nonpositive"} and backward == {"exp_nonpositive"}


def test_exponentials_of_what_may_be_above_zero() -> None:
    for loss in (
        lambda a: a.exp().square().sum(),
        lambda a: a.abs().exp().square().sum(),
        lambda a: (a - a.amin(1, keepdim=True)).exp().square().sum(),
    ):
        assert functions(loss, x(5, 7, dtype=F32))[0] == {"exp"}


def beside_its_sum(a: Tensor) -> tuple[Tensor, Tensor]:
    exponential = (a - a.amax(1, keepdim=True)).exp()
    return exponential, exponential.sum(1)


@pytest.mark.parametrize(
    "loss",
    [
        lambda a: a.softmax(1).square().mean(),
        lambda a: (a - a.amax(1, keepdim=True)).exp().sum(0).log().mean(),
        lambda a: a.abs().neg().exp().sum(),
        beside_its_sum,
    ],
    ids=["shown by a result", "without its maximum", "of no maximum", "a result"],
)
def test_exponentials_that_are_not(loss: Callable[..., Any]) -> None:
    assert "exp_summand" not in functions(loss, x(5, 7, dtype=F32))[0]


def test_sums_follow_a_maximum_by_the_function_that_they_add_up() -> None:
    for dtype, own, other in [(BF16, "exp_half", "exp_nonpositive"), (F32, "exp_summand", "exp_half")]:
        many = torch.zeros(200, 50_000, dtype=dtype, requires_grad=True)
        plan, sizes = plan_of(F.cross_entropy, many, labels(200))
        launcher = Launcher(plan.forward[0], plan.provenance)  # type: ignore[arg-type]
        text = launcher.source(launcher.tiling(sizes).variant).text
        assert f"rescale = {own}(" in text and other not in text
