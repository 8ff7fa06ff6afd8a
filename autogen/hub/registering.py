"""Register which kernels replace which layer, as mappings of `kernels` that are checked first."""

from __future__ import annotations

import contextlib
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kernels
from kernels import Device, LayerRepository, LocalLayerRepository, LockedLayerRepository, Mode
from torch import nn

from autogen import compat, losses
from autogen.hub.layers import INFERENCE_MODES, LOSSES, TRAINING_MODES
from autogen.hub.versions import LocalVersions

DEVICES = ("cpu", "cuda", "mps", "neuron", "npu", "rocm", "tpu", "xpu")
"""The kinds of devices that `kernels` knows."""

_MODES = (Mode.FALLBACK, *INFERENCE_MODES, *TRAINING_MODES)
_REMOTE = (LayerRepository, LockedLayerRepository)  # which are read from the network, so not before they are used

extensible: weakref.WeakSet[type[nn.Module]] = weakref.WeakSet()
"""The classes given to `make_extensible`."""


def make_extensible(
    cls: type[nn.Module], name: str, condition: Callable[[nn.Module], bool] | None = None
) -> type[nn.Module]:
    """Let registered kernels replace the `forward` of a class, in `autogen.kernelize` and `kernels.kernelize`.

    The class keeps doing what it does; it gets the attributes by which `kernels` knows it. A UserWarning says that the
    `forward` of somebody else's class may change with a release, while its kernels stay as they are.

    Args:
        cls: a module class, of any package.
        name: the name of the layer in mappings.
        condition: whether an instance is replaced; by default all are.

    Returns:
        The class.

    Raises:
        TypeError: it is no module class, or a layer that is registered for the name takes other arguments.
    """
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise TypeError(f"make_extensible takes a torch.nn.Module class, not {cls!r}")
    for repository in compat.hub_repositories(name):
        _check_signature(name, repository, [cls])
    warnings.warn(
        f"{cls.__qualname__} of {cls.__module__} is made extensible from outside: its forward may change with a "
        "release, and layers that are registered for it must keep taking the same arguments",
        stacklevel=2,
    )
    kernels.replace_kernel_forward_from_hub(cls, name, condition)
    extensible.add(cls)
    return cls


def register_mapping(mapping: Mapping[str, Mapping[Device | str, Any]]) -> None:
    """Register kernels in the current context (`contextvars`), in addition to those that are registered there.

    Threads and tasks with a context of their own do not see it. `kernelize` prefers registered kernels to those of this
    package. Of several capability intervals, the smallest that contains the device's capability is chosen; to register
    the same interval again replaces its kernels.

    Args:
        mapping: layer name -> device (a name, or a `Device` with a capability interval, both ends included) ->
            a repository, or one per `Mode`. One without a mode is for `Mode.FALLBACK`: where no other mode fits.

    Raises:
        TypeError: a layer takes other arguments than the class that it replaces, or the mapping has other types than
            above. Layers of the hub are not checked before they are used.
        ValueError: an unknown device or mode.
        FileNotFoundError: the folder of a local repository is not there.
    """
    _check(mapping)
    kernels.use_kernel_mapping(mapping).__enter__()  # never left: it copies what is registered, so no context leaks


def use_mapping(
    mapping: Mapping[str, Mapping[Device | str, Any]], *, inherit_mapping: bool = True
) -> contextlib.AbstractContextManager[None]:
    """A block in which kernels are registered; see `register_mapping`.

    Args:
        mapping: as there.
        inherit_mapping: whether what is registered outside holds within, where `mapping` has nothing else.

    Raises:
        Exception: as `register_mapping`, before the block is entered.
    """
    _check(mapping)
    return kernels.use_kernel_mapping(mapping, inherit_mapping=inherit_mapping)


def _check(mapping: Mapping[str, Mapping[Device | str, Any]]) -> None:
    """Refuse a mapping that `kernels` would fail on later, or half way through."""
    for name, devices in mapping.items():
        if not isinstance(devices, Mapping):
            raise TypeError(f"the mapping of {name} is a dict of devices, not {devices!r}")
        classes = list(_classes_of(name))
        for device, given in devices.items():
            kind = device.type if isinstance(device, Device) else device
            if kind not in DEVICES:
                raise ValueError(f"{name} is registered for the device {kind!r}; choose from {', '.join(DEVICES)}")
            for mode, repository in (given if isinstance(given, Mapping) else {Mode.FALLBACK: given}).items():
                if mode not in _MODES:
                    choices = ", ".join(map(str, _MODES))
                    raise ValueError(f"{name} is registered for the mode {mode!r}; choose from {choices}")
                _check_signature(name, repository, classes)


def _check_signature(name: str, repository: Any, classes: list[type[nn.Module]]) -> None:
    """Refuse a layer that takes other arguments than the classes of its name, by their number and kinds."""
    if not callable(getattr(repository, "load", None)):
        raise TypeError(f"{name} is mapped to {repository!r}, which is no repository; pass a LocalLayerRepository, say")
    if isinstance(repository, _REMOTE):
        return
    if isinstance(repository, LocalVersions):
        repository = repository.repository()
    if isinstance(repository, LocalLayerRepository):
        path = compat.hub_path(repository)
        if not isinstance(path, Path):
            raise TypeError(f"repo_path of {name} is a pathlib.Path, not {path!r}; pass Path({str(path)!r})")
        if not path.is_dir():
            raise FileNotFoundError(f"{name} is mapped to {path}, which is no folder; pass that of a repository")
    if not classes:
        return
    try:
        layer = repository.load()
    except FileNotFoundError:  # no variant of the repository is for this machine
        return
    for cls in classes:
        own, taken = _kinds(layer), _kinds(cls)
        if own != taken:
            raise TypeError(
                f"{repository} cannot take the place of {cls.__name__}: its forward takes "
                f"{inspect.signature(layer.forward)}, that of {cls.__name__} {inspect.signature(cls.forward)}"
            )


def _kinds(cls: type[nn.Module]) -> list[Any]:
    return [parameter.kind for parameter in inspect.signature(cls.forward).parameters.values()]


def _classes_of(name: str) -> Iterator[type[nn.Module]]:
    """The classes that are known to be replaced by layers of a name."""
    if name in losses.__all__:
        yield LOSSES.get(name) or getattr(losses, name)
    yield from (cls for cls in extensible if getattr(cls, "kernel_layer_name", None) == name)
