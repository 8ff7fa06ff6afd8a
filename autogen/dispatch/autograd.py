"""A loss's kernels as autograd sees them: their launches, and torch's formula for what they cannot give."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from autogen.availability import has_no_memory, is_functional
from autogen.calls.binding import Binding, Then
from autogen.dispatch.compilations import key_of
from autogen.dispatch.state import Connector, apart, keep, unheard
from autogen.dynamo import graphs
from autogen.errors import CompileError, InternalError
from autogen.policies import resolve
from autogen.runtime.replays import Replayed, stream_of

if TYPE_CHECKING:
    from autogen.runtime.compiled import CompiledLoss
    from autogen.runtime.handwritten import BoundHandwritten

_hooks = torch._C._autograd._top_saved_tensors_default_hooks  # of tensors that are saved, None if there are none


def run(
    kernels: CompiledLoss | BoundHandwritten,
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
        result = kernels.result(outputs, sizes, binding.tensors)
        if state:
            keep(state, binding.state.places, binding.given, binding.tensors, outputs, sizes, result)
        return result
    stream = stream_of(tensors[0].device) if kernels.is_random else None
    given = apart(state, tensors, own)
    again = binding.remember()

    def replay(tensors: Sequence[torch.Tensor], then: Then | None = None) -> Any:
        with unheard(state):
            return again(apart(state, tensors[:own], own), then=then)

    replayed = Replayed(functools.partial(_tensors_of, replay), stream)
    # What the loss has not read may have a graph that is not its own.
    connected = [
        t.detach() if cut and t.requires_grad else t for t, cut in zip(given, kernels.unconnected, strict=True)
    ]
    outputs = _Fused.apply(kernels, replayed, sizes, failed, *connected)
    result = kernels.result(outputs, sizes, binding.tensors)
    if state:
        connect = Connector(replay, stream, given[:own])
        keep(state, binding.state.places, binding.given, binding.tensors, outputs, sizes, result, connect)
    return result


class _Fused(torch.autograd.Function):
    """The kernels of a loss, forward and backward, as autograd sees them."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: CompiledLoss | BoundHandwritten,
        replayed: Replayed,
        sizes: dict[str, int],
        failed: Callable[..., Any],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        outputs, kept = kernels.run_forward(tensors, sizes)
        saved, ctx.early = _split(kept, kernels.early)
        ctx.kernels, ctx.replayed, ctx.sizes, ctx.failed = kernels, replayed, sizes, failed
        ctx.count = len(tensors)
        _save(ctx, (*tensors, *saved), kernels.unread)
        constant = [each for each, varies in zip(outputs, kernels.differentiable, strict=True) if not varies]
        ctx.mark_non_differentiable(*constant)
        ctx.set_materialize_grads(False)  # torch does not go through outputs that nothing arrives for
        return tuple(outputs)

    @staticmethod
    @graphs.unseen
    def backward(ctx: Any, *upstream: torch.Tensor | None) -> Any:
        if _is_nothing(upstream):
            return (None,) * len(ctx.needs_input_grad)
        everything, early = _saved(ctx, ctx.kernels.unread), _taken(ctx)
        tensors, saved = everything[: ctx.count], everything[ctx.count :]
        none, wanted = (None,) * 4, ctx.needs_input_grad[4:]  # of what comes before the tensors
        if not torch.is_grad_enabled() and not is_functional() and not has_no_memory(upstream):
            try:
                gradients = ctx.kernels.run_backward(tensors, (*saved, *early), upstream, ctx.sizes)
                if gradients is not None:
                    return *none, *gradients
            except (CompileError, InternalError) as error:
                ctx.failed(error)
        return *none, *ctx.replayed.gradients(tensors, wanted, upstream)


