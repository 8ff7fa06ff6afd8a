"""A compiled loss as two ops of torch, `autogen::forward` and `autogen::backward`, for the graphs of `torch.compile`.

A graph holds no Python objects, so it names a loss by a *token*. Another process has the same token only for the same
plan, found on disk, of the same formula: so Inductor finds there what it has compiled of the graph, and a graph from a
cache never meets another loss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autogen.errors import CompileError, InternalError
from autogen.runtime.launch import Results, empty
from autogen.runtime.prepared import Prepared
from autogen.runtime.replays import Replayed

if TYPE_CHECKING:
    from autogen.runtime.compiled import CompiledLoss

MOST_GEOMETRIES = 256  # of one loss, whose launches are kept

logger = logging.getLogger("autogen")

_registered: dict[str, OpaqueLoss] = {}


class OpaqueLoss:
    """What a token stands for: a loss's kernels, and `formula`, which computes the same outputs in torch.

    The formula is for calls whose values fail a check of the loss, and for kernels that Triton refuses.
    """

    def __init__(self, compiled: CompiledLoss, formula: Callable[..., Sequence[Tensor]]) -> None:
        self.compiled = compiled
        self.outputs = [each.name for each in compiled.trace.outputs]
        buffers = {k: root.buffer for k, root in zip(compiled.plan.gradient_of, compiled.plan.gradients, strict=True)}
        self.differentiated = sorted(buffers)  # the positions of the tensors that have a gradient
        self.gradients = [buffers[k].name for k in self.differentiated]
        self._results = Results(buffers.values())
        self._formula = formula
        device = compiled.device.type
        self._autocast = device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        self._prepared: dict[tuple[Any, ...], Prepared] = {}
        self._has_kernels = True

    def forward(self, tensors: list[Tensor]) -> list[Tensor]:
        """The outputs, and what is kept for backward."""
        if self._can_launch(tensors):
            try:
                return self._launches(tensors).forward(tensors)
            except (CompileError, InternalError) as error:
                self._give_up(error)
        results = self.empty_results(tensors)
        with self._in_torch():
            outputs = self._formula(*tensors)
        for result, output in zip(results, outputs, strict=False):
            result.copy_(output)
        return results

    def backward(self, tensors: list[Tensor], kept: list[Tensor], upstream: list[Tensor]) -> list[Tensor]:
        """The gradients that there are, for those of all outputs."""
        gradients: list[Tensor | None] | None = None
        if self._can_launch(tensors):
            try:
                gradients = self._launches(tensors).backward([*tensors, *kept], upstream, None)
            except (CompileError, InternalError) as error:
                self._give_up(error)
        if gradients is not None:
            return [gradient for gradient in gradients if gradient is not None]
        wanted = [k in self.differentiated for k in range(len(tensors))]
        with self._in_torch():
            found = Replayed(lambda given: self._formula(*given), None).gradients(tensors, wanted, upstream)
        results = self.empty_gradients(tensors)
        for k, result in zip(self.differentiated, results, strict=True):
            gradient = found[k]
            result.zero_() if gradient is None else result.copy_(gradient)
        return results

    def empty_results(self, tensors: list[Tensor]) -> list[Tensor]:
        """New tensors like those of `forward`."""
        packing = self.compiled.packing(self._sizes(tensors), is_apart=True)
        return [empty(packing.made[name], tensors[0].device) for name in (*self.outputs, *packing.kept)]

    def empty_gradients(self, tensors: list[Tensor]) -> list[Tensor]:
        """New tensors like those of `backward`."""
        made = self._results.geometry(self._sizes(tensors))
        return [empty(made[name], tensors[0].device) for name in self.gradients]

    def _sizes(self, tensors: list[Tensor]) -> dict[str, Any]:
        sizes = self.compiled.sizes_alone(tensors)
        if sizes is None:
            given = ", ".join(f"{tuple(each.shape)} with strides {each.stride()}" for each in tensors)
            raise RuntimeError(f"{self.compiled.plan.name} is compiled for sizes unlike those of its tensors: {given}")
        return sizes

    def _can_launch(self, tensors: list[Tensor]) -> bool:
        """Whether there are kernels, and the values pass the checks of the loss, which look at them on the CPU only."""
        checks = self.compiled.trace.domain.predicates
        return self._has_kernels and (not checks or self.compiled.trace.domain.sizes(tensors) is not None)

    def _launches(self, tensors: list[Tensor]) -> Prepared:
        key = tuple([(tensor.shape, tensor.stride()) for tensor in tensors])
        found = self._prepared.get(key)
        if found is None:
            if len(self._prepared) >= MOST_GEOMETRIES:
                self._prepared.clear()
            found = self._prepared[key] = Prepared(self.compiled, self._sizes(tensors), is_apart=True)
        return found

    def _give_up(self, error: CompileError | InternalError) -> None:
        self._has_kernels = False
        logger.warning("%s runs in torch: %s", self.compiled.plan.name, error.reason, exc_info=error)

    @contextmanager
    def _in_torch(self) -> Iterator[None]:
        """Where torch runs the formula as it was compiled: an op has neither gradients nor autocast inside."""
        device, dtype, is_enabled = self._autocast
        inside = torch._C._dispatch_tls_local_include_set(), torch._C.DispatchKeySet.from_raw_repr(0)
        with torch._C._ForceDispatchKeyGuard(*inside), torch.autocast(device, dtype, is_enabled):
            yield


def register(compiled: CompiledLoss, formula: Callable[..., Sequence[Tensor]]) -> str:
    """The token of a loss: the same one each time."""
    if compiled.token not in _registered:
        _registered[compiled.token] = OpaqueLoss(compiled, formula)
    return compiled.token


def loss_of(token: str) -> OpaqueLoss:
    """The loss that a token stands for.

    Raises:
        RuntimeError: the token comes from another process.
    """
    found = _registered.get(token)
    if found is None:
        raise RuntimeError(f"{token} is a loss of the process that compiled this graph; compile the graph in this one")
    return found


@torch.library.custom_op("autogen::forward", mutates_args=(), tags=(torch.Tag.needs_exact_strides,))
def forward(tensors: list[Tensor], loss: str) -> list[Tensor]:
    """The outputs of a loss, and after them what it keeps for backward."""
    return loss_of(loss).forward(tensors)


@torch.library.custom_op("autogen::backward", mutates_args=(), tags=(torch.Tag.needs_exact_strides,))
def backward(tensors: list[Tensor], kept: list[Tensor], upstream: list[Tensor], loss: str) -> list[Tensor]:
    """The gradients of those tensors that have one, given one for every output."""
    return loss_of(loss).backward(tensors, kept, upstream)


@forward.register_fake
def _(tensors: list[Tensor], loss: str) -> list[Tensor]:
    return loss_of(loss).empty_results(tensors)


@backward.register_fake
def _(tensors: list[Tensor], kept: list[Tensor], upstream: list[Tensor], loss: str) -> list[Tensor]:
    return loss_of(loss).empty_gradients(tensors)


def _keep(ctx: Any, inputs: tuple[list[Tensor], str], output: list[Tensor]) -> None:
    tensors, ctx.loss = inputs
    own = loss_of(ctx.loss)
    count = len(own.outputs)
    constant = [each for each, varies in zip(output, own.compiled.differentiable, strict=False) if not varies]
    ctx.count = len(tensors)
    ctx.set_materialize_grads(False)  # else what is kept would be given gradients
    ctx.mark_non_differentiable(*constant, *output[count:])
    ctx.save_for_backward(*tensors, *output[count:])


def _differentiate(ctx: Any, upstream: list[Tensor | None]) -> tuple[list[Tensor | None], None]:
    saved = list(ctx.saved_tensors)
    tensors, kept = saved[: ctx.count], saved[ctx.count :]
    own = loss_of(ctx.loss)
    arrived = upstream[: len(own.outputs)]
    if any(each is None for each in arrived):
        like = own.empty_results(tensors)
        arrived = [torch.zeros_like(like[k]) if each is None else each for k, each in enumerate(arrived)]
    gradients: list[Tensor | None] = [None] * ctx.count
    for k, gradient in zip(own.differentiated, backward(tensors, kept, arrived, ctx.loss), strict=True):
        gradients[k] = gradient
    return gradients, None


def _refuse(ctx: Any, *upstream: Any) -> None:
    raise RuntimeError("a loss in a compiled graph has no second derivatives; call it outside torch.compile for these")


forward.register_autograd(_differentiate, setup_context=_keep)
backward.register_autograd(_refuse)
