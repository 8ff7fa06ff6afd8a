"""The losses of `torch.nn` as layers of `kernels`: stateless classes whose `forward` runs on generated kernels.

The dispatcher of a layer has torch's class as its owner, or there would be no fast path.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from kernels import Mode
from torch import nn

from autogen import losses
from autogen.decorator import dispatched, dispatcher_in
from autogen.dispatch.dispatcher import Dispatcher
from autogen.losses.projected import adaptive_log_softmax_with_loss

LOSSES: dict[str, type[nn.Module]] = {name: getattr(nn, name) for name in losses.__all__ if hasattr(nn, name)}
"""The losses of `torch.nn`, by name."""

DEVICES = ("cpu", "cuda", "rocm")
"""The kinds of devices that our kernels run on, as `kernels` calls them."""

INFERENCE_MODES = (Mode.INFERENCE, Mode.INFERENCE | Mode.TORCH_COMPILE)
TRAINING_MODES = (Mode.TRAINING, Mode.TRAINING | Mode.TORCH_COMPILE)

placed: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
"""The functions that modules are given as their `forward`."""


@dataclass(frozen=True)
class LossLayer:
    """A loss of `torch.nn` on the kernels of this package, for a mapping of `kernels`.

    Args:
        layer_name: the name of the class in `torch.nn`.
        has_backward: whether the layer is for training. One that is not keeps nothing for backward, and raises a
            RuntimeError if a gradient is asked for.
    """

    layer_name: str
    has_backward: bool = True

    def load(self) -> type[nn.Module]:
        """The class of the layer, the same each time."""
        return _layer(self.layer_name, self.has_backward)

    def __str__(self) -> str:
        return f"autogen.losses.{self.layer_name}" + ("" if self.has_backward else " without backward")


def mapping() -> dict[str, dict[str, dict[Mode, LossLayer]]]:
    """The layers of this package for the losses of `torch.nn`, as `kernels.use_kernel_mapping` takes them.

    Returns:
        Layer name -> device -> mode -> layer.
    """
    found = {}
    for name in LOSSES:
        training, inference = LossLayer(name), LossLayer(name, has_backward=False)
        modes = {Mode.FALLBACK: training, **dict.fromkeys(TRAINING_MODES, training)}
        modes |= dict.fromkeys(INFERENCE_MODES, inference)
        found[name] = {device: dict(modes) for device in DEVICES}
    return found


@functools.cache
def _layer(name: str, has_backward: bool) -> type[nn.Module]:
    forward = _forward(name)
    if not has_backward:
        forward = _without_backward(name, forward)
    placed.add(forward)
    names = {"forward": forward, "has_backward": has_backward, "can_torch_compile": True, "__module__": __name__}
    return type(name, (nn.Module,), names)


@functools.cache
def _forward(name: str) -> Any:
    """The `forward` of our loss of a name, for modules of torch's class."""
    if name == "AdaptiveLogSoftmaxWithLoss":
        return adaptive_log_softmax_with_loss
    ours = dispatcher_in(getattr(losses, name).forward)
    assert ours is not None, "a loss of ours is decorated"
    return dispatched(Dispatcher(ours.function, name, ours.options, LOSSES[name]))


def _without_backward(name: str, forward: Callable[..., Any]) -> Any:
    @functools.wraps(forward)
    def inference(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            given = (*args, *kwargs.values(), *self.parameters())
            if any(isinstance(each, torch.Tensor) and each.requires_grad for each in given):
                raise RuntimeError(
                    f"{name} was kernelized for inference and has no gradient: call it under torch.no_grad(), or "
                    "kernelize the model with Mode.TRAINING"
                )
        return forward(self, *args, **kwargs)

    inference.__wrapped__ = getattr(forward, "__wrapped__", forward)  # by which `explain` knows a decorated loss
    return inference
