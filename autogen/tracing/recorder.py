"""Recording: every ATen op of a run on fake tensors, as one `torch.fx.Graph`.

A `TorchDispatchMode` sees the ops below autograd, so what it records of a forward run and of the
`torch.autograd.grad` that follows is torch's own derivative. Sizes need no proxies here (as they would under
`make_fx`): a `SymInt` in an argument already is a sympy expression.

Ops that write in place, or to `out`, are recorded as their functional twin. Another view of what was written is taken
anew when it is read; a view that cannot be is refused, never guessed.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import re
import weakref
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from autogen.errors import (
    CollectiveError,
    SourceLine,
    StateChangeError,
    TooLargeError,
    UnsupportedOpError,
    ValueBranchError,
)
from autogen.torch_step import is_random
from autogen.tracing import masks
from autogen.tracing.accepted import require_accepted
from autogen.tracing.ahead import OF_UNKNOWN_SIZE, Ahead, ancestors, varies
from autogen.tracing.aliases import Aliases, Call, fills_its_memory, is_where, overlap_in_part
from autogen.tracing.collectives import is_collective
from autogen.tracing.devices import Devices, copy_to_device
from autogen.tracing.entries import Found, Reads, Size
from autogen.tracing.fakes import result_of
from autogen.tracing.nonzeros import Nonzeros, Written
from autogen.tracing.places import from_the_beginning
from autogen.tracing.source import current_statement
from autogen.tracing.strays import Made
from autogen.tracing.streams import Streams
from autogen.tracing.symbols import Symbols
from autogen.tracing.twins import TURNED, functional_twin, write_out, writes_out

aten = torch.ops.aten

MOST_OPERATIONS = 2500  # of 303 real losses the largest has 1278

_METADATA_OPS = {"prim.device.default", "prim.layout.default"}
_INDEXED_ROWS = {aten.gather.default, aten.scatter.value, aten.scatter.src, aten.scatter_add.default}
_STRIDED = {aten.as_strided.default, aten.as_strided_scatter.default}
_NUMBER_READS = {aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default}
_VALUE_READS = {*_NUMBER_READS, aten.equal.default}
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Recorder(TorchDispatchMode):
    """Records ATen calls on fake tensors into `graph`.

    Nodes carry in `meta`: `geometry` (shape and dtype of each tensor in the result, as it was then), `strides` (of
    each part of the result, None for what is no tensor), `is_tuple`, `origin` (the user's source line or None),
    `backward` (whether autograd made the call) and `of_formula` (whether torch's formula for another op did).

    `ahead` are the values that have to be known before the loss runs; `constants` the tensors that the code built from
    numbers.

    Args:
        symbols: makes what stands for tensors and numbers.
        decompositions: op → torch's own formula in simpler ops, for ops that have no lowering.
        reads: how what depends on values is recorded.
        streams: where torch's random streams were before.
        made: is told of all tensors.

    Raises:
        CollectiveError: the code communicates; it has not, then.
        ValueBranchError: the code reads a tensor's value, or a shape depends on one.
        UnsupportedOpError: a tensor from nowhere, or a write that cannot be made functional.
    """

    def __init__(
        self, symbols: Symbols, decompositions: dict[Any, Any], reads: Reads, streams: Streams, made: Made
    ) -> None:
        super().__init__()
        self._reads = reads
        self._streams = streams
        self._made = made
        self._remembering = 0
        self._operations = 0
        self._formulas = 0  # that are being run, one within another
        self.numbers: dict[sympy.Symbol, torch.Tensor] = {}
        self.graph = torch.fx.Graph()
        self._decompositions = decompositions
        self.ahead = Ahead(self.graph, symbols)
        self.constants: dict[torch.fx.Node, torch.Tensor] = {}
        self._nodes: dict[int, torch.fx.Node] = {}
        self._alive: list[torch.Tensor] = []  # an id means something only while its tensor lives
        self._aliases = Aliases()
        self._choices = masks.Choices(self.ahead.keys)
        self._nonzeros = Nonzeros()
        self._devices = Devices()
        self._inputs: dict[int, bool] = {}  # whether each may be written to
        self.written: dict[int, torch.Tensor] = {}  # inputs that the code has written to, by id
        self.replaced: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # inputs that were given other data, and that
        self.frozen: set[int] = set()  # memory that may not be written to, as it is in doubt who sees it and how
        self.collective: CollectiveError | None = None  # that was refused, also if the code has caught that
        self._forward_lines: dict[int, SourceLine | None] = {}

    def placeholder(self, name: str, fake: torch.Tensor, real: torch.Tensor | None = None) -> torch.fx.Node:
        """A new input of the graph; `real` is its tensor in the call that is traced."""
        node = self.graph.placeholder(re.sub(r"\W", "_", name))
        self._track(fake, node)
        self._inputs[id(fake)] = real is not None
        if real is not None:
            self.ahead.know(node, real)
        return node

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        """The graph's node for a tensor of this run."""
        if self._aliases.is_stale(tensor):
            self._take_anew(tensor)
        node = self._nodes.get(id(tensor))
        if node is None:
            what = "a tensor that is neither an argument, a parameter, a buffer nor an attribute"
            raise UnsupportedOpError(what, where=current_statement())
        return node

    @contextlib.contextmanager
    def remembering(self) -> Iterator[None]:
        """While a function runs of which only the first call counts: a later one would draw other numbers."""
        self._remembering += 1
        try:
            yield
        finally:
            self._remembering -= 1

    def freeze(self, tensors: Iterable[torch.Tensor]) -> None:
        """Refuse writes to tensors that others have, too, but for inputs."""
        self.frozen |= {each.untyped_storage()._cdata for each in tensors if id(each) not in self._inputs}

    def _track(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._devices.note(node, tensor)
        self._alive.append(tensor)
        self._made.append(weakref.ref(tensor))
        self._aliases.add(tensor)

    def _take_anew(self, tensor: torch.Tensor) -> None:
        """A view of memory that was written since."""
        view = self._aliases.view_of(tensor)
        if view is None:
            raise UnsupportedOpError("a view of a tensor that was changed in place", where=current_statement())
        self._nodes[id(tensor)] = self._call(view.func, (view.base, *view.args), view.kwargs, tensor)
        self._aliases.refreshed(tensor)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if is_collective(func):
            self.collective = CollectiveError(func._schema.name, where=self._origin()[0])
            raise self.collective
        if str(func) in _METADATA_OPS:
            return func(*args, **kwargs)
        if func in _VALUE_READS:
            return self._read_value(func, args[0])
        if not self._formulas:
            require_accepted(func, args, kwargs)
        if writes_out(func):
            with self:
                return write_out(func, args, kwargs, self._origin()[0])
        if func in self._decompositions:
            if func._schema.is_mutable and isinstance(args[0], torch.Tensor):
                self._require_apart(func, args, kwargs)  # the formula would write what it has computed elsewhere
            self._formulas += 1
            try:
                with self:
                    result = self._decompositions[func](*args, **kwargs)
            finally:
                self._formulas -= 1
            if result is not NotImplemented:
                return result
        if _is_composite(func):  # a formula of torch's may call an op that only stands for others
            with self:
                return func.decompose(*args, **kwargs)
        if func in OF_UNKNOWN_SIZE:
            return self._find(func, args, kwargs)
        if masks.reads(func) or masks.writes(func):
            masks.require_fit(*args[:2])
            found = masks.mask_of(args[1])
            if found is None and masks.writes(func):
                written = self._nonzeros.written(args[0], args[1])
                if written is not None and args[2].dtype == args[0].dtype:
                    return self._write_at_places(func, written, *args)
            if found is not None:
                return self._record_mask(func, args, *found)
            if not masks.are_none(args[1]):  # several, or one among indices: each stands for the places where it holds
                given = [[i] if i is None or i.dtype not in masks.DTYPES else self._places(i) for i in args[1]]
                with self:
                    return func(args[0], [index for each in given for index in each], *args[2:], **kwargs)
        if func in _INDEXED_ROWS or functional_twin(func) in _INDEXED_ROWS:
            # The index may have fewer rows than the tensor. Comparing settles it: equal sizes become one symbol.
            for size, indexed in zip(args[0].shape, args[2].shape, strict=False):  # one place may have no dimension
                bool(size == indexed)
        if func in _STRIDED and not fills_its_memory(args[0]):
            raise UnsupportedOpError(f"{func} of a part of a tensor", where=self._origin()[0])
        if torch.Tag.inplace_view in func.tags:
            return self._turn(func, args, kwargs)
        args = from_the_beginning(func, args)
        result = result_of(func, args, kwargs, lambda: self._origin()[0])
        if func is aten.lift_fresh.default or func is aten.lift_fresh_copy.default:
            self._constant(args[0], result)
        elif func._schema.is_mutable:
            self._record_write(func, args, kwargs, result)
        elif func is aten._to_copy.default and self._devices.is_elsewhere(result):
            self._track(result, self._call(copy_to_device, args, kwargs, result))
        else:
            self._record(func, args, kwargs, result)
        return result

    @property
    def unknown(self) -> Reads:
        """The values that the trace was recorded without knowing."""
        return Reads(numbers=bool(self.numbers), masks=bool(self._choices))

    def _read_value(self, func: Any, tensor: torch.Tensor) -> Any:
        """The number that the code asks for. A constant is what it is; a boolean is a predicate of the trace; any other
        stays a symbol, and is read when the loss returns it, or is known ahead.
        """
        node, where = self.node_of(tensor), self._origin()[0]
        if func not in _NUMBER_READS:
            raise ValueBranchError(str(func), where=where)
        if tensor.dtype == torch.bool or not any(map(varies, ancestors(node))):
            return self.ahead.predicate(node, where)
        return self.ahead.number(node, where) if self._reads.numbers else self._symbol(tensor)

    def _find(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The results of an op that only values tell the sizes of: further inputs of the trace."""
        if isinstance(args[0], torch.Tensor) and args[0].dtype == torch.bool:
            self._settle(args[0])
        found = self.ahead.tensors(self._call(func, args, kwargs, ()), self._origin()[0])
        results = []
        for fake, place in zip(found.fakes, found.placeholders, strict=True):
            results.append(torch.empty_like(fake))  # a tensor of its own, which may be written to
            self._track(results[-1], place)
        if func is aten.nonzero.default:
            self._nonzeros.note(results[0], args[0])
        return results[0] if len(func._schema.returns) == 1 else tuple(results)

    def _settle(self, tensor: torch.Tensor) -> Found | None:
        """Have a tensor without a gradient computed ahead, as what is known ahead depends on it."""
        node = self.node_of(tensor)
        if node.op != "call_function":
            return None
        if any(free_unbacked_symbols(size) for size in tensor.shape):
            raise ValueBranchError("a size that depends on values", where=self._origin()[0])
        found = self.ahead.tensors(node, self._origin()[0], (torch.empty_like(tensor),))
        self._nodes[id(tensor)] = found.placeholders[0]
        return found

    def _symbol(self, tensor: torch.Tensor) -> Any:
        """A number that stands for the value of a tensor."""
        shapes = tensor.fake_mode.shape_env  # type: ignore[attr-defined]
        integral = not tensor.dtype.is_floating_point
        symbol = shapes.create_unbacked_symint() if integral else shapes.create_unbacked_symfloat()
        with self:
            self.numbers[symbol.node.expr] = tensor.detach().clone()  # what is written to the tensor later is not read
        return symbol

    def _origin(self) -> tuple[SourceLine | None, bool]:
        """Whose code is being run: a line, and whether autograd runs it (then the forward line it derives from)."""
        node = torch._C._current_autograd_node()
        if node is None:
            line = current_statement()
            # The autograd node of the op that is being run already has its number.
            self._forward_lines.setdefault(torch.autograd._get_sequence_nr() - 1, line)
            return line, False
        number = node._sequence_nr()
        later = [k for k in self._forward_lines if k >= number]
        return (self._forward_lines[min(later)] if later else None), True

    def _record_mask(self, func: Any, args: Any, mask: torch.Tensor, before: int) -> torch.Tensor:
        tensor = args[0]
        known = self._places(mask) if self._reads.masks else None
        chosen = (
            self._choices.size(self.node_of(mask), tensor.fake_mode.shape_env) if known is None else known[0].shape[0]
        )
        if masks.writes(func):
            return self._record_masked_write(func, args, mask, before, chosen, is_known=known is not None)
        if known is not None:
            with self:
                return func(tensor, [None] * before + known)
        result = tensor.new_empty((*tensor.shape[:before], chosen, *tensor.shape[before + mask.dim() :]))
        self._track(result, self._call(masks.masked_read, (tensor, mask, before), {}, result))
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
            self._write(recorded, tensor)
        else:
            self._track(result, self._call(*recorded, result))
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
            raise ValueBranchError("a mask without dimensions", where=self._origin()[0])
        with self:
            return list(mask.nonzero().unbind(1))

    def _order(self, mask: torch.Tensor) -> torch.Tensor:
        """Of each place of a mask, the how manyth it is among those that are chosen."""
        with self:
            order = mask.reshape(-1).cumsum(0).reshape(mask.shape) - 1
        self._settle(order)
        return order

    def _call(self, func: Any, args: Any, kwargs: Any, result: Any) -> torch.fx.Node:
        """A node for an op whose result has the given shape."""
        if is_random(func):
            self._refuse_other_streams(func, args, kwargs)
        args, kwargs = pytree.tree_map_only(_SYMBOLIC, Size.of, (args, kwargs))
        graph_args, graph_kwargs = pytree.tree_map_only(torch.Tensor, self.node_of, (args, kwargs))
        if func is aten._neg_view.default:  # a view that only torch knows how to read
            func = aten.neg.default
        self._operations += 1
        if self._operations > MOST_OPERATIONS:
            raise TooLargeError(MOST_OPERATIONS, where=self._origin()[0])
        node = self.graph.call_function(func, graph_args, graph_kwargs)
        parts = result if isinstance(result, (tuple, list)) else (result,)
        node.meta["origin"], node.meta["backward"] = self._origin()
        node.meta["geometry"] = [(tuple(p.shape), p.dtype) for p in parts if isinstance(p, torch.Tensor)]
        node.meta["strides"] = [p.stride() if isinstance(p, torch.Tensor) else None for p in parts]
        node.meta["is_tuple"] = not isinstance(result, torch.Tensor)
        node.meta["of_formula"] = self._formulas > 0
        return node

    def _refuse_other_streams(self, func: Any, args: Any, kwargs: Any) -> None:
        """Raise if an op does not draw from where torch's stream is in each call."""
        where = self._origin()[0]
        if self._remembering:
            raise UnsupportedOpError("random numbers that functools.lru_cache keeps", where=where)
        if any(isinstance(leaf, torch.Generator) for leaf in pytree.tree_leaves((args, kwargs))):
            raise UnsupportedOpError(f"{func} with a generator", where=where)
        self._streams.refuse_seeds(where)

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        parts = result if isinstance(result, (tuple, list)) else (result,)
        if torch.Tag.dynamic_output_shape in func.tags and not (masks.reads(func) and masks.are_none(args[1])):
            raise ValueBranchError(str(func), where=self._origin()[0])
        node = self._call(func, args, kwargs, result)
        given = {id(arg) for arg in pytree.tree_leaves((args, kwargs)) if isinstance(arg, torch.Tensor)}
        if isinstance(result, torch.Tensor):
            if id(result) not in given:  # which is what it was
                self._track(result, node)
                self._aliases.add_view(result, func, args, kwargs)
            return
        for position, item in enumerate(parts):
            if isinstance(item, torch.Tensor) and id(item) not in given:
                part = self.graph.call_function(operator.getitem, (node, position))
                part.meta.update(origin=node.meta["origin"], backward=node.meta["backward"])
                self._track(item, part)
                self._aliases.add_part(item, position, func, args, kwargs)

    def _turn(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """A tensor is another view of its memory from now on; an input, which stands for the call's, never is."""
        tensor, functional = args[0], TURNED.get(func)
        is_input = id(tensor) in self._inputs
        if functional is None or is_input or self._aliases.has_stale(tensor):
            raise UnsupportedOpError(f"{func}{' on an argument of the loss' * is_input}", where=self._origin()[0])
        result_of(func, args, kwargs, lambda: self._origin()[0])
        self._nodes[id(tensor)] = self._call(functional, args, kwargs, tensor)
        if func is not aten.detach_.default:
            self.frozen.add(tensor.untyped_storage()._cdata)  # views of it and its owners are not what they were
        return tensor

    def _record_write(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        written = args[0]
        functional = functional_twin(func)
        if func is aten.bernoulli_.float:  # torch leaves out a default that its twin does not have
            args = (*args, 0.5)[:2]
        if not func._schema.name.endswith("_") or functional is None or result is not written:
            raise UnsupportedOpError(str(func), where=self._origin()[0])
        self._require_apart(func, args, kwargs)
        self._write((functional, args, kwargs), written)

    def _require_apart(self, func: Any, args: Any, kwargs: Any) -> None:
        others = [each for each in pytree.tree_leaves((args[1:], kwargs)) if isinstance(each, torch.Tensor)]
        if any(overlap_in_part(args[0], other) for other in others):
            raise UnsupportedOpError(f"{func} on memory that it reads elsewhere", where=self._origin()[0])

    def _write(self, call: Call, written: torch.Tensor) -> None:
        """Note that a tensor has the result of an op as its new value."""
        owners = self._aliases.owners(written)
        line, is_backward = self._origin()
        for tensor in (written, *owners):
            if id(tensor) in self._inputs:
                if is_backward or not self._inputs[id(tensor)]:
                    raise UnsupportedOpError(f"{call[0]} on an argument of the loss", where=line)
                self.written[id(tensor)] = tensor
        if written.untyped_storage()._cdata in self.frozen:
            raise UnsupportedOpError(f"{call[0]} on memory that is seen in another way", where=line)
        self._nodes[id(written)] = self._call(*call, written)
        part = written
        for owner in owners:
            put_back = self._aliases.put_back(part, owner, part)
            if put_back is None:
                raise UnsupportedOpError(f"{call[0]} on a view", where=self._origin()[0])
            self._nodes[id(owner)] = self._call(*put_back, owner)
            part = owner
        self._aliases.written(written)

    def refuse_read(self, tensor: torch.Tensor, what: str) -> None:
        """Refuse what an input may answer in another way in each call, and its stand-in does in its own.

        Raises:
            UnsupportedOpError: `tensor` is an input.
        """
        if id(tensor) in self._inputs:
            raise UnsupportedOpError(f"the attribute {what} of an input", where=current_statement())

    def set_data(self, tensor: torch.Tensor, data: torch.Tensor) -> None:
        """Note `tensor.data = data`: from now on an input has the value of another tensor, in other memory.

        Raises:
            StateChangeError: `tensor` is no input, or is not to stay as it is but for its value.
        """
        if id(tensor) in self.replaced:
            source = self.node_of(data)
            if source.target is aten.detach.default and source.args[0] is self.node_of(tensor):  # its own data
                return
        elif is_where(tensor, data):  # as after a move to where it is
            return
        line, is_backward = self._origin()
        same = (tensor.dtype, tensor.device, tensor.layout) == (data.dtype, data.device, data.layout)
        may_change = self._inputs.get(id(tensor), False) and id(tensor) not in self.written and not is_backward
        is_alone = data.untyped_storage()._cdata not in self.frozen and not data.requires_grad
        if not same or tensor.shape != data.shape or not may_change or not is_alone:
            raise StateChangeError("the data of a tensor", where=line)
        self._nodes[id(tensor)] = self.node_of(data)
        self.replaced[id(tensor)] = tensor, data
        # Which tensors share memory from now on is not followed.
        self.frozen |= {tensor.untyped_storage()._cdata, data.untyped_storage()._cdata}

    def _constant(self, value: torch.Tensor, result: torch.Tensor) -> None:
        """A tensor built from Python numbers inside the loss."""
        if isinstance(value, FakeTensor):
            raise UnsupportedOpError("a constant made of a fake tensor", where=self._origin()[0])
        with torch.utils._python_dispatch._disable_current_modes():
            if value.numel() == 1:
                number = value.reshape(()).item()
                node = self.graph.call_function(aten.full.default, ([1] * value.dim(), number), {"dtype": value.dtype})
            else:
                node = self.graph.get_attr(f"constant_{len(self.constants)}")
                self.constants[node] = value.detach().clone()
                self.ahead.know(node, self.constants[node])
        node.meta["origin"], node.meta["backward"] = self._origin()
        node.meta.update(geometry=[(tuple(result.shape), result.dtype)], strides=[result.stride()])
        node.meta.update(is_tuple=False, of_formula=False)
        self._track(result, node)


@functools.cache
def _is_composite(func: Any) -> bool:
    gives_tensor = any(isinstance(each.type, torch.TensorType) for each in func._schema.returns)
    return gives_tensor and func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
