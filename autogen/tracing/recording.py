"""What a run computes, as one `torch.fx.Graph`, and the node of it that each tensor stands for now.

Ops that write in place are recorded as their functional twin. Another view of what was written is taken anew when it is
read; a view that cannot be is refused, never guessed.
"""

from __future__ import annotations

import operator
import re
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from autogen.errors import SourceLine, StateChangeError, TooLargeError, UnsupportedOpError, ValueBranchError
from autogen.torch_step import is_random
from autogen.tracing.aten import masks
from autogen.tracing.aten.aliases import Aliases, Call, is_where, overlap_in_part
from autogen.tracing.aten.fakes import result_of
from autogen.tracing.aten.twins import TURNED, functional_twin
from autogen.tracing.devices import Devices, copy_to_device
from autogen.tracing.domain.entries import Size
from autogen.tracing.python.strays import Made
from autogen.tracing.source import current_statement
from autogen.tracing.streams import Streams
from autogen.tracing.symbols import SYMBOLS

aten = torch.ops.aten

MOST_OPERATIONS = 2500  # of 303 real losses the largest has 1278


class Depth:
    """How many of a kind of functions are being run, one within another: true if any is."""

    def __init__(self) -> None:
        self._count = 0

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1

    def __bool__(self) -> bool:
        return self._count > 0


