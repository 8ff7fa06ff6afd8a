"""What the losses beyond torch refuse, and in which words."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from autogen import losses, policy
from tests.interpret.beyond import FIRST


def _words(value: Any) -> str:
    return value if isinstance(value, str) else ""


OPTIONS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("ArcFaceLoss", {"margin": 4.0}, "margin must be a number in [0, 3.14159"),
    ("ArcFaceLoss", {"scale": 0.0}, "scale must be a number in (0, inf); got 0.0"),
    ("ArcFaceLoss", {"in_features": 3}, "in_features and num_classes must be given together"),
    ("AsymmetricLoss", {"clip": 1.0}, "clip must be a number in [0, 1); got 1.0"),
    ("AsymmetricLoss", {"clip": -0.1}, "clip must be"),
    ("AsymmetricLoss", {"gamma_neg": -1.0}, "gamma_neg must be"),
    ("CharbonnierLoss", {"eps": 0.0}, "eps must be"),
    ("CircleLoss", {"margin": -0.1}, "margin must be"),
    ("DPOLoss", {"beta": 0.0}, "beta must be"),
    ("DPOLoss", {"label_smoothing": 0.6}, "label_smoothing must be a number in [0, 0.5]; got 0.6"),
    ("DiceLoss", {"activation": "tanh"}, "activation must be one of 'sigmoid', 'softmax', 'none'; got 'tanh'"),
    ("DiceLoss", {"smooth": -1.0}, "smooth must be"),
    ("DistillationLoss", {"temperature": float("inf")}, "temperature must be"),
    ("DistillationLoss", {"hard": 1.5}, "hard must be"),
    ("EvidentialRegressionLoss", {"coefficient": -1.0}, "coefficient must be"),
    ("FocalLoss", {"alpha": torch.ones(2, 2)}, "alpha must have the shape (C,); got (2, 2)"),
    ("FocalLoss", {"gamma": float("nan")}, "gamma must be"),
    ("FocalTverskyLoss", {"gamma": 0.0}, "gamma must be"),
    ("FusedLinearCrossEntropyLoss", {"label_smoothing": 1.1}, "label_smoothing must be a number in [0, 1]; got 1.1"),
    ("FusedLinearCrossEntropyLoss", {"z_loss": -1.0}, "z_loss must be"),
    ("FusedLinearCrossEntropyLoss", {"softcap": 0.0}, "softcap must be a number in (0, inf); got 0.0"),
    ("FusedLinearCrossEntropyLoss", {"outputs": "loss"}, "an output must be one of 'lse', 'entropy', 'accuracy'"),
    ("FusedLinearDPOLoss", {"label_smoothing": 0.6}, "label_smoothing must be"),
    (
        "FusedLinearDistillationLoss",
        {"divergence": "kl"},
        "divergence must be one of 'forward_kl', 'reverse_kl', 'jsd'",
    ),
    ("FusedLinearDistillationLoss", {"beta": 0.0}, "beta must be a number in (0, 1); got 0.0"),
    ("FusedLinearDistillationLoss", {"temperature": 0.0}, "temperature must be"),
    ("FusedLinearDistillationLoss", {"hard": -0.1}, "hard must be"),
    ("FusedLinearGRPOLoss", {"temperature": 0.0}, "temperature must be"),
    (
        "FusedLinearGRPOLoss",
        {"outputs": ("entropy", "lse")},
        "an output must be one of 'log_prob', 'entropy'; got 'lse'",
    ),
    ("FusedLinearIPOLoss", {"beta": 0.0}, "beta must be"),
    ("FusedLinearKTOLoss", {"undesirable_weight": -1.0}, "undesirable_weight must be"),
    ("FusedLinearORPOLoss", {"beta": 0.0}, "beta must be"),
    ("FusedLinearSimPOLoss", {"gamma": -1.0}, "gamma must be"),
    ("GIoULoss", {"eps": -1.0}, "eps must be"),
    ("GRPOLoss", {"beta": -1.0}, "beta must be"),
    ("GRPOLoss", {"loss_type": "ppo"}, "loss_type must be one of 'grpo', 'bnpo', 'dr_grpo', 'dapo', 'cispo', 'gspo'"),
    ("GRPOLoss", {"loss_type": "dr_grpo", "max_length": 0}, "max_length must be at least 1"),
    ("GRPOLoss", {"max_length": 9}, "max_length must be at least 1, and is of the type 'dr_grpo'; got 9"),
    ("JSDLoss", {"beta": 1.0}, "beta must be a number in (0, 1); got 1.0"),
    ("KTOLoss", {"desirable_weight": -1.0}, "desirable_weight must be"),
    ("NegativeBinomialNLLLoss", {"eps": 0.0}, "eps must be"),
    ("PPOClipLoss", {"clip": 1.1}, "clip must be a number in [0, 1]; got 1.1"),
    ("PPOClipLoss", {"clip_high": -0.1}, "clip_high must be"),
    ("PolyLoss", {"epsilon": -2.0}, "epsilon must be a number in [-1, inf]; got -2.0"),
    ("QuantileLoss", {"quantiles": 1.0}, "quantiles must be one or several numbers in (0, 1); got 1.0"),
    ("QuantileLoss", {"quantiles": []}, "quantiles must be"),
    ("QuantileLoss", {"quantiles": [[0.5]]}, "quantiles must be"),
    ("SigmoidFocalLoss", {"alpha": 1.5}, "alpha must be"),
    ("SimPOLoss", {"gamma": -1.0}, "gamma must be"),
    ("StudentTNLLLoss", {"eps": 0.0}, "eps must be"),
    ("TverskyLoss", {"alpha": -1.0}, "alpha must be"),
    ("VAELoss", {"likelihood": "poisson"}, "likelihood must be one of 'normal', 'bernoulli'; got 'poisson'"),
    ("VocabParallelCrossEntropyLoss", {"sizes": (3, 0)}, "sizes must be a number of classes for each rank"),
    ("VocabParallelCrossEntropyLoss", {"sizes": ()}, "sizes must be"),
    ("VocabParallelCrossEntropyLoss", {"label_smoothing": 1.5}, "label_smoothing must be a number in [0, 1]; got 1.5"),
    ("VocabParallelCrossEntropyLoss", {"z_loss": -1.0}, "z_loss must be"),
    ("WingLoss", {"omega": 0.0}, "omega must be"),
    ("WingLoss", {"epsilon": -1.0}, "epsilon must be"),
)


@pytest.mark.parametrize(("name", "options", "message"), OPTIONS, ids=_words)
def test_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        getattr(losses, name)(**options)


@pytest.mark.parametrize("name", FIRST)
def test_reduction(name: str) -> None:
    with pytest.raises(ValueError, match=r"^reduction must be one of 'none', 'mean', 'sum'; got 'average'"):
        getattr(losses, name)(reduction="average")


X, LABELS = torch.zeros(3, 4, requires_grad=True), torch.zeros(3, dtype=torch.long)
TWO, LABELS_OF_TWO = X.expand(2, 3, 4), LABELS.expand(2, 3)  # answers
CALLS: tuple[tuple[str, dict[str, Any], tuple[Any, ...], str], ...] = (
    ("ArcFaceLoss", {}, (X, LABELS[:2]), "input and target must have the shapes (N, C) and (N,)"),
    ("CoxPHLoss", {}, (X, X, X), "input must have the shape (N,); got (3, 4)"),
    ("DiceLoss", {}, (X, X), "input must have the shape (N, C, ...)"),
    ("DistillationLoss", {}, (X, X, LABELS), "labels must be given if, and only if, their weight `hard` is not 0"),
    ("DistillationLoss", {"hard": 0.5}, (X, X), "labels must be given if"),
    ("FocalLoss", {}, (X, X), "target must hold class labels; got torch.float32"),
    ("FocalLoss", {"alpha": torch.ones(3)}, (X, LABELS), "alpha must have the shape (4,); got (3,)"),
    ("FocalLoss", {"alpha": torch.ones(5)}, (X, LABELS), "alpha must have the shape (4,); got (5,)"),
    ("FocalLoss", {"alpha": torch.ones(1)}, (X, LABELS), "alpha must have the shape (4,); got (1,)"),
    ("FocalLoss", {"alpha": torch.ones(3)}, (X[0], LABELS[0]), "alpha must have the shape (4,); got (3,)"),
    ("FusedLinearCrossEntropyLoss", {}, (X, X[:, 1:], LABELS), "weight must have the shape (V, 4) for hidden (3, 4)"),
    ("FusedLinearCrossEntropyLoss", {}, (X[0], X, LABELS[0]), "hidden must have the shape (..., H); got (4,)"),
    ("FusedLinearCrossEntropyLoss", {}, (X, X, LABELS, X[0]), "bias must have the shape (3,); got (4,)"),
    (
        "FusedLinearCrossEntropyLoss",
        {},
        (X, X, LABELS[1:]),
        "labels must have the shape (3,) for hidden (3, 4); got (2,)",
    ),
    ("FusedLinearCrossEntropyLoss", {}, (X, X, X[:, 0]), "labels must hold classes as torch.int64; got torch.float32"),
    ("FusedLinearCrossEntropyLoss", {}, (X, X, LABELS, None, X), "token_weight must have the shape (3,)"),
    ("FusedLinearCrossEntropyLoss", {"reduction": "sum"}, (X, X, LABELS, None, None, 3), "num_items is what a mean"),
    ("FusedLinearDistillationLoss", {}, (X, X, X, X[:, 1:]), "teacher_weight must have the shape (V, 4)"),
    ("FusedLinearDistillationLoss", {}, (X, X, X, X[1:]), "student and teacher must have as many tokens and classes"),
    ("FusedLinearDistillationLoss", {}, (X, X, X[1:], X), "student and teacher must have as many tokens and classes"),
    (
        "FusedLinearDistillationLoss",
        {},
        (X, X, X, X, None, LABELS > 0, X[0]),
        "bias must have the shape (3,); got (4,)",
    ),
    ("FusedLinearDistillationLoss", {}, (X, X, X, X, None, X > 0), "mask must have the shape (3,)"),
    ("FusedLinearDistillationLoss", {"hard": 0.5}, (X, X, X, X), "labels must be given where their weight `hard`"),
    ("FusedLinearDPOLoss", {}, (X, X, LABELS), "hidden must have the shape (2N, T, H)"),
    ("FusedLinearDPOLoss", {}, (X[:, None], X, LABELS[:, None]), "hidden must have the shape (2N, T, H)"),
    ("FusedLinearDPOLoss", {}, (TWO, X, LABELS_OF_TWO), "either `reference` must be given, or `reference_hidden`"),
    ("FusedLinearDPOLoss", {}, (TWO, X, LABELS_OF_TWO, X[:2, 0], TWO, X), "either `reference` must be given, or"),
    ("FusedLinearDPOLoss", {}, (TWO, X, LABELS_OF_TWO, None, TWO), "either `reference` must be given, or"),
    ("FusedLinearIPOLoss", {}, (TWO, X, LABELS_OF_TWO, X[:, 0]), "reference must have the shape (2,); got (3,)"),
    (
        "FusedLinearIPOLoss",
        {},
        (TWO, X, LABELS_OF_TWO, None, TWO[:, 1:], X),
        "reference_hidden must have the shape (2, 3)",
    ),
    ("FusedLinearSimPOLoss", {}, (TWO, X, LABELS), "labels must have the shape (2, 3) for hidden (2, 3, 4); got (3,)"),
    ("FusedLinearORPOLoss", {}, (TWO, X[0], LABELS_OF_TWO), "weight must have the shape (V, 4)"),
    ("FusedLinearKTOLoss", {}, (TWO, X, LABELS_OF_TWO, X[:, 0]), "target must have the shape (2,); got (3,)"),
    (
        "FusedLinearGRPOLoss",
        {},
        (TWO, X, LABELS_OF_TWO, X[:, 0]),
        "labels and advantage must have the shapes (N, T) and (N,)",
    ),
    ("FusedLinearGRPOLoss", {}, (TWO, X, LABELS_OF_TWO, X[:2, 0], X > 0), "mask must have the shape of labels, (2, 3)"),
    (
        "FusedLinearGRPOLoss",
        {"beta": 0.1},
        (TWO, X, LABELS_OF_TWO, X[:2, 0]),
        "a reference must be given if, and only if",
    ),
    ("GIoULoss", {}, (X[:, :3], X[:, :3]), "boxes must have the shape (..., 4); got (3, 3)"),
    ("GRPOLoss", {}, (X, X, X, X), "input and advantage must have the shapes (N, T) and (N,)"),
    ("GRPOLoss", {"reduction": "none"}, (X, X, X[:, 0], X, None, 3), "num_items is what a mean divides by"),
    ("GRPOLoss", {"beta": 0.1}, (X, X, X[:, 0], X), "a reference must be given if, and only if, its weight"),
    ("InfoNCELoss", {}, (X[0], X[0]), "query must have the shape (N, D); got (4,)"),
    ("InfoNCELoss", {}, (X, X, X[:, 1:]), "negatives must have the shape (M, 4); got (3, 3)"),
    ("NegativeBinomialNLLLoss", {}, (X, X, X[:2]), "dispersion must broadcast to (3, 4); got (2, 4)"),
    ("QuantileLoss", {"quantiles": [0.1, 0.9]}, (X, X), "input must have the shape (3, 4, 2); got (3, 4)"),
    ("SISDRLoss", {}, (X[0, 0], X[0, 0]), "input must have the shape (..., T); got ()"),
    ("StudentTNLLLoss", {}, (X[0], X[0], X, X[0]), "scale must broadcast to (4,); got (3, 4)"),
    ("SupConLoss", {}, (X, LABELS[:2]), "input and target must have the shapes (N, D) or (N, V, D), and (N,)"),
    ("VAELoss", {}, (X, X, X[:2], X[:2]), "input and mean must have the shapes (N, ...)"),
)
_SHARDED = "VocabParallelCrossEntropyLoss"
CALLS += (
    (_SHARDED, {}, (X, LABELS[:2]), "target must hold class labels, of shape (3,); got torch.int64, (2,)"),
    (_SHARDED, {}, (X, X[:, 0]), "target must hold class labels, of shape (3,); got torch.float32, (3,)"),
    (_SHARDED, {}, (X[:, :0], LABELS), "input must be floating point, of shape (..., C) with C > 0; got torch.float32"),
    (_SHARDED, {"sizes": (5,)}, (X, LABELS), "sizes are (5,), but rank 0 of 1 has 4 classes"),
    (_SHARDED, {"sizes": (4, 4)}, (X, LABELS), "sizes are (4, 4), but rank 0 of 1 has 4 classes"),
)
# Of these, two inputs have one shape.
CALLS += tuple(
    (name, {}, (X, X[1:], *[X] * (len(FIRST[name].draw(torch.float32)) - 2)), "")
    for name in FIRST
    if not name.startswith("FusedLinear")
    and name
    not in (
        "ArcFaceLoss",
        "DiceLoss",
        "FocalLoss",
        "FocalTverskyLoss",
        "PolyLoss",
        "SupConLoss",
        "TverskyLoss",
        _SHARDED,
    )
)


@pytest.mark.parametrize("use_autogen", [True, False])
@pytest.mark.parametrize(("name", "options", "inputs", "message"), CALLS, ids=_words)
def test_inputs(name: str, options: dict[str, Any], inputs: tuple[Any, ...], message: str, use_autogen: bool) -> None:
    pattern = re.escape(message) if message else r"\w+ must have the shape"
    with pytest.raises(ValueError, match=f"^{pattern}"):
        getattr(losses, name)(**options, use_autogen=use_autogen)(*inputs)


@pytest.mark.parametrize("name", ["ArcFaceLoss", "FocalLoss", "PolyLoss", _SHARDED])
def test_a_label_that_is_no_class(name: str) -> None:
    """Where torch computes the loss; kernels wait for no check."""
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        getattr(losses, name)(use_autogen=False)(X, LABELS + 4)


def test_no_label_of_arcface_is_ignored() -> None:
    target = LABELS.index_fill(0, torch.tensor(0), -100)
    with pytest.raises(RuntimeError, match="index -100 is out of bounds"):
        losses.ArcFaceLoss(use_autogen=False)(X, target)
    with policy("mandatory"):
        assert losses.ArcFaceLoss()(X, target).isnan()


@pytest.mark.parametrize("use_autogen", [True, False])
def test_embeddings_of_another_length(use_autogen: bool) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        losses.ArcFaceLoss(in_features=3, num_classes=4, use_autogen=use_autogen)(X, LABELS)


def test_labels_that_are_no_class_belong_to_none() -> None:
    input, labels = torch.randn(2, 3, 4), torch.tensor([[0, 1, 2, 9], [0, -1, -100, 2]])
    target = torch.stack([labels == each for each in range(3)], 1).float()
    loss = losses.DiceLoss("softmax")
    torch.testing.assert_close(loss(input, labels), loss(input, target))
