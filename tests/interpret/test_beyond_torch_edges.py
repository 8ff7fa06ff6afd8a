"""The losses beyond torch at known values, at their edges, and on wrong arguments; with kernels and without."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autogen import losses
from tests.interpret.beyond import FIRST, mask_of
from tests.interpret.samples import Samples

inf, nan = math.inf, math.nan
UNIT = [0.0, 0.0, 1.0, 1.0]
ASPECT = 4 / math.pi**2 * (math.atan(1 / 3) - math.pi / 4) ** 2
EYE = torch.eye(4, dtype=torch.float64)
ZEROS = [0.0, 0.0]
EVEN, PAIR, LABEL = [[0.0], [0.0]], [[[1.0]], [[1.0]]], torch.tensor([1])  # a head that is never certain
MASK = torch.tensor([[True, True]])
JSD_OF_HALF = 0.75 * math.log(4 / 3)  # of (1/2, 1/2) and (1, 0)
ONE_OF_3 = [[0.0, -inf, -inf]] * 2
LOGS_OF_2_AND_3 = [math.log(2) / 4, math.log(3) / 4]

# Loss, options, inputs, and the loss without reduction, by hand.
KNOWN: tuple[tuple[str, dict[str, Any], tuple[Any, ...], Any], ...] = (
    ("DiceLoss", {"activation": "none"}, ([[[1.0, 0.0, 1.0]]], [[[1.0, 0.0, 1.0]]]), [[0.0]]),
    ("DiceLoss", {"activation": "none"}, ([[[0.0, 1.0, 0.0]]], [[[1.0, 0.0, 1.0]]]), [[0.75]]),
    ("DiceLoss", {"activation": "none"}, ([[[0.0, 0.0]]], [[[0.0, 0.0]]]), [[0.0]]),
    ("TverskyLoss", {"activation": "none", "smooth": 0.0}, ([[[1.0, 1.0, 0.0]]], [[[1.0, 0.0, 1.0]]]), [[0.5]]),
    ("FocalTverskyLoss", {"activation": "none"}, ([[[1.0, 0.0]]], [[[1.0, 0.0]]]), [[0.0]]),
    ("IoULoss", {}, ([[0.0, 0.0, 2.0, 1.0]], [[1.0, 0.0, 3.0, 1.0]]), [2 / 3]),
    ("IoULoss", {}, ([UNIT], [[2.0, 0.0, 3.0, 1.0]]), [1.0]),
    ("GIoULoss", {}, ([UNIT, UNIT], [[2.0, 2.0, 3.0, 3.0], UNIT]), [1 + 7 / 9, 0.0]),
    ("DIoULoss", {}, ([UNIT, UNIT], [[2.0, 2.0, 3.0, 3.0], UNIT]), [1 + 8 / 18, 0.0]),
    ("CIoULoss", {}, ([UNIT], [[2.0, 2.0, 3.0, 3.0]]), [1 + 8 / 18]),
    ("CIoULoss", {}, ([UNIT], [[0.0, 0.0, 1.0, 3.0]]), [2 / 3 + 0.1 + ASPECT**2 / (2 / 3 + ASPECT)]),
    ("LogCoshLoss", {}, ([0.0, 1e-4, 50.0, -1e4], [0.0] * 4), [0.0, 5e-9, 50 - math.log(2), 1e4 - math.log(2)]),
    ("CharbonnierLoss", {"eps": 3.0}, ([0.0, 4.0], ZEROS), [3.0, 5.0]),
    ("QuantileLoss", {"quantiles": 0.9}, ([1.0, -1.0, 0.0], [0.0] * 3), [0.1, 0.9, 0.0]),
    ("QuantileLoss", {"quantiles": [0.5, 0.9]}, ([[2.0, -2.0]], [0.0]), [[1.0, 1.8]]),
    ("WingLoss", {}, ([0.0, 10.0, 30.0], [0.0] * 3), [0.0, 10 * math.log(6), 20 + 10 * math.log(6)]),
    ("JSDLoss", {}, ([[1.0, 2.0], [1e3, 0.0]], [[3.0, 4.0], [0.0, 1e3]]), [0.0, math.log(2)]),
    ("JSDLoss", {}, ([[0.0, -inf, 0.0], [-inf, 0.0, -inf]], ONE_OF_3), [JSD_OF_HALF, math.log(2)]),
    ("TotalVariationLoss", {}, ([[1.0, 2.0], [1e3, 0.0]], [[3.0, 4.0], [0.0, 1e3]]), [0.0, 1.0]),
    ("DistillationLoss", {}, ([[1.0, 2.0], [0.0, 0.0]], [[3.0, 4.0], [2e3, 0.0]]), [0.0, 4 * math.log(2)]),
    ("DistillationLoss", {"temperature": 0.5}, ([[0.0, -inf, 0.0], [0.0] * 3], ONE_OF_3), LOGS_OF_2_AND_3),
    ("InfoNCELoss", {"temperature": 1.0}, (EYE, 2 * EYE), [math.log(1 + 3 / math.e)] * 4),
    ("InfoNCELoss", {"temperature": 1.0}, (EYE, EYE, EYE[:1]), [math.log(2)] + [math.log(1 + 1 / math.e)] * 3),
    ("SupConLoss", {"temperature": 1.0}, (EYE, torch.tensor([0, 0, 1, 2])), [math.log(3)] * 2 + ZEROS),
    ("SupConLoss", {}, (EYE[:1], torch.tensor([0])), [0.0]),
    ("CircleLoss", {}, ([[0.9, 0.1]], torch.tensor([[True, True]])), [0.0]),
    ("CircleLoss", {"scale": 1.0, "margin": 0.5}, ([[0.5, 0.5]], torch.tensor([[True, False]])), [math.log(2)]),
    ("ArcFaceLoss", {"scale": 1.0, "margin": math.pi / 3}, ([[0.5, -0.5]], torch.tensor([0])), [math.log(2)]),
    ("FocalLoss", {}, ([[0.0, 0.0]] * 2, torch.tensor([1, -100])), [math.log(2) / 4, 0.0]),
    (
        "VocabParallelCrossEntropyLoss",
        {"z_loss": 0.5},
        ([[0.0, 0.0]], torch.tensor([1])),
        [math.log(2) + math.log(2) ** 2 / 2],
    ),
    ("PolyLoss", {}, ([[0.0, 0.0]], torch.tensor([1])), [math.log(2) + 0.5]),
    ("SigmoidFocalLoss", {}, (ZEROS, [0.0, 1.0]), [0.75 * math.log(2) / 4, 0.25 * math.log(2) / 4]),
    ("AsymmetricLoss", {}, ([0.0, -4.0], [1.0, 0.0]), [math.log(2) / 2, 0.0]),
    ("DPOLoss", {}, ([-1.0], [-2.0], [-3.0], [-4.0]), [math.log(2)]),
    ("IPOLoss", {}, ([-1.0], [-2.0], [-3.0], [-4.0]), [25.0]),
    ("SimPOLoss", {}, ([-1.0], [-1.0]), [math.log(1 + math.e)]),
    ("ORPOLoss", {}, ([-1.0], [-1.0]), [1 + 0.1 * math.log(2)]),
    ("KTOLoss", {"undesirable_weight": 2.0}, (ZEROS, ZEROS, torch.tensor([True, False])), [0.5, 1.0]),
    ("PPOClipLoss", {}, ([-1.0, 0.0, 0.0], [-1.0, -1.0, -1.0], [2.0, 2.0, -2.0]), [-2.0, -2.4, 2 * math.e]),
    ("GRPOLoss", {}, ([[-1.0, 0.0]], [[-1.0, 0.0]], [3.0], torch.tensor([[True, False]])), [-3.0]),
    ("GRPOLoss", {"loss_type": "cispo"}, ([[1.0, 2.0]], [[0.0, 2.0]], [3.0], MASK), [[-3.6, -6.0]]),
    ("GRPOLoss", {"loss_type": "gspo"}, ([[0.0, 0.0]], [[-2.0, 0.0]], [3.0], MASK), [-3.6]),
    ("FusedLinearCrossEntropyLoss", {}, ([[1.0], [1.0]], EVEN, torch.tensor([0, -100])), [math.log(2), 0.0]),
    ("FusedLinearCrossEntropyLoss", {"z_loss": 1.0}, ([[1.0]], EVEN, LABEL), [math.log(2) + math.log(2) ** 2]),
    ("FusedLinearDistillationLoss", {}, ([[1.0]], EVEN, [[1.0]], [[0.0], [-2e3]]), [math.log(2)]),
    ("FusedLinearDPOLoss", {}, (PAIR, EVEN, torch.tensor([[0], [1]]), [-2.0, -2.0]), [math.log(2)]),
    ("FusedLinearIPOLoss", {}, (PAIR, EVEN, torch.tensor([[0], [1]]), [-2.0, -2.0]), [25.0]),
    ("FusedLinearSimPOLoss", {}, (PAIR, EVEN, torch.tensor([[0], [1]])), [math.log(1 + math.e)]),
    ("FusedLinearORPOLoss", {}, (PAIR, EVEN, torch.tensor([[0], [1]])), [1.1 * math.log(2)]),
    ("FusedLinearKTOLoss", {}, (PAIR, EVEN, torch.tensor([[0], [1]]), MASK[0], [-math.log(2)] * 2), [0.5, 0.5]),
    ("FusedLinearGRPOLoss", {}, ([[[1.0], [1.0]]], EVEN, torch.tensor([[0, -100]]), [3.0]), [-3.0]),
    ("NegativeBinomialNLLLoss", {"full": True}, ([1.0, 3.0], [0.0, 2.0], [1.0, 1.0]), [math.log(2), math.log(64 / 9)]),
    ("StudentTNLLLoss", {}, ([1.0], [0.0], [1.0], [1.0]), [math.log(2 * math.pi)]),
    ("EvidentialRegressionLoss", {}, ([1.0], [0.0], [1.0], [1.0], [0.25]), [2.5 * math.log(2) + 0.03]),
    ("CoxPHLoss", {}, (ZEROS, [2.0, 1.0], torch.tensor([True, True])), [0.0, math.log(2)]),
    ("CoxPHLoss", {}, (ZEROS, [1.0, 1.0], torch.tensor([True, False])), [math.log(2), 0.0]),
    ("SISDRLoss", {"zero_mean": False}, ([[10.0, 1.0], [-20.0, 2.0]], [[1.0, 0.0]] * 2), [-20.0, -20.0]),
    ("SISDRLoss", {}, ([[10.0, 0.0, 1.0, 1.0]], [[9.0, -1.0, 0.0, 0.0]]), [10 * math.log10(1e-8 / 66)]),
    ("VAELoss", {}, ([[1.0, 3.0]], [[0.0, 3.0]], [ZEROS], [ZEROS]), [0.5]),
    ("VAELoss", {"beta": 2.0}, ([[1.0]], [[1.0]], [[1.0, 2.0]], [[0.0, 1.0]]), [1 + 4 + math.e - 2]),
)


def numbers(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def gradients(value: Tensor, inputs: tuple[Any, ...]) -> list[Tensor | None]:
    asked = [each for each in inputs if isinstance(each, Tensor) and each.requires_grad]
    return list(torch.autograd.grad(value.sum(), asked, allow_unused=True))


def assert_finite(value: Tensor, inputs: tuple[Any, ...]) -> None:
    for each in (value, *gradients(value, inputs)):
        assert each is None or each.isfinite().all()


def test_every_loss_has_a_known_value() -> None:
    assert {name for name, *_ in KNOWN} == set(FIRST)


@pytest.mark.parametrize("use_autogen", [True, False])
@pytest.mark.parametrize(
    ("name", "options", "inputs", "expected"), KNOWN, ids=lambda each: each if isinstance(each, str) else ""
)
def test_known_value(
    name: str, options: dict[str, Any], inputs: tuple[Any, ...], expected: Any, use_autogen: bool
) -> None:
    given = tuple(numbers(each) for each in inputs)
    given = tuple(each.clone().requires_grad_(each.is_floating_point()) for each in given)
    value = getattr(losses, name)(**options, reduction="none", use_autogen=use_autogen)(*given)
    # The small number that keeps denominators from 0 shows.
    torch.testing.assert_close(value, numbers(expected), rtol=1e-6, atol=1e-6 if name.endswith("IoULoss") else 1e-11)
    assert_finite(value, given)


@pytest.mark.parametrize("use_autogen", [True, False])
def test_a_class_that_only_the_student_excludes(use_autogen: bool) -> None:
    """The teacher's divergence from it is infinite, as in torch; that from what is between them is not."""
    student, teacher = torch.tensor([[0.0, -inf], [0.0, 0.0]]).requires_grad_(), torch.zeros(2, 2).requires_grad_()
    options: dict[str, Any] = {"reduction": "none", "use_autogen": use_autogen}
    assert losses.DistillationLoss(**options)(student, teacher).tolist() == [inf, 0]
    value = losses.JSDLoss(**options)(student, teacher)
    torch.testing.assert_close(value, torch.tensor([JSD_OF_HALF, 0.0]))
    assert_finite(value, (student, teacher))


