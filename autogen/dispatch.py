"""Dispatch: which way a call of a loss takes, and taking it.

A loss that has been compiled for the class of its inputs is launched; an unknown class is compiled first; what cannot
be compiled runs in torch, and the reason is kept so that nobody tries again.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from autogen import availability, graphs, reachable
from autogen.autograd import apply_short, run
from autogen.binding import Binding, bind, is_replaying
from autogen.build import without_collections
from autogen.errors import (
    AutogenError,
    CompileError,
    GraphChangedError,
    InternalError,
    RefusedError,
    StateChangeError,
    TooManyTracesError,
    TooManyValuesError,
    TraceError,
    defects_of,
)
from autogen.executed import is_profiled, noted
from autogen.options import PLAIN, Options
from autogen.places import MISSING
from autogen.policies import Policy, resolve
from autogen.shortcut import Plan, Shortcut
from autogen.sites import Site, Sites
from autogen.state import shared_memory

if TYPE_CHECKING:
    from autogen.compiled import CompiledLoss
    from autogen.handwritten import BoundHandwritten
    from autogen.stored import Shelf
    from autogen.tracing import Bound

    Kernels = CompiledLoss | BoundHandwritten

logger = logging.getLogger("autogen")

MOST_TRACES = 64  # of one kind of call: those differ by values that the loss reads, or relations between sizes
MOST_KEYS = 1024  # kinds of calls
MOST_UNUSED = 64  # kinds in a row that differ in what is no tensor, and never come again

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


class Dispatcher:
    """A loss function and everything that was compiled for it.

    Args:
        function: the loss as the user wrote it: a function, or a module's `forward`.
        name: what to call it.
        options: what is asked of it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        options: Options = PLAIN,
    ) -> None:
        self.function = function
        self.name = name
        self.options = options
        self.signature = inspect.signature(function)
        self._handwritten = options.handwritten
        self._label = graphs.label(name, options)
        self.traces = 0
        self._compiled: dict[Hashable, list[CompiledLoss]] = {}
        self._refused: dict[Hashable, list[AutogenError]] = {}
        self._said: set[str] = set()
        self._sites = Sites()
        self._executed: frozenset[CodeType] = frozenset()  # once the loss has been seen to reach too much
        self._has_looked_wide = False
        self._unused: tuple[Hashable, int] = None, 0  # a kind of tensors, and how often it was traced in a row

    def __call__(
        self,
        module: torch.nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
    ) -> Any:
        """Run the loss; `module` is its `self` if it is a method."""
        policy = resolve(self.options.policy)
        if policy is Policy.DISABLED or is_replaying():
            return self._eager(module, args, kwargs)
        if availability.is_transformed():
            return self._transformed(module, args, kwargs)
        site = self._sites.known(module)
        if site is not None and site.shortcuts and not self.options.retraces:
            try:
                result = self._short(site, module, args, kwargs)
            except (CompileError, InternalError):  # which is dealt with below
                site.shortcuts.clear()
            else:
                if result is not MISSING:
                    return result
        try:
            binding, decision = self.prepare(module, args, kwargs, name or self.name)
        except TypeError:
            return self._eager(module, args, kwargs)  # which raises it as the user expects
        error = decision.error
        if decision.kernels is not None:
            needs = needs_gradient(binding)
            failed = functools.partial(self.refuse, self.key(binding, binding.tensors, needs), policy)
            try:
                result = run(decision.kernels, binding, decision.sizes, needs, failed, decision.found)
            except (CompileError, InternalError) as refused:
                error = failed(refused)
            else:
                self._learn(binding, decision.kernels, module, args, kwargs)
                return result
        if policy is Policy.MANDATORY and error is not None:
            if isinstance(error, (TraceError, RefusedError)):
                self._eager(module, args, kwargs)  # a fault of the call itself is torch's to report
            raise error.with_traceback(None)  # that of an earlier call would keep its tensors alive
        return self._eager(module, args, kwargs)

    def _transformed(self, module: torch.nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the loss where torch transforms the call; a graph of `torch.compile` may have kernels, no other."""
        if not torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting() or self.options.retraces:
            return self._eager(module, args, kwargs)

        def formula() -> Any:
            return self._eager(module, args, kwargs)

        return graphs.traced(formula, self._label)

    def prepare(
        self,
        module: torch.nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        *,
        is_call: bool = True,
    ) -> tuple[Binding, Decision]:
        """Take a call apart, and decide how it is to run.

        Raises:
            TypeError: the arguments do not fit the signature.
        """
        while True:
            binding = self.bind(module, args, kwargs, is_call=is_call)
            decision = self.decide(binding, module, name)
            if binding.ran <= self._executed:
                if is_call and self.options.static_graph:
                    self._require_graph(decision, binding, module, name)
                return binding, decision
            self._executed |= binding.ran

    def _require_graph(self, decision: Decision, binding: Binding, module: torch.nn.Module | None, name: str) -> None:
        """Compare the graph of a call with that of the first one, if both are compiled.

        Raises:
            GraphChangedError: it is another one.
        """
        graph = decision.kernels.graph if decision.kernels is not None else None
        if graph is None:
            return
        first = self._sites.of(module).graphs.setdefault(tuple(needs_gradient(binding)), graph)
        difference = first.difference(graph) if first is not graph else None
        if difference is not None:
            raise GraphChangedError(name, difference)

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
        history = self._sites.of(module).history
        is_call = is_call and not self.options.retraces
        again = functools.partial(bind, self.function, self.signature, module, args, kwargs, executed=self._executed)
        binding = again(history.varying)
        if binding.state.is_endless and self._may_look_wide(binding):
            self._has_looked_wide = True
            return again(history.varying, is_wide=True)  # so that all that the loss changes is known, and put back
        if any(tensor.dtype == torch.float64 for tensor in binding.tensors):  # Triton takes floats in single precision
            return again() if binding.floats else binding
        if is_call and history.note(binding.fixed):
            binding = again(history.varying)
        return binding

    def _may_look_wide(self, binding: Binding) -> bool:
        """Whether to look at all that the loss reaches, which takes seconds: once, if kernels can run at all."""
        if self._executed or self._has_looked_wide or is_profiled():
            return False
        try:
            availability.require(binding.tensors)
        except AutogenError:
            return False
        return True

    def _short(self, site: Site, module: torch.nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the loss if it is known from an earlier call how; else `MISSING`."""
        for each in site.shortcuts:
            reading = each.read(module, args, kwargs)
            if reading is None:
                continue
            tensors, key, floats = reading
            plan = each.plans.get(key)
            if plan is None:
                plan = self._plan(each, tensors, floats, site)
                if plan is None:
                    return MISSING
                each.keep(key, plan)
            sizes = None
            if floats:  # they may decide about branches of the loss
                sizes = plan.loss.sizes_of(tensors, floats)
                if sizes is None:
                    return MISSING
            if plan.needs_gradient:
                returned = apply_short((plan, sizes, floats, each, module, self), *tensors)
            else:
                returned = plan.outputs_of(plan.prepared.forward(tensors, sizes))
            return returned if plan.returns_tensor else plan.loss.result(returned, sizes or plan.prepared.sizes)
        return MISSING

    def _plan(
        self, shortcut: Shortcut, tensors: Sequence[torch.Tensor], floats: tuple[float, ...], site: Site
    ) -> Plan | None:
        """The launches of a call, if what it needs is compiled and nothing but sizes decides about it."""
        needs = [torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors]
        for compiled in self._compiled.get(self.key(shortcut, tensors, needs), ()):
            if not compiled.is_short:
                return None
            sizes = compiled.sizes_of(tensors, floats)
            if sizes is not None:
                if self.options.static_graph and site.graphs.get(tuple(needs)) is not compiled.graph:
                    return None  # compared on the long way
                return Plan.of(compiled, sizes, any(needs))
        return None

    def _learn(
        self,
        binding: Binding,
        kernels: Kernels,
        module: torch.nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Find a shortcut for the next calls like this one."""
        if self._handwritten is None and kernels.is_short and not self.options.retraces:
            self._sites.of(module).learn(binding, module, args, kwargs)

    def replay_again(
        self,
        shortcut: Shortcut,
        module: torch.nn.Module | None,
        floats: Sequence[float],
        tensors: Sequence[torch.Tensor],
    ) -> Any:
        """Run, as torch would, the loss of a call that took a shortcut."""
        args, kwargs = shortcut.call(tensors, floats)
        binding = bind(self.function, self.signature, module, args, kwargs, shortcut.varying, shortcut.executed)
        if binding.statics != shortcut.statics or binding.names != shortcut.names:
            raise RuntimeError(f"{self.name} has changed between forward and the derivative of backward")
        return binding.replay(tensors, floats)

    def decide(self, binding: Binding, module: torch.nn.Module | None, name: str) -> Decision:
        """How a call is to run; compiles what is not compiled yet."""
        on_host = () if self._handwritten is None else self._handwritten().on_host
        tensors = [tensor for name, tensor in zip(binding.names, binding.tensors, strict=True) if name not in on_host]
        try:
            availability.require(tensors)
        except AutogenError as error:
            self.say(name, error.reason)
            return Decision(error=error)
        if self._handwritten is None:
            return self._generated(binding, name)
        generator_first = resolve(self.options.policy) is Policy.AGGRESSIVE
        decision = self._generated(binding, name) if generator_first else None
        if decision is None or decision.kernels is None:
            bound = self.handwritten(binding, module)
            if not isinstance(bound, str):
                self.say(name, bound.reason)
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

    def say(self, name: str, reason: str) -> None:
        """Log a decision that is made anew at each call, once."""
        if reason not in self._said:
            self._said.add(reason)
            logger.info("%s: %s", name, reason)

    def _generated(self, binding: Binding, name: str) -> Decision:
        needs = needs_gradient(binding)
        key = self.key(binding, binding.tensors, needs)
        decision = None if self.options.retraces else self._known(binding, key)
        if decision is None:
            with _compiling:  # while this thread waited, another may have compiled it
                known = None if self.options.retraces else self._known(binding, key)
                with without_collections():
                    decision = known or self._compile(binding, needs, key, name)
        return decision

    def _known(self, binding: Binding, key: Hashable) -> Decision | None:
        """What was found before for calls like this one."""
        for compiled in self._compiled.get(key, ()):
            bound = compiled.bind(binding)
            if bound is not None:
                self._unused = None, 0
                return _decided(compiled, bound, binding)
        floats = tuple(binding.floats.values())
        for refused in self._refused.get(key, ()):
            if refused.domain is None or refused.domain.sizes(binding.tensors, floats) is not None:
                return Decision(error=refused)
        return None

    def _compile(self, binding: Binding, needs: Sequence[bool], key: tuple[Hashable, ...], name: str) -> Decision:
        state, watched = binding.state, set[CodeType]()
        is_watched = state.is_wide or bool(state.executed)
        found: tuple[CompiledLoss, Bound] | AutogenError
        if not self.options.retraces and self._is_hopeless(key):
            found = TooManyTracesError(name)
        elif state.is_endless or (is_watched and is_profiled()):
            found = TooManyValuesError(name, reachable.MOST_VALUES)
        else:
            from autogen.stored import shelf_of

            shelf = shelf_of(name, key, binding, self.options)
            found = shelf.find(binding) or self._trace(name, binding, needs, shelf, watched if is_watched else None)
        if not watched <= state.executed:  # the call is to be taken apart again: more is looked into, or less
            binding.ran.update(watched)
            return Decision(error=TooManyValuesError(name, reachable.MOST_VALUES))
        if not isinstance(found, AutogenError):
            compiled, bound = found
            if not self.options.retraces:
                self._compiled.setdefault(key, []).append(compiled)
            logger.info("%s runs on generated kernels: %s launches, forward + backward", name, compiled.launches)
            return _decided(compiled, bound, binding)
        level = logging.WARNING if isinstance(found, InternalError) else logging.INFO
        logger.log(
            level, "%s runs in torch: %s", name, found.reason, exc_info=found if level == logging.WARNING else None
        )
        if not self.options.retraces:
            self._refused.setdefault(key, []).append(_without_frames(found))
        return Decision(error=found)

    def _trace(
        self, name: str, binding: Binding, needs: Sequence[bool], shelf: Shelf, watched: set[CodeType] | None
    ) -> tuple[CompiledLoss, Bound] | AutogenError:
        """Compile a loss for a call, and keep what comes of it for other processes; `watched` hears which code ran."""
        from autogen.stored import warnings_noted

        self.traces += 1
        with contextlib.nullcontext() if watched is None else noted(watched), warnings_noted() as given:
            found = _attempt(name, binding, needs, self.options)
        if not isinstance(found, AutogenError) and not given:
            shelf.keep(found[0])
        return found

    def _is_hopeless(self, key: tuple[Hashable, ...]) -> bool:
        """Whether calls differ too much from each other; counts the traces in a row that no other call used."""
        kind, count = self._unused
        self._unused = key[1:], count + 1 if kind == key[1:] else 1
        traces = len(self._compiled.get(key, ())) + len(self._refused.get(key, ()))
        return traces >= MOST_TRACES or len(self._compiled) >= MOST_KEYS or self._unused[1] > MOST_UNUSED

    def refuse(self, key: Hashable, policy: Policy, error: AutogenError) -> AutogenError:
        """What was generated cannot be compiled, or a kernel not be printed: such calls run in torch from now on.

        Raises:
            AutogenError: `error`, under the policy "mandatory".
        """
        self._sites.forget_shortcuts()
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
    def key(call: Binding | Shortcut, tensors: Sequence[torch.Tensor], needs: Sequence[bool]) -> tuple[Hashable, ...]:
        """What calls have in common that may run on the same kernels."""
        # Sizes 0 and 1 are constants of a trace, all others are its symbols.
        kinds = tuple((t.dtype, t.device, tuple(size if size < 2 else 2 for size in t.shape)) for t in tensors)
        device = tensors[0].device.type
        autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        return call.statics, call.names, kinds, tuple(needs), autocast, torch.get_default_dtype()


def _make_operator() -> Any:
    from autogen.captured import make_operator

    return make_operator(Dispatcher)


graphs.make_operator = _make_operator


def _attempt(
    name: str, binding: Binding, needs: Sequence[bool], options: Options
) -> tuple[CompiledLoss, Bound] | AutogenError:
    """Compile a loss for a call; the error says why that cannot be."""
    from autogen.compiler import compile_loss

    try:
        with defects_of(name):
            compiled = compile_loss(name, binding, needs, options)
            bound = compiled.bind(binding)
            assert bound is not None, "kernels are made for the call that they were compiled from"
    except AutogenError as error:
        return error
    return compiled, bound


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
