"""Calls of the losses beyond torch, over their options, each with its reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import autogen.losses
from tests.interpret import references as ref
from tests.interpret import references_of_heads as heads
from tests.interpret import references_of_pairs as pairs
from tests.interpret.samples import Samples

N, C = 6, 5
Inputs = Callable[[Samples, int, int], tuple[Tensor, ...]]


class Case(NamedTuple):
    """A loss, its inputs for two sizes, the formula it is held to (see `references`), its options.

    Inputs numbered in `fixed` are not differentiated: the reference takes them for truth values. The terms of the loss
    are about as large as `unit`.
    """

    loss: str
    inputs: Inputs
    reference: Callable[..., Any]
    options: Mapping[str, Any] = MappingProxyType({})
    fixed: tuple[int, ...] = ()
    unit: float = 1.0

    def __repr__(self) -> str:
        return "-".join([self.loss, *(f"{name}={value}" for name, value in self.options.items())]).replace(" ", "")

    def make(self, dtype: torch.dtype, **options: Any) -> nn.Module:
        """The loss, its tensors in a dtype."""
        given = {**self.options, **options}
        if isinstance(given.get("alpha"), tuple):
            given["alpha"] = torch.tensor(given["alpha"], dtype=dtype)
        loss: nn.Module = getattr(autogen.losses, self.loss)(**given)
        return loss

    def draw(self, dtype: torch.dtype, n: int = N, c: int = C, seed: int = 0) -> tuple[Tensor, ...]:
        """The inputs, as leaves that ask for their gradients."""
        drawn = self.inputs(Samples(dtype, seed), n, c)
        wanted = [each.is_floating_point() and k not in self.fixed for k, each in enumerate(drawn)]
        return tuple(each.clone().requires_grad_(is_wanted) for each, is_wanted in zip(drawn, wanted, strict=True))


def _pair(*spatial: int, scale: float = 1.0) -> Inputs:
    return lambda s, n, c: (s.real(n, c, *spatial) * scale, s.real(n, c, *spatial) * scale)


def _binary(*spatial: int) -> Inputs:
    return lambda s, n, c: (s.real(n, c, *spatial) * 2, (s.sign(n, c, *spatial) + 1) / 2)


def _soft(*spatial: int) -> Inputs:
    return lambda s, n, c: (s.real(n, c, *spatial) * 2, s.probability(n, c, *spatial))


def _labels(*spatial: int, ignored: int | None = None) -> Inputs:
    """Logits and labels, the first of which is ignored, as are all others of that number."""

    def draw(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
        target = s.label(c, n, *spatial)
        if ignored is not None:
            target[:1] = ignored
        return s.real(n, c, *spatial), target

    return draw


def _rows_of_labels(*more: int) -> Inputs:
    """Logits whose classes come last, and labels, some of which are 1."""

    def draw(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
        target = s.label(c, n, *more)
        target[:1] = 1
        return s.real(n, *more, c), target

    return draw


def _excluding(both: bool) -> Inputs:
    """Two sets of logits, the second of which excludes a class in all rows but the first; the first, too, if `both`."""

    def draw(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
        student, teacher = s.real(n, c), s.real(n, c)
        teacher[1:, 1] = -math.inf
        if both:
            student[1:, 1] = -math.inf
        return student, teacher

    return draw


def _boxes(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    """Pairs that overlap or not; the first are disjoint, the last nested."""
    low, size = s.real(2, n, c, 2), s.probability(2, n, c, 2) * 3
    boxes = torch.cat([low, low + size], -1)
    boxes[1, 0] = boxes[0, 0] + 5
    boxes[1, -1] = boxes[0, -1] + torch.tensor([1, 1, -1, -1]).to(s.dtype) / 64
    return boxes[0], boxes[1]


def _log_probs(count: int) -> Inputs:
    return lambda s, n, c: tuple(s.real(n) * 3 - 10 for _ in range(count))


def _average_log_probs(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    return s.probability(n).log(), (s.probability(n) / 2).log()


def _answers(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    return s.real(n), s.real(n), s.sign(n) > 0


def mask_of(rows: int, columns: int) -> Tensor:
    """Rows of different lengths; the last is empty."""
    return torch.arange(columns) < (rows - 1 - torch.arange(rows)).unsqueeze(1) * 2


def _actions(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    old = s.real(n, c) - 3
    return old + s.real(n, c) / 4, old, s.real(n, c)


def _tokens(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    new, old, _ = _actions(s, n, c)
    return new, old, s.real(n), mask_of(n, c)


def _tokens_and_reference(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    tokens = _tokens(s, n, c)
    return (*tokens, tokens[0] + s.real(n, c) / 3)


FEATURES = 4  # of hidden states


def _head(*answers: int) -> Inputs:
    """Hidden states, a weight, and labels, one of which is ignored if an answer has more."""

    def draw(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
        labels = s.label(c, *answers, n)
        labels.view(-1)[: int(n > 1)] = -100
        return s.real(*answers, n, FEATURES), s.real(c, FEATURES), labels

    return draw


def _two_heads(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    hidden, weight, _ = _head()(s, n, c)
    return hidden, weight, s.real(n, 3), s.real(c, 3)


def _answers_of_head(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    return *_head(4)(s, n, c), s.real(4) - 2 * n


def _judged_of_head(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    return *_head(3)(s, n, c), torch.tensor([True, False, True]), s.real(3) - 2 * n


def _tokens_of_head(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    return *_head(3)(s, n, c), s.real(3)


def _survival(ties: bool) -> Inputs:
    def draw(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
        time = s.probability(n * c)
        return s.real(n * c), (time * 5).round() if ties else time, s.sign(n * c) > 0

    return draw


def _similarities(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    return s.probability(n, c) * 2 - 1, s.sign(n, c) > 0


def _cosines(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    target, cosines = s.label(c, n), s.probability(n, c) * 2 - 1
    cosines[0, target[0]] = -0.98  # beyond pi with the margin
    return cosines, target


def _counts(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    return s.count(n, c) + 0.2, s.count(n, c).round(), s.probability(n, c) * 4


def _broadcast_counts(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    return s.count(n, c) + 0.2, s.count(n, c).round(), s.probability(c) * 4


def _student(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    return s.real(n, c), s.real(n, c), s.probability(n, c), s.probability(n, 1) * 9


def _evidence(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    return s.real(n), s.real(n), s.probability(n), s.probability(n) + 1, s.probability(n)


def _signals(*channels: int) -> Inputs:
    """Targets, and estimates with as much noise; of unrelated signals the loss is badly conditioned."""

    def draw(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
        target = s.real(n, *channels, 8 * c)
        return target / 2 + s.real(*target.shape) / 2, target

    return draw


def _autoencoder(s: Samples, n: int, c: int) -> tuple[Tensor, ...]:
    return s.real(n, 2, c), s.probability(n, 2, c), s.real(n, 4), s.real(n, 4)


ALPHA = (0.5, 1.0, 2.0, 0.1, 0.7)
# The first of each loss is its typical call.
CASES = (
    Case("SigmoidFocalLoss", _binary(), ref.sigmoid_focal),
    Case("SigmoidFocalLoss", _soft(), ref.sigmoid_focal, {"alpha": None, "gamma": 0.5}),
    Case("SigmoidFocalLoss", _binary(), ref.sigmoid_focal, {"alpha": 0.7, "gamma": 0.0}),
    Case("FocalLoss", _labels(), ref.focal),
    Case("FocalLoss", _labels(3, ignored=2), ref.focal, {"ignore_index": 2, "gamma": 1.5}),
    Case("FocalLoss", _labels(ignored=-100), ref.focal, {"alpha": ALPHA, "gamma": 0.5}),
    Case("PolyLoss", _labels(), ref.poly),
    Case("PolyLoss", _labels(2, 2, ignored=1), ref.poly, {"epsilon": -0.5, "ignore_index": 1}),
    Case("VocabParallelCrossEntropyLoss", _rows_of_labels(), ref.vocab_parallel),
    Case("VocabParallelCrossEntropyLoss", _rows_of_labels(3), ref.vocab_parallel, {"label_smoothing": 0.1}),
    Case(
        "VocabParallelCrossEntropyLoss", _rows_of_labels(2, 2), ref.vocab_parallel, {"ignore_index": 1, "z_loss": 0.2}
    ),
    Case("AsymmetricLoss", _binary(), ref.asymmetric, fixed=(1,)),
    Case("AsymmetricLoss", _binary(), ref.asymmetric, {"clip": 0.0, "gamma_neg": 1.5, "gamma_pos": 0.0}, fixed=(1,)),
    Case("ArcFaceLoss", _cosines, ref.arcface),
    Case("ArcFaceLoss", _cosines, ref.arcface, {"margin": 0.2, "scale": 8.0}),
    Case("DiceLoss", _binary(7), ref.dice),
    Case("DiceLoss", _soft(3, 4), ref.dice, {"batch": True, "smooth": 0.1}),
    Case("DiceLoss", _labels(7), ref.dice, {"activation": "softmax"}),
    Case(
        "DiceLoss",
        lambda s, n, c: (s.probability(n, c, 7), s.probability(n, c, 7)),
        ref.dice,
        {"activation": "none"},
    ),
    Case("TverskyLoss", _binary(7), ref.tversky),
    Case("TverskyLoss", _soft(3, 4), ref.tversky, {"alpha": 0.9, "beta": 0.2, "batch": True}),
    Case("FocalTverskyLoss", _binary(7), ref.focal_tversky),
    Case("FocalTverskyLoss", _soft(3, 4), ref.focal_tversky, {"gamma": 0.5, "smooth": 0.5}),
    Case("IoULoss", _boxes, ref.iou),
    Case("GIoULoss", _boxes, ref.giou),
    Case("DIoULoss", _boxes, ref.diou),
    Case("CIoULoss", _boxes, ref.ciou),
    Case("CIoULoss", _boxes, ref.ciou, {"eps": 0.1}),
    Case("LogCoshLoss", _pair(scale=2.0), ref.log_cosh),
    Case("CharbonnierLoss", _pair(), ref.charbonnier),
    Case("CharbonnierLoss", _pair(), ref.charbonnier, {"eps": 0.5}),
    Case("QuantileLoss", _pair(), ref.quantile),
    Case("QuantileLoss", lambda s, n, c: (s.real(n, 3), s.real(n)), ref.quantile, {"quantiles": (0.1, 0.5, 0.9)}),
    Case("WingLoss", _pair(scale=5.0), ref.wing),
    Case("WingLoss", _pair(), ref.wing, {"omega": 1.0, "epsilon": 0.5}),
    Case("JSDLoss", _pair(), pairs.jsd),
    Case("JSDLoss", _pair(3), pairs.jsd, {"dim": 1}),
    Case("JSDLoss", _pair(), pairs.jsd, {"beta": 0.2}),
    Case("JSDLoss", _excluding(both=True), pairs.jsd),
    Case("JSDLoss", _excluding(both=False), pairs.jsd, {"beta": 0.9}),
    Case("TotalVariationLoss", _pair(), pairs.total_variation),
    Case("TotalVariationLoss", _pair(3), pairs.total_variation, {"dim": 1}),
    Case("DistillationLoss", _pair(), pairs.distillation),
    Case(
        "DistillationLoss",
        lambda s, n, c: (s.real(n, c), s.real(n, c), s.label(c, n)),
        pairs.distillation,
        {"temperature": 4.0, "hard": 0.3},
    ),
    Case("DistillationLoss", _excluding(both=True), pairs.distillation, {"temperature": 0.5}),
    Case("DistillationLoss", _excluding(both=False), pairs.distillation),
    Case("InfoNCELoss", _pair(), pairs.info_nce),
    Case(
        "InfoNCELoss",
        lambda s, n, c: (s.real(n, c), s.real(n, c), s.real(4, c)),
        pairs.info_nce,
        {"temperature": 0.5},
    ),
    Case("SupConLoss", lambda s, n, c: (s.real(n, c), s.label(3, n)), pairs.sup_con),
    Case("SupConLoss", lambda s, n, c: (s.real(n, 2, c), s.label(3, n)), pairs.sup_con, {"temperature": 0.5}),
    Case("CircleLoss", _similarities, pairs.circle, {"scale": 8.0}),
    Case(
        "CircleLoss",
        lambda s, n, c: (*_similarities(s, n, c), mask_of(n, c)),
        pairs.circle,
        {"scale": 4.0, "margin": 0.4},
    ),
    Case("DPOLoss", _log_probs(4), pairs.dpo),
    Case("DPOLoss", _log_probs(4), pairs.dpo, {"beta": 0.5, "label_smoothing": 0.2}),
    Case("IPOLoss", _log_probs(4), pairs.ipo),
    Case("SimPOLoss", _average_log_probs, pairs.simpo),
    Case("ORPOLoss", _average_log_probs, pairs.orpo),
    Case("KTOLoss", _answers, pairs.kto, {"undesirable_weight": 1.3}),
    Case(
        "KTOLoss",
        lambda s, n, c: (*_answers(s, n, c), s.real(c) + 1),
        pairs.kto,
        {"beta": 0.5, "desirable_weight": 0.7},
    ),
    Case("PPOClipLoss", _actions, pairs.ppo_clip),
    Case(
        "PPOClipLoss",
        lambda s, n, c: (*_actions(s, n, c), mask_of(n, c)),
        pairs.ppo_clip,
        {"clip": 0.1, "clip_high": 0.3},
    ),
    Case("GRPOLoss", _tokens, pairs.grpo),
    Case("GRPOLoss", _tokens_and_reference, pairs.grpo, {"beta": 0.1, "clip_high": 0.28}),
    Case("GRPOLoss", _tokens, pairs.grpo, {"loss_type": "bnpo", "clip": 0.1}),
    Case("GRPOLoss", _tokens_and_reference, pairs.grpo, {"loss_type": "dr_grpo", "beta": 0.1}),
    Case("GRPOLoss", _tokens, pairs.grpo, {"loss_type": "dr_grpo", "max_length": 9}),
    Case("GRPOLoss", _tokens, pairs.grpo, {"loss_type": "dapo", "clip_high": 0.28}),
    Case("GRPOLoss", _tokens, pairs.grpo, {"loss_type": "cispo", "clip": 1.0, "clip_high": 0.1}, fixed=(1,)),
    Case("GRPOLoss", _tokens_and_reference, pairs.grpo, {"loss_type": "gspo", "beta": 0.1, "clip": 0.1}),
    Case("FusedLinearCrossEntropyLoss", _head(), heads.cross_entropy),
    Case("FusedLinearDistillationLoss", _two_heads, heads.distillation),
    Case("FusedLinearDPOLoss", _answers_of_head, heads.dpo),
    Case("FusedLinearIPOLoss", _answers_of_head, heads.ipo),
    Case("FusedLinearSimPOLoss", _head(4), heads.simpo),
    Case("FusedLinearORPOLoss", _head(4), heads.orpo),
    Case("FusedLinearKTOLoss", _judged_of_head, heads.kto),
    Case("FusedLinearGRPOLoss", _tokens_of_head, heads.grpo),
    Case("NegativeBinomialNLLLoss", _counts, ref.negative_binomial),
    Case("NegativeBinomialNLLLoss", _broadcast_counts, ref.negative_binomial, {"full": True}),
    Case("StudentTNLLLoss", _student, ref.student_t),
    Case("EvidentialRegressionLoss", _evidence, ref.evidential),
    Case("EvidentialRegressionLoss", _evidence, ref.evidential, {"coefficient": 0.5}),
    Case("CoxPHLoss", _survival(ties=False), pairs.cox),
    Case("CoxPHLoss", _survival(ties=True), pairs.cox),
    Case("SISDRLoss", _signals(), pairs.si_sdr, unit=10.0),
    Case("SISDRLoss", _signals(2), pairs.si_sdr, {"zero_mean": False, "eps": 0.1}, unit=10.0),
    Case("VAELoss", _autoencoder, ref.vae),
    Case("VAELoss", _autoencoder, ref.vae, {"likelihood": "bernoulli", "beta": 0.5}),
)
FIRST = {case.loss: case for case in reversed(CASES)}
BEYOND = frozenset(FIRST)
