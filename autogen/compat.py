"""The private names of torch and Triton that the package uses, each with what it is used for.

Nothing else imports a private name; `tests/unit/test_compat.py` has a test for each function here.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch._higher_order_ops.wrap import DynamoBypassingWrapper
from torch._ops import HigherOrderOperator

from autogen.errors import SourceLine

# --- Dynamo -----------------------------------------------------------------------------------------------------------


def break_of(graph: torch.fx.GraphModule) -> tuple[str | None, SourceLine | None]:
    """Torch's reason to end a graph of Dynamo's before the function does, and the user's line; None if it did not."""
    from autogen.capture.source import innermost

    reason = getattr(graph, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None, None
    frames = [(frame.filename, frame.lineno) for frame in reason.user_stack]
    return _first_sentence(str(reason.reason)), innermost(frames)


def _first_sentence(text: str) -> str:
    """The kind of a graph break, and its explanation, from torch's message of many lines."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    explained = next((line.removeprefix("Explanation:").strip() for line in lines if "Explanation:" in line), "")
    first = lines[0] if lines else ""
    return f"{first}: {explained}" if explained else first


def source_of(node: torch.fx.Node) -> str:
    """Where Dynamo has found an argument of a graph, such as `L['self']._buffers['weight']`.

    An argument of a graph inside of another has but a name, such as `l_target_`.
    """
    argument = node.meta.get("grapharg")
    if argument is None or argument.source is None:
        return str(node.target).removeprefix("l_").rstrip("_")
    name = argument.source.name
    return str(name() if callable(name) else name)  # a method before torch 2.12


class Frames:
    """What hands Python frames to Dynamo; in the place of `torch._dynamo.convert_frame.ConvertFrame`.

    Args:
        backend: what Dynamo calls with each graph.
        around: `around(frame, convert)` calls `convert(**options)`, which captures the frame under options of Dynamo.
        fullgraph: whether a graph break is an error.
    """

    def __init__(
        self,
        backend: Callable[..., Any],
        around: Callable[[FrameType, Callable[..., Any]], Any],
        *,
        fullgraph: bool,
    ) -> None:
        from torch._dynamo import convert_frame

        self._torchdynamo_orig_backend = backend
        self._convert = convert_frame.convert_frame_assert(backend, one_graph=fullgraph)
        self._around = around

    def __call__(self, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, skip: int = 0) -> Any:
        def convert(**options: Any) -> Any:
            with options_of_dynamo(**options), _inside_loss():
                return self._convert(frame, cache_entry, hooks, frame_state, skip=skip + 3)

        return self._around(frame, convert)


def captures(
    function: Callable[..., Any], backend: Callable[..., Any], around: Callable[..., Any], *, fullgraph: bool
) -> Callable[..., Any]:
    """A function that runs `function` by way of Dynamo, `backend` and `around`; see `Frames`."""
    from torch._dynamo import eval_frame
    from torch._dynamo.hooks import Hooks

    more: dict[str, Any] = {"isolate_recompiles": True} if _isolates() else {}
    context = eval_frame._optimize_catch_errors(
        Frames(backend, around, fullgraph=fullgraph),
        Hooks(None, None, None),
        fullgraph=fullgraph,
        **more,
    )
    return context(function)


@functools.cache
def _isolates() -> bool:
    """Whether functions that two losses call, and Dynamo captures, are captured for each."""
    import inspect

    from torch._dynamo import eval_frame

    return "isolate_recompiles" in inspect.signature(eval_frame._optimize_catch_errors).parameters


@contextlib.contextmanager
def options_of_dynamo(*, dynamic: str, knows_values: bool, limit: int, static: bool = False) -> Iterator[None]:
    """Options of Dynamo's for one capture.

    Args:
        dynamic: a pattern of the names of arguments whose sizes are symbols from the first call.
        knows_values: whether sizes that values decide, and numbers read from tensors, stay in the graph.
        limit: of captures of one function.
        static: whether all numbers and sizes are taken as they are.
    """
    from torch._dynamo import config
    from torch._functorch import config as aot
    from torch.compiler import config as compiler
    from torch.fx.experimental import _config as symbolic

    with (
        config.patch(
            capture_scalar_outputs=knows_values,
            capture_dynamic_output_shape_ops=knows_values,
            specialize_float=static,
            specialize_int=static,
            automatic_dynamic_shapes=not static,
            recompile_limit=limit + 1,
            accumulated_recompile_limit=1 << 20,
            reorderable_logging_functions=config.reorderable_logging_functions | _says(),
            suppress_errors=False,
        ),
        compiler.patch(dynamic_sources="" if static else dynamic),  # type: ignore[attr-defined]
        symbolic.patch(use_duck_shape=False),  # type: ignore[attr-defined]
        aot.patch(fake_tensor_propagate_real_tensors=False),
    ):
        yield


@functools.cache
def _says() -> set[Any]:
    import logging
    import warnings

    methods = (logging.Logger.debug, logging.Logger.info, logging.Logger.warning, logging.Logger.error)
    return {print, warnings.warn, *methods}


def entries_of(code: CodeType) -> int:
    """How many captures of some code Dynamo keeps."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    return len(_debug_get_cache_entry_list(code))


def forget(code: CodeType) -> None:
    """Have Dynamo forget what it has captured of some code."""
    from torch._C._dynamo.eval_frame import reset_code

    reset_code(code)


def left_to_python(reason: str, *, always: bool, deep: bool = False) -> Any:
    """What tells Dynamo to run a frame as it is: `always`, or this once; `deep` if what it calls is left, too."""
    from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
    from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
    from torch._dynamo.types import ConvertFrameReturn

    strategy = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP if deep else FrameAction.DEFAULT)
    return ConvertFrameReturn(frame_exec_strategy=strategy, apply_to_code=always, skip_reason=reason)


