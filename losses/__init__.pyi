"""The types of the losses, written by `python -m tests.codegen.regenerate`."""

import collections.abc
from typing import Any

import torch

from autogen.losses import audio as _audio
from autogen.losses import boxes as _boxes
from autogen.losses import classification as _classification
from autogen.losses import contrastive as _contrastive
from autogen.losses import distillation as _distillation
from autogen.losses import likelihood as _likelihood
from autogen.losses import linear as _linear
from autogen.losses import policy_gradient as _policy_gradient
from autogen.losses import preference as _preference
from autogen.losses import projected as _projected
from autogen.losses import regression as _regression
from autogen.losses import segmentation as _segmentation
from autogen.losses import sharded as _sharded
from autogen.losses import survival as _survival
from autogen.losses import torch_losses as _torch_losses

__all__: list[str]

class AdaptiveLogSoftmaxWithLoss(_projected.AdaptiveLogSoftmaxWithLoss):
    use_autogen: bool
    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: collections.abc.Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        use_autogen: bool = True,
    ) -> None: ...

class ArcFaceLoss(_classification.ArcFaceLoss):
    use_autogen: bool
    def __init__(
        self,
        margin: float = 0.5,
        scale: float = 64.0,
        in_features: int | None = None,
        num_classes: int | None = None,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class AsymmetricLoss(_classification.AsymmetricLoss):
    use_autogen: bool
    def __init__(
        self,
        gamma_neg: float = 4.0,
        gamma_pos: float = 1.0,
        clip: float = 0.05,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class BCELoss(_torch_losses.BCELoss):
    use_autogen: bool
    def __init__(
        self,
        weight: torch.Tensor | None = None,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class BCEWithLogitsLoss(_torch_losses.BCEWithLogitsLoss):
    use_autogen: bool
    def __init__(
        self,
        weight: torch.Tensor | None = None,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        pos_weight: torch.Tensor | None = None,
        *,
        use_autogen: bool = True,
    ) -> None: ...

class CIoULoss(_boxes.CIoULoss):
    use_autogen: bool
    def __init__(self, eps: float = 1e-07, reduction: str = "mean", *, use_autogen: bool = True) -> None: ...

class CTCLoss(_torch_losses.CTCLoss):
    use_autogen: bool
    def __init__(
        self,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
        *,
        use_autogen: bool = True,
    ) -> None: ...

class CharbonnierLoss(_regression.CharbonnierLoss):
    use_autogen: bool
    def __init__(self, eps: float = 0.001, reduction: str = "mean", *, use_autogen: bool = True) -> None: ...

class CircleLoss(_contrastive.CircleLoss):
    use_autogen: bool
    def __init__(
        self,
        margin: float = 0.25,
        scale: float = 256.0,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class CosineEmbeddingLoss(_torch_losses.CosineEmbeddingLoss):
    use_autogen: bool
    def __init__(
        self,
        margin: float = 0.0,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class CoxPHLoss(_survival.CoxPHLoss):
    use_autogen: bool
    def __init__(self, reduction: str = "mean", *, use_autogen: bool = True) -> None: ...

class CrossEntropyLoss(_torch_losses.CrossEntropyLoss):
    use_autogen: bool
    def __init__(
        self,
        weight: torch.Tensor | None = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        use_autogen: bool = True,
    ) -> None: ...

class DIoULoss(_boxes.DIoULoss):
    use_autogen: bool
    def __init__(self, eps: float = 1e-07, reduction: str = "mean", *, use_autogen: bool = True) -> None: ...

class DPOLoss(_preference.DPOLoss):
    use_autogen: bool
    def __init__(
        self,
        beta: float = 0.1,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class DiceLoss(_segmentation.DiceLoss):
    use_autogen: bool
    def __init__(
        self,
        activation: str = "sigmoid",
        smooth: float = 1.0,
        batch: bool = False,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class DistillationLoss(_distillation.DistillationLoss):
    use_autogen: bool
    def __init__(
        self,
        temperature: float = 2.0,
        hard: float = 0.0,
        dim: int = -1,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class EvidentialRegressionLoss(_likelihood.EvidentialRegressionLoss):
    use_autogen: bool
    def __init__(self, coefficient: float = 0.01, reduction: str = "mean", *, use_autogen: bool = True) -> None: ...

class FocalLoss(_classification.FocalLoss):
    use_autogen: bool
    def __init__(
        self,
        alpha: torch.Tensor | None = None,
        gamma: float = 2.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class FocalTverskyLoss(_segmentation.FocalTverskyLoss):
    use_autogen: bool
    def __init__(
        self,
        alpha: float = 0.3,
        beta: float = 0.7,
        gamma: float = 1.3333333333333333,
        activation: str = "sigmoid",
        smooth: float = 1.0,
        batch: bool = False,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class FusedLinearCrossEntropyLoss(_linear.FusedLinearCrossEntropyLoss):
    use_autogen: bool
    def __init__(
        self,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float | None = None,
        reduction: str = "mean",
        outputs: str | collections.abc.Sequence[str] = (),
        *,
        use_autogen: bool = True,
    ) -> None: ...

class FusedLinearDPOLoss(_linear.FusedLinearDPOLoss):
    use_autogen: bool
    def __init__(
        self,
        beta: float = 0.1,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        average: bool = False,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class FusedLinearDistillationLoss(_linear.FusedLinearDistillationLoss):
    use_autogen: bool
    def __init__(
        self,
        divergence: str = "forward_kl",
        beta: float = 0.5,
        temperature: float = 1.0,
        hard: float = 0.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class FusedLinearGRPOLoss(_linear.FusedLinearGRPOLoss):
    use_autogen: bool
    def __init__(
        self,
        clip: float = 0.2,
        clip_high: float | None = None,
        beta: float = 0.0,
        temperature: float = 1.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        loss_type: str = "grpo",
        max_length: int | None = None,
        outputs: str | collections.abc.Sequence[str] = (),
        *,
        use_autogen: bool = True,
    ) -> None: ...

class FusedLinearIPOLoss(_linear.FusedLinearIPOLoss):
    use_autogen: bool
    def __init__(
        self,
        beta: float = 0.1,
        ignore_index: int = -100,
        average: bool = False,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class FusedLinearKTOLoss(_linear.FusedLinearKTOLoss):
    use_autogen: bool
    def __init__(
        self,
        beta: float = 0.1,
        desirable_weight: float = 1.0,
        undesirable_weight: float = 1.0,
        ignore_index: int = -100,
        average: bool = False,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class FusedLinearORPOLoss(_linear.FusedLinearORPOLoss):
    use_autogen: bool
    def __init__(
        self,
        beta: float = 0.1,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class FusedLinearSimPOLoss(_linear.FusedLinearSimPOLoss):
    use_autogen: bool
    def __init__(
        self,
        beta: float = 2.0,
        gamma: float = 1.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class GIoULoss(_boxes.GIoULoss):
    use_autogen: bool
    def __init__(self, eps: float = 1e-07, reduction: str = "mean", *, use_autogen: bool = True) -> None: ...

class GRPOLoss(_policy_gradient.GRPOLoss):
    use_autogen: bool
    def __init__(
        self,
        clip: float = 0.2,
        clip_high: float | None = None,
        beta: float = 0.0,
        reduction: str = "mean",
        loss_type: str = "grpo",
        max_length: int | None = None,
        *,
        use_autogen: bool = True,
    ) -> None: ...

class GaussianNLLLoss(_torch_losses.GaussianNLLLoss):
    use_autogen: bool
    def __init__(
        self,
        *,
        full: bool = False,
        eps: float = 1e-06,
        reduction: str = "mean",
        use_autogen: bool = True,
    ) -> None: ...

class HingeEmbeddingLoss(_torch_losses.HingeEmbeddingLoss):
    use_autogen: bool
    def __init__(
        self,
        margin: float = 1.0,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class HuberLoss(_torch_losses.HuberLoss):
    use_autogen: bool
    def __init__(self, reduction: str = "mean", delta: float = 1.0, *, use_autogen: bool = True) -> None: ...

class IPOLoss(_preference.IPOLoss):
    use_autogen: bool
    def __init__(self, beta: float = 0.1, reduction: str = "mean", *, use_autogen: bool = True) -> None: ...

class InfoNCELoss(_contrastive.InfoNCELoss):
    use_autogen: bool
    def __init__(self, temperature: float = 0.07, reduction: str = "mean", *, use_autogen: bool = True) -> None: ...

class IoULoss(_boxes.IoULoss):
    use_autogen: bool
    def __init__(self, eps: float = 1e-07, reduction: str = "mean", *, use_autogen: bool = True) -> None: ...

class JSDLoss(_distillation.JSDLoss):
    use_autogen: bool
    def __init__(
        self,
        dim: int = -1,
        reduction: str = "mean",
        beta: float = 0.5,
        *,
        use_autogen: bool = True,
    ) -> None: ...

class KLDivLoss(_torch_losses.KLDivLoss):
    use_autogen: bool
    def __init__(
        self,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        log_target: bool = False,
        *,
        use_autogen: bool = True,
    ) -> None: ...

class KTOLoss(_preference.KTOLoss):
    use_autogen: bool
    def __init__(
        self,
        beta: float = 0.1,
        desirable_weight: float = 1.0,
        undesirable_weight: float = 1.0,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class L1Loss(_torch_losses.L1Loss):
    use_autogen: bool
    def __init__(
        self,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class LinearCrossEntropyLoss(_projected.LinearCrossEntropyLoss):
    use_autogen: bool
    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        reduction: str = "mean",
        weight: torch.Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: torch.nn.modules.linear_cross_entropy_options.LinearCrossEntropyOptions | None = None,
        use_autogen: bool = True,
    ) -> None: ...

class LogCoshLoss(_regression.LogCoshLoss):
    use_autogen: bool
    def __init__(self, reduction: str = "mean", *, use_autogen: bool = True) -> None: ...

class MSELoss(_torch_losses.MSELoss):
    use_autogen: bool
    def __init__(
        self,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class MarginRankingLoss(_torch_losses.MarginRankingLoss):
    use_autogen: bool
    def __init__(
        self,
        margin: float = 0.0,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class MultiLabelMarginLoss(_torch_losses.MultiLabelMarginLoss):
    use_autogen: bool
    def __init__(
        self,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class MultiLabelSoftMarginLoss(_torch_losses.MultiLabelSoftMarginLoss):
    use_autogen: bool
    def __init__(
        self,
        weight: torch.Tensor | None = None,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class MultiMarginLoss(_torch_losses.MultiMarginLoss):
    use_autogen: bool
    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: torch.Tensor | None = None,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class NLLLoss(_torch_losses.NLLLoss):
    use_autogen: bool
    def __init__(
        self,
        weight: torch.Tensor | None = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class NLLLoss2d(_torch_losses.NLLLoss2d):
    use_autogen: bool
    def __init__(self, *args: Any, use_autogen: bool = True, **kwargs: Any) -> None: ...

class NegativeBinomialNLLLoss(_likelihood.NegativeBinomialNLLLoss):
    use_autogen: bool
    def __init__(
        self,
        full: bool = False,
        eps: float = 1e-08,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class ORPOLoss(_preference.ORPOLoss):
    use_autogen: bool
    def __init__(self, beta: float = 0.1, reduction: str = "mean", *, use_autogen: bool = True) -> None: ...

class PPOClipLoss(_policy_gradient.PPOClipLoss):
    use_autogen: bool
    def __init__(
        self,
        clip: float = 0.2,
        clip_high: float | None = None,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class PoissonNLLLoss(_torch_losses.PoissonNLLLoss):
    use_autogen: bool
    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        size_average: Any = None,
        eps: float = 1e-08,
        reduce: Any = None,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class PolyLoss(_classification.PolyLoss):
    use_autogen: bool
    def __init__(
        self,
        epsilon: float = 1.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class QuantileLoss(_regression.QuantileLoss):
    use_autogen: bool
    def __init__(
        self,
        quantiles: float | collections.abc.Sequence[float] = 0.5,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class SISDRLoss(_audio.SISDRLoss):
    use_autogen: bool
    def __init__(
        self,
        zero_mean: bool = True,
        eps: float = 1e-08,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class SigmoidFocalLoss(_classification.SigmoidFocalLoss):
    use_autogen: bool
    def __init__(
        self,
        alpha: float | None = 0.25,
        gamma: float = 2.0,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class SimPOLoss(_preference.SimPOLoss):
    use_autogen: bool
    def __init__(
        self,
        beta: float = 2.0,
        gamma: float = 1.0,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class SmoothL1Loss(_torch_losses.SmoothL1Loss):
    use_autogen: bool
    def __init__(
        self,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        beta: float = 1.0,
        *,
        use_autogen: bool = True,
    ) -> None: ...

class SoftMarginLoss(_torch_losses.SoftMarginLoss):
    use_autogen: bool
    def __init__(
        self,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class StudentTNLLLoss(_likelihood.StudentTNLLLoss):
    use_autogen: bool
    def __init__(self, eps: float = 1e-06, reduction: str = "mean", *, use_autogen: bool = True) -> None: ...

class SupConLoss(_contrastive.SupConLoss):
    use_autogen: bool
    def __init__(self, temperature: float = 0.1, reduction: str = "mean", *, use_autogen: bool = True) -> None: ...

class TotalVariationLoss(_distillation.TotalVariationLoss):
    use_autogen: bool
    def __init__(self, dim: int = -1, reduction: str = "mean", *, use_autogen: bool = True) -> None: ...

class TripletMarginLoss(_torch_losses.TripletMarginLoss):
    use_autogen: bool
    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-06,
        swap: bool = False,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class TripletMarginWithDistanceLoss(_torch_losses.TripletMarginWithDistanceLoss):
    use_autogen: bool
    def __init__(
        self,
        *,
        distance_function: collections.abc.Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
        use_autogen: bool = True,
    ) -> None: ...

class TverskyLoss(_segmentation.TverskyLoss):
    use_autogen: bool
    def __init__(
        self,
        alpha: float = 0.3,
        beta: float = 0.7,
        activation: str = "sigmoid",
        smooth: float = 1.0,
        batch: bool = False,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class VAELoss(_likelihood.VAELoss):
    use_autogen: bool
    def __init__(
        self,
        likelihood: str = "normal",
        beta: float = 1.0,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class VocabParallelCrossEntropyLoss(_sharded.VocabParallelCrossEntropyLoss):
    use_autogen: bool
    def __init__(
        self,
        group: torch.distributed.distributed_c10d.ProcessGroup | None = None,
        sizes: collections.abc.Sequence[int] | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...

class WingLoss(_regression.WingLoss):
    use_autogen: bool
    def __init__(
        self,
        omega: float = 10.0,
        epsilon: float = 2.0,
        reduction: str = "mean",
        *,
        use_autogen: bool = True,
    ) -> None: ...
