"""The losses beyond torch: against references in double precision, by hand, at their edges, and their paths."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import autogen.losses
from autogen import explain
from tests.interpret.beyond import BEYOND, CASES, FIRST, Case
from tests.interpret.compare import upstream_of
from tests.interpret.launches import Launches
from tests.tiers import examples

REDUCTIONS = ("mean", "sum", "none")
# What an element may be wrong by, as a share of itself, and of the largest.
TOLERANCES = {torch.float32: (1e-5, 2e-6), torch.float64: (1e-12, 1e-13), torch.bfloat16: (2**-7, 2**-8)}


def run(loss: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """The value, and the gradient of each input that asks for it, zero where nothing depends on it."""
    return _with_gradients(loss(*inputs), inputs)


def _with_gradients(value: Tensor, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    asked = [each for each in inputs if each.requires_grad]
    upstream = upstream_of("eighths", value.shape, value.dtype)
    found = torch.autograd.grad(value, asked, upstream, allow_unused=True)
    return [value.detach(), *(torch.zeros_like(a) if f is None else f for a, f in zip(asked, found, strict=True))]


def expected(case: Case, inputs: tuple[Tensor, ...], reduction: str) -> list[Tensor]:
    """What the reference gives for the same inputs in double precision."""
    exact = tuple(
        each.detach().double().requires_grad_(each.requires_grad) if each.is_floating_point() else each
        for each in inputs
    )
    found = case.reference(*exact, **case.options)
    losses, counted = found if isinstance(found, tuple) else (found, torch.ones_like(found))
    if reduction == "none":
        return _with_gradients(losses, exact)
    divisor = max(1.0, float(counted.sum())) if reduction == "mean" else 1.0
    return _with_gradients(losses.sum() / divisor, exact)


def compare(what: str, ours: list[Tensor], exact: list[Tensor], unit: float) -> None:
    """`unit` is about how large the terms of a value are, which may cancel."""
    assert len(ours) == len(exact)
    for position, (own, true) in enumerate(zip(ours, exact, strict=True)):
        each, overall = TOLERANCES[own.dtype]
        assert own.shape == true.shape, f"{what}, {position}: {tuple(own.shape)}, not {tuple(true.shape)}"
        true = true.double()
        allowed = each * true.abs() + overall * true.abs().max().clamp(min=0 if position else unit)
        error = (own.double() - true).abs()
        assert (error <= allowed).all(), f"{what}, {position}: wrong by {error.max():.3g} of {true.abs().max():.3g}"


CALLS = [(case, torch.float64, reduction) for case in FIRST.values() for reduction in ("mean", "none")]
CALLS += [(case, torch.float32, REDUCTIONS[k % 3]) for k, case in enumerate(FIRST.values())]
OTHERS = [(case, REDUCTIONS[k % 3]) for k, case in enumerate(CASES) if case is not FIRST[case.loss]]


@pytest.mark.cases(len(FIRST))
@pytest.mark.parametrize(("case", "dtype", "reduction"), CALLS, ids=str)
def test_as_reference(case: Case, dtype: torch.dtype, reduction: str) -> None:
    inputs = case.draw(dtype)
    exact = expected(case, inputs, reduction)
    for use_autogen in (True, False):
        loss = case.make(dtype, reduction=reduction, use_autogen=use_autogen)
        compare(f"{case}, use_autogen={use_autogen}", run(loss, inputs), exact, case.unit)


@pytest.mark.parametrize(("case", "reduction"), OTHERS, ids=str)
def test_options(case: Case, reduction: str) -> None:
    test_as_reference(case, torch.float64, reduction)


# Path, launches forward and backward of each loss's typical call. "eager" says what the compiler cannot do yet.
PATHS = {
    "ArcFaceLoss": ("generated", 1, 1),
    "AsymmetricLoss": ("generated", 1, 1),
    "CIoULoss": ("generated", 1, 1),
    "CharbonnierLoss": ("generated", 1, 1),
    "CircleLoss": ("generated", 1, 1),
    "CoxPHLoss": ("generated", 1, 1),
    "DIoULoss": ("generated", 1, 1),
    "DPOLoss": ("generated", 1, 1),
    "DiceLoss": ("generated", 1, 1),
    "DistillationLoss": ("generated", 1, 1),
    "EvidentialRegressionLoss": ("generated", 1, 1),
    "FocalLoss": ("generated", 1, 1),
    "FocalTverskyLoss": ("generated", 1, 1),
    "FusedLinearCrossEntropyLoss": ("partial", 1, 1),
    "FusedLinearDPOLoss": ("partial", 1, 3),
    "FusedLinearDistillationLoss": ("partial", 1, 1),
    "FusedLinearGRPOLoss": ("partial", 1, 2),
    "FusedLinearIPOLoss": ("partial", 1, 3),
    "FusedLinearKTOLoss": ("partial", 1, 2),
    "FusedLinearORPOLoss": ("partial", 1, 3),
    "FusedLinearSimPOLoss": ("partial", 1, 3),
    "GIoULoss": ("generated", 1, 1),
    "GRPOLoss": ("generated", 1, 1),
    "IPOLoss": ("generated", 1, 1),
    "InfoNCELoss": ("handwritten", 2, 1),
    "IoULoss": ("generated", 1, 1),
    "JSDLoss": ("generated", 1, 1),
    "KTOLoss": ("generated", 1, 1),
    "LogCoshLoss": ("generated", 1, 1),
    "NegativeBinomialNLLLoss": ("generated", 1, 1),
    "ORPOLoss": ("generated", 1, 1),
    "PPOClipLoss": ("generated", 1, 1),
    "PolyLoss": ("generated", 1, 1),
    "QuantileLoss": ("generated", 1, 1),
    "SISDRLoss": ("generated", 1, 1),
    "SigmoidFocalLoss": ("generated", 1, 1),
    "SimPOLoss": ("generated", 1, 1),
    "StudentTNLLLoss": ("generated", 1, 1),
    "SupConLoss": ("handwritten", 2, 1),
    "TotalVariationLoss": ("generated", 1, 1),
    "TverskyLoss": ("generated", 1, 1),
    "VAELoss": ("generated", 1, 1),
    "VocabParallelCrossEntropyLoss": ("generated", 1, 1),
    "WingLoss": ("generated", 1, 1),
}


def test_every_loss_has_a_case() -> None:
    of_torch = {name for name in autogen.losses.__all__ if hasattr(nn, name)}
    assert set(autogen.losses.__all__) - of_torch == BEYOND == set(PATHS)


@pytest.mark.parametrize("case", FIRST.values(), ids=lambda case: case.loss)
def test_path(case: Case, launches: Launches) -> None:
    inputs = case.draw(torch.float32)
    loss = case.make(torch.float32)
    report = explain(loss, *inputs)
    found = [direction.launches if direction else 0 for direction in (report.forward, report.backward)]
    assert (report.path, *found) == PATHS[case.loss], report.reason
    run(loss, inputs)
    assert launches.take() == sum(found)


@pytest.mark.parametrize("case", FIRST.values(), ids=lambda case: case.loss)
def test_without_autogen(case: Case, launches: Launches) -> None:
    inputs = case.draw(torch.float32)
    loss = case.make(torch.float32, use_autogen=False)
    run(loss, inputs)
    assert launches.take() == 0 and explain(loss, *inputs).path == "eager"
    assert repr(loss).startswith(f"{case.loss}(") and "use_autogen" not in repr(loss)


@settings(max_examples=examples(24))
@given(
    loss=st.sampled_from(sorted(BEYOND)),
    n=st.sampled_from((1, 2, 3, 7, 33)),
    c=st.sampled_from((2, 3, 5, 17, 67)),
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
    reduction=st.sampled_from(REDUCTIONS),
    seed=st.integers(0, 999),
)
def test_as_without_autogen(loss: str, n: int, c: int, dtype: torch.dtype, reduction: str, seed: int) -> None:
    """Kernels compute halves in single precision, and are compared with that; but a step in torch rounds."""
    case = FIRST[loss]
    inputs = case.draw(dtype, n, c, seed)
    kernels = case.make(dtype, reduction=reduction)
    ours = run(kernels, inputs)
    in_torch = case.make(dtype, reduction=reduction, use_autogen=False)
    assert [each.dtype for each in ours] == [each.dtype for each in run(in_torch, inputs)]
    if dtype is torch.float32 or explain(kernels, *inputs).path == "generated":
        compare(f"{case}", ours, _singly(in_torch, inputs), case.unit)


def _singly(loss: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    singles = (each.detach().float() if each.is_floating_point() else each for each in inputs)
    wanted = (each.requires_grad for each in inputs)
    return run(loss, tuple(each.requires_grad_(is_wanted) for each, is_wanted in zip(singles, wanted, strict=True)))