def captures_no_more(reason: str) -> Any:
    """What tells Dynamo to use what it has captured of some code, and to capture no more of it."""
    from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
    from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
    from torch._dynamo.types import ConvertFrameReturn

    strategy = FrameExecStrategy(FrameAction.RUN_ONLY, FrameAction.RUN_ONLY)
    return ConvertFrameReturn(frame_exec_strategy=strategy, skip_reason=reason)


def reasons_to_capture(frame: Any) -> list[str]:
    """Torch's reasons why no capture of a frame's code holds for it."""
    from torch._dynamo import guards
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    found = []
    for entry in _debug_get_cache_entry_list(frame.f_code):
        reason = guards.get_guard_fail_reason(
            entry.guard_manager, entry.code, frame.f_locals, entry.compile_id, entry.backend
        )
        found.append(str(reason).split("\n")[0])
    return found


def is_of_call(error: Exception) -> bool:
    """Whether Dynamo failed as an operation refuses the tensors that it is given: torch will say so."""
    from torch._dynamo.exc import TorchRuntimeError

    return isinstance(error, TorchRuntimeError)


def is_limit(error: Exception) -> bool:
    """Whether Dynamo captures a function no more, as it did so too often."""
    return getattr(error, "frame_exec_strategy", None) is not None


def reason_of(error: BaseException) -> str:
    """Torch's reason not to capture a function, in a sentence."""
    return _first_sentence(str(error)) or type(error).__name__


def line_of(error: BaseException) -> SourceLine | None:
    """The user's line that Dynamo was at when it gave up."""
    from autogen.capture.source import innermost

    stack = getattr(error, "real_stack", None) or ()
    return innermost([(frame.filename, frame.lineno) for frame in stack])


def restarts(error: Exception) -> bool:
    """Whether an exception is Dynamo's own way of beginning anew."""
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis

    return isinstance(error, TensorifyScalarRestartAnalysis)


def cause_of(error: BaseException) -> BaseException:
    """What a backend raised, out of what Dynamo makes of it."""
    from torch._dynamo.exc import BackendCompilerFailed

    while isinstance(error, BackendCompilerFailed):
        error = error.inner_exception
    return error


class _Now(threading.local):
    """What this thread is at: capturing a loss, or having Dynamo trace one as an operator."""

    def __init__(self) -> None:
        self.is_inside = False


_now = _Now()
_inlined: weakref.WeakSet[Any] = weakref.WeakSet()  # the `wrap` of losses that are no operators


@contextlib.contextmanager
def _inside_loss() -> Iterator[None]:
    """While a loss is traced: decorated ones that it calls are parts of it."""
    before, _now.is_inside = _now.is_inside, True
    try:
        yield
    finally:
        _now.is_inside = before


class _Operator(DynamoBypassingWrapper):
    """A loss in a graph of Dynamo's, with a graph of its own: `operator(wrap, function, ...)`; see `as_operator`."""

    def __init__(self) -> None:
        HigherOrderOperator.__init__(self, "autogen_loss")


_operator = _Operator()


