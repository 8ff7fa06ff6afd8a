"""Losses on fused kernels: every class is the `torch.nn` loss of its name, plus the argument `use_autogen`."""

from autogen.losses import projected, torch_losses
from autogen.losses.projected import *  # noqa: F403
from autogen.losses.torch_losses import *  # noqa: F403

__all__ = sorted([*projected.__all__, *torch_losses.__all__])
