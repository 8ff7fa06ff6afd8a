"""Losses with kernels as two ops of torch, `autogen::forward` and `autogen::backward`, for graphs of `torch.compile`.

A graph holds no Python objects, so it names a loss by a *token*. Another process has the same token only for the same
plan, found on disk, of the same formula, or for the same handwritten kernels with the same options: so Inductor finds
there what it has compiled of the graph, and a graph from a cache never meets another loss.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autogen.errors import CompileError, InternalError
from autogen.runtime.handwritten import BoundHandwritten
from autogen.runtime.handwritten_prepared import PreparedHandwritten
from autogen.runtime.launch import Results, empty
from autogen.runtime.prepared import Prepared
from autogen.runtime.replays import Replayed

if TYPE_CHECKING:
    from autogen.runtime.compiled import CompiledLoss

MOST_GEOMETRIES = 256  # of one loss, whose launches are kept

logger = logging.getLogger("autogen")

_registered: dict[str, OpaqueLoss] = {}


class OpaqueLoss(ABC):
    """What a token stands for: a loss's kernels, and `formula`, which computes the same outputs in torch.

    The formula is for calls whose values fail a check of the loss, and for kernels that Triton refuses.
    `differentiable` says which outputs have a gradient; `differentiated` are the positions of the tensors with one.
    """

    name: str
    differentiable: Sequence[bool]
    differentiated: Sequence[int]

    def __init__(self, device: torch.device, formula: Callable[..., Sequence[Any]]) -> None:
        self._formula = formula
        self._autocast = _autocast_of(device)
        self._prepared: dict[Hashable, Prepared | PreparedHandwritten] = {}
        self._has_kernels = True

    @abstractmethod
    def empty_results(self, tensors: list[Tensor]) -> list[Tensor]:
        """New tensors like those of `forward`."""

    @abstractmethod
    def empty_gradients(self, tensors: list[Tensor]) -> list[Tensor]:
        """New tensors like those of `backward`."""

    @abstractmethod
    def _passes(self, tensors: list[Tensor]) -> bool:
        """Whether values pass the checks of the loss, which look at them on the CPU only."""

    @abstractmethod
    def _prepare(self, tensors: list[Tensor]) -> Prepared | PreparedHandwritten | None:
        """The launches for tensors like these; None if the kernels are not made for them."""

    def forward(self, tensors: list[Tensor]) -> list[Tensor]:
        """The outputs, and what is kept for backward."""
        try:
            launches = self._launches(tensors)
            if launches is not None:
                return launches.forward(tensors)
        except (CompileError, InternalError) as error:
            self._give_up(error)
        results = self.empty_results(tensors)
        with self._as_compiled():
            outputs = self._in_torch(tensors)
        for result, output in zip(results, outputs, strict=False):
            result.copy_(output)
        return results

    def backward(self, tensors: list[Tensor], kept: list[Tensor], upstream: list[Tensor]) -> list[Tensor]:
        """The gradients that there are, for those of all outputs."""
        gradients: list[Tensor | None] | None = None
        try:
            launches = self._launches(tensors)
            if launches is not None:
                gradients = launches.backward([*tensors, *kept], upstream, None)
        except (CompileError, InternalError) as error:
            self._give_up(error)
        if gradients is not None:
            return [gradient for gradient in gradients if gradient is not None]
        wanted = [k in self.differentiated for k in range(len(tensors))]
        with self._as_compiled():
            found = Replayed(self._in_torch, None).gradients(tensors, wanted, upstream)
        results = self.empty_gradients(tensors)
        for k, result in zip(self.differentiated, results, strict=True):
            gradient = found[k]
            result.zero_() if gradient is None else result.copy_(gradient)
        return results

    def gradients(self, tensors: list[Tensor], upstream: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Those of the formula, which have gradients themselves."""
        wanted = [k in self.differentiated for k in range(len(tensors))]
        with torch.autocast(*self._autocast):
            return Replayed(self._in_torch, None).gradients(tensors, wanted, upstream)

    def _in_torch(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of the formula, among which numbers may be."""
        return [each for each in self._formula(*tensors) if isinstance(each, Tensor)]

    def _launches(self, tensors: list[Tensor]) -> Prepared | PreparedHandwritten | None:
        """What launches the kernels, if there are some for these tensors."""
        if not self._has_kernels or not self._passes(tensors):
            return None
        key = tuple([(tensor.shape, tensor.stride()) for tensor in tensors])
        if key not in self._prepared:
            found = self._prepare(tensors)
            if found is None:
                return None
            if len(self._prepared) >= MOST_GEOMETRIES:
                self._prepared.clear()
            self._prepared[key] = found
        return self._prepared[key]

    def _give_up(self, error: CompileError | InternalError) -> None:
        self._has_kernels = False
        logger.warning("%s runs in torch: %s", self.name, error.reason, exc_info=error)

    @contextmanager
    def _as_compiled(self) -> Iterator[None]:
        """Where torch runs as when the loss was compiled: an op has neither gradients nor autocast inside."""
        inside = torch._C._dispatch_tls_local_include_set(), torch._C.DispatchKeySet.from_raw_repr(0)
        with torch._C._ForceDispatchKeyGuard(*inside), torch.autocast(*self._autocast):
            yield


class OpaqueGenerated(OpaqueLoss):
    """A loss with generated kernels."""

    def __init__(self, compiled: CompiledLoss, formula: Callable[..., Sequence[Any]]) -> None:
        super().__init__(compiled.device, formula)
        self._compiled = compiled
        self.name = compiled.plan.name
        self.differentiable = compiled.differentiable
        buffers = {k: root.buffer for k, root in zip(compiled.plan.gradient_of, compiled.plan.gradients, strict=True)}
        self.differentiated = sorted(buffers)
        self._outputs = [each.name for each in compiled.trace.outputs]
        self._gradients = [buffers[k].name for k in self.differentiated]
        self._results = Results(buffers.values())

    def empty_results(self, tensors: list[Tensor]) -> list[Tensor]:
        """See `OpaqueLoss.empty_results`."""
        packing = self._compiled.packing(self._sizes(tensors), is_apart=True)
        return [empty(packing.made[name], tensors[0].device) for name in (*self._outputs, *packing.kept)]

    def empty_gradients(self, tensors: list[Tensor]) -> list[Tensor]:
        """See `OpaqueLoss.empty_gradients`."""
        made = self._results.geometry(self._sizes(tensors))
        return [empty(made[name], tensors[0].device) for name in self._gradients]

    def _sizes(self, tensors: list[Tensor]) -> dict[str, Any]:
        sizes = self._compiled.sizes_alone(tensors)
        if sizes is None:
            given = ", ".join(f"{tuple(each.shape)} with strides {each.stride()}" for each in tensors)
            raise RuntimeError(f"{self.name} is compiled for sizes unlike those of its tensors: {given}")
        return sizes

    def _passes(self, tensors: list[Tensor]) -> bool:
        domain = self._compiled.trace.domain
        return not domain.predicates or domain.sizes(tensors) is not None

    def _prepare(self, tensors: list[Tensor]) -> Prepared:
        return Prepared(self._compiled, self._sizes(tensors), is_apart=True)


class OpaqueHandwritten(OpaqueLoss):
    """A loss with handwritten kernels."""

    def __init__(self, call: BoundHandwritten, device: torch.device, formula: Callable[..., Sequence[Any]]) -> None:
        super().__init__(device, formula)
        self._call = call
        self.name = type(call.loss).__name__
        self.differentiable = call.differentiable
        constant = call.loss.constant
        self.differentiated = [k for k, name in enumerate(call.names) if name in call.wanted and name not in constant]

    def empty_results(self, tensors: list[Tensor]) -> list[Tensor]:
        """See `OpaqueLoss.empty_results`."""
        output, saved = self._call.loss.results(self._call.arguments(tensors, {}))
        return [output, *saved]

    def empty_gradients(self, tensors: list[Tensor]) -> list[Tensor]:
        """See `OpaqueLoss.empty_gradients`."""
        made = self._call.loss.gradients(self._call.arguments(tensors, {}), self._call.wanted)
        return [made[self._call.names[k]] for k in self.differentiated]

    def _passes(self, tensors: list[Tensor]) -> bool:
        return not self._call.is_found or self._call.known(tensors, ()) is not None

    def _prepare(self, tensors: list[Tensor]) -> PreparedHandwritten | None:
        call = self._call.like(tensors, [name in self._call.wanted for name in self._call.names])
        return None if call is None else PreparedHandwritten(call, tensors, {})


def _autocast_of(device: torch.device) -> tuple[str, torch.dtype, bool]:
    """The arguments of a `torch.autocast` that goes on."""
    return device.type, torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type)


def register(
    kernels: CompiledLoss | BoundHandwritten, tensors: Sequence[Tensor], formula: Callable[..., Sequence[Any]]
) -> str:
    """The token of a loss, for tensors like some: the same one each time."""
    if isinstance(kernels, BoundHandwritten):
        device = kernels.device(tensors)
        token = "-".join(map(str, (kernels.token, device, *_autocast_of(device)[1:])))
        _registered.setdefault(token, OpaqueHandwritten(kernels, device, formula))
        return token
    if kernels.token not in _registered:
        _registered[kernels.token] = OpaqueGenerated(kernels, formula)
    return kernels.token


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
    count = len(own.differentiable)
    constant = [each for each, varies in zip(output, own.differentiable, strict=False) if not varies]
    ctx.count = len(tensors)
    ctx.set_materialize_grads(False)  # else what is kept would be given gradients
    ctx.mark_non_differentiable(*constant, *output[count:])
    ctx.save_for_backward(*tensors, *output[count:])


def _differentiate(ctx: Any, upstream: list[Tensor | None]) -> tuple[list[Tensor | None], None]:
    saved = list(ctx.saved_tensors)
    tensors, kept = saved[: ctx.count], saved[ctx.count :]
    own = loss_of(ctx.loss)
    arrived = upstream[: len(own.differentiable)]
    if torch.is_grad_enabled():  # where the graph itself asks for gradients, to differentiate them again
        return own.gradients(tensors, arrived), None
    if any(each is None for each in arrived):
        like = own.empty_results(tensors)
        arrived = [torch.zeros_like(like[k]) if each is None else each for k, each in enumerate(arrived)]
    gradients: list[Tensor | None] = [None] * ctx.count
    for k, gradient in zip(own.differentiated, backward(tensors, kept, arrived, ctx.loss), strict=True):
        gradients[k] = gradient
    return gradients, None


forward.register_autograd(_differentiate, setup_context=_keep)
