"""Losses of a language model's head, from hidden states and the weight of the head.

Where these are computed in chunks of rows, the logits never exist as a whole.
"""

from autogen.losses.linear import cross_entropy, distillation, policy_gradient, preference
from autogen.losses.linear.cross_entropy import *  # noqa: F403
from autogen.losses.linear.distillation import *  # noqa: F403
from autogen.losses.linear.policy_gradient import *  # noqa: F403
from autogen.losses.linear.preference import *  # noqa: F403

__all__ = [*cross_entropy.__all__, *distillation.__all__, *policy_gradient.__all__, *preference.__all__]