class Recording:
    """The `graph` of a run on fake tensors.

    Nodes carry in `meta`: `geometry` (shape and dtype of each tensor in the result, as it was then), `strides` (of
    each part of the result, None for what is no tensor), `is_tuple`, `origin` (the user's source line or None),
    `backward` (whether autograd made the call) and `of_formula` (whether torch's formula for another op did).

    `constants` are the tensors that the code built from numbers, `formulas` those of torch for an op, and functions in
    `remembering` keep what they return: only the first call counts, and a later one would draw other numbers.

    Args:
        streams: where torch's random streams were before.
        made: is told of all tensors.

    Raises:
        UnsupportedOpError: a tensor from nowhere, or a write that cannot be made functional.
    """

    def __init__(self, streams: Streams, made: Made) -> None:
        self._streams = streams
        self._made = made
        self.remembering = Depth()
        self.formulas = Depth()
        self._operations = 0
        self.graph = torch.fx.Graph()
        self.constants: dict[torch.fx.Node, torch.Tensor] = {}
        self._nodes: dict[int, torch.fx.Node] = {}
        self._alive: list[torch.Tensor] = []  # an id means something only while its tensor lives
        self._aliases = Aliases()
        self._devices = Devices()
        self._inputs: dict[int, bool] = {}  # whether each may be written to
        self.written: dict[int, torch.Tensor] = {}  # inputs that the code has written to, by id
        self.replaced: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # inputs that were given other data, and that
        self.frozen: set[int] = set()  # memory that may not be written to, as it is in doubt who sees it and how
        self._forward_lines: dict[int, SourceLine | None] = {}

    def placeholder(self, name: str, fake: torch.Tensor, *, may_be_written: bool = True) -> torch.fx.Node:
        """A new input of the graph."""
        node = self.graph.placeholder(re.sub(r"\W", "_", name))
        self.stand(fake, node)
        self._inputs[id(fake)] = may_be_written
        return node

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        """The graph's node for a tensor of this run."""
        if self._aliases.is_stale(tensor):
            self._take_anew(tensor)
        node = self._nodes.get(id(tensor))
        if node is None:
            what = "a tensor from elsewhere than an argument, an attribute, a variable, a list or a dictionary"
            remedy = "Keep it in one of these, and not in a tuple, a set, a default value or a partial function."
            raise UnsupportedOpError(what, remedy=remedy, where=current_statement())
        return node

    def stand(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        """Have a node stand for a new tensor."""
        self._nodes[id(tensor)] = node
        self._devices.note(node, tensor)
        self._alive.append(tensor)
        self._made.append(weakref.ref(tensor))
        self._aliases.add(tensor)

    def settle(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        """Have another node stand for the same value of a tensor."""
        self._nodes[id(tensor)] = node

    def _take_anew(self, tensor: torch.Tensor) -> None:
        """A view of memory that was written since."""
        view = self._aliases.view_of(tensor)
        if view is None:
            raise UnsupportedOpError("a view of a tensor that was changed in place", where=current_statement())
        self._nodes[id(tensor)] = self.call(view.func, (view.base, *view.args), view.kwargs, tensor)
        self._aliases.refreshed(tensor)

    def freeze(self, tensors: Iterable[torch.Tensor]) -> None:
        """Refuse writes to tensors that others have, too, but for inputs."""
        self.frozen |= {each.untyped_storage()._cdata for each in tensors if id(each) not in self._inputs}

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
        line, is_backward = self.origin()
        same = (tensor.dtype, tensor.device, tensor.layout) == (data.dtype, data.device, data.layout)
        may_change = self._inputs.get(id(tensor), False) and id(tensor) not in self.written and not is_backward
        is_alone = data.untyped_storage()._cdata not in self.frozen and not data.requires_grad
        if not same or tensor.shape != data.shape or not may_change or not is_alone:
            raise StateChangeError("the data of a tensor", where=line)
        self._nodes[id(tensor)] = self.node_of(data)
        self.replaced[id(tensor)] = tensor, data
        # Which tensors share memory from now on is not followed.
        self.frozen |= {tensor.untyped_storage()._cdata, data.untyped_storage()._cdata}

    @property
    def where(self) -> SourceLine | None:
        """The user's line that is being run."""
        return self.origin()[0]

    def origin(self) -> tuple[SourceLine | None, bool]:
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

    def record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note what an op has made."""
        if func is aten._to_copy.default and self._devices.is_elsewhere(result):
            self.stand(result, self.call(copy_to_device, args, kwargs, result))
            return
        parts = result if isinstance(result, (tuple, list)) else (result,)
        if torch.Tag.dynamic_output_shape in func.tags and not (masks.reads(func) and masks.are_none(args[1])):
            raise ValueBranchError(str(func), where=self.where)
        node = self.call(func, args, kwargs, result)
        given = {id(arg) for arg in pytree.tree_leaves((args, kwargs)) if isinstance(arg, torch.Tensor)}
        if isinstance(result, torch.Tensor):
            if id(result) not in given:  # which is what it was
                self.stand(result, node)
                self._aliases.add_view(result, func, args, kwargs)
            return
        for position, item in enumerate(parts):
            if isinstance(item, torch.Tensor) and id(item) not in given:
                part = self.graph.call_function(operator.getitem, (node, position))
                part.meta.update(origin=node.meta["origin"], backward=node.meta["backward"])
                self.stand(item, part)
                self._aliases.add_part(item, position, func, args, kwargs)

    def call(self, func: Any, args: Any, kwargs: Any, result: Any) -> torch.fx.Node:
        """A node for an op whose result has the given shape."""
        if is_random(func):
            self._refuse_other_streams(func, args, kwargs)
        args, kwargs = pytree.tree_map_only(SYMBOLS, Size.of, (args, kwargs))
        graph_args, graph_kwargs = pytree.tree_map_only(torch.Tensor, self.node_of, (args, kwargs))
        if func is aten._neg_view.default:  # a view that only torch knows how to read
            func = aten.neg.default
        self._operations += 1
        if self._operations > MOST_OPERATIONS:
            raise TooLargeError(MOST_OPERATIONS, where=self.where)
        node = self.graph.call_function(func, graph_args, graph_kwargs)
        parts = result if isinstance(result, (tuple, list)) else (result,)
        node.meta["origin"], node.meta["backward"] = self.origin()
        node.meta["geometry"] = [(tuple(p.shape), p.dtype) for p in parts if isinstance(p, torch.Tensor)]
        node.meta["strides"] = [p.stride() if isinstance(p, torch.Tensor) else None for p in parts]
        node.meta["is_tuple"] = not isinstance(result, torch.Tensor)
        node.meta["of_formula"] = bool(self.formulas)
        return node

    def _refuse_other_streams(self, func: Any, args: Any, kwargs: Any) -> None:
        """Raise if an op does not draw from where torch's stream is in each call."""
        where = self.where
        if self.remembering:
            raise UnsupportedOpError("random numbers that functools.lru_cache keeps", where=where)
        if any(isinstance(leaf, torch.Generator) for leaf in pytree.tree_leaves((args, kwargs))):
            raise UnsupportedOpError(f"{func} with a generator", where=where)
        self._streams.refuse_seeds(where)

    def turn(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """A tensor is another view of its memory from now on; an input, which stands for the call's, never is."""
        tensor, functional = args[0], TURNED.get(func)
        is_input = id(tensor) in self._inputs
        if functional is None or is_input or self._aliases.has_stale(tensor):
            raise UnsupportedOpError(f"{func}{' on an argument of the loss' * is_input}", where=self.where)
        result_of(func, args, kwargs, lambda: self.where)
        self._nodes[id(tensor)] = self.call(functional, args, kwargs, tensor)
        if func is not aten.detach_.default:
            self.frozen.add(tensor.untyped_storage()._cdata)  # views of it and its owners are not what they were
        return tensor

    def record_write(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note what an op has written to its first argument, which is its `result`."""
        written = args[0]
        functional = functional_twin(func)
        if func is aten.bernoulli_.float:  # torch leaves out a default that its twin does not have
            args = (*args, 0.5)[:2]
        if not func._schema.name.endswith("_") or functional is None or result is not written:
            raise UnsupportedOpError(str(func), where=self.where)
        self.require_apart(func, args, kwargs)
        self.write((functional, args, kwargs), written)

    def require_apart(self, func: Any, args: Any, kwargs: Any) -> None:
        """Raise if an op writes to memory that it reads at other places."""
        others = [each for each in pytree.tree_leaves((args[1:], kwargs)) if isinstance(each, torch.Tensor)]
        if any(overlap_in_part(args[0], other) for other in others):
            raise UnsupportedOpError(f"{func} on memory that it reads elsewhere", where=self.where)

    def write(self, call: Call, written: torch.Tensor) -> None:
        """Note that a tensor has the result of an op as its new value."""
        owners = self._aliases.owners(written)
        line, is_backward = self.origin()
        for tensor in (written, *owners):
            if id(tensor) in self._inputs:
                if is_backward or not self._inputs[id(tensor)]:
                    raise UnsupportedOpError(f"{call[0]} on an argument of the loss", where=line)
                self.written[id(tensor)] = tensor
        if written.untyped_storage()._cdata in self.frozen:
            raise UnsupportedOpError(f"{call[0]} on memory that is seen in another way", where=line)
        self._nodes[id(written)] = self.call(*call, written)
        part = written
        for owner in owners:
            put_back = self._aliases.put_back(part, owner, part)
            if put_back is None:
                raise UnsupportedOpError(f"{call[0]} on a view", where=self.where)
            self._nodes[id(owner)] = self.call(*put_back, owner)
            part = owner
        self._aliases.written(written)

    def constant(self, value: torch.Tensor, result: torch.Tensor) -> torch.fx.Node:
        """The node of a tensor built from Python numbers inside the loss."""
        if isinstance(value, FakeTensor):
            raise UnsupportedOpError("a constant made of a fake tensor", where=self.where)
        with torch.utils._python_dispatch._disable_current_modes():
            if value.numel() == 1:
                number = value.reshape(()).item()
                node = self.graph.call_function(aten.full.default, ([1] * value.dim(), number), {"dtype": value.dtype})
            else:
                node = self.graph.get_attr(f"constant_{len(self.constants)}")
                self.constants[node] = value.detach().clone()
        node.meta["origin"], node.meta["backward"] = self.origin()
        node.meta.update(geometry=[(tuple(result.shape), result.dtype)], strides=[result.stride()])
        node.meta.update(is_tuple=False, of_formula=False)
        self.stand(result, node)
        return node
