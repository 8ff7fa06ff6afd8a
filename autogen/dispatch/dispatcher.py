"""Dispatch: which way a call of a loss takes, and taking it.

A call like an earlier one takes a shortcut to its launches. Any other is taken apart, and
`autogen.dispatch.compilations` says what it can run on; where that is nothing, it runs in torch.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from autogen import availability
from autogen.calls.binding import ArgumentsError, Binding, Bound, bind, is_replaying
from autogen.calls.executed import is_profiled
from autogen.calls.spots import MISSING
from autogen.calls.surroundings import make_parameter
from autogen.dispatch.autograd import apply_short, run, run_short
from autogen.dispatch.compilations import Compilations, Decision, key_of, needs_gradient
from autogen.dispatch.planning import Planner
from autogen.dispatch.plans import IN_TORCH, Plan
from autogen.dispatch.shortcut import Shortcut
from autogen.dispatch.sites import Site, Sites
from autogen.dispatch.state import apart, keep, shared_memory, unheard
from autogen.dynamo import graphs
from autogen.dynamo.marked import arguments_of
from autogen.errors import (
    AutogenError,
    CompileError,
    GraphChangedError,
    InternalError,
    RefusedError,
    ResultError,
    StateChangeError,
    TooLargeError,
    TraceError,
    UnknownCallError,
    UnsupportedOpError,
    ValueBranchError,
)
from autogen.locks import replaced
from autogen.options import PLAIN, Options
from autogen.policies import Policy, resolve

if TYPE_CHECKING:
    from autogen.runtime.handwritten import BoundHandwritten, Handwritten

logger = logging.getLogger("autogen")

_DISABLED = Policy.DISABLED  # an enumeration takes 0.2 µs to find it

# What is wrong with the loss's operations, not with its tensors or with what was made of it.
_UNTRACED = (ResultError, StateChangeError, TooLargeError, TraceError, UnsupportedOpError, ValueBranchError)


@contextlib.contextmanager
def _telling_apart(name: str) -> Iterator[None]:
    """What cannot be part of the key of a call is an error of ours."""
    try:
        yield
    except ArgumentsError:
        raise
    except (TypeError, RecursionError) as fault:
        raise UnknownCallError(name, cause=fault) from fault


class Dispatcher:
    """A loss function, what was compiled of it, and how its calls are known again.

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
        self._parameters = tuple(self.signature.parameters)
        self._handwritten: Callable[[], Handwritten] | None = options.handwritten
        self._label = graphs.label(name, options)
        self.compilations = Compilations(options)
        self._planner = Planner(self.compilations, options)
        self._said: set[str] = set()
        self._sites = Sites()
        self._executed: frozenset[CodeType] = frozenset()  # once the loss has been seen to reach too much
        self._misread: frozenset[str] = frozenset()  # names that the loss reads, though it did not seem so
        self._has_looked_wide = False

    def __reduce__(self) -> tuple[Any, ...]:
        """What pickles functions by value (cloudpickle) pickles this with them: what was compiled stays behind."""
        return Dispatcher, (self.function, self.name, self.options)

    @graphs.passed
    def __call__(
        self,
        module: torch.nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
    ) -> Any:
        """Run the loss; `module` is its `self` if it is a method."""
        policy = resolve(self.options.policy)
        if policy is _DISABLED or is_replaying():
            return self._eager(module, args, kwargs)
        if availability.is_transformed():
            return self._transformed(module, args, kwargs, name, is_required=policy is Policy.MANDATORY)
        site = self._sites.known(module)
        # Shortcuts of a loss that has handwritten kernels lead to these.
        is_first = self._handwritten is None or policy is not Policy.AGGRESSIVE
        if site is not None and site.shortcuts and is_first and not self.options.retraces:
            try:
                result = self._short(site, module, args, kwargs)
            except (CompileError, InternalError):  # which is dealt with below
                site.shortcuts.clear()
            else:
                if result is IN_TORCH:
                    if policy is not Policy.MANDATORY:
                        return self._eager(module, args, kwargs)
                elif result is not MISSING:
                    return result
        result = self._long(module, args, kwargs, name or self.name, policy)
        return self._eager(module, args, kwargs) if result is IN_TORCH else result

    @graphs.unseen
    def _long(
        self,
        module: torch.nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        policy: Policy,
    ) -> Any:
        """Take a call apart, and run the loss on kernels; `IN_TORCH` if torch has to."""
        if replaced.begun != replaced.ended and availability.is_traced(args, kwargs):
            return IN_TORCH  # the trace waits for it, and could not be waited for
        try:
            binding, decision = self.prepare(module, args, kwargs, name)
        except ArgumentsError as fault:
            decision = Decision(error=UnknownCallError(name, cause=fault))
        except UnknownCallError as fault:
            decision = Decision(error=fault)
            self.say(name, fault.reason)
        else:
            if not self.options.retraces:  # learnt from what has not been changed yet
                self._planner.learn(self._sites.of(module), binding, decision, module, args, kwargs)
        error = decision.error
        if decision.kernels is not None:
            needs = needs_gradient(binding)
            failed = functools.partial(self.refuse, key_of(binding, binding.tensors), policy)
            try:
                return run(decision.kernels, binding, decision.sizes, needs, failed, decision.found)
            except (CompileError, InternalError) as refused:
                error = failed(refused)
        if policy is Policy.MANDATORY and error is not None:
            if isinstance(error, (TraceError, RefusedError, UnknownCallError)):
                self._eager(module, args, kwargs)  # a fault of the call itself is torch's to report
            raise error.with_traceback(None)  # that of an earlier call would keep its tensors alive
        return IN_TORCH

    def _transformed(
        self,
        module: torch.nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None,
        *,
        is_required: bool,
    ) -> Any:
        """Run the loss where torch transforms the call; a graph of `torch.compile` may have kernels, no other."""
        if not torch.compiler.is_dynamo_compiling() or graphs.is_exporting():
            return self._eager(module, args, kwargs)

        def formula() -> Any:
            return self._eager(module, args, kwargs)

        def call() -> Any:
            return self(module, args, kwargs, name)

        def marked() -> Any:
            return self._eager(module, *arguments_of(self._label, self._parameters, module, args, kwargs))

        return graphs.traced(
            formula,
            call,
            self._label,
            marked=formula if self._handwritten is None else marked,
            is_op=not self.options.retraces,
            is_required=is_required,
        )

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
            ArgumentsError: the arguments do not fit the signature.
            UnknownCallError: some of them, or of what the loss reads, cannot be looked up, or is nested too deep.
            ValueError: a variable of the environment is not understood.
        """
        if self.options.fault:
            raise ValueError(self.options.fault)
        while True:
            before = replaced.settled()
            with _telling_apart(name):
                binding = self.bind(module, args, kwargs, is_call=is_call)
            if replaced.begun != before:  # some of what was found may be another thread's
                continue
            with _telling_apart(name):
                decision = self.decide(binding, module, name)
            if binding.ran <= self._executed and binding.misread <= self._misread:
                if is_call and self.options.static_graph:
                    self._require_graph(decision, binding, name, module, args, kwargs)
                return binding, decision
            self._executed |= binding.ran
            self._misread |= binding.misread

    def _require_graph(
        self,
        decision: Decision,
        binding: Binding,
        name: str,
        module: torch.nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Compare the graph of a call with that of the first one that was compiled.

        Raises:
            GraphChangedError: it is another one, or there is none any more.
        """
        kernels, error = decision.kernels or decision.unused, decision.error
        known = self._sites.of(module).graphs
        if kernels is None and isinstance(error, _UNTRACED) and tuple(needs_gradient(binding)) in known:
            if isinstance(error, TraceError):
                self._eager(module, args, kwargs)  # a fault of the call itself is torch's to report
            raise GraphChangedError(name, f"it cannot be traced any more: {error.reason}")
        graph = kernels.graph if kernels is not None else None
        if graph is None:
            return
        first = known.setdefault(tuple(needs_gradient(binding)), graph)
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
        """Take a call apart. A number that has changed twice is no part of the key any more: kernels are given it.

        Raises:
            TypeError: the arguments do not fit the signature.
        """
        history = self._sites.of(module).history
        is_call = is_call and not self.options.retraces and not self.options.static_graph  # for which others are errors
        again = functools.partial(
            bind, self.function, self.signature, module, args, kwargs, executed=self._executed, read=self._misread
        )
        binding = again(history.varying)
        if binding.state.is_endless and self._may_look_wide(binding):
            self._has_looked_wide = True
            return again(history.varying, is_wide=True)  # so that all that the loss changes is known, and put back
        with torch._C.DisableTorchFunctionSubclass():  # a class of the user's may refuse to be asked
            is_double = any(tensor.dtype == torch.float64 for tensor in binding.tensors)
        if is_double:  # Triton takes numbers in single precision
            return again() if binding.numbers else binding
        numbers = binding.fixed
        if self._handwritten is not None:  # which takes integers as they are
            numbers = {name: number for name, number in numbers.items() if isinstance(number, float)}
        if is_call and not binding.state.asks_for_types and history.note(numbers):
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

    @graphs.unseen
    def _short(self, site: Site, module: torch.nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the loss if it is known from an earlier call how; `IN_TORCH` if torch has to, and else `MISSING`."""
        before = replaced.begun
        for each in site.shortcuts:
            reading = each.read(module, args, kwargs)
            if reading is None:
                continue
            if not before == replaced.begun == replaced.ended:
                return MISSING  # another thread replays: the long way waits for it
            tensors, known, values = reading
            way = self._planner.plan(each, known, tensors, values, site) if isinstance(known, tuple) else known
            if isinstance(way, Plan):
                if values or way.by_values:
                    way = way.taken(tensors, values) or self._planner.branch(each, tensors, values, site, way)
                else:
                    way = way, None, ()
            if not isinstance(way, tuple):
                return MISSING if way is None else way
            plan, sizes, found = way
            if plan.is_simple:
                if plan.needs_gradient:
                    return apply_short((plan, sizes, values, each, module, self, None), *tensors, *found)
                return plan.prepared.forward((*tensors, *found), sizes)[0]
            if plan.state is not None and shared_memory(plan.state, each.names, tensors) is not None:
                return MISSING
            given = plan.given(tensors, found) if found or plan.copied or plan.cut else tensors
            returned = run_short((plan, sizes, values, each, module, self), given)
            own = sizes or plan.prepared.sizes
            result = returned if plan.returns_tensor else plan.loss.result(returned, own, tensors)
            if plan.state is not None:
                keep(plan.state, each.places, (), tensors, returned, own, result)
            return result
        return MISSING

    def replay_again(
        self,
        plan: Plan,
        shortcut: Shortcut,
        module: torch.nn.Module | None,
        values: Sequence[Any],
        tensors: Sequence[torch.Tensor],
    ) -> Any:
        """Run, as torch would, the loss of a call that took a shortcut."""
        own = tensors[: len(shortcut.names)]  # without what was found ahead
        given = apart(plan.loss.state, own, len(own))
        for k in plan.parameters:
            make_parameter(given[k])
        with unheard(plan.loss.state):
            return shortcut.replay(given, values, functools.partial(self._eager, module))

    def decide(self, binding: Binding, module: torch.nn.Module | None, name: str) -> Decision:
        """How a call is to run; compiles what is not compiled yet."""
        try:
            availability.require(self._planner.on_device(binding.names, binding.tensors))
        except AutogenError as error:
            self.say(name, error.reason)
            return Decision(error=error)
        if self._handwritten is None:
            return self.compilations.decide(binding, name)
        generator_first = resolve(self.options.policy) is Policy.AGGRESSIVE
        decision = self.compilations.decide(binding, name) if generator_first else None
        if decision is None or decision.kernels is None:
            found = self.handwritten(binding, module)
            if not isinstance(found, str):
                kernels, bound = found
                self.say(name, kernels.reason)
                return Decision(kernels, bound.sizes, bound.found)
            decision = decision or self.compilations.decide(binding, name)
            if decision.kernels is None:
                return Decision(error=RefusedError(name, found))
        return decision

    def handwritten(self, binding: Binding, module: torch.nn.Module | None) -> tuple[BoundHandwritten, Bound] | str:
        """The call on handwritten kernels, and what is read for it; or why it cannot run on any."""
        if self._handwritten is None:
            return "this loss: it has none"
        from autogen.runtime.handwritten import bind_handwritten

        return bind_handwritten(self._handwritten(), binding, module, needs_gradient(binding))

    def say(self, name: str, reason: str) -> None:
        """Log a decision that is made anew at each call, once."""
        if reason not in self._said:
            self._said.add(reason)
            logger.info("%s: %s", name, reason)

    def refuse(self, key: Hashable, policy: Policy, error: AutogenError) -> AutogenError:
        """What was generated cannot be compiled, or a kernel not be printed: such calls run in torch from now on.

        Raises:
            AutogenError: `error`, under the policy "mandatory".
        """
        self._sites.forget_shortcuts()
        if self.compilations.of(key) or error.reason not in self._said:
            self._said.add(error.reason)
            logger.warning("%s runs in torch: %s", self.name, error.reason, exc_info=error)
            self.compilations.refuse(key, error)
        if policy is Policy.MANDATORY:
            raise error.with_traceback(None)
        return error

    @graphs.passed
    def _eager(self, module: torch.nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.function(*args, **kwargs) if module is None else self.function(module, *args, **kwargs)


def _make_operator() -> Any:
    from autogen.dynamo.captured import make_operator

    return make_operator(Dispatcher)


graphs.make_operator = _make_operator
