"""Losses on fused kernels: the classes of `torch.nn`, by their names, and losses beyond torch.

Each takes the argument `use_autogen` besides, which is true by default.
"""

from autogen.losses.audio import *  # noqa: F403
from autogen.losses.boxes import *  # noqa: F403
from autogen.losses.classification import *  # noqa: F403
from autogen.losses.contrastive import *  # noqa: F403
from autogen.losses.distillation import *  # noqa: F403
from autogen.losses.likelihood import *  # noqa: F403
from autogen.losses.policy_gradient import *  # noqa: F403
from autogen.losses.preference import *  # noqa: F403
from autogen.losses.projected import *  # noqa: F403
from autogen.losses.regression import *  # noqa: F403
from autogen.losses.segmentation import *  # noqa: F403
from autogen.losses.survival import *  # noqa: F403
from autogen.losses.torch_losses import *  # noqa: F403

__all__ = sorted(name for name, value in list(globals().items()) if isinstance(value, type))
