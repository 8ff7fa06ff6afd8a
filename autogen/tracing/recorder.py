"""Recording: every ATen op of a run on fake tensors, as one `torch.fx.Graph`.

A `TorchDispatchMode` sees the ops below autograd, so what it records of a forward run and of the
`torch.autograd.grad` that follows is torch's own derivative. Sizes need no proxies here (as they would under
`make_fx`): a `SymInt` in an argument already is a sympy expression.

Here is decided which way an op goes: what it is taken apart into, what its values are known by, whether it is refused.
`autogen.tracing.recording` has the graph, and which of its nodes a tensor is.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import sympy
import torch
from torch._ops import HigherOrderOperator
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._python_dispatch import TorchDispatchMode

from autogen.errors import CollectiveError, UnsupportedOpError, ValueBranchError
from autogen.tracing.aten import masks
from autogen.tracing.aten.accepted import require_accepted
from autogen.tracing.aten.aliases import Call, fills_its_memory
from autogen.tracing.aten.collectives import is_collective
from autogen.tracing.aten.fakes import result_of
from autogen.tracing.aten.nonzeros import Nonzeros, Written
from autogen.tracing.aten.places import from_the_beginning
from autogen.tracing.aten.twins import functional_twin, write_out, writes_out
from autogen.tracing.domain.ahead import OF_UNKNOWN_SIZE, Ahead, ancestors, varies
from autogen.tracing.domain.entries import Found, Reads
from autogen.tracing.recording import Recording
from autogen.tracing.symbols import Symbols

aten = torch.ops.aten

_METADATA_OPS = {"prim.device.default", "prim.layout.default"}
_INDEXED_ROWS = {aten.gather.default, aten.scatter.value, aten.scatter.src, aten.scatter_add.default}
_STRIDED = {aten.as_strided.default, aten.as_strided_scatter.default}
_NUMBER_READS = {aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default}
_VALUE_READS = {*_NUMBER_READS, aten.equal.default}
_LIBRARIES_OF_TORCH = {"aten", "prim", "prims", "profiler"}


class Recorder(TorchDispatchMode):
    """Records ATen calls on fake tensors.

    `ahead` are the values that have to be known before the loss runs; `numbers` the tensors whose values the code took
    into Python; `collective` is the error of an op that communicates, also if the code has caught that.

    Args:
        recording: where they are recorded.
        symbols: makes what stands for tensors and numbers.
        decompositions: op → torch's own formula in simpler ops, for ops that have no lowering.
        reads: how what depends on values is recorded.

    Raises:
        CollectiveError: the code communicates; it has not, then.
        ValueBranchError: the code reads a tensor's value, or a shape depends on one.
        UnsupportedOpError: an op that no trace can hold, or what a `Recording` refuses.
    """

    supports_higher_order_operators = True  # else torch says of them how a mode would have to be written

    def __init__(self, recording: Recording, symbols: Symbols, decompositions: dict[Any, Any], reads: Reads) -> None:
        super().__init__()
        self.recording = recording
        self._decompositions = decompositions
        self._reads = reads
        self.ahead = Ahead(recording.graph, symbols)
        self.numbers: dict[sympy.Symbol, torch.Tensor] = {}
        self.collective: CollectiveError | None = None
        self._choices = masks.Choices(self.ahead.keys)
        self._nonzeros = Nonzeros()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            raise UnsupportedOpError(func.name(), where=self.recording.where)
        if is_collective(func):
            self.collective = CollectiveError(func._schema.name, where=self.recording.where)
            raise self.collective
        if str(func) in _METADATA_OPS:
            return func(*args, **kwargs)
        if func in _VALUE_READS:
            return self._read_value(func, args[0])
        if _is_called_for_more(func):
            raise UnsupportedOpError(f"{func}, which does not return tensors alone", where=self.recording.where)
        if not self.recording.formulas:
            require_accepted(func, args, kwargs)
        if writes_out(func):
            with self:
                return write_out(func, args, kwargs, self.recording.where)
        if func in self._decompositions:
            if func._schema.is_mutable and isinstance(args[0], torch.Tensor):  # what the formula computes elsewhere
                self.recording.require_apart(func, args, kwargs)
            with self.recording.formulas, self:
                result = self._decompositions[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        if _is_composite(func):  # a formula of torch's may call an op that only stands for others
            with self:
                return func.decompose(*args, **kwargs)
        if func in OF_UNKNOWN_SIZE:
            return self._find(func, args, kwargs)
        if masks.reads(func) or masks.writes(func):
            result = self._at_masks(func, args, kwargs)
            if result is not NotImplemented:
                return result
        if func in _INDEXED_ROWS or functional_twin(func) in _INDEXED_ROWS:
            # The index may have fewer rows than the tensor. Comparing settles it: equal sizes become one symbol.
            for size, indexed in zip(args[0].shape, args[2].shape, strict=False):  # one place may have no dimension
                bool(size == indexed)
        if func in _STRIDED and not fills_its_memory(args[0]):
            raise UnsupportedOpError(f"{func} of a part of a tensor", where=self.recording.where)
        if torch.Tag.inplace_view in func.tags:
            return self.recording.turn(func, args, kwargs)
        args = from_the_beginning(func, args)
        result = result_of(func, args, kwargs, lambda: self.recording.where)
        if func is aten.lift_fresh.default or func is aten.lift_fresh_copy.default:
            node = self.recording.constant(args[0], result)
            if node in self.recording.constants:
                self.ahead.know(node, self.recording.constants[node])
        elif func._schema.is_mutable:
            self.recording.record_write(func, args, kwargs, result)
        else:
            self.recording.record(func, args, kwargs, result)
        return result

    @property
    def unknown(self) -> Reads:
        """The values that the trace was recorded without knowing."""
        return Reads(numbers=bool(self.numbers), masks=bool(self._choices))

    def _read_value(self, func: Any, tensor: torch.Tensor) -> Any:
        """The number that the code asks for. A constant is what it is; a boolean is a predicate of the trace; any other
        stays a symbol, and is read when the loss returns it, or is known ahead.
        """
        node, where = self.recording.node_of(tensor), self.recording.where
        if func not in _NUMBER_READS:
            raise ValueBranchError(str(func), where=where)
        if tensor.dtype == torch.bool or not any(map(varies, ancestors(node))):
            return self.ahead.predicate(node, where)
        return self.ahead.number(node, where) if self._reads.numbers else self._symbol(tensor)

    def _find(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The results of an op that only values tell the sizes of: further inputs of the trace."""
        if isinstance(args[0], torch.Tensor) and args[0].dtype == torch.bool:
            self._settle(args[0])
        found = self.ahead.tensors(self.recording.call(func, args, kwargs, ()), self.recording.where)
        results = []
        for fake, place in zip(found.fakes, found.placeholders, strict=True):
            results.append(torch.empty_like(fake))  # a tensor of its own, which may be written to
            self.recording.stand(results[-1], place)
        if func is aten.nonzero.default:
            self._nonzeros.note(results[0], args[0])
        return results[0] if len(func._schema.returns) == 1 else tuple(results)

    def _settle(self, tensor: torch.Tensor) -> Found | None:
        """Have a tensor without a gradient computed ahead, as what is known ahead depends on it."""
        node = self.recording.node_of(tensor)
        if node.op != "call_function":
            return None
        if any(free_unbacked_symbols(size) for size in tensor.shape):
            raise ValueBranchError("a size that depends on values", where=self.recording.where)
        found = self.ahead.tensors(node, self.recording.where, (torch.empty_like(tensor),))
        self.recording.settle(tensor, found.placeholders[0])
        return found

    def _symbol(self, tensor: torch.Tensor) -> Any:
        """A number that stands for the value of a tensor."""
        shapes = tensor.fake_mode.shape_env  # type: ignore[attr-defined]
        integral = not tensor.dtype.is_floating_point
        symbol = shapes.create_unbacked_symint() if integral else shapes.create_unbacked_symfloat()
        with self:
            self.numbers[symbol.node.expr] = tensor.detach().clone()  # what is written to the tensor later is not read
        return symbol

    def _at_masks(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An op that reads or writes at indices, if masks are among them, or tell where it writes."""
        masks.require_fit(*args[:2])
        found = masks.mask_of(args[1])
        if found is not None:
            return self._record_mask(func, args, *found)
        if masks.writes(func):
            written = self._nonzeros.written(args[0], args[1])
            if written is not None and args[2].dtype == args[0].dtype:
                return self._write_at_places(func, written, *args)
        if masks.are_none(args[1]):
            return NotImplemented
        # Several, or one among indices: each stands for the places where it holds.
        given = [[i] if i is None or i.dtype not in masks.DTYPES else self._places(i) for i in args[1]]
        with self:
            return func(args[0], [index for each in given for index in each], *args[2:], **kwargs)

    def _record_mask(self, func: Any, args: Any, mask: torch.Tensor, before: int) -> torch.Tensor:
        tensor = args[0]
        known = self._places(mask) if self._reads.masks else None
        chosen = (
            self._choices.size(self.recording.node_of(mask), tensor.fake_mode.shape_env)
            if known is None
            else known[0].shape[0]
        )
        if masks.writes(func):
            return self._record_masked_write(func, args, mask, before, chosen, is_known=known is not None)
        if known is not None:
            with self:
                return func(tensor, [None] * before + known)
        result = tensor.new_empty((*tensor.shape[:before], chosen, *tensor.shape[before + mask.dim() :]))
        self.recording.stand(result, self.recording.call(masks.masked_read, (tensor, mask, before), {}, result))
        return result

    def _record_masked_write(
        self, func: Any, args: Any, mask: torch.Tensor, before: int, chosen: Any, *, is_known: bool
    ) -> torch.Tensor:
        """A write where a mask holds, to `chosen` places; if these are known, so is which value goes where."""
        tensor: torch.Tensor = args[0]
        values, accumulate = args[2], bool(args[3]) if len(args) > 3 else False
        masks.require_broadcast(values.shape, (*tensor.shape[:before], chosen, *tensor.shape[before + mask.dim() :]))
        result = tensor if func in masks.IN_PLACE else torch.empty_like(tensor)
        order = self._order(mask) if is_known and values.numel() != 1 else None
        recorded: Call = masks.masked_write, (tensor, mask, before, values, accumulate, order), {}
        if func in masks.IN_PLACE:
            self.recording.write(recorded, tensor)
        else:
            self.recording.stand(result, self.recording.call(*recorded, result))
        return result

    def _write_at_places(
        self, func: Any, written: Written, tensor: Any, _: Any, values: Any, accumulate: bool = False, *__: Any
    ) -> torch.Tensor:
        """A write at places that were found: where they are is a mask, and no two of them are one."""
        with self:
            mask, rows = written.mask, written.rows(tensor, values, accumulate=accumulate)
        args = tensor, None, rows, accumulate
        return self._record_masked_write(func, args, mask, written.before, written.count, is_known=True)

    def _places(self, mask: torch.Tensor) -> list[torch.Tensor]:
        """Where a mask holds: an index per dimension of it."""
        if not mask.dim():  # which would add a dimension
            raise ValueBranchError("a mask without dimensions", where=self.recording.where)
        with self:
            return list(mask.nonzero().unbind(1))

    def _order(self, mask: torch.Tensor) -> torch.Tensor:
        """Of each place of a mask, the how manyth it is among those that are chosen."""
        with self:
            order = mask.reshape(-1).cumsum(0).reshape(mask.shape) - 1
        self._settle(order)
        return order


@functools.cache
def _is_called_for_more(func: Any) -> bool:
    """Whether a user's op does something else than to make tensors: it returns nothing, or a number, which its fake
    implementation does not know.
    """
    returned = {str(each.type) for each in func._schema.returns}
    return func.namespace not in _LIBRARIES_OF_TORCH and not (returned and returned <= {"Tensor", "List[Tensor]"})


@functools.cache
def _is_composite(func: Any) -> bool:
    gives_tensor = any(isinstance(each.type, torch.TensorType) for each in func._schema.returns)
    return gives_tensor and func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
