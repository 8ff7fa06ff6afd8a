"""Dispatch: which way a call of a loss takes, and taking it.

A loss that has been compiled for the class of its inputs is launched; an unknown class is compiled first; what cannot
be compiled runs in torch, and the reason is kept so that nobody tries again.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from autogen import availability
from autogen.binding import Binding, bind, is_replaying
from autogen.errors import AutogenError, CompileError, InternalError, TraceError
from autogen.policies import Policy, resolve

if TYPE_CHECKING:
    from autogen.compiler import CompiledLoss

logger = logging.getLogger("autogen")

_compiling = threading.RLock()


@dataclass(frozen=True)
class Decision:
    """How a call runs: with generated kernels, or in torch for a reason."""

    compiled: CompiledLoss | None
    sizes: dict[str, int] | None
    error: AutogenError | None
    reason: str

    @property
    def path(self) -> str:
        """The path's name in reports."""
        return "generated" if self.compiled is not None else "eager"


class Dispatcher:
    """A loss function and everything that was compiled for it.

    Args:
        function: the loss as the user wrote it: a function, or a module's `forward`.
        name: what to call it.
        policy: the object's own policy, if it has one.
    """

    def __init__(self, function: Callable[..., Any], name: str, policy: Policy | str | None = None) -> None:
        self.function = function
        self.name = name
        self.policy = None if policy is None else Policy(policy)
        self.signature = inspect.signature(function)
        self._compiled: dict[Hashable, list[CompiledLoss]] = {}
        self._refused: dict[Hashable, list[AutogenError]] = {}
        self._said: set[str] = set()

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
            binding = bind(self.function, self.signature, module, args, kwargs)
        except TypeError:
            return self._eager(module, args, kwargs)  # which raises it as the user expects
        decision = self.decide(binding, name or self.name)
        error = decision.error
        if decision.compiled is not None:
            try:
                return run(decision.compiled, binding, decision.sizes or {})
            except CompileError as refused:
                error = self._refuse(binding, refused)
        if policy is Policy.MANDATORY and error is not None:
            if isinstance(error, TraceError):
                self._eager(module, args, kwargs)  # a fault of the call itself is torch's to report
            raise error
        return self._eager(module, args, kwargs)

    def decide(self, binding: Binding, name: str) -> Decision:
        """How a call is to run; compiles what is not compiled yet."""
        try:
            availability.require(binding.tensors)
        except AutogenError as error:
            if error.reason not in self._said:
                self._said.add(error.reason)
                logger.info("%s runs in torch: %s", name, error.reason)
            return Decision(None, None, error, error.reason)
        needs = needs_gradient(binding)
        key = self._key(binding, needs)
        for compiled in self._compiled.get(key, ()):
            sizes = compiled.trace.domain.sizes(binding.tensors)
            if sizes is not None:
                return Decision(compiled, sizes, None, _GENERATED)
        for refused in self._refused.get(key, ()):
            if refused.domain is None or refused.domain.sizes(binding.tensors) is not None:
                return Decision(None, None, refused, refused.reason)
        with _compiling:
            return self._compile(binding, needs, key, name)

    def _compile(self, binding: Binding, needs: Sequence[bool], key: Hashable, name: str) -> Decision:
        from autogen.compiler import compile_loss

        error: AutogenError
        try:
            compiled = compile_loss(name, binding, needs)
        except AutogenError as refused:
            error = refused
        except Exception as fault:  # a defect here must not stop a training run; it is logged as what it is
            error = InternalError(name, cause=fault)
        else:
            self._compiled.setdefault(key, []).append(compiled)
            launches = f"{len(compiled.forward)} + {len(compiled.backward())}"
            logger.info("%s runs on generated kernels: %s launches, forward + backward", name, launches)
            return Decision(compiled, compiled.trace.domain.sizes(binding.tensors), None, _GENERATED)
        level = logging.WARNING if isinstance(error, InternalError) else logging.INFO
        logger.log(
            level, "%s runs in torch: %s", name, error.reason, exc_info=error if level == logging.WARNING else None
        )
        self._refused.setdefault(key, []).append(_without_frames(error))
        return Decision(None, None, error, error.reason)

    def _refuse(self, binding: Binding, error: CompileError) -> CompileError:
        """Triton does not compile what was generated: such calls run in torch from now on."""
        key = self._key(binding, needs_gradient(binding))
        self._compiled.pop(key, None)
        logger.warning("%s runs in torch: %s", self.name, error.reason, exc_info=error)
        self._refused.setdefault(key, []).append(_without_frames(error))
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


def _without_frames(error: AutogenError) -> AutogenError:
    """An error that keeps no tensors of the call alive."""
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error


_GENERATED = "every operation of the loss has a kernel"


def needs_gradient(binding: Binding) -> list[bool]:
    """Which tensors of a call are to be differentiated."""
    enabled = torch.is_grad_enabled()
    return [enabled and tensor.requires_grad for tensor in binding.tensors]


def run(compiled: CompiledLoss, binding: Binding, sizes: dict[str, int]) -> Any:
    """Launch a compiled loss on a call; returns what the loss returns."""
    if any(needs_gradient(binding)):
        outputs = _Generated.apply(compiled, binding.replay, sizes, *binding.tensors)
    else:
        with torch.no_grad():
            outputs, _ = compiled.run_forward(binding.tensors, sizes)
    return compiled.trace.result(outputs)


class _Generated(torch.autograd.Function):
    """A generated forward and backward, as autograd sees them."""

    @staticmethod
    def forward(
        ctx: Any,
        compiled: CompiledLoss,
        replay: Callable[[Sequence[torch.Tensor]], Any],
        sizes: dict[str, int],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        outputs, saved = compiled.run_forward(tensors, sizes)
        ctx.compiled, ctx.replay, ctx.sizes, ctx.count = compiled, replay, sizes, len(tensors)
        ctx.save_for_backward(*tensors, *saved)
        constant = [o for o, up in zip(outputs, compiled.trace.upstream, strict=True) if up is None]
        ctx.mark_non_differentiable(*constant)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[Any, ...]:
        everything = ctx.saved_tensors
        tensors, saved = everything[: ctx.count], everything[ctx.count :]
        if torch.is_grad_enabled():
            return None, None, None, *_differentiable_backward(ctx, tensors, upstream)
        return None, None, None, *ctx.compiled.run_backward(tensors, saved, upstream, ctx.sizes)


def _differentiable_backward(
    ctx: Any, tensors: Sequence[torch.Tensor], upstream: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The gradients by torch's formula, so that they can be differentiated again."""
    returned = torch.utils._pytree.tree_leaves(ctx.replay(tensors))
    results = [leaf for leaf in returned if isinstance(leaf, torch.Tensor)]
    pairs = [(r, u) for r, u in zip(results, upstream, strict=True) if r.requires_grad]
    wanted = [k for k, tensor in enumerate(tensors) if ctx.needs_input_grad[3 + k]]
    gradients: list[torch.Tensor | None] = [None] * len(tensors)
    found = torch.autograd.grad(
        [r for r, _ in pairs],
        [tensors[k] for k in wanted],
        [u for _, u in pairs],
        create_graph=True,
        allow_unused=True,
    )
    for k, gradient in zip(wanted, found, strict=True):
        gradients[k] = gradient
    return gradients
