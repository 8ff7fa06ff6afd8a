"""Dispatch: which way a call of a loss takes, and taking it.

A loss that has been compiled for the class of its inputs is launched; an unknown class is compiled first; what cannot
be compiled runs in torch, and the reason is kept so that nobody tries again.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from autogen import availability
from autogen.binding import Binding, bind, is_replaying
from autogen.errors import (
    AutogenError,
    CompileError,
    InternalError,
    RefusedError,
    StateChangeError,
    TooManyTracesError,
    TraceError,
    defects_of,
)
from autogen.policies import Policy, resolve
from autogen.reachable import Change
from autogen.replays import constant_gradients, gradients, stream_of
from autogen.state import Connector, apart, keep, shared_memory

if TYPE_CHECKING:
    from autogen.compiler import CompiledLoss
    from autogen.handwritten import BoundHandwritten, Handwritten
    from autogen.tracing import Bound

    Kernels = CompiledLoss | BoundHandwritten

logger = logging.getLogger("autogen")

MOST_TRACES = 64  # of one kind of call: those differ by values that the loss reads, or relations between sizes
MOST_KEYS = 1024  # kinds of calls

_compiling = threading.RLock()


@dataclass(frozen=True)
class Decision:
    """How a call runs: on `kernels`, for `sizes` and with the tensors `found` ahead, or in torch because of `error`."""

    kernels: Kernels | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    found: tuple[torch.Tensor, ...] = ()
    error: AutogenError | None = None

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


@dataclass
class _History:
    """The floats of the calls of one module, or of a function: last values and changes by name, and those that vary."""

    floats: dict[str, tuple[str, int]] = field(default_factory=dict)
    varying: set[str] = field(default_factory=set)

    def note(self, floats: Mapping[str, float]) -> bool:
        """Note the floats of a call; returns whether more vary than before."""
        before = len(self.varying)
        for name, value in floats.items():
            last, changes = self.floats.get(name, (repr(value), 0))
            changes += repr(value) != last
            self.floats[name] = repr(value), changes
            if changes >= 2:
                self.varying.add(name)
        return len(self.varying) > before


class Dispatcher:
    """A loss function and everything that was compiled for it.

    Args:
        function: the loss as the user wrote it: a function, or a module's `forward`.
        name: what to call it.
        policy: the object's own policy, if it has one.
        handwritten: makes the loss's handwritten kernels, if it has some.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        policy: Policy | str | None = None,
        handwritten: Callable[[], Handwritten] | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.policy = None if policy is None else Policy(policy)
        self.signature = inspect.signature(function)
        self._handwritten = handwritten
        self._compiled: dict[Hashable, list[CompiledLoss]] = {}
        self._refused: dict[Hashable, list[AutogenError]] = {}
        self._said: set[str] = set()
        self._plain = _History()
        self._histories: weakref.WeakKeyDictionary[torch.nn.Module, _History] = weakref.WeakKeyDictionary()

    def __call__(
        self,
        module: torch.nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
    ) -> Any:
        """Run the loss; `module` is its `self` if it is a method."""
        policy = resolve(self.policy)
        if policy is Policy.DISABLED or is_replaying() or availability.is_transformed():
            return self._eager(module, args, kwargs)
        try:
            binding = self.bind(module, args, kwargs)
        except TypeError:
            return self._eager(module, args, kwargs)  # which raises it as the user expects
        decision = self.decide(binding, module, name or self.name)
        error = decision.error
        if decision.kernels is not None:
            needs = needs_gradient(binding)
            failed = functools.partial(self._refuse, self._key(binding, needs), policy)
            try:
                return run(decision.kernels, binding, decision.sizes, needs, failed, decision.found)
            except (CompileError, InternalError) as refused:
                error = failed(refused)
        if policy is Policy.MANDATORY and error is not None:
            if isinstance(error, (TraceError, RefusedError)):
                self._eager(module, args, kwargs)  # a fault of the call itself is torch's to report
            raise error.with_traceback(None)  # that of an earlier call would keep its tensors alive
        return self._eager(module, args, kwargs)

    def bind(
        self,
        module: torch.nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_call: bool = True,
    ) -> Binding:
        """Take a call apart. A float that has changed twice is no part of the key any more: kernels are given it.

        Raises:
            TypeError: the arguments do not fit the signature.
        """
        history = self._plain if module is None else self._histories.setdefault(module, _History())
        binding = bind(self.function, self.signature, module, args, kwargs, history.varying)
        if any(tensor.dtype == torch.float64 for tensor in binding.tensors):  # Triton takes floats in single precision
            return bind(self.function, self.signature, module, args, kwargs) if binding.floats else binding
        if is_call and history.note(binding.fixed):
            binding = bind(self.function, self.signature, module, args, kwargs, history.varying)
        return binding

    def decide(self, binding: Binding, module: torch.nn.Module | None, name: str) -> Decision:
        """How a call is to run; compiles what is not compiled yet."""
        on_host = () if self._handwritten is None else self._handwritten().on_host
        tensors = [tensor for name, tensor in zip(binding.names, binding.tensors, strict=True) if name not in on_host]
        try:
            availability.require(tensors)
        except AutogenError as error:
            self._say(name, error.reason)
            return Decision(error=error)
        if self._handwritten is None:
            return self._generated(binding, name)
        generator_first = resolve(self.policy) is Policy.AGGRESSIVE
        decision = self._generated(binding, name) if generator_first else None
        if decision is None or decision.kernels is None:
            bound = self.handwritten(binding, module)
            if not isinstance(bound, str):
                self._say(name, bound.reason)
                return Decision(bound)
            decision = decision or self._generated(binding, name)
            if decision.kernels is None:
                return Decision(error=RefusedError(name, bound))
        return decision

    def handwritten(self, binding: Binding, module: torch.nn.Module | None) -> BoundHandwritten | str:
        """The call on handwritten kernels, or why it cannot run on any."""
        if self._handwritten is None:
            return "this loss: it has none"
        from autogen.handwritten import bind_handwritten

        return bind_handwritten(self._handwritten(), binding, module, needs_gradient(binding))

    def _say(self, name: str, reason: str) -> None:
        """Log a decision that is made anew at each call, once."""
        if reason not in self._said:
            self._said.add(reason)
            logger.info("%s: %s", name, reason)

    def _generated(self, binding: Binding, name: str) -> Decision:
        needs = needs_gradient(binding)
        key = self._key(binding, needs)
        decision = self._known(binding, key)
        if decision is None:
            with _compiling:  # while this thread waited, another may have compiled it
                decision = self._known(binding, key) or self._compile(binding, needs, key, name)
        return decision

    def _known(self, binding: Binding, key: Hashable) -> Decision | None:
        """What was found before for calls like this one."""
        for compiled in self._compiled.get(key, ()):
            bound = compiled.bind(binding)
            if bound is not None:
                return _decided(compiled, bound, binding)
        floats = tuple(binding.floats.values())
        for refused in self._refused.get(key, ()):
            if refused.domain is None or refused.domain.sizes(binding.tensors, floats) is not None:
                return Decision(error=refused)
        return None

    def _compile(self, binding: Binding, needs: Sequence[bool], key: Hashable, name: str) -> Decision:
        from autogen.compiler import compile_loss

        try:
            traces = len(self._compiled.get(key, ())) + len(self._refused.get(key, ()))
            if traces >= MOST_TRACES or len(self._compiled) >= MOST_KEYS:
                raise TooManyTracesError(name)
            with defects_of(name):
                compiled = compile_loss(name, binding, needs)
                bound = compiled.bind(binding)
                assert bound is not None, "kernels are made for the call that they were compiled from"
        except AutogenError as refused:
            error = refused
        else:
            self._compiled.setdefault(key, []).append(compiled)
            logger.info("%s runs on generated kernels: %s launches, forward + backward", name, compiled.launches)
            return _decided(compiled, bound, binding)
        level = logging.WARNING if isinstance(error, InternalError) else logging.INFO
        logger.log(
            level, "%s runs in torch: %s", name, error.reason, exc_info=error if level == logging.WARNING else None
        )
        self._refused.setdefault(key, []).append(_without_frames(error))
        return Decision(error=error)

    def _refuse(self, key: Hashable, policy: Policy, error: AutogenError) -> AutogenError:
        """What was generated cannot be compiled, or a kernel not be printed: such calls run in torch from now on.

        Raises:
            AutogenError: `error`, under the policy "mandatory".
        """
        if self._compiled.pop(key, None) is not None or error.reason not in self._said:
            self._said.add(error.reason)
            logger.warning("%s runs in torch: %s", self.name, error.reason, exc_info=error)
            self._refused.setdefault(key, []).append(_without_frames(error))
        if policy is Policy.MANDATORY:
            raise error.with_traceback(None)
        return error

    def _eager(self, module: torch.nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.function(*args, **kwargs) if module is None else self.function(module, *args, **kwargs)

    @staticmethod
    def _key(binding: Binding, needs: Sequence[bool]) -> Hashable:
        # Sizes 0 and 1 are constants of a trace, all others are its symbols.
        tensors = tuple(
            (t.dtype, t.device, tuple(size if size < 2 else 2 for size in t.shape)) for t in binding.tensors
        )
        device = binding.tensors[0].device.type
        autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        return binding.statics, binding.names, tensors, tuple(needs), autocast, torch.get_default_dtype()


def _decided(compiled: CompiledLoss, bound: Bound, binding: Binding) -> Decision:
    """A call on the kernels made for it, unless it writes to memory that has several names."""
    shared = shared_memory(compiled.state, binding.names, binding.tensors)
    if shared is not None:
        return Decision(error=StateChangeError(shared))
    return Decision(compiled, bound.sizes, bound.found)


def _without_frames(error: AutogenError) -> AutogenError:
    """An error that keeps no tensors of the call alive."""
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error


def needs_gradient(binding: Binding) -> list[bool]:
    """Which tensors of a call are to be differentiated."""
    enabled = torch.is_grad_enabled()
    return [enabled and tensor.requires_grad for tensor in binding.tensors]


def run(
    kernels: Kernels,
    binding: Binding,
    sizes: dict[str, int],
    needs: Sequence[bool],
    failed: Callable[..., Any],
    found: tuple[torch.Tensor, ...] = (),
) -> Any:
    """Launch a loss's kernels on a call; returns what the loss returns. `failed` hears of an error in backward."""
    tensors, own, state = (*binding.tensors, *found), len(binding.tensors), kernels.state
    if not any(needs):
        with torch.no_grad():
            outputs, _ = kernels.run_forward(tensors, sizes)
        result = kernels.result(outputs, sizes)
        if state:
            keep(state, binding, outputs, sizes)
        return result
    stream = stream_of(tensors[0].device) if kernels.is_random else None
    given = apart(state, tensors, own)
    again = binding.remember() if state else binding.replay

    def replay(tensors: Sequence[torch.Tensor], changes: list[Change] | None = None) -> Any:
        return again(apart(state, tensors[:own], own), changes=changes)

    # What the loss has not read may have a graph that is not its own.
    connected = [
        t.detach() if cut and t.requires_grad else t for t, cut in zip(given, kernels.unconnected, strict=True)
    ]
    outputs = _Fused.apply(kernels, replay, stream, sizes, failed, *connected)
    result = kernels.result(outputs, sizes)
    if state:
        keep(state, binding, outputs, sizes, Connector(replay, stream, given[:own]))
    return result


class _Fused(torch.autograd.Function):
    """The kernels of a loss, forward and backward, as autograd sees them."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: Kernels,
        replay: Callable[[Sequence[torch.Tensor]], Any],
        stream: torch.Tensor | None,
        sizes: dict[str, int],
        failed: Callable[..., Any],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        outputs, saved = kernels.run_forward(tensors, sizes)
        ctx.kernels, ctx.sizes, ctx.failed, ctx.count = kernels, sizes, failed, len(tensors)
        ctx.replay, ctx.stream = functools.partial(_tensors_of, replay), stream
        ctx.save_for_backward(*tensors, *saved)
        constant = [each for each, varies in zip(outputs, kernels.differentiable, strict=True) if not varies]
        ctx.mark_non_differentiable(*constant)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[Any, ...]:
        everything = ctx.saved_tensors
        tensors, saved = everything[: ctx.count], everything[ctx.count :]
        wanted = ctx.needs_input_grad[len(_NO_GRADIENTS) :]
        if torch.is_grad_enabled():
            return *_NO_GRADIENTS, *gradients(ctx.replay, ctx.stream, tensors, wanted, upstream)
        try:
            return *_NO_GRADIENTS, *ctx.kernels.run_backward(tensors, saved, upstream, ctx.sizes)
        except (CompileError, InternalError) as error:
            ctx.failed(error)
        return *_NO_GRADIENTS, *constant_gradients(ctx.replay, ctx.stream, tensors, wanted, upstream)


_NO_GRADIENTS = (None,) * 5  # of what `_Fused.forward` takes beside tensors


def _tensors_of(loss: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that a loss returns; the numbers that come after them among the outputs are none."""
    leaves = torch.utils._pytree.tree_leaves(loss(tensors))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