# Losses of logits or of differences, with the inputs that may be very large.
LARGE = {
    "AsymmetricLoss": 1,
    "CharbonnierLoss": 1,
    "CircleLoss": 1,
    "DPOLoss": 4,
    "DiceLoss": 1,
    "DistillationLoss": 2,
    "FocalLoss": 1,
    "FocalTverskyLoss": 1,
    "JSDLoss": 2,
    "KTOLoss": 1,
    "LogCoshLoss": 1,
    "ORPOLoss": 2,
    "PolyLoss": 1,
    "QuantileLoss": 1,
    "SigmoidFocalLoss": 1,
    "SimPOLoss": 2,
    "TotalVariationLoss": 2,
    "TverskyLoss": 1,
    "VocabParallelCrossEntropyLoss": 1,
    "WingLoss": 1,
}


@pytest.mark.parametrize("use_autogen", [True, False])
@pytest.mark.parametrize("name", LARGE)
def test_large_inputs(name: str, use_autogen: bool) -> None:
    case = FIRST[name]
    given = list(case.draw(torch.float32))
    for k in range(LARGE[name]):
        given[k] = (given[k].detach() * 300).requires_grad_()
    value = case.make(torch.float32, use_autogen=use_autogen)(*given)
    assert_finite(value, tuple(given))
    doubles = (each.double() if each.is_floating_point() else each for each in given)
    exact = case.make(torch.float64, use_autogen=False)(*doubles)
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("use_autogen", [True, False])
@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("name", ["SigmoidFocalLoss", "FocalLoss", "AsymmetricLoss"])
def test_certain_answers_have_a_gradient(name: str, gamma: float, use_autogen: bool) -> None:
    """Where the base of the power is 0 its slope is not infinite."""
    logits = torch.tensor([[200.0, -200.0, 0.0]]).requires_grad_()
    target = torch.tensor([0]) if name == "FocalLoss" else torch.tensor([[1.0, 0.0, 1.0]])
    options = {"gamma_neg": gamma, "gamma_pos": gamma} if name == "AsymmetricLoss" else {"gamma": gamma}
    assert_finite(getattr(losses, name)(**options, use_autogen=use_autogen)(logits, target), (logits,))


