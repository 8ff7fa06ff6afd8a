"""`kernelize`: run the losses of a model on kernels, chosen by mode and device.

`kernels` is asked once per module which layer takes the place of its `forward`: by what is registered, if that has one
for the name, device and mode, else by our mapping alone. As `kernels` reads a layer's name from the class and binds to
the instance, it is given a stand-in, an instance of an empty subclass, whose bound method then goes to the module.
So torch's classes are never written to, and everything is chosen before anything is bound.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import logging
from collections.abc import Callable
from types import MethodType
from typing import Any, NamedTuple, TypeVar

import kernels
import torch
from kernels import Device, KernelizeFallback, Mode
from torch import nn

from autogen import compat
from autogen.decorator import dispatcher_in
from autogen.hub import layers, registering
from autogen.runtime.availability import refusal_of
from autogen.settings.options import Options

logger = logging.getLogger("autogen")

_Model = TypeVar("_Model", bound=nn.Module)
_MODES = (*layers.INFERENCE_MODES, *layers.TRAINING_MODES)

_Forward = Callable[..., Any]


def kernelize(
    model: _Model,
    *,
    mode: Mode = Mode.TRAINING,
    device: str | torch.device | None = None,
    use_fallback: bool | KernelizeFallback = True,
) -> _Model:
    """Run the losses of a model on kernels, in place.

    Modules of a loss class of `torch.nn`, of a class that inherits its `forward`, and of classes given to
    `make_extensible` get another `forward`; classes, names of modules and the `state_dict` stay as they are. Kernels
    that are registered for the class's name (`register_mapping`, `use_mapping`) are preferred to those of this package.
    Losses of `autogen.losses` have kernels already. The logger `autogen` logs each choice at level INFO. A further call
    changes the mode.

    Args:
        model: any module, which may be a loss itself.
        mode: `Mode.TRAINING`, or `Mode.INFERENCE`, which has no gradients; each also `| Mode.TORCH_COMPILE`.
        device: where the model runs; by default where its first parameter is, or else its first buffer. If it has
            neither, and `use_fallback` is set, its losses are kernelized for the device of their first call.
        use_fallback: whether a module keeps its `forward` where there is no kernel for the mode and device.

    Returns:
        The model.

    Raises:
        ValueError: an unknown mode or device; the device is not known, or there is no kernel, and `use_fallback` is
            False; or torch sees no such GPU. The model is then as it was.
    """
    if mode not in _MODES:
        choices = ", ".join(map(str, _MODES))
        raise ValueError(f"no model is kernelized for the mode {mode!r}; choose from {choices}")
    kind = _device_of(model, device)
    if kind is None and not use_fallback:
        raise ValueError(
            "Cannot determine model device: it has no parameters or buffers; say device='cuda', for instance"
        )
    chosen = [
        (path, module, choice)
        for path, module in model.named_modules()
        if (choice := _choose(module, mode, kind, use_fallback)) is not None
    ]
    for path, module, choice in chosen:
        if not choice.stays:
            _place(module, choice.forward)
        title = f"{type(module).__name__} ({path})" if path else type(module).__name__
        logger.info("%s: %s, for %s on %s", title, choice.what, mode, kind or "the device of its first call")
    return model


class _Choice(NamedTuple):
    """The `forward` that a module gets, None for that of its class; and what that is, for people."""

    forward: _Forward | None
    what: str
    stays: bool = False


def _place(module: nn.Module, forward: _Forward | None) -> None:
    if forward is None:
        module.__dict__.pop("forward", None)
    else:
        layers.placed.add(forward)
        module.forward = MethodType(forward, module)


def _device_of(model: nn.Module, device: str | torch.device | None) -> str | None:
    """The kind of device that a model is kernelized for, as `kernels` calls it; None if nothing tells."""
    if isinstance(device, str):
        kind = "mps" if device == "metal" else device.partition(":")[0]
        if kind not in registering.DEVICES:
            raise ValueError(f"device {device!r} is unknown; choose from {', '.join(registering.DEVICES)}")
    elif device is not None:
        kind = device.type
    else:
        held = next(itertools.chain(model.parameters(), model.buffers()), None)
        if held is None:
            return None
        kind = held.device.type
    if kind == "cuda" and torch.version.hip is not None:
        kind = "rocm"
    if kind in ("cuda", "rocm"):
        try:  # what `kernels` chooses by
            torch.cuda.get_device_capability()
        except (AssertionError, RuntimeError) as error:
            raise ValueError(f"torch sees no GPU for the device {kind!r} ({error}); say device='cpu'") from error
    return kind


def _choose(module: nn.Module, mode: Mode, kind: str | None, use_fallback: bool | KernelizeFallback) -> _Choice | None:
    """What a module gets; None if it is nothing to us."""
    cls, loss = type(module), _loss_of(type(module))
    extended = getattr(cls, "kernel_layer_name", None)
    names = [name for name in (extended, loss) if name is not None]
    if not names:
        return None
    own = getattr(module.__dict__.get("forward"), "__func__", module.__dict__.get("forward"))
    if own is not None and own is not cls.forward and own not in layers.placed:
        return _Choice(None, "a forward of its own, which stays", stays=True)
    if not getattr(module, "use_autogen", True):
        return _Choice(None, "torch, as use_autogen is False", stays=True)
    condition = getattr(cls, "kernel_condition", None)
    if condition is not None and not condition(module):
        return _Choice(None, "its own forward, as its condition says", stays=True)
    if kind is None and any(compat.hub_repositories(name) for name in names):
        return _Choice(_later(cls, mode, use_fallback), "kernels to be chosen")
    kind = kind or "cpu"  # our layers are for any device
    for name in names:
        if compat.hub_repository(name, kind, mode) is not None:
            return _of_kernels(cls, name, mode, kind, use_fallback)
    if loss is not None:
        return _of_kernels(cls, loss, mode, kind, use_fallback, ours=True)
    if cls in registering.extensible:
        return _of_kernels(cls, names[0], mode, kind, use_fallback)
    return _Choice(None, "kernels of its own", stays=True) if hasattr(cls, "use_autogen") else None


def _loss_of(cls: type[nn.Module]) -> str | None:
    """The loss of `torch.nn` that modules of a class compute in torch, by its own `forward`."""
    bases = [base.__name__ for base in cls.__mro__ if layers.LOSSES.get(base.__name__) is base]
    is_plain = bases and cls.forward is layers.LOSSES[bases[0]].forward and dispatcher_in(cls.forward) is None
    return bases[0] if is_plain else None


def _of_kernels(
    cls: Any, name: str, mode: Mode, kind: str, use_fallback: bool | KernelizeFallback, *, ours: bool = False
) -> _Choice:
    """What `kernels` chooses for modules of a class, by the mapping in force or by `ours` alone."""
    problem = f"{cls.__name__} has no kernels for {mode} on {kind}"
    if ours and not use_fallback and not (kind == "cpu" and Options().cpu == "inductor"):
        refusal = refusal_of("cpu" if kind == "cpu" else "cuda")
        if refusal is not None:
            raise ValueError(f"{problem}: {refusal.reason}; {refusal.remedy}") from refusal
    # `kernels` reads the name of a layer from the class: from one of ours, so that torch's stays as it is.
    names = {"__init__": nn.Module.__init__, "kernel_layer_name": name, "kernel_condition": None}
    stand_in = type(cls)(cls.__name__, (cls,), names)()
    mapping = {name: layers.mapping()[name]} if ours else {}
    with kernels.use_kernel_mapping(mapping, inherit_mapping=not ours):
        repository = compat.hub_repository(name, kind, mode)
        try:
            kernels.kernelize(stand_in, mode=mode, device=Device(kind), use_fallback=use_fallback)
        except ValueError as error:
            raise ValueError(f"{problem}: {error}") from error
    forward = stand_in.forward.__func__
    if forward is cls.forward:
        return _Choice(None, "its own forward, as there are no kernels for it")
    return _Choice(forward, f"kernels of {repository}")


def _later(cls: type[nn.Module], mode: Mode, use_fallback: bool | KernelizeFallback) -> _Forward:
    """A `forward` that chooses at its first call, by what is registered now."""
    registered = contextvars.copy_context()

    @functools.wraps(cls.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        given = (each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor))
        first = next(given, None)
        if first is None:
            return cls.forward(self, *args, **kwargs)
        _place(self, None)
        registered.copy().run(kernelize, self, mode=mode, device=first.device, use_fallback=use_fallback)
        return self.forward(*args, **kwargs)

    return forward
