"""Small calls of the losses of timm, MONAI, kornia, torchvision and transformers, for `examples.packages`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import kornia.losses
import monai.losses
import timm.loss
import torch
import torchvision.ops
from torch import Tensor
from transformers.loss import loss_utils

Call = tuple[Callable[..., Tensor], tuple[Any, ...]]

N, C, SIDE = 16, 5, 16  # samples; classes; height and width of images
_generator = torch.Generator()


def _real(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_generator)


def _logits(*shape: int) -> Tensor:
    return _real(*shape).requires_grad_()


def _unit(*shape: int) -> Tensor:
    return (0.05 + 0.9 * torch.rand(shape, generator=_generator)).requires_grad_()


def _labels(*shape: int, classes: int = C) -> Tensor:
    return torch.randint(classes, shape, generator=_generator)


def _bits(*shape: int) -> Tensor:
    return (torch.rand(shape, generator=_generator) < 0.4).float()


def _boxes() -> Tensor:
    corner = 10 * torch.rand((N, 2), generator=_generator)
    return torch.cat([corner, corner + 1 + 5 * torch.rand((N, 2), generator=_generator)], 1).requires_grad_()


def _classes_of_images() -> tuple[Tensor, Tensor]:
    return _logits(2, C, SIDE, SIDE), _labels(2, SIDE, SIDE)


def _masks_of_images() -> tuple[Tensor, Tensor]:
    return _logits(2, 2, SIDE, SIDE), _bits(2, 2, SIDE, SIDE)


def _soft_masks_of_images() -> tuple[Tensor, Tensor]:
    return _unit(2, 2, SIDE, SIDE), _bits(2, 2, SIDE, SIDE)


def _pictures(*shape: int) -> tuple[Tensor, Tensor]:
    return _unit(*(shape or (2, 3, SIDE, SIDE))), _unit(*(shape or (2, 3, SIDE, SIDE))).detach()


def _of_timm() -> dict[str, Callable[[], Call]]:
    t = timm.loss

    def single() -> tuple[Tensor, Tensor]:
        return _logits(N, C), _labels(N)

    def multi() -> tuple[Tensor, Tensor]:
        return _logits(N, C), _bits(N, C)

    counts = [3.0 + k for k in range(C)]
    return {
        "AsymmetricLossMultiLabel": lambda: (t.AsymmetricLossMultiLabel(), multi()),
        "AsymmetricLossSingleLabel": lambda: (t.AsymmetricLossSingleLabel(), single()),
        "BinaryCrossEntropy": lambda: (t.BinaryCrossEntropy(), single()),
        "DistributionBalancedLoss": lambda: (t.DistributionBalancedLoss(counts, 100), multi()),
        "JsdCrossEntropy": lambda: (t.JsdCrossEntropy(), (_logits(3 * N, C), _labels(3 * N))),
        "LabelSmoothingCrossEntropy": lambda: (t.LabelSmoothingCrossEntropy(), single()),
        "PolyBinaryCrossEntropy": lambda: (t.PolyBinaryCrossEntropy(gamma=2.0), multi()),
        "PolyCrossEntropy": lambda: (t.PolyCrossEntropy(), single()),
        "SoftTargetCrossEntropy": lambda: (t.SoftTargetCrossEntropy(), (_logits(N, C), _real(N, C).softmax(1))),
        "TwoWayLoss": lambda: (t.TwoWayLoss(), multi()),
        "ZlprLoss": lambda: (t.ZlprLoss(), multi()),
    }


def _of_monai() -> dict[str, Callable[[], Call]]:
    m = monai.losses
    volume, distances = (1, 3, 8, 8, 8), 1 - torch.eye(C)

    def one_hot() -> tuple[Tensor, Tensor]:
        logits, labels = _classes_of_images()
        return logits, labels.unsqueeze(1)

    softmax = {"softmax": True, "to_onehot_y": True}
    return {
        "AUCMLoss": lambda: (m.AUCMLoss(), (_unit(N, 1), _bits(N, 1))),
        "AsymmetricUnifiedFocalLoss": lambda: (m.AsymmetricUnifiedFocalLoss(), _soft_masks_of_images()),
        "BarlowTwinsLoss": lambda: (m.BarlowTwinsLoss(), (_logits(N, C), _real(N, C))),
        "BendingEnergyLoss": lambda: (m.BendingEnergyLoss(), (_logits(*volume),)),
        "BoundaryLoss": lambda: (m.BoundaryLoss(sigmoid=True), _masks_of_images()),
        "BoxGIoULoss": lambda: (m.BoxGIoULoss(), (_boxes(), _boxes().detach())),
        "ContrastiveLoss": lambda: (m.ContrastiveLoss(), (_logits(N, C), _real(N, C))),
        "DeepSupervisionLoss": lambda: (m.DeepSupervisionLoss(m.DiceLoss(sigmoid=True)), _masks_of_images()),
        "DiceCELoss": lambda: (m.DiceCELoss(**softmax), one_hot()),
        "DiceFocalLoss": lambda: (m.DiceFocalLoss(sigmoid=True), _masks_of_images()),
        "DiceLoss": lambda: (m.DiceLoss(**softmax), one_hot()),
        "DiffusionLoss": lambda: (m.DiffusionLoss(), (_logits(*volume),)),
        "FocalLoss": lambda: (m.FocalLoss(use_softmax=True, to_onehot_y=True), one_hot()),
        "GeneralizedDiceFocalLoss": lambda: (m.GeneralizedDiceFocalLoss(sigmoid=True), _masks_of_images()),
        "GeneralizedDiceLoss": lambda: (m.GeneralizedDiceLoss(sigmoid=True), _masks_of_images()),
        "GeneralizedWassersteinDiceLoss": lambda: (m.GeneralizedWassersteinDiceLoss(distances), one_hot()),
        "GlobalMutualInformationLoss": lambda: (m.GlobalMutualInformationLoss(), _pictures()),
        "HausdorffDTLoss": lambda: (m.HausdorffDTLoss(include_background=True, sigmoid=True), _masks_of_images()),
        "JukeboxLoss": lambda: (m.JukeboxLoss(2), _pictures()),
        "LocalNormalizedCrossCorrelationLoss": lambda: (m.LocalNormalizedCrossCorrelationLoss(2), _pictures()),
        "LogHausdorffDTLoss": lambda: (m.LogHausdorffDTLoss(include_background=True, sigmoid=True), _masks_of_images()),
        "MCCLoss": lambda: (m.MCCLoss(sigmoid=True), _masks_of_images()),
        "MaskedDiceLoss": lambda: (
            m.MaskedDiceLoss(sigmoid=True),
            (*_masks_of_images(), _bits(2, 1, SIDE, SIDE)),
        ),
        "MaskedLoss": lambda: (m.MaskedLoss(torch.nn.MSELoss()), (*_pictures(), _bits(2, 1, SIDE, SIDE))),
        "MultiScaleLoss": lambda: (m.MultiScaleLoss(torch.nn.MSELoss(), [0, 1]), _pictures()),
        "NACLLoss": lambda: (m.NACLLoss(C, 2), _classes_of_images()),
        "PatchAdversarialLoss": lambda: (m.PatchAdversarialLoss(), (_logits(2, 1, SIDE, SIDE), True, True)),
        "SSIMLoss": lambda: (m.SSIMLoss(2), _pictures()),
        "SoftDiceclDiceLoss": lambda: (m.SoftDiceclDiceLoss(iter_=2), _soft_masks_of_images()),
        "SoftclDiceLoss": lambda: (m.SoftclDiceLoss(iter_=2), _soft_masks_of_images()),
        "TverskyLoss": lambda: (m.TverskyLoss(sigmoid=True), _masks_of_images()),
    }


def _of_kornia() -> dict[str, Callable[[], Call]]:
    k = kornia.losses

    def heat() -> tuple[Tensor, Tensor]:
        return tuple(_logits(2, 3, SIDE, SIDE).flatten(2).softmax(2).unflatten(2, (SIDE, SIDE)) for _ in range(2))

    def binary() -> tuple[Tensor, Tensor]:
        return _logits(2, 1, SIDE, SIDE), _bits(2, SIDE, SIDE).long()

    signal = _unit(64).detach()
    picture, volume = _unit(SIDE, SIDE).detach(), _unit(6, 6, 6).detach()
    mean = {"reduction": "mean"}
    return {
        "BinaryFocalLossWithLogits": lambda: (k.BinaryFocalLossWithLogits(0.25, **mean), _masks_of_images()),
        "CauchyLoss": lambda: (k.CauchyLoss(**mean), _pictures()),
        "CharbonnierLoss": lambda: (k.CharbonnierLoss(**mean), _pictures()),
        "DiceLoss": lambda: (k.DiceLoss(), _classes_of_images()),
        "FocalLoss": lambda: (k.FocalLoss(0.5, **mean), _classes_of_images()),
        "GemanMcclureLoss": lambda: (k.GemanMcclureLoss(**mean), _pictures()),
        "HausdorffERLoss": lambda: (
            k.HausdorffERLoss(k=3),
            (_unit(2, 2, SIDE, SIDE), _labels(2, 1, SIDE, SIDE, classes=2)),
        ),
        "HausdorffERLoss3D": lambda: (
            k.HausdorffERLoss3D(k=2),
            (_unit(1, 2, 6, 6, 6), _labels(1, 1, 6, 6, 6, classes=2)),
        ),
        "InverseDepthSmoothnessLoss": lambda: (
            k.InverseDepthSmoothnessLoss(),
            (_unit(2, 1, SIDE, SIDE), _real(2, 3, SIDE, SIDE)),
        ),
        "LovaszHingeLoss": lambda: (k.LovaszHingeLoss(), binary()),
        "LovaszSoftmaxLoss": lambda: (k.LovaszSoftmaxLoss(), _classes_of_images()),
        "MILossFromRef": lambda: (k.MILossFromRef(signal, num_bins=8), (_unit(64),)),
        "MILossFromRef2D": lambda: (k.MILossFromRef2D(picture, num_bins=8), (_unit(SIDE, SIDE),)),
        "MILossFromRef3D": lambda: (k.MILossFromRef3D(volume, num_bins=8), (_unit(6, 6, 6),)),
        "MS_SSIMLoss": lambda: (k.MS_SSIMLoss(), _pictures()),
        "NMILossFromRef": lambda: (k.NMILossFromRef(signal, num_bins=8), (_unit(64),)),
        "NMILossFromRef2D": lambda: (k.NMILossFromRef2D(picture, num_bins=8), (_unit(SIDE, SIDE),)),
        "NMILossFromRef3D": lambda: (k.NMILossFromRef3D(volume, num_bins=8), (_unit(6, 6, 6),)),
        "PSNRLoss": lambda: (k.PSNRLoss(1.0), _pictures()),
        "SSIM3DLoss": lambda: (k.SSIM3DLoss(3), _pictures(1, 1, 6, 6, 6)),
        "SSIMLoss": lambda: (k.SSIMLoss(5), _pictures()),
        "TotalVariation": lambda: (k.TotalVariation(), (_unit(3, SIDE, SIDE),)),
        "TverskyLoss": lambda: (k.TverskyLoss(0.3, 0.7), _classes_of_images()),
        "WelschLoss": lambda: (k.WelschLoss(**mean), _pictures()),
        "js_div_loss_2d": lambda: (k.js_div_loss_2d, heat()),
        "kl_div_loss_2d": lambda: (k.kl_div_loss_2d, heat()),
        "mutual_information_loss": lambda: (functools.partial(k.mutual_information_loss, num_bins=8), _pictures(2, 64)),
        "mutual_information_loss_2d": lambda: (
            functools.partial(k.mutual_information_loss_2d, num_bins=8),
            _pictures(2, SIDE, SIDE),
        ),
        "mutual_information_loss_3d": lambda: (
            functools.partial(k.mutual_information_loss_3d, num_bins=8),
            _pictures(1, 6, 6, 6),
        ),
        "normalized_mutual_information_loss": lambda: (
            functools.partial(k.normalized_mutual_information_loss, num_bins=8),
            _pictures(2, 64),
        ),
        "normalized_mutual_information_loss_2d": lambda: (
            functools.partial(k.normalized_mutual_information_loss_2d, num_bins=8),
            _pictures(2, SIDE, SIDE),
        ),
        "normalized_mutual_information_loss_3d": lambda: (
            functools.partial(k.normalized_mutual_information_loss_3d, num_bins=8),
            _pictures(1, 6, 6, 6),
        ),
    }


def _of_torchvision() -> dict[str, Callable[[], Call]]:
    boxes = ("complete_box_iou_loss", "distance_box_iou_loss", "generalized_box_iou_loss")

    def mean(name: str) -> Callable[..., Tensor]:
        return functools.partial(getattr(torchvision.ops, name), reduction="mean")

    return {
        **{name: lambda name=name: (mean(name), (_boxes(), _boxes().detach())) for name in boxes},
        "sigmoid_focal_loss": lambda: (mean("sigmoid_focal_loss"), (_logits(N, C), _bits(N, C))),
    }


def _of_transformers() -> dict[str, Callable[[], Call]]:
    h = loss_utils
    config = SimpleNamespace(problem_type=None, num_labels=C)

    def tokens() -> tuple[Tensor, Tensor]:
        labels = _labels(2, 8)
        labels[:, :2] = -100
        return _logits(2, 8, C), labels

    def of_vocabulary(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return functools.partial(loss, vocab_size=C)

    return {
        "ForCTCLoss": lambda: (
            functools.partial(h.ForCTCLoss, blank_token_id=0),
            (_logits(2, 12, C), 1 + _labels(2, 3, classes=C - 1), torch.tensor([12, 10])),
        ),
        "ForCausalLMLoss": lambda: (of_vocabulary(h.ForCausalLMLoss), tokens()),
        "ForMaskedLMLoss": lambda: (of_vocabulary(h.ForMaskedLMLoss), tokens()),
        "ForQuestionAnsweringLoss": lambda: (
            h.ForQuestionAnsweringLoss,
            (_logits(2, 8), _logits(2, 8), _labels(2, classes=8), _labels(2, classes=8)),
        ),
        "ForSemanticSegmentationLoss": lambda: (h.ForSemanticSegmentationLoss, _classes_of_images()),
        "ForSequenceClassificationLoss": lambda: (
            functools.partial(h.ForSequenceClassificationLoss, config=config),
            (_labels(N), _logits(N, C)),
        ),
        "ForTokenClassification": lambda: (functools.partial(h.ForTokenClassification, config=config), tokens()),
        "fixed_cross_entropy": lambda: (h.fixed_cross_entropy, (_logits(N, C), _labels(N))),
    }


def calls() -> dict[str, dict[str, Callable[[], Call]]]:
    """By package, then by loss: what makes the loss and its arguments, the same each time after `seed`."""
    return {
        "timm": _of_timm(),
        "monai": _of_monai(),
        "kornia": _of_kornia(),
        "torchvision": _of_torchvision(),
        "transformers": _of_transformers(),
    }


def seed() -> None:
    """Draw from the beginning."""
    _generator.manual_seed(0)
    torch.manual_seed(0)
