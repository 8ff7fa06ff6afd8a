"""What is asked of one loss: the arguments of `autogen_loss`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from autogen.policies import Policy

if TYPE_CHECKING:
    from autogen.handwritten import Handwritten

Gradient = Literal["backward", "forward"]
"""Which kernel computes the gradient."""


@dataclass(frozen=True)
class Options:
    """How a loss is to run; see `autogen_loss`.

    Raises:
        ValueError: an unknown policy, or another place for the gradient.
    """

    policy: Policy | None = None
    gradient: Gradient = "backward"
    handwritten: Callable[[], Handwritten] | None = None

    def __post_init__(self) -> None:
        if self.policy is not None:
            object.__setattr__(self, "policy", Policy(self.policy))
        if self.gradient not in get_args(Gradient):
            raise ValueError(f'gradient is computed in "backward" or in "forward", not in {self.gradient!r}')