class _Short(torch.autograd.Function):
    """`_Fused` for calls that took a shortcut: the same launches, prepared.

    Outputs after the first that have no gradient do not go through autograd, for which each takes a µs: they are put in
    the list that ends the `call`.
    """

    @staticmethod
    def forward(ctx: Any, call: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        plan = call[0]
        ctx.set_materialize_grads(False)
        if plan.is_simple:
            output, *kept = plan.prepared.forward(tensors, call[1])
            ctx.call = call
            _save(ctx, (*tensors, *kept))
            return output
        if plan.is_random:
            ctx.stream = stream_of(tensors[0].device)
        results = plan.prepared.forward(tensors, call[1])
        kept = results[plan.outputs :]
        ctx.call = call
        if plan.is_early:
            kept, ctx.early = _split(kept, plan.loss.early)
        _save(ctx, (*tensors, *kept), plan.unread)
        if plan.only_first:  # autograd need not hear of the others
            call[-1].extend(results[1 : plan.outputs])
            return results[0]
        if plan.constant:
            ctx.mark_non_differentiable(*[results[k] for k in plan.constant])
        return plan.outputs_of(results)

    @staticmethod
    @graphs.unseen
    def backward(ctx: Any, *upstream: torch.Tensor | None) -> Any:
        if _is_nothing(upstream):
            return (None,) * len(ctx.needs_input_grad)
        plan, sizes, values, shortcut, module, dispatcher, _ = ctx.call
        saved = _saved(ctx, plan.unread)
        if not torch.is_grad_enabled() and not is_functional():
            try:
                gradients = plan.prepared.backward((*saved, *_taken(ctx)) if plan.is_early else saved, upstream, sizes)
                if gradients is not None:
                    return None, *gradients
            except (CompileError, InternalError) as error:  # of a kernel for another layout of upstream
                key = key_of(shortcut, saved[: len(shortcut.names)], is_enabled=True)
                dispatcher.refuse(key, resolve(dispatcher.options.policy), error)
        replay = functools.partial(dispatcher.replay_again, plan, shortcut, module, values)
        stream = ctx.stream if plan.is_random else None
        replayed = Replayed(functools.partial(_tensors_of, replay), stream, plan.settings)
        wanted = ctx.needs_input_grad[1:]
        return None, *replayed.gradients(saved[: len(wanted)], wanted, upstream)


def _is_nothing(upstream: Sequence[torch.Tensor | None]) -> bool:
    """Whether what follows the loss has handed over no gradient at all."""
    return upstream[0] is None and all(each is None for each in upstream)


def run_short(call: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> Any:
    """The outputs of a call by a shortcut; one that is all the loss returns, alone."""
    plan, sizes = call[:2]
    if not plan.needs_gradient:
        return plan.outputs_of(plan.prepared.forward(tensors, sizes))
    constant: list[torch.Tensor] = []
    returned = apply_short((*call, constant), *tensors)
    if not plan.only_first or plan.returns_tensor:
        return returned
    outputs = returned, *constant
    constant.clear()  # which the graph keeps
    return outputs


def _split(kept: list[torch.Tensor], early: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What is saved for backward, and forward's gradients, which are not: autograd may make them its own."""
    return (kept[:-early], kept[-early:]) if early else (kept, [])


def _save(ctx: Any, tensors: Sequence[torch.Tensor], unread: Sequence[int] = ()) -> None:
    """Save tensors for backward. What is `unread` may change until then, be gone, or have not been there before."""
    if unread:
        ctx.unread = [(weakref.ref(tensors[k]), tensors[k].shape, tensors[k].dtype) for k in unread]
        tensors = [tensor for k, tensor in enumerate(tensors) if k not in unread]
    ctx.save_for_backward(*tensors)
    # A hook may give back tensors that lie otherwise, as that of `save_on_cpu` does.
    ctx.strides = [tensor.stride() for tensor in tensors] if _hooks(False) is not None else None


def _saved(ctx: Any, unread: Sequence[int]) -> Sequence[torch.Tensor]:
    """The tensors that were saved, as they lay in memory then."""
    saved: Sequence[torch.Tensor] = ctx.saved_tensors
    if ctx.strides is not None:
        from autogen.torch_step import laid_out  # imports sympy

        saved = list(map(laid_out, saved, ctx.strides))
    if unread:
        saved = list(saved)
        for k, (kept, shape, dtype) in zip(unread, ctx.unread, strict=True):
            tensor = kept()
            saved.insert(k, saved[0].new_empty((), dtype=dtype).expand(shape) if tensor is None else tensor)
    return saved


def _taken(ctx: Any) -> list[torch.Tensor]:
    """The gradients that forward has computed, once: whoever gets them may write to them."""
    early: list[torch.Tensor] = getattr(ctx, "early", [])
    ctx.early = []
    return early


# `Function.apply` looks first whether torch.func transforms the call, which dispatch has done.
apply_short = super(torch.autograd.Function, _Short).apply
# What autograd calls would look each time whether the class has a `backward` or a `vjp`.
if hasattr(_Short, "_backward_cls"):
    _Short._backward_cls.apply = _Short.backward  # type: ignore[attr-defined]


def _tensors_of(loss: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that a loss makes and returns; the numbers that come after them among the outputs are none."""
    from autogen.tracing.results import flattened, made_and_given

    return made_and_given(flattened(loss(tensors))[0], tensors)[0]
