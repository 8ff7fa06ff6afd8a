"""`patch`: run models that call `torch.nn.functional`, or a `loss_function` of their own, on kernels, until undone.

Three things find functions of `torch.nn.functional` by name, and would then find decorated ones. Dynamo and
`torch.overrides` are made to note torch's own functions before (`compat.know_functions`). A captured graph that torch
runs, and a loss that runs in torch, run under the policy "disabled" (`policies.in_torch`).
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import torch.nn.functional
from torch import nn

from autogen import compat
from autogen import functional as ours
from autogen.decorator import autogen_loss

_MISSING: Any = object()  # no attribute

_lock = threading.RLock()


class _Replacement:
    """Attributes of an object that are others for as long as something holds them."""

    def __init__(self, target: Any, attributes: Mapping[str, Any]) -> None:
        self._target, self._attributes = weakref.ref(target), attributes
        self._changes: dict[str, tuple[Any, Any]] = {}  # of the object's names: before, and now
        self._holders: set[object] = set()

    @property
    def is_held(self) -> bool:
        """Whether they are replaced."""
        return bool(self._holders)

    def hold(self, holder: object) -> None:
        """Replace them, unless something has."""
        with _lock:
            target = self._target()
            if not self._holders and target is not None:
                before = dict(vars(target))
                for name, value in self._attributes.items():
                    setattr(target, name, value)
                for name, now in vars(target).items():
                    if now is not before.get(name, _MISSING):
                        self._changes[name] = before.get(name, _MISSING), now
            self._holders.add(holder)

    def release(self, holder: object) -> None:
        """Restore them, if nothing else holds them; what somebody has replaced since stays theirs."""
        with _lock:
            was_held, target = holder in self._holders, self._target()
            self._holders.discard(holder)
            if not was_held or self._holders or target is None:
                return
            names = vars(target)
            for name, (before, now) in self._changes.items():
                if names.get(name) is now:
                    names.pop(name) if before is _MISSING else names.update({name: before})
            self._changes.clear()


class Patch:
    """The functions that a call of `patch` replaced, until `undo` or the end of a `with` block of this object."""

    def __init__(self, replacement: _Replacement) -> None:
        self._replacement, self._depth = replacement, 0
        replacement.hold(self)

    def undo(self) -> None:
        """Put back what was there, unless another patch still holds it; a second time does nothing."""
        self._replacement.release(self)

    def __enter__(self) -> Patch:
        self._depth += 1
        self._replacement.hold(self)
        return self

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.undo()


_of_models: weakref.WeakKeyDictionary[nn.Module, _Replacement] = weakref.WeakKeyDictionary()
_of_torch: list[_Replacement] = []  # the one, from the first call on


def patch(model: nn.Module | None = None) -> Patch:
    """Run the losses of `torch.nn.functional`, or the `loss_function` of one model, on kernels.

        with autogen.patch():
            loss = model(batch)         # calls F.cross_entropy
        patch = autogen.patch(model)    # a model of Hugging Face's, until patch.undo()

    The losses in `torch.nn.functional` are replaced by those of `autogen.functional`, for everything that looks them up
    there when it is called: modules of `torch.nn`, in all threads, inside `torch.compile` too. A name that was imported
    from there before stays torch's. Losses with `use_autogen=False`, or the policy "disabled", run in torch. Patches
    may be undone in any order; torch's own functions are back when the last one is undone.

    Args:
        model: a model with an attribute `loss_function`. It is decorated, so that what it does around the loss, such as
            shifting labels, is in the same kernels; `torch.nn.functional` stays as it is.

    Returns:
        The patch, whose `undo` restores what was there; as a context manager it does so at the end of the block.

    Raises:
        TypeError: the model has no `loss_function` of its own that is a function.
    """
    with _lock:
        return Patch(_replacement_of_torch() if model is None else _replacement_of(model))


def _replacement_of_torch() -> _Replacement:
    if not _of_torch:
        compat.know_functions()
        functions = {name: getattr(ours, name) for name in ours.__all__}
        _of_torch.append(_Replacement(torch.nn.functional, functions))
    return _of_torch[0]


def _replacement_of(model: nn.Module) -> _Replacement:
    found = _of_models.get(model)
    if found is None or not found.is_held:
        is_own = inspect.getattr_static(model, "loss_function", _MISSING) is not _MISSING  # not that of a model inside
        function = model.loss_function if is_own else None
        if not callable(function):
            raise TypeError(
                f"{type(model).__name__} has no function loss_function; pass the model that has, or call "
                "autogen.kernelize(model) for losses that are modules, or autogen.patch() for those of torch"
            )
        found = _of_models[model] = _Replacement(model, {"loss_function": autogen_loss(function)})
    return found
