"""What has been compiled of a loss, and what could not be: by kinds of calls.

A call is of the kind that its key says. Under one key there may be several traces, which hold for other sizes or
values; the first that holds for a call is used. What could not be compiled is remembered like what was, so that nobody
tries again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import field
from types import CodeType
from typing import TYPE_CHECKING

import torch

from autogen import availability
from autogen.calls import reachable
from autogen.calls.binding import Binding, Bound
from autogen.calls.executed import is_profiled, noted
from autogen.dispatch.state import shared_container, shared_memory
from autogen.errors import (
    AutogenError,
    InternalError,
    StateChangeError,
    TooManyTracesError,
    TooManyValuesError,
    defects_of,
    without_frames,
)
from autogen.frozen import frozen
from autogen.locks import compiling, without_collections
from autogen.options import Options

if TYPE_CHECKING:
    from autogen.dispatch.shortcut import Shortcut
    from autogen.dispatch.stored import Shelf
    from autogen.runtime.compiled import CompiledLoss
    from autogen.runtime.handwritten import BoundHandwritten

    Kernels = CompiledLoss | BoundHandwritten

logger = logging.getLogger("autogen")

MOST_TRACES = 64  # of one kind of call: those differ by values that the loss reads, or relations between sizes
MOST_KEYS = 1024  # kinds of calls
MOST_UNUSED = 64  # kinds in a row that differ in what is no tensor, and never come again


@frozen
class Decision:
    """How a call runs: on `kernels`, for `sizes` and with the tensors `found` ahead, or in torch because of `error`.

    `unused` are kernels of the loss that cannot be used for this call.
    """

    kernels: Kernels | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    found: tuple[torch.Tensor, ...] = ()
    error: AutogenError | None = None
    unused: CompiledLoss | None = None

    @property
    def path(self) -> str:
        """The path's name in reports."""
        return "eager" if self.kernels is None else self.kernels.path

    @property
    def reason(self) -> str:
        """Why the call takes this path."""
        if self.kernels is not None:
            return self.kernels.reason
        return "" if self.error is None else self.error.reason


class Compilations:
    """All that was compiled of one loss; `traces` counts how often it was traced."""

    def __init__(self, options: Options) -> None:
        self.traces = 0
        self._options = options
        self._compiled: dict[Hashable, list[CompiledLoss]] = {}
        self._refused: dict[Hashable, list[AutogenError]] = {}
        self._is_given_up = False  # which has been said
        self._unused: tuple[Hashable, int] = None, 0  # a kind of tensors, and how often it was traced in a row

    def decide(self, binding: Binding, name: str) -> Decision:
        """How a call is to run; compiles what is not compiled yet."""
        needs = needs_gradient(binding)
        key = key_of(binding, binding.tensors)
        decision = None if self._options.retraces else self._known(binding, key)
        if decision is None:
            with compiling:  # while this thread waited, another may have compiled it
                known = None if self._options.retraces else self._known(binding, key)
                with without_collections():
                    decision = known or self._compile(binding, needs, key, name)
        return decision

    def of(self, key: Hashable) -> Sequence[CompiledLoss]:
        """What has been compiled for a kind of calls."""
        return self._compiled.get(key, ())

    def every(self) -> Iterator[CompiledLoss]:
        """All that has been compiled."""
        return itertools.chain.from_iterable(self._compiled.values())

    def refuses(self, key: Hashable, tensors: Sequence[torch.Tensor], numbers: Sequence[float]) -> bool:
        """Whether all calls of a kind, of the geometry of some tensors, run in torch where the numbers are these."""
        if self._compiled.get(key):
            return False
        domains = [refused.domain for refused in self._refused.get(key, ())]
        return any(
            domain is None or (not domain.is_by_values and domain.guards.read(tensors, numbers) is not None)
            for domain in domains
        )

    def refuse(self, key: Hashable, error: AutogenError) -> None:
        """Have a kind of calls run in torch from now on, whatever was compiled for it."""
        self._compiled.pop(key, None)
        self._remember(key, error)

    def _remember(self, key: Hashable, error: AutogenError) -> None:
        """Remember that a kind of calls is refused, and forget the oldest such kind if there are too many."""
        while key not in self._refused and len(self._refused) >= MOST_KEYS:
            del self._refused[next(iter(self._refused))]
        refused = self._refused.setdefault(key, [])
        before = [each.wider.key for each in refused if each.wider is not None]
        if error.wider is not None and error.wider.key in before:
            error.domain = error.wider  # another float has come to the same
        refused.append(without_frames(error))

    def _known(self, binding: Binding, key: Hashable) -> Decision | None:
        """What was found before for calls like this one."""
        for compiled in self._compiled.get(key, ()):
            bound = compiled.bind(binding.tensors, tuple(binding.numbers.values()))
            if bound is not None:
                self._unused = None, 0
                return _decided(compiled, bound, binding)
        numbers = tuple(binding.numbers.values())
        for refused in self._refused.get(key, ()):
            if refused.domain is None or refused.domain.sizes(binding.tensors, numbers) is not None:
                return Decision(error=refused)
        return None

    def _compile(self, binding: Binding, needs: Sequence[bool], key: tuple[Hashable, ...], name: str) -> Decision:
        state, watched = binding.state, set[CodeType]()
        is_watched = state.is_wide or bool(state.executed)
        found: tuple[CompiledLoss, Bound] | AutogenError
        if not self._options.retraces and self._is_hopeless(key):
            found = TooManyTracesError(name)
        elif state.is_endless or (is_watched and is_profiled()):
            found = TooManyValuesError(name, reachable.MOST_VALUES)
        else:
            from autogen.dispatch.stored import shelf_of

            shelf = shelf_of(name, key, binding, self._options)
            found = shelf.find(binding) or self._trace(name, binding, needs, shelf, watched if is_watched else None)
        if not watched <= state.executed:  # the call is to be taken apart again: more is looked into, or less
            binding.ran.update(watched)
        if binding.ran or binding.misread:
            return Decision(error=TooManyValuesError(name, reachable.MOST_VALUES))
        if not isinstance(found, AutogenError):
            compiled, bound = found
            if not self._options.retraces:
                self._compiled.setdefault(key, []).append(compiled)
            logger.info("%s runs on generated kernels: %s launches, forward + backward", name, compiled.launches)
            return _decided(compiled, bound, binding)
        if isinstance(found, TooManyTracesError):  # of a kind that is counted, and need not be remembered
            if not self._is_given_up:
                self._is_given_up = True
                logger.info("%s runs in torch: %s", name, found.reason)
            return Decision(error=found)
        level = logging.WARNING if isinstance(found, InternalError) else logging.INFO
        logger.log(
            level, "%s runs in torch: %s", name, found.reason, exc_info=found if level == logging.WARNING else None
        )
        if not self._options.retraces:
            self._remember(key, found)
        return Decision(error=found)

    def _trace(
        self, name: str, binding: Binding, needs: Sequence[bool], shelf: Shelf, watched: set[CodeType] | None
    ) -> tuple[CompiledLoss, Bound] | AutogenError:
        """Compile a loss for a call, and keep what comes of it for other processes; `watched` hears which code ran."""
        from autogen.dispatch.stored import warnings_noted

        self.traces += 1
        with contextlib.nullcontext() if watched is None else noted(watched), warnings_noted() as given:
            found = _attempt(name, binding, needs, self._options)
        if not isinstance(found, AutogenError) and not given and not binding.misread:
            try:
                with defects_of(name):
                    shelf.keep(found[0])
            except AutogenError as error:
                return error
        return found

    def _is_hopeless(self, key: tuple[Hashable, ...]) -> bool:
        """Whether calls differ too much from each other; counts the traces in a row that no other call used."""
        kind, count = self._unused
        self._unused = key[1:], count + 1 if kind == key[1:] else 1
        traces = len(self._compiled.get(key, ())) + len(self._refused.get(key, ()))
        return traces >= MOST_TRACES or len(self._compiled) >= MOST_KEYS or self._unused[1] > MOST_UNUSED


