"""Run calls of losses that have handwritten kernels."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from autogen.dispatch.fast import FastPath
from autogen.errors import UnavailableError
from autogen.runtime.availability import has_kernels, is_differentiable, require
from autogen.runtime.handwritten import BoundHandwritten, Found, Handwritten, bind_handwritten
from autogen.runtime.handwritten_prepared import PreparedHandwritten, UnpreparedHandwritten
from autogen.runtime.prepared import make_room
from autogen.runtime.replays import Settings
from autogen.runtime.segments import apply_of

_MOST_PLANS = 64  # kinds of calls whose launches are kept


class HandwrittenCalls:
    """The calls of one loss on its handwritten kernels.

    Args:
        function: what computes the loss in torch.
        name: the loss's name.
        is_method: whether it takes a module first.
        make: makes the kernels.
    """

    def __init__(
        self, function: Callable[..., Any], name: str, is_method: bool, make: Callable[[], Handwritten]
    ) -> None:
        self.function, self.name, self.signature = function, name, inspect.signature(function)
        self.apply = apply_of(name)
        self._is_method, self._make = is_method, make
        self._plans: dict[Any, Any] = {}
        self._seen: set[int] = set()

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, anywhere: bool = False
    ) -> tuple[BoundHandwritten, Found, list[torch.Tensor]] | str:
        """A call's kernels, what is read on the host for them, and its tensors; or why there are none.

        If they are for `anywhere`, they need not run here.
        """
        if not anywhere and not has_kernels():
            return "Triton cannot run here"
        loss = self._make()
        module = args[0] if self._is_method else None
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if value is not module or module is None}
        taken = {name: arguments.get(name, getattr(module, name, default)) for name, default in loss.defaults.items()}
        tensors = {name: each for name, each in taken.items() if isinstance(each, torch.Tensor)}
        try:
            if not anywhere:
                require([each for name, each in tensors.items() if name not in loss.on_host])
        except UnavailableError as error:
            return error.reason
        needs = [is_differentiable() and each.requires_grad for each in tensors.values()]
        found = bind_handwritten(loss, taken, tensors, module, needs)
        return found if isinstance(found, str) else (*found, list(tensors.values()))

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any], fast: FastPath | None = None) -> Any:
        """Run a call; NotImplemented if there are no kernels for it.

        Calls like it are noted in the `fast` path, as far as values on the host have no say in them.
        """
        bound = self.bind(args, kwargs)
        if isinstance(bound, str):
            return NotImplemented
        kernels, found, tensors = bound
        tensors = [*tensors, *found.tensors]
        prepared = self._prepared(kernels, tensors, found.sizes)
        connected = [
            each.detach() if cut and each.requires_grad else each
            for each, cut in zip(tensors, kernels.unconnected, strict=True)
        ]
        is_constant = kernels.found is None and all(map(operator.is_, connected, tensors))
        segment_of = partial(_Segment, self, kernels.names)
        if fast is not None and is_constant and isinstance(prepared, PreparedHandwritten):
            fast.note(args, kwargs, tensors, prepared, self.apply if kernels.wanted else None, segment_of=segment_of)
        if not kernels.wanted:
            with torch.no_grad():
                return prepared.forward(tensors, found.sizes)[0]
        return self.apply((prepared, found.sizes, segment_of(args, kwargs), (), []), *connected)

    def _prepared(self, kernels: BoundHandwritten, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> Any:
        """Launches for tensors of one geometry; those that come first are not kept."""
        geometry = tuple((each.shape, each.stride(), each.dtype, each.device) for each in tensors)
        key = (kernels.key, geometry, tuple(sizes.items()))
        prepared = self._plans.get(key)
        if prepared is None:
            if hash(key) not in self._seen:
                self._seen.add(hash(key))
                return UnpreparedHandwritten(kernels, sizes, self.name)
            make_room(_MOST_PLANS, self._plans)
            prepared = self._plans[key] = PreparedHandwritten(kernels, tensors, sizes, self.name)
        return prepared


class _Segment:
    """A call as autograd sees it (compare `autogen.runtime.segments.KernelSegment`)."""

    outputs, only_first, is_random = 1, False, False
    constant: tuple[int, ...] = ()

    def __init__(
        self, calls: HandwrittenCalls, names: tuple[str, ...], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._calls, self._names = calls, names
        # Tensors are what autograd saves.
        self._args = [None if isinstance(each, torch.Tensor) else each for each in args]
        self._kwargs = {name: None if isinstance(each, torch.Tensor) else each for name, each in kwargs.items()}
        self.settings = Settings()

    def fail(self, error: Exception) -> None:
        """Nothing is kept of a kernel that does not compile."""

    def replay(self, numbers: Sequence[Any]) -> Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]:
        """The loss in torch's own operations, as a function of its tensors."""

        def results(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            replaced = dict(zip(self._names, tensors, strict=False))
            bound = self._calls.signature.bind(*self._args, **self._kwargs)
            own = {name: each for name, each in replaced.items() if name in bound.arguments}
            bound.arguments.update(own)
            return [self._calls.function(*bound.args, **bound.kwargs)]

        return results
