"""Choose what runs a call of a decorated loss: torch, handwritten kernels, or a capture of Dynamo's.

In this order: the policy "disabled"; calls that torch transforms; the fast path; arguments or devices without kernels;
handwritten kernels; and Dynamo, by way of a `Site`. `explain` goes the same way (`autogen.report.explaining`), so that
a new branch here needs one there.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from autogen import compat
from autogen.dispatch import watch
from autogen.dispatch.fallbacks import Fallbacks
from autogen.dispatch.fast import FastPath
from autogen.errors import UnavailableError
from autogen.runtime.availability import (
    PLAIN_TYPES,
    has_interpreter,
    has_kernels,
    is_transformed,
    refusal_of,
    refusal_of_class,
)
from autogen.settings.options import PLAIN, Options
from autogen.settings.policies import Policy, in_torch, resolve

if TYPE_CHECKING:  # what takes long to import comes with the first call
    from autogen.dispatch.handwritten import HandwrittenCalls
    from autogen.dispatch.site import Site

_MOST_SITES = 256  # sets of constants that have captures of their own


class Dispatcher:
    """The way of each call of one decorated loss.

    Args:
        function: what computes the loss in torch.
        name: the loss's name.
        options: what was asked for when it was decorated.
        owner: the class of modules whose `forward` it is, which takes the module first; None of other functions.
    """

    def __init__(
        self, function: Callable[..., Any], name: str, options: Options = PLAIN, owner: type | None = None
    ) -> None:
        self.function, self.name, self.options, self.owner = function, name, options, owner
        self.fallbacks = Fallbacks()
        self._sites: dict[Hashable, Site] = {}
        self._of_module: weakref.WeakKeyDictionary[torch.nn.Module, dict[Hashable, Site]] = weakref.WeakKeyDictionary()
        self.fast = FastPath(owner is not None) if options.reads == "arguments" and not options.static_graph else None
        self._wrap, self._wrap_mandatory = _wrapping(self, mandatory=False), _wrapping(self, mandatory=True)

    @cached_property
    def handwritten(self) -> HandwrittenCalls | None:
        """The loss's handwritten kernels, if it has any."""
        if self.options.handwritten is None:
            return None
        from autogen.dispatch.handwritten import HandwrittenCalls

        return HandwrittenCalls(self.function, self.name, self.owner is not None, self.options.handwritten)

    def __reduce__(self) -> tuple[Any, ...]:
        """What was captured stays behind."""
        return Dispatcher, (self.function, self.name, self.options, self.owner)

    @cached_property
    def signature(self) -> inspect.Signature:
        """What the loss takes."""
        return inspect.signature(self.function)

    @property
    def captures(self) -> int:
        """How often the loss was captured."""
        sites = {*self._sites.values(), *(each for known in self._of_module.values() for each in known.values())}
        return sum(site.captures for site in sites)

    def name_of(self, args: Sequence[Any]) -> str:
        """The loss's name in a call, whose module may be of a derived class."""
        return self.name if self.owner is None else type(args[0]).__name__

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a call."""
        policy = resolve(self.options.policy)
        if policy is Policy.DISABLED:
            return in_torch(self.function, *args, **kwargs)
        if is_transformed():
            return self.function(*args, **kwargs)
        # A derived class may read more than its base does.
        fast = self.fast if self.owner is None or args[0].__class__ is self.owner else None
        handwritten = self.handwritten
        if handwritten is not None and policy is Policy.AGGRESSIVE:
            fast = handwritten = None
        if fast is not None and not self.options.retraces:
            found = fast.find(args, kwargs)
            if found is not None:
                return found[0].run(found[1], args, kwargs)
        if self.options.fault:
            raise ValueError(self.options.fault)
        refusal = self.refusal(args, kwargs)
        if refusal is not None:
            if policy is Policy.MANDATORY:
                raise refusal
            return self.function(*args, **kwargs)
        if handwritten is not None:
            result = handwritten.run(args, kwargs, fast)
            if result is not NotImplemented:
                return result
        site = self.site(args, kwargs, self.name_of(args), mandatory=policy is Policy.MANDATORY)
        return site(*args, **kwargs) if fast is None else fast.learn(site, args, kwargs)

    def inside(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The loss where torch traces it: an operator of the graph of `torch.compile`, else as torch computes it."""
        policy = resolve(self.options.policy)
        if policy is Policy.DISABLED:
            return in_torch(self.function, *args, **kwargs)
        if not torch.compiler.is_dynamo_compiling():
            return self.function(*args, **kwargs)
        wrap = self._wrap_mandatory if policy is Policy.MANDATORY else self._wrap
        return compat.as_operator(wrap, self.function, *args, **kwargs)

    def look(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        anywhere: bool = False,
        mandatory: bool | None = None,
    ) -> tuple[list[watch.Run], str | None]:
        """The segments that a call would run, and why torch has refused the function, if it has.

        Of several, all but the last are run; `anywhere` captures the call apart, for any device, and torch runs them.
        Whether kernels are `mandatory`, the policy says by default.
        """
        if mandatory is None:
            mandatory = resolve(self.options.policy) is Policy.MANDATORY
        if anywhere:
            site = self._new_site(name, mandatory=mandatory, runs=False, is_of_kind=self.fast is not None)
        else:
            site = self.site(args, kwargs, name, mandatory=mandatory)
        with watch.watching(stops=True) as runs, contextlib.suppress(watch.Stopped):
            site(*args, **kwargs)
        return runs, site.reason

    def refusal(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> UnavailableError | None:
        """Why no kernel can run on a call, as far as its arguments tell; None if they do not."""
        refusals = (refusal_of_class(type(each)) for each in (*args, *kwargs.values()))
        found = next((each for each in refusals if each is not None), None)
        if found is not None:
            return found
        if self.options.cpu == "inductor" or has_interpreter():
            return None
        first = next((each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)), None)
        kind = "cuda" if first is None else first.device.type
        return refusal_of(kind if has_kernels() else "cpu")

    def site(self, args: Sequence[Any], kwargs: Mapping[str, Any], name: str, *, mandatory: bool) -> Site:
        """Where the captures of a module, or of the function, are.

        Of a loss that reads nothing but its arguments, each kind of these has a place, and so a budget, of its own.
        """
        module = None if self.owner is None else args[0]
        if self.fast is not None:
            kinds = (*map(_kind_of, args), *((key, _kind_of(each)) for key, each in kwargs.items()))
            constants = () if module is None else _constants_of(module)
            return self._site((constants, kinds), name, mandatory=mandatory)
        if module is None:
            return self._site((), name, mandatory=mandatory)
        known = self._of_module.get(module)
        kind = mandatory, compat.is_loss_parallel()
        site = None if known is None else known.get(kind)
        if site is None:
            if self.options.static_graph:  # of each module
                site = self._new_site(name, mandatory=mandatory)
            else:
                site = self._site(_constants_of(module), name, mandatory=mandatory)
            self._of_module.setdefault(module, {})[kind] = site
        return site

    def _site(self, constants: Hashable, name: str, *, mandatory: bool) -> Site:
        key = (constants, name, mandatory, compat.is_loss_parallel())  # which Dynamo does not guard
        if key not in self._sites and len(self._sites) >= _MOST_SITES:
            key = (None, *key[1:])
        site = self._sites.get(key)
        if site is None:
            is_of_kind = self.fast is not None and key[0] is not None
            site = self._sites[key] = self._new_site(name, mandatory=mandatory, is_of_kind=is_of_kind)
        return site

    def _new_site(self, name: str, *, mandatory: bool, runs: bool = True, is_of_kind: bool = False) -> Site:
        from autogen.dispatch.site import Site  # which imports the compiler

        return Site(
            self.function, name, self.options, self.fallbacks, mandatory=mandatory, runs=runs, is_of_kind=is_of_kind
        )