@pytest.mark.parametrize("use_autogen", [True, False])
@pytest.mark.parametrize("name", ["PPOClipLoss", "GRPOLoss"])
def test_what_is_masked_may_be_anything(name: str, use_autogen: bool) -> None:
    mask = mask_of(4, 5)
    given = Samples(torch.float64)
    new, old, advantage = given.real(4, 5), given.real(4, 5), given.real(*(4,) if name == "GRPOLoss" else (4, 5))
    loss = getattr(losses, name)(use_autogen=use_autogen)
    found = []
    for padding in (0.0, nan, inf, 1e4):
        inputs = tuple(torch.where(mask, each, padding).requires_grad_() for each in (new, old))
        for each in (mask, mask.double()):
            value = loss(*inputs, advantage, each)
            found.append([value, *gradients(value, inputs)])
    for each in found[1:]:
        torch.testing.assert_close(each, found[0], rtol=0, atol=0)


@pytest.mark.parametrize("use_autogen", [pytest.param(True, marks=pytest.mark.slow), False])
def test_nothing_that_counts_gives_0(use_autogen: bool) -> None:
    x, nothing = torch.randn(3, 4, requires_grad=True), torch.zeros(3, 4, dtype=torch.bool)
    ignored, options = torch.full((3,), -100), {"use_autogen": use_autogen}
    calls: tuple[tuple[nn.Module, tuple[Tensor, ...]], ...] = (
        (losses.FocalLoss(**options), (x, ignored)),
        (losses.PolyLoss(**options), (x, ignored)),
        (losses.VocabParallelCrossEntropyLoss(**options), (x, ignored)),
        (losses.PPOClipLoss(**options), (x, x, x, nothing)),
        (losses.GRPOLoss(**options), (x, x, x[:, 0], nothing)),
        (losses.GRPOLoss(**options, loss_type="bnpo"), (x, x, x[:, 0], nothing)),
        (losses.GRPOLoss(**options, loss_type="gspo"), (x, None, x[:, 0], nothing)),
        (losses.FusedLinearCrossEntropyLoss(**options, z_loss=0.1), (x, x, ignored)),
        (losses.FusedLinearCrossEntropyLoss(**options), (x, x, ignored, None, x[:, 0])),
        (losses.FusedLinearDistillationLoss(**options), (x, x, x, x, ignored)),
        (losses.FusedLinearGRPOLoss(**options), (x[None], x, ignored[None], x[0, :1])),
        (losses.CoxPHLoss(**options), (x[:, 0], x[:, 1].detach(), nothing[:, 0])),
        (losses.SupConLoss(**options), (x, torch.arange(3))),
        (losses.CircleLoss(**options), (x, nothing)),
        (losses.CircleLoss(**options), (x, nothing, nothing)),
    )
    for loss, inputs in calls:
        value = loss(*inputs)
        assert value.item() == 0, loss
        (gradient,) = torch.autograd.grad(value, x)
        assert not gradient.any(), loss


