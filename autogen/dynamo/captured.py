"""Losses captured by `torch.compile`: each is a graph of torch's functions, which becomes one op, or runs as it is.

Backends lower the graph around a loss with stand-ins for its tensors, and call `LossOperator` with the inner graph.
There the loss is compiled like any other, and `autogen::forward` is recorded in its place. Where that is not possible,
the operations of the inner graph are, as for a loss that is not decorated.
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import GraphModule, Node

from autogen.calls.binding import is_replaying
from autogen.calls.digest import Portable
from autogen.calls.identity import Identity
from autogen.dynamo import graphs
from autogen.dynamo.marked import Marked, Number, mark, marked
from autogen.dynamo.opaque import forward, register
from autogen.errors import AutogenError, GraphError
from autogen.frozen import frozen
from autogen.names import unique
from autogen.options import Options
from autogen.runtime.compiled import CompiledLoss
from autogen.runtime.handwritten import BoundHandwritten
from autogen.sizes import hint

MOST_NUMBERS = 1  # for how many values of numbers that have changed a loss is compiled, at one place

DispatcherOf = Callable[[Callable[..., Any], str, Options], Any]
"""Makes the `Dispatcher` of a function, given a name and options; that module knows this one."""

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_STAND_INS = (FakeTensor, FunctionalTensor)


@frozen
class _Size:
    """An input of a graph that is a size of one of its tensors."""

    tensor: int
    dim: int


class Body(Portable):
    """The graph of a loss, as a function of its tensors.

    `inputs` says what each input of the graph is: the position of a tensor, a `_Size` or a `Number`. If
    `arguments` are known, they give the tensors their names; their options can be given, too, which changes nothing.
    """

    def __init__(self, graph: GraphModule, inputs: tuple[Any, ...], arguments: Marked | None) -> None:
        self._graph = graph
        self._inputs = inputs
        self._detached = _detached(graph)
        self.options = {} if arguments is None else arguments.options
        names: dict[str, None] = {}
        for node, each in zip(_placeholders(graph), inputs, strict=True):
            if isinstance(each, int):
                names[unique(_name_of(node) if arguments is None else arguments.names[node], names)] = None
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(name, kind)
                for kind, own in zip(kinds, (names, self.options), strict=True)
                for name in own
            ]
        )

    @property
    def content(self) -> tuple[Any, ...] | None:
        """Its code, inputs and functions; None if it has parts that its code only names."""
        if _has_parts(self._graph):
            return None
        targets = (node.target for node in self._graph.graph.nodes if node.op == "call_function")
        return self._graph.code, repr((self._inputs, self._detached)), *map(Identity, targets)

    def __call__(self, *tensors: torch.Tensor, **options: Any) -> tuple[Any, ...]:
        """The results of the graph, without those that `all_results` makes of others."""
        results = self._graph(*[self._given(each, tensors) for each in self._inputs])
        return tuple([each for k, each in enumerate(results) if k not in self._detached])

    def all_results(self, results: Any) -> tuple[Any, ...]:
        """Those of the graph, given what a call has returned; handwritten kernels return a single tensor."""
        left = iter((results,) if isinstance(results, torch.Tensor) else results)
        count = len(_results(self._graph))
        found = {k: next(left) for k in range(count) if k not in self._detached}
        return tuple([found[k] if k in found else found[self._detached[k]].detach() for k in range(count)])

    def _given(self, each: Any, tensors: Sequence[torch.Tensor]) -> Any:
        if isinstance(each, int):
            return tensors[each]
        if isinstance(each, _Size):
            return tensors[each.tensor].shape[each.dim]
        return each if each.is_tensor else each.value


class LossOperator(HigherOrderOperator):
    """A captured loss in the graph around it: `autogen_loss(graph, *inputs, loss=label)` is `graph(*inputs)`."""

    def __init__(self, dispatcher_of: DispatcherOf) -> None:
        super().__init__("autogen_loss")
        self._dispatcher_of = dispatcher_of
        self._dispatchers: dict[Hashable, Any] = {}
        self._numbers: dict[Hashable, dict[tuple[Any, ...], int | None]] = {}  # by the code that Dynamo has compiled

    def __call__(self, graph: Any, *inputs: Any, loss: str) -> Any:
        """Run the loss; record it, where the graph around it is lowered."""
        # Dynamo that has given up on a graph calls this with the loss itself; a loss may be part of another.
        if not isinstance(graph, GraphModule) or is_replaying():
            return graph(*inputs)
        try:
            dispatcher, tensors = self._call_of(graph, inputs, loss)
            is_lowered = any(type(tensor) not in _PLAIN for tensor in tensors)  # not by every backend
            if is_lowered and _is_for_other_processes():
                raise GraphError(dispatcher.name, "it is to run in other processes, which do not have them")
            compiled, sizes = _compiled(dispatcher, tensors) if is_lowered else (None, {})
        except AutogenError as error:
            error.__traceback__ = None  # it may be kept for other calls, and would keep the tensors of this one alive
            if graphs.is_required(loss):
                raise
            graphs.say(loss, error.reason)
            return graph(*inputs)
        if compiled is None:
            results = dispatcher(None, tuple(tensors), dispatcher.function.options)
        else:
            outputs = forward(tensors, register(compiled, tensors, dispatcher.function))
            results = compiled.result(outputs[: len(compiled.differentiable)], sizes, tensors)
        return dispatcher.function.all_results(results)

    def _call_of(self, graph: GraphModule, inputs: Sequence[Any], loss: str) -> tuple[Any, list[torch.Tensor]]:
        """The dispatcher of a graph, and the tensors among its inputs.

        Raises:
            GraphError: the graph is none that a dispatcher can be given.
        """
        found = self._read(graph, inputs, loss)
        tensors = [given for given, each in zip(inputs, found, strict=True) if isinstance(each, int)]
        if any(type(tensor) not in (*_PLAIN, *_STAND_INS) for tensor in tensors):
            raise GraphError(graphs.name_of(loss), "it is given a tensor of a class of its own")
        arguments = None
        if graphs.options_of(loss).handwritten is not None and self._fixes(graph, tensors, loss):
            arguments = marked(graph, dict(zip(_placeholders(graph), found, strict=True)))
        return self._dispatcher(graph, found, arguments, loss), tensors

    def _fixes(self, graph: GraphModule, tensors: Sequence[torch.Tensor], loss: str) -> bool:
        """Make all sizes but the first of each tensor numbers, on which handwritten kernels depend, if they may be."""
        symbols = [size for t in tensors for size in (*t.shape[1:], *t.stride()) if isinstance(size, torch.SymInt)]
        hints = tuple(map(hint, symbols))
        must_vary = None in hints or (symbols and _must_vary(symbols))
        if must_vary or not self._admits(hints, graph, loss, "sizes"):
            return False
        for size in symbols:
            int(size)  # a guard
        return True

    def _read(self, graph: GraphModule, inputs: Sequence[Any], loss: str) -> tuple[Any, ...]:
        """What the inputs of the graph are, see `Body`.

        Raises:
            GraphError: that is not known, a number changes too often, or results share memory.
        """
        name, nodes = graphs.name_of(loss), _placeholders(graph)
        if any("example_value" not in node.meta for node in nodes):
            raise GraphError(name, "its graph is a copy of another")
        if _shares_memory(graph):
            raise GraphError(name, "a result is a view of an input, or of another result")
        values = [node.meta["example_value"] for node in nodes]
        places: dict[int, int] = {}
        sizes: dict[str, _Size] = {}
        for k, (node, value) in enumerate(zip(nodes, values, strict=True)):
            if isinstance(value, torch.Tensor) and not _is_number(node, value):
                places[k] = len(places)
                for dim, size in enumerate(value.shape):
                    sizes.setdefault(str(size), _Size(places[k], dim))
        found: dict[int, Any] = places | {
            k: sizes[str(value)] for k, value in enumerate(values) if k not in places and str(value) in sizes
        }
        numbers = {
            k: given.item() if isinstance(given, torch.Tensor) else given
            for k, given in enumerate(inputs)
            if k not in found
        }
        hints = tuple(hint(number) for number in numbers.values())
        if None in hints:
            raise GraphError(name, "it reads a number that only values know")
        if not self._admits(hints, graph, loss, "numbers"):
            raise GraphError(name, "it reads a number that keeps changing")
        for k, number in numbers.items():
            is_float = isinstance(number, (float, torch.SymFloat))
            value = float(number) if is_float else int(number)  # of a symbol: a guard
            found[k] = Number(value, isinstance(values[k], torch.Tensor))
        return tuple(found[k] for k in range(len(nodes)))

    def _admits(
        self, numbers: tuple[Any, ...], graph: GraphModule, loss: str, kind: Literal["numbers", "sizes"]
    ) -> bool:
        """Whether the loss may be compiled for some numbers, in the code that Dynamo is compiling, or in a graph.

        It may be for those of one compilation, which has an attempt for what is a constant then, and several calls.
        """
        compilation = torch._guards.CompileContext.current_compile_id()
        key = kind, loss, id(graph) if compilation is None else compilation.frame_id
        now = None if compilation is None else compilation.frame_compile_id
        if now == 0:  # for the first time, or after a reset
            self._numbers.pop(key, None)
        known = self._numbers.setdefault(key, {})
        before = [each for each in known.values() if each is None or each != now]
        if numbers and numbers not in known and len(before) >= MOST_NUMBERS:
            return False
        if numbers:
            known.setdefault(numbers, now)
        return True

    def _dispatcher(self, graph: GraphModule, inputs: tuple[Any, ...], arguments: Marked | None, loss: str) -> Any:
        """The dispatcher of all graphs that are like this one; handwritten kernels are for what is marked."""
        targets = tuple(node.target for node in graph.graph.nodes if node.op == "call_function")
        part = id(graph) if _has_parts(graph) else None
        seen = repr((inputs, _detached(graph)))  # 0.0 is not -0.0
        key = loss, graph.code, targets, seen, arguments is None, part
        found = self._dispatchers.get(key)
        if found is None:
            options = graphs.options_of(loss)
            options = options if arguments is not None else replace(options, handwritten=None)
            found = self._dispatcher_of(Body(graph, inputs, arguments), graphs.name_of(loss), options)
            self._dispatchers[key] = found
        return found


def make_operator(dispatcher_of: DispatcherOf) -> Any:
    """The higher-order op, known to Dynamo; None if this torch lacks what that takes."""
    try:
        from torch._dynamo.exc import UnspecializeRestartAnalysis, Unsupported
        from torch._dynamo.symbolic_convert import TensorifyState
        from torch._dynamo.variables.higher_order_ops import BaseHOPVariable, _hop_name_to_variable_class
    except ImportError:
        return None
    traces = getattr(BaseHOPVariable, "_call_function", None)
    if traces is None or list(inspect.signature(traces).parameters) != ["self", "tx", "args", "kwargs"]:
        return None

    class LossVariable(BaseHOPVariable):
        """The op, as Dynamo traces it. What cannot be in a graph of its own is traced again as part of the other; what
        would end that, too, is left to be called after it.
        """

        supports_aliasing = True  # of inputs, such as the halves of a batch

        def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
            # Modes, such as a default device, are to hear of what the loss calls, not of the op.
            return self._call_function(tx, args, kwargs)

        def _call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
            if graphs.is_first_attempt():
                TensorifyState.clear()  # a number may have been a constant of the graph for the values before
            try:
                with _numbers_around(tx.output):
                    return super()._call_function(tx, args, kwargs)
            except Unsupported as error:
                loss, reason = kwargs["loss"].as_python_constant(), str(error).partition("\n")[0]
                is_whole = getattr(tx, "one_graph", True) or getattr(tx, "error_on_graph_break", False)
                is_torchs = (is_whole or reason.startswith("HOP")) and not graphs.is_required(loss)
                (graphs.inline if is_torchs else graphs.leave)(loss, reason)
                raise UnspecializeRestartAnalysis(restart_reason=f"{loss} has no graph of its own") from error

    operator = LossOperator(dispatcher_of)
    _hop_name_to_variable_class[operator.__name__] = LossVariable
    torch._dynamo.allow_in_graph(mark)
    return operator


@contextmanager
def _numbers_around(output: Any) -> Iterator[None]:
    """Have Dynamo read floats in the outermost graph while it traces one inside.

    Of itself it reads a float where that is first met, and then takes the result for known in all graphs.
    """
    if "create_proxy" in vars(output):  # in a loss of another
        yield
        return
    create = output.create_proxy

    def create_proxy(kind: str, target: Any, args: Any, *others: Any, **options: Any) -> Any:
        root = output.root_tracer
        given = args[0].node.meta.get("grapharg") if target == "item" and args[0].tracer is root else None
        is_number = given is not None and given.pass_arg_as_tensor
        return (root.create_proxy if is_number else create)(kind, target, args, *others, **options)

    output.create_proxy = create_proxy
    try:
        yield
    finally:
        del output.create_proxy


def _is_for_other_processes() -> bool:
    """Whether a graph is compiled to be saved as a program (`aot_compile`)."""
    return bool(getattr(torch._functorch.config, "bundled_autograd_cache", False))


def _compiled(
    dispatcher: Any, tensors: Sequence[torch.Tensor]
) -> tuple[CompiledLoss | BoundHandwritten, dict[str, Any]]:
    """The loss, compiled for tensors like these, and their sizes by name.

    Raises:
        AutogenError: it has no kernels, or they are not all there is to it, or not for these sizes.
    """
    name = dispatcher.name
    shapes = [[hint(size) for size in (*tensor.shape, *tensor.stride())] for tensor in tensors]
    if any(None in each for each in shapes):
        raise GraphError(name, "it has a tensor whose sizes only values know")
    with _outside():
        given = tuple(_stand_in(*each) for each in zip(tensors, shapes, strict=True))
        _, decision = dispatcher.prepare(None, given, dispatcher.function.options, name, is_call=False)
    if decision.error is not None:
        raise decision.error
    compiled = decision.kernels
    if isinstance(compiled, BoundHandwritten):
        if compiled.found:
            raise GraphError(name, "its kernels are given what the host reads")
        return compiled, {}
    if not isinstance(compiled, CompiledLoss) or not compiled.is_closed:
        raise GraphError(name, "its kernels are not all that has to run")
    sizes = _sizes(compiled, tensors)
    if sizes is None:
        raise GraphError(name, "its kernels are not made for sizes like these")
    return compiled, sizes


def _sizes(compiled: CompiledLoss, tensors: Sequence[torch.Tensor]) -> dict[str, Any] | None:
    """The sizes of a graph by name, if the kernels are made for them; of what is compared, torch makes guards."""
    symbols = (size for tensor in tensors for size in tensor.shape if isinstance(size, torch.SymInt))
    return compiled.sizes_alone(tensors) if all(size >= 2 for size in symbols) else None


def _must_vary(sizes: Sequence[torch.SymInt]) -> bool:
    """Whether the user has said of some sizes that they are to be symbols (`torch._dynamo.mark_dynamic`)."""
    marked: set[Any] = set()
    for tracked in sizes[0].node.shape_env.tracked_fakes or ():
        constraints = getattr(tracked.symbolic_context, "constraint_sizes", ())
        for size, constraint in zip(getattr(tracked.fake, "shape", ()), constraints, strict=False):
            # That of a size which Dynamo has found to change is only warned of.
            if not getattr(constraint, "warn_only", True) and isinstance(size, torch.SymInt):
                marked |= size.node.expr.free_symbols
    return any(size.node.expr.free_symbols & marked for size in sizes)


def _stand_in(tensor: torch.Tensor, geometry: list[int]) -> torch.Tensor:
    """A real tensor of the same kind. Of its values, a trace may look at some, so they are not just anything."""
    shape, strides = geometry[: tensor.dim()], geometry[tensor.dim() :]
    made = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device).zero_()
    return made.requires_grad_(tensor.requires_grad)


@contextmanager
def _outside() -> Iterator[None]:
    """Where nothing is lowered."""
    with ExitStack() as stack:
        stack.enter_context(torch.utils._python_dispatch._disable_current_modes())
        stack.enter_context(torch._C._DisablePythonDispatcher())
        stack.enter_context(torch._guards.tracing(None))
        yield


def _placeholders(graph: GraphModule) -> list[Node]:
    return graph.graph.find_nodes(op="placeholder")


def _has_parts(graph: GraphModule) -> bool:
    """Whether a graph holds tensors or modules."""
    return any(node.op in ("get_attr", "call_module") for node in graph.graph.nodes)


def _results(graph: GraphModule) -> Sequence[Any]:
    (output,) = graph.graph.find_nodes(op="output")
    results: Sequence[Any] = output.args[0]
    return results


def _detached(graph: GraphModule) -> dict[int, int]:
    """Which results are others without their gradient, as where a loss is returned with what is to be logged."""
    results = _results(graph)
    examples = {k: node.meta.get("example_value") for k, node in enumerate(results) if isinstance(node, Node)}
    tensors = {k: each for k, each in examples.items() if isinstance(each, torch.Tensor)}
    first: dict[Hashable, int] = {}
    found: dict[int, int] = {}
    for k, each in sorted(tensors.items(), key=lambda item: not item[1].requires_grad):
        geometry = str((each.shape, each.stride(), each.storage_offset(), each.dtype))  # sizes may be symbols
        own = first.setdefault((each.untyped_storage()._cdata, geometry), k)
        if results[own] is not results[k] and not each.requires_grad:
            found[k] = own
    return found


def _shares_memory(graph: GraphModule) -> bool:
    """Whether a result is a view of an input or of another result: what writes to one of them changes both."""
    detached = _detached(graph)
    returned = {node: None for k, node in enumerate(_results(graph)) if isinstance(node, Node) and k not in detached}
    given, made = map(_memory, (_placeholders(graph), list(returned)))
    return len({*given, *made}) < len(set(given)) + len(made)


def _memory(nodes: Sequence[Node]) -> list[int]:
    """Where the tensors among some nodes are."""
    examples = [node.meta.get("example_value") for node in nodes]
    return [each.untyped_storage()._cdata for each in examples if isinstance(each, torch.Tensor)]


def _is_number(node: Node, value: torch.Tensor) -> bool:
    is_scalar = value.dim() == 0 and value.dtype == torch.float64 and value.device.type == "cpu"
    return is_scalar and all(user.op == "call_method" and user.target == "item" for user in node.users)


def _name_of(node: Node) -> str:
    """What the user may recognise of Dynamo's name for an input: `l_self_parameters_scale_` → `scale`, and from a list
    `l_self_modules_w_parameters_0_` → `w_0`.
    """
    *before, name = re.split(r"_(?:parameters|buffers|modules)_", re.sub(r"^[lg]_|_+$", "", node.name))
    while before and (keyword.iskeyword(name) or not name.isidentifier()):
        name = f"{before.pop()}_{name}"
    return name if name.isidentifier() and not keyword.iskeyword(name) else node.name