def _wrapping(loss: Dispatcher, *, mandatory: bool) -> Callable[[Any], Callable[..., Any]]:
    """What makes of a loss's function, or of its graph, a function that runs it; see `compat.as_operator`.

    It is an error if kernels are `mandatory`, and a graph has none.
    """

    def wrap(function: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if isinstance(function, torch.fx.GraphModule):
                from autogen.dispatch.inside import run_graph

                return run_graph(function, args, loss.name, loss.options, mandatory=mandatory)
            return loss(args, kwargs)

        return run

    wrap.is_mandatory = mandatory  # type: ignore[attr-defined]
    return wrap


def _constants_of(module: torch.nn.Module) -> Hashable:
    """The plain attributes that a module has when it is first called."""
    own = {name: value for name, value in vars(module).items() if type(value) in PLAIN_TYPES and name != "training"}
    return type(module), *((name, type(value), value) for name, value in sorted(own.items()))


def _kind_of(argument: Any) -> Hashable:
    """What decides which graph a loss is, of one argument: of a tensor, all but its sizes and values."""
    if isinstance(argument, torch.Tensor):
        return torch.Tensor, argument.dtype, argument.dim(), argument.device, argument.requires_grad
    kind: type = type(argument)
    return (kind, argument) if kind in PLAIN_TYPES else kind