def rows_of(t: Tensor) -> Tensor:
    """The first of each row, in all of its places."""
    return t[:, :1].expand_as(t).clone()


@pytest.mark.slow
def test_relatives() -> None:
    """Options under which a loss is another one."""
    s = Samples(torch.float64)
    x, label, t = s.real(6, 5), s.label(5, 6), s.probability(6, 5)
    label[0] = 3
    cosines, maps = s.probability(6, 5) * 2 - 1, (s.real(2, 3, 4), s.probability(2, 3, 4))
    pairs = (
        (losses.FocalLoss(gamma=0.0, ignore_index=3)(x, label), F.cross_entropy(x, label, ignore_index=3)),
        (losses.PolyLoss(epsilon=0.0)(x, label), F.cross_entropy(x, label)),
        (
            losses.VocabParallelCrossEntropyLoss(label_smoothing=0.2, ignore_index=3)(x, label),
            F.cross_entropy(x, label, label_smoothing=0.2, ignore_index=3),
        ),
        (losses.ArcFaceLoss(margin=0.0, scale=3.0)(cosines, label), F.cross_entropy(3 * cosines, label)),
        (losses.SigmoidFocalLoss(None, 0.0)(x, t), F.binary_cross_entropy_with_logits(x, t)),
        (losses.AsymmetricLoss(0.0, 0.0, 0.0)(x, t), F.binary_cross_entropy_with_logits(x, t)),
        (losses.TverskyLoss(0.5, 0.5, smooth=0.5)(*maps), losses.DiceLoss(smooth=1.0)(*maps)),
        (losses.FocalTverskyLoss(gamma=1.0)(*maps), losses.TverskyLoss()(*maps)),
        (losses.QuantileLoss(0.5)(x, t), F.l1_loss(x, t) / 2),
        (losses.GRPOLoss(loss_type="bnpo")(x, t, t[:, 0], t > 0.5), losses.PPOClipLoss()(x, t, rows_of(t), t > 0.5)),
        (losses.GRPOLoss()(x, t, t[:, 0], t > 0), losses.PPOClipLoss()(x, t, rows_of(t))),
        (losses.VAELoss(beta=0.0)(x, t, x, t), 5 * F.mse_loss(x, t) / 2),
    )
    for k, (one, other) in enumerate(pairs):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=lambda text, k=k: f"pair {k}: {text}")


def test_arcface_with_class_centres() -> None:
    s = Samples(torch.float64)
    x, target = s.real(6, 7).requires_grad_(), s.label(5, 6)
    loss = losses.ArcFaceLoss(in_features=7, num_classes=5).double()
    assert [(name, tuple(each.shape)) for name, each in loss.named_parameters()] == [("weight", (5, 7))]
    cosines = F.cosine_similarity(x.unsqueeze(1), loss.weight.unsqueeze(0), dim=-1)
    inputs = (x, loss.weight)
    value, expected = loss(x, target), losses.ArcFaceLoss(use_autogen=False)(cosines, target)
    torch.testing.assert_close([value, *gradients(value, inputs)], [expected, *gradients(expected, inputs)])


def test_buffers() -> None:
    alpha = torch.tensor([1.0, 2.0])
    assert list(losses.FocalLoss(alpha).state_dict()) == ["alpha"] and not losses.FocalLoss().state_dict()
    assert not losses.QuantileLoss([0.1, 0.9]).state_dict()