def key_of(
    call: Binding | Shortcut, tensors: Sequence[torch.Tensor], *, is_enabled: bool | None = None
) -> tuple[Hashable, ...]:
    """What calls have in common that may run on the same kernels; `is_enabled` says if gradients were, if not now."""
    # Sizes 0 and 1 are constants of a trace, all others are its symbols. A loss may ask what requires a gradient, too,
    # where gradients are not enabled, and whether it is a parameter.
    kinds = tuple(
        [
            (
                *(t.dtype, t.device, t.requires_grad, type(t) is torch.nn.Parameter),
                tuple([size if size < 2 else 2 for size in t.shape]),
            )
            for t in tensors
        ]
    )
    is_enabled = availability.is_differentiable() if is_enabled is None else is_enabled
    device = tensors[0].device.type
    autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    defaults = torch.get_default_dtype(), availability.default_device()
    return call.statics, call.names, kinds, is_enabled, autocast, *defaults


def needs_gradient(binding: Binding) -> list[bool]:
    """Which tensors of a call are to be differentiated."""
    enabled = availability.is_differentiable()
    return [enabled and tensor.requires_grad for tensor in binding.tensors]


def needs_of_plain(
    tensors: Sequence[torch.Tensor], on_device: Sequence[torch.Tensor] | None = None
) -> tuple[bool, ...] | None:
    """Which tensors are to be differentiated; None if kernels cannot run on them, which is said on the long way. Only
    those `on_device` have to be there, if not all.
    """
    try:
        availability.require(tensors if on_device is None else on_device)
    except AutogenError:
        return None
    is_enabled = availability.is_differentiable()
    return tuple([is_enabled and tensor.requires_grad for tensor in tensors])


def _attempt(
    name: str, binding: Binding, needs: Sequence[bool], options: Options
) -> tuple[CompiledLoss, Bound] | AutogenError:
    """Compile a loss for a call; the error says why that cannot be."""
    from autogen.compiler import compile_loss

    try:
        with defects_of(name):
            compiled = compile_loss(name, binding, needs, options)
            bound = compiled.bind(binding.tensors, tuple(binding.numbers.values()))
            assert bound is not None, "kernels are made for the call that they were compiled from"
    except AutogenError as error:
        return error
    return compiled, bound


def _decided(compiled: CompiledLoss, bound: Bound, binding: Binding) -> Decision:
    """A call on the kernels made for it, unless it writes to what has several names."""
    shared = shared_memory(compiled.state, binding.names, binding.tensors) or shared_container(compiled.state, binding)
    if shared is not None:
        return Decision(error=StateChangeError(shared), unused=compiled)
    return Decision(compiled, bound.sizes, bound.found)
