"""Negative log-likelihoods of predicted distributions, and the evidence lower bound of an autoencoder."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss, broadcasts_to, number_in, one_of, same_shape

__all__ = ["EvidentialRegressionLoss", "NegativeBinomialNLLLoss", "StudentTNLLLoss", "VAELoss"]


@autogen_loss(reads="arguments")
class NegativeBinomialNLLLoss(ReducedLoss):
    """`lgamma(r) - lgamma(t + r) + (t + r) * log(1 + m / r) - t * log(m / r)`, with `lgamma(t + 1)` besides if `full`.

    Of a count t, predicted to have the mean m and the variance `m + m^2 / r`.

    Source: Salinas et al. (2020), "DeepAR: probabilistic forecasting with autoregressive recurrent networks",
    arXiv:1704.04110.

    Shapes: `input` (the mean m) and `target` (the count t) (...); `dispersion` (r) broadcasts to it. Floating point,
    m and r more than 0. The loss is (), or (...) without reduction.

    Args:
        full: whether the term counts that depends on the target alone.
        eps: the least mean; more than 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or shapes that do not fit.
    """

    def __init__(self, full: bool = False, eps: float = 1e-8, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full = bool(full)
        self.eps = number_in("eps", eps, 0, strict=True)

    def forward(self, input: Tensor, target: Tensor, dispersion: Tensor) -> Tensor:
        """The loss of predicted counts."""
        same_shape(input=input, target=target)
        broadcasts_to(input, dispersion=dispersion)
        odds = input.clamp(min=self.eps) / dispersion
        both = target + dispersion
        loss = torch.lgamma(dispersion) - torch.lgamma(both) + both * torch.log1p(odds) - target * torch.log(odds)
        return self.reduce(loss + torch.lgamma(target + 1) if self.full else loss)


@autogen_loss(reads="arguments")
class StudentTNLLLoss(ReducedLoss):
    """`log(s) + (v + 1) / 2 * log(1 + z^2 / v) + lgamma(v / 2) - lgamma((v + 1) / 2) + log(pi * v) / 2`.

    Student's distribution of `z = (input - target) / s` with v degrees of freedom.

    Source: Lange et al. (1989), "Robust statistical modeling using the t distribution".

    Shapes: `input` and `target` (...); `scale` (s) and `df` (v) broadcast to it. Floating point, s and v more than 0.
    The loss is (), or (...) without reduction.

    Args:
        eps: the least scale; more than 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or shapes that do not fit.
    """

    def __init__(self, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.eps = number_in("eps", eps, 0, strict=True)

    def forward(self, input: Tensor, target: Tensor, scale: Tensor, df: Tensor) -> Tensor:
        """The loss of predictions."""
        same_shape(input=input, target=target)
        broadcasts_to(input, scale=scale, df=df)
        scale = scale.clamp(min=self.eps)
        half = (df + 1) / 2
        normalizer = torch.lgamma(df / 2) - torch.lgamma(half) + (math.pi * df).log() / 2
        squared = ((input - target) / scale) ** 2
        return self.reduce(scale.log() + half * torch.log1p(squared / df) + normalizer)


@autogen_loss(reads="arguments")
class EvidentialRegressionLoss(ReducedLoss):
    """The evidence of a normal-inverse-gamma distribution, and a price for being sure and wrong.

    `log(pi / v) / 2 + log(o) / 2 + (a + 1/2) * log(1 + v * d^2 / o) + lgamma(a) - lgamma(a + 1/2)
    + coefficient * |d| * (2 * v + a)`, with `d = input - target` and `o = 2 * b * (1 + v)`.

    Source: Amini et al. (2020), "Deep evidential regression", arXiv:1910.02600.

    Shapes: `input`, `target`, `evidence` (v), `alpha` (a) and `beta` (b) (...), floating point; v and b more than 0, a
    more than 1. The loss is (), or (...) without reduction.

    Args:
        coefficient: the price; at least 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or the shapes differ.
    """

    def __init__(self, coefficient: float = 0.01, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.coefficient = number_in("coefficient", coefficient, 0)

    def forward(self, input: Tensor, target: Tensor, evidence: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        """The loss of predictions."""
        same_shape(input=input, target=target, evidence=evidence, alpha=alpha, beta=beta)
        error = input - target
        omega = 2 * beta * (1 + evidence)
        tail = (alpha + 0.5) * torch.log1p(evidence * error**2 / omega)
        normalizer = (math.pi * omega / evidence).log() / 2 + torch.lgamma(alpha) - torch.lgamma(alpha + 0.5)
        return self.reduce(normalizer + tail + self.coefficient * error.abs() * (2 * evidence + alpha))


@autogen_loss(reads="arguments")
class VAELoss(ReducedLoss):
    """Minus the evidence lower bound: `-log p(target | input) + beta * KL(N(mean, exp(log_variance)), N(0, 1))`.

    The likelihood is a normal distribution of variance 1, `d^2 / 2` without its constant, or Bernoulli's, the cross
    entropy of logits. Both terms are summed over all dimensions but the first.

    Sources: Kingma and Welling (2014), "Auto-encoding variational Bayes", arXiv:1312.6114; for beta, Higgins et al.
    (2017), "beta-VAE: learning basic visual concepts with a constrained variational framework".

    Shapes: `input` (the reconstruction) and `target` (N, ...), `mean` and `log_variance` (N, ...), floating point. The
    loss is (), or (N,) without reduction.

    Args:
        likelihood: "normal" or "bernoulli".
        beta: the weight of the divergence; at least 0.
        reduction: "none", "mean" over samples, or "sum".

    Raises:
        ValueError: an argument out of its range, or shapes that do not fit.
    """

    def __init__(self, likelihood: str = "normal", beta: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.likelihood = one_of("likelihood", likelihood, ("normal", "bernoulli"))
        self.beta = number_in("beta", beta, 0)

    def forward(self, input: Tensor, target: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
        """The loss of reconstructions and of the distributions that they were drawn from."""
        same_shape(input=input, target=target)
        same_shape(mean=mean, log_variance=log_variance)
        if input.dim() < 2 or mean.dim() < 2 or input.shape[0] != mean.shape[0]:
            shapes = f"{tuple(input.shape)} and {tuple(mean.shape)}"
            raise ValueError(f"input and mean must have the shapes (N, ...) with at least two dimensions; got {shapes}")
        if self.likelihood == "normal":
            reconstruction = (input - target) ** 2 / 2
        else:
            reconstruction = F.binary_cross_entropy_with_logits(input, target, reduction="none")
        divergence = (mean**2 + torch.expm1(log_variance) - log_variance) / 2
        return self.reduce(reconstruction.flatten(1).sum(1) + self.beta * divergence.flatten(1).sum(1))