def as_operator(wrap: Callable[..., Any], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A call that Dynamo, as it traces this, makes an operator of its graph.

    Backends that trace that graph, or run it, call `wrap(graph)(*operands)`, where `graph` is the function as a graph,
    and `operands` are all that it reads. If Dynamo ends its graph here, `wrap(function)(*args, **kwargs)` is called.
    The call is a part of the graph around it in another loss, for `torch.export`, and where the function has no graph
    of its own and that around it must not end, unless `wrap.is_mandatory`.
    """
    if _is_part(wrap):
        return function(*args, **kwargs)
    return _operator(wrap, function, *args, **kwargs)


def _is_part(wrap: Callable[..., Any]) -> bool:
    """Whether a loss is traced as a part of the graph around it."""
    _register_operator()
    return _now.is_inside or wrap in _inlined or torch.compiler.is_exporting()


# Dynamo calls it while it traces, and takes the result for a constant; it also makes that a global, by this name.
_is_part._dynamo_marked_constant = True  # type: ignore[attr-defined]
_is_part.__name__ = "__autogen_is_part"


@functools.cache
def _register_operator() -> None:
    """Tell Dynamo how it traces the operator."""
    from torch._dynamo.exc import UnspecializeRestartAnalysis, Unsupported
    from torch._dynamo.variables import higher_order_ops

    class Variable(higher_order_ops.DynamoBypassingWrapperHigherOrderVariable):
        _HOP_NAME = _operator.__name__

        def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
            # Modes of torch's functions are to hear of those that the loss calls, not of the operator.
            try:
                with _inside_loss():
                    return self._call_function(tx, args, kwargs)
            except Unsupported as error:
                wrap = args[0].as_python_constant()
                if not (tx.one_graph or tx.error_on_graph_break) or wrap.is_mandatory:
                    raise
                _inlined.add(wrap)
                raise UnspecializeRestartAnalysis(restart_reason="a loss has no graph of its own") from error

    higher_order_ops._hop_name_to_variable_class[_operator.__name__] = Variable


# --- AOTAutograd ------------------------------------------------------------------------------------------------------


def aot_module(
    graph: torch.fx.GraphModule,
    example: Sequence[Any],
    *,
    partition: Callable[..., Any],
    compile_forward: Callable[..., Any],
    compile_backward: Callable[..., Any],
    compile_inference: Callable[..., Any],
    decompositions: Mapping[Any, Any],
) -> Callable[..., Any]:
    """A graph of Dynamo's by way of AOTAutograd."""
    from torch._functorch.aot_autograd import aot_module_simplified

    return aot_module_simplified(
        graph,
        example,
        fw_compiler=compile_forward,
        bw_compiler=compile_backward,
        inference_compiler=compile_inference,
        partition_fn=partition,
        decompositions=dict(decompositions),
    )


def outside_of_modes() -> contextlib.AbstractContextManager[Any]:
    """Where tensors are real, in the midst of a trace."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def fakes_of(operands: Sequence[Any]) -> list[Any] | None:
    """The operands of an operator that AOTAutograd traces, with their fake tensors; None if a tensor has none."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor
    from torch.utils._python_dispatch import _disable_current_modes

    found = []
    with _disable_current_modes():
        for each in operands:
            fake = torch._from_functional_tensor(each.elem) if type(each) is FunctionalTensor else each
            if isinstance(each, torch.Tensor) and type(fake) is not FakeTensor:
                return None
            found.append(fake)
    return found


@contextlib.contextmanager
def apart(fakes: Sequence[Any], wanted: Sequence[bool]) -> Iterator[list[Any]]:
    """Outside of a trace, new tensors like its fake ones, of which those `wanted` have gradients; guards on their sizes
    are the trace's.
    """
    from torch._guards import TracingContext, tracing
    from torch.utils._python_dispatch import _disable_current_modes

    mode = next(each.fake_mode for each in fakes if isinstance(each, torch.Tensor))  # type: ignore[attr-defined]
    shapes = mode.shape_env
    unknown = contextlib.nullcontext() if shapes is None else shapes.ignore_fresh_unbacked_symbols()
    with _disable_current_modes(), tracing(TracingContext(mode)), unknown, _inside_loss():
        with mode:
            new = [_like(each) if isinstance(each, torch.Tensor) else each for each in fakes]
        for each in itertools.compress(new, wanted):
            each.requires_grad_()
        yield new


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as AOTAutograd calls compiled ones: with a list, which is empty afterwards."""

    def run(arguments: list[Any]) -> Any:
        given = tuple(arguments)
        arguments.clear()
        return function(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def is_plain_call() -> bool:
    """Whether AOTAutograd has nothing to do around the graph that is being compiled: it changes none of its inputs,
    and returns no views.
    """
    from torch._functorch._aot_autograd.schemas import OutputType

    metadata = torch._guards.TracingContext.get().fw_metadata
    if metadata is None:
        return False
    own = {OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view}
    changes = any(each.mutates_data or each.mutates_metadata for each in metadata.input_info)
    is_wrapped = metadata.num_intermediate_bases or metadata.tokens or metadata.is_rng_op_functionalized
    is_subclass = metadata.traced_tangent_metas is not None and any(
        not isinstance(each, int) and hasattr(each, "attrs") for each in metadata.subclass_inp_meta
    )
    return (
        not changes
        and not is_wrapped
        and not is_subclass
        and all(each.output_type in own for each in metadata.output_info)
    )


def results_of(module: torch.fx.GraphModule) -> list[Any]:
    """The results of a graph."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    return list(output.args[0])


def shape_env_of(fakes: Sequence[Any]) -> Any:
    """The `ShapeEnv` of some fake tensors; a new one if they have none."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    for fake in fakes:
        if isinstance(fake, torch.SymInt):
            return fake.node.shape_env
        if isinstance(fake, torch.Tensor) and fake.fake_mode.shape_env is not None:  # type: ignore[attr-defined]
            return fake.fake_mode.shape_env  # type: ignore[attr-defined]
    return ShapeEnv()


def fake_mode_of(module: torch.fx.GraphModule) -> Any:
    """The mode of the fake tensors of a graph."""
    fakes = (node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder")
    return next(each.fake_mode for each in fakes if isinstance(each, torch.Tensor))  # type: ignore[attr-defined]


def mutated_places(joint: torch.fx.GraphModule, count: int) -> frozenset[int]:
    """The arguments of a joint graph that are changed in place."""
    (output,) = (node for node in joint.graph.nodes if node.op == "output")
    found = set()
    for described in list(output.meta["desc"])[:count]:
        changed = getattr(described, "mutated_input", None)
        if changed is not None:
            found.add(changed.idx)
    return frozenset(found)


def partitioned(
    joint: torch.fx.GraphModule, count: int, kept: Sequence[torch.Tensor]
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Graphs of forward and backward that tell AOTAutograd what these take and return; nobody runs them.

    Forward returns its results, its tensors, what it has `kept`, and its numbers; backward takes numbers first.
    """
    placeholders = [node for node in joint.graph.nodes if node.op == "placeholder"]
    inputs = [node for node in placeholders if not node.name.startswith("tangents")]
    tangents = [node for node in placeholders if node.name.startswith("tangents")]
    results = results_of(joint)

    forward = torch.fx.Graph()
    given = [_copy(forward, node) for node in inputs]
    made = forward.call_function(tuple, (given,))
    returned = [
        each if not isinstance(each, torch.fx.Node) else _part(forward, made, k, each.meta["val"])
        for k, each in enumerate(results[:count])
    ]
    tensors = [node for node in given if isinstance(node.meta["val"], torch.Tensor)]
    numbers = [node for node in given if not isinstance(node.meta["val"], torch.Tensor)]
    saved = [_part(forward, made, k, node.meta["val"]) for k, node in enumerate(tensors)]
    more = [_part(forward, made, k, each) for k, each in enumerate(kept)]
    forward.output((*returned, *saved, *more, *numbers))

    backward = torch.fx.Graph()
    for node in numbers:
        _copy(backward, node)
    for k, node in enumerate((*saved, *more)):
        backward.placeholder(f"saved_{k}").meta["val"] = node.meta["val"]
    arrived = [_copy(backward, node) for node in tangents]
    found = backward.call_function(tuple, (arrived,))
    gradients = [
        None if each is None else _part(backward, found, k, each.meta["val"]) for k, each in enumerate(results[count:])
    ]
    backward.output(tuple(gradients))
    return torch.fx.GraphModule({}, forward), torch.fx.GraphModule({}, backward)


def _copy(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    copy = graph.placeholder(node.name)
    copy.meta.update(node.meta)
    return copy


def _part(graph: torch.fx.Graph, whole: torch.fx.Node, place: int, value: Any) -> torch.fx.Node:
    import operator

    part = graph.call_function(operator.getitem, (whole, place))
    part.meta["val"] = value
    return part


def inductor(graph: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
    """A graph compiled by torch's own backend."""
    from torch._inductor.compile_fx import compile_fx

    compiled: Any = compile_fx(graph, example)
    return compiled


def replace_symbol(shapes: Any, symbol: Any, other: Any) -> None:
    """Have a `ShapeEnv` write a size that values decide as another one, which is the same."""
    shapes._set_replacement(symbol, other, "values decide that they are equal")


def hints_of(shapes: Any) -> Mapping[Any, Any]:
    """The sizes of the call that was captured, by the symbols of a `ShapeEnv`."""
    known = getattr(shapes, "backed_var_to_val", None)  # `var_to_val` before torch 2.12
    return shapes.var_to_val if known is None else known
