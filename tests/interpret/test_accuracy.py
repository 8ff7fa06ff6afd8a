"""The contract on accuracy: at most twice torch's own error on the same input, and two ulp of the result.

Errors are the largest of a tensor, measured against torch in double precision; an ulp is that of the largest element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import autogen.losses
from autogen import autogen_loss, policy
from tests.interpret.agreement import agree
from tests.interpret.compare import Call, converted, run
from tests.interpret.samples import Samples

half, bfloat, single = torch.float16, torch.bfloat16, torch.float32
MILLION = 2**20 + 3


def confident(rows: int, classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Logits that are sure of the right class."""
    labels = Samples().label(classes, rows)
    logits = Samples(torch.float64).real(rows, classes)
    logits[torch.arange(rows), labels] += 40
    return logits.to(dtype), labels


def logits(rows: int, classes: int, dtype: torch.dtype, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    s = Samples(torch.float64)
    return (s.real(rows, classes) * scale).to(dtype), s.label(classes, rows)


def pairs(count: int, dtype: torch.dtype, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    s = Samples(torch.float64)
    return (s.real(count) * scale).to(dtype), s.probability(count).to(dtype)


def extremes(count: int) -> tuple[Tensor, Tensor]:
    """Probabilities near 0 and near 1, and both."""
    logs = torch.linspace(-104, 0, count, dtype=torch.float64)
    near = torch.cat([logs.exp(), -torch.expm1(logs), torch.tensor([0.0, 1.0, 0.5])]).float()
    return near, Samples().probability(len(near))


# The greatest whose exponential is finite, and the next.
OVERFLOWING = torch.tensor([88.0, 88.72283172607422, 88.72283935546875, 200.0])

CALLS: dict[str, Call] = {
    "L1, a million halves": Call("L1Loss", {}, pairs(MILLION, half)),
    "MSE, a million halves": Call("MSELoss", {}, pairs(MILLION, half)),
    "MSE, a million bfloats": Call("MSELoss", {}, pairs(MILLION, bfloat)),
    "MSE, a million": Call("MSELoss", {}, pairs(MILLION, single)),
    "MSE, halves whose squares overflow": Call("MSELoss", {"reduction": "none"}, pairs(1000, half, 200)),
    "BCE with logits, a million halves": Call("BCEWithLogitsLoss", {}, pairs(MILLION, half)),
    "BCE with large logits": Call("BCEWithLogitsLoss", {"reduction": "none"}, pairs(5000, single, 30)),
    "BCE near 0 and 1": Call("BCELoss", {"reduction": "none"}, extremes(3000)),
    "smooth L1, halves": Call("SmoothL1Loss", {"beta": 1e-3}, pairs(50_000, half)),
    "Huber, a sum": Call("HuberLoss", {"reduction": "sum"}, pairs(50_000, single)),
    "cross entropy, 128 k classes in bfloats": Call("CrossEntropyLoss", {}, logits(3, 128_000, bfloat)),
    "cross entropy, 50257 classes": Call("CrossEntropyLoss", {}, logits(2, 50_257, single, 5)),
    "cross entropy, smoothed": Call("CrossEntropyLoss", {"label_smoothing": 0.1}, logits(7, 5000, single, 5)),
    "cross entropy, logits of 1e4": Call("CrossEntropyLoss", {}, logits(64, 100, single, 1e4)),
    "cross entropy, confident": Call("CrossEntropyLoss", {"reduction": "none"}, confident(64, 1000, single)),
    "cross entropy, confident bfloats": Call("CrossEntropyLoss", {}, confident(64, 1000, bfloat)),
    "NLL, halves": Call("NLLLoss", {}, (logits(500, 10, half)[0].log_softmax(1), logits(500, 10, half)[1])),
    "KL, halves": Call(
        "KLDivLoss",
        {"reduction": "batchmean"},
        (logits(9, 999, half)[0].log_softmax(1), logits(9, 999, half)[0].softmax(1)),
    ),
    "Poisson NLL": Call("PoissonNLLLoss", {"full": True}, (pairs(50_000, single)[0], pairs(50_000, single)[1] * 9)),
    "Gaussian NLL, small variances": Call(
        "GaussianNLLLoss", {"reduction": "none"}, (*pairs(999, single), pairs(999, single)[1] * 1e-5)
    ),
    "soft margin": Call("SoftMarginLoss", {}, (pairs(9999, single, 9)[0], Samples().real(9999).sign())),
    "soft margin that overflows": Call("SoftMarginLoss", {"reduction": "none"}, (-OVERFLOWING, torch.ones(4))),
    "multi-label soft margin": Call(
        "MultiLabelSoftMarginLoss", {}, (logits(99, 99, single)[0], Samples().probability(99, 99))
    ),
    "triplet": Call("TripletMarginLoss", {}, tuple(Samples().real(3, 99, 99).unbind())),
}


def wanting(call: Call) -> Call:
    """The call, asking for the gradient of its first input."""
    return replace(call, wanted=(True,) + (False,) * (len(call.tensors()) - 1), upstream="ones")


@pytest.mark.parametrize("name", CALLS)
def test_contract(name: str) -> None:
    call = wanting(CALLS[name])
    theirs, exact = run(nn, call), run(nn, converted(call, torch.float64))
    with policy("mandatory"):
        ours = run(autogen.losses, call)
    assert theirs.error is None and ours.error is None, (theirs.error, ours.error)
    results = zip((ours.value, *ours.gradients), (theirs.value, *theirs.gradients), (exact.value, *exact.gradients))  # noqa: B905
    for what, (own, their, truth) in zip(("value", "gradient"), results, strict=True):
        assert own is not None and their is not None and truth is not None and own.dtype == their.dtype
        finite = their.isfinite()
        assert own.isfinite().equal(finite), f"{what}: infinite elsewhere than torch"
        truth = truth[finite]
        error, allowed = (each.double()[finite].sub(truth).abs().max().item() for each in (own, their))
        ulp = torch.finfo(own.dtype).eps * truth.abs().max().item()
        assert error <= 2 * allowed + 2 * ulp, f"{what}: error {error:.3g}, torch's {allowed:.3g}, an ulp {ulp:.3g}"


def test_dot_products_of_all_pairs_in_one_program() -> None:
    """Of vectors that are nearly orthogonal: the order of the sum is all that its error depends on."""

    def products(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, :, None] * b[:, None]).sum(3).sum(0)

    s = Samples(torch.float64)
    a, b = s.real(2, 2, 2000) + 3, s.real(2, 2, 2000)
    exact = products(a.float().double(), b.float().double())
    own = autogen_loss(products, policy="mandatory")(a.float(), b.float())
    allowed = 2 * (products(a.float(), b.float()) - exact).abs().max() + 2 * exact.abs().max() * 2.0**-23
    assert (own - exact).abs().max() <= allowed


@pytest.mark.parametrize("shape", [(64, 100), (2, 40_000), (3000, 30)], ids=str)
@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("of", [torch.var, torch.std])
def test_spreads_about_a_large_mean(of: Callable[..., Tensor], dim: int | None, shape: tuple[int, int]) -> None:
    """The rounding of the mean, which is as large as what is around it, is in no result."""
    agree(lambda x: of(x, dim), (Samples().real(*shape) + 1e5).requires_grad_(), launches=None)


def test_spreads_of_what_is_all_the_same() -> None:
    """Nothing, of which the root has no gradient; and of what overflows, infinity."""
    loss = autogen_loss(lambda x: x.std(1), policy="mandatory")
    for count in (7, 100, 40_000):
        x = torch.full((3, count), 0.1, requires_grad=True)
        assert not loss(x).any()
        assert not torch.autograd.grad(loss(x).sum(), x)[0].any()
    large = Samples().real(3, 100) * 1e30
    torch.testing.assert_close(autogen_loss(lambda x: x.var(1), policy="mandatory")(large), large.var(1))
    near = torch.tensor([1e7, 1e7 + 1])
    torch.testing.assert_close(autogen_loss(torch.var_mean, policy="mandatory")(near), torch.var_mean(near))
