"""The private APIs of torch and Triton that the package depends on, each with what it is used for.

Nothing else imports a private name; `tests/unit/test_compat.py` has a test for each name here. What warm calls use is
torch's own function, with nothing around it. Neither Dynamo nor Triton is imported before a function needs it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import itertools
import operator
import re
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch._higher_order_ops.wrap import DynamoBypassingWrapper
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch.autograd import forward_ad
from torch.nn.modules.adaptive import _ASMoutput
from torch.utils._device import DeviceContext

# --- torch: tensors and operators -------------------------------------------------------------------------------------

pytree = torch.utils._pytree
"""Torch's walk through nested arguments."""


def places_of(nested: Any) -> list[str]:
    """Where each leaf of nested containers is, as in "target.boxes" and "1.0"; of a leaf alone, ""."""
    found, _ = pytree.tree_flatten_with_path(nested)
    names = ("key", "idx", "name")  # of a dictionary, a sequence, a named tuple or dataclass
    return [
        ".".join(str(getattr(key, name)) for key in path for name in names if hasattr(key, name)) for path, _ in found
    ]


def jagged_extras(tensor: torch.Tensor) -> dict[str, int | None]:
    """What `nested_tensor_from_jagged` needs to make a jagged tensor like this one, beside its tensors."""
    jagged: Any = tensor
    return {
        "jagged_dim": jagged._ragged_idx,
        "min_seqlen": jagged._maybe_min_seqlen,
        "max_seqlen": jagged._maybe_max_seqlen,
    }


ASMOutput: Any = _ASMoutput
"""What `AdaptiveLogSoftmaxWithLoss` returns."""

is_functorch_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether `torch.func` has wrapped a tensor; also one that has outlived its transform."""

is_batched = torch._C._functorch.is_batchedtensor
"""Whether `torch.func.vmap` maps over a dimension of a tensor."""

is_legacy_batched = torch._C._functorch.is_legacy_batchedtensor
"""Whether `torch.autograd.functional` maps over a dimension of a tensor."""

WithoutSubclasses: Any = torch._C.DisableTorchFunctionSubclass
"""A context in which torch's functions do not ask the classes of tensors for `__torch_function__`."""


def hears_of_operators(kind: type[torch.Tensor]) -> bool:
    """Whether a class of tensors is asked what torch's operators do, not its functions alone."""
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


is_zero_tensor = torch.Tensor._is_zerotensor
"""Whether a tensor is one of zeros without memory, as derivatives are that are known to be 0."""

reduction_by_flags: Callable[..., str] = torch.nn._reduction.legacy_get_string
"""The reduction that `size_average` and `reduce` ask for, of which it warns unless `emit_warning=False`."""

CLAMPS_TIES = torch.__version__ >= "2.14"
"""Whether the gradient of a clamp at its bound is 0."""

TAKES_ANY_BOUND = torch.__version__ >= "2.15"
"""Whether clamp takes bounds that an integer cannot hold. Else such a bound is an error, or wraps."""


def is_op(target: Any) -> bool:
    """Whether a node's target is an overload of an op."""
    return isinstance(target, torch._ops.OpOverload)


def schema_of(target: Any) -> Any:
    """The schema of an operator: its name, arguments and results; None of another function."""
    return getattr(target, "_schema", None)


def shows_its_first(target: Any) -> bool:
    """Whether an op's results are views of its first argument."""
    arguments = getattr(schema_of(target), "arguments", None)
    first = arguments[0].alias_info if arguments else None
    return first is not None and not first.is_write


def storage_of(tensor: torch.Tensor) -> int:
    """What tensors that share memory have in common."""
    return tensor.untyped_storage()._cdata


def jagged_types() -> tuple[type, ...]:
    """The types of jagged tensors, if anybody has made one."""
    module = sys.modules.get("torch.nested._internal.nested_tensor")
    return () if module is None else (module.NestedTensor,)


def is_nested_int(size: Any) -> bool:
    """Whether a size is that of a jagged tensor's lengths, which stands for many and is no number."""
    return isinstance(size, torch.SymInt) and size.node.has_hint() and not isinstance(size.node.hint, int)


def tensor_guard(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Dynamo's own test whether other tensors have the geometry of these, which takes 0.2 µs.

    It also says no where autocast or inference mode have changed, or a tensor comes twice. None may be nested: it ends
    the process if a tensor has no strides.
    """
    from torch._C._dynamo.guards import TensorGuards

    check: Callable[..., bool] = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


def state_guard() -> Callable[[], bool]:
    """Dynamo's own test whether torch's settings (gradients, autocast and its dtype, the default dtype) are as now."""
    from torch._C._dynamo.guards import GlobalStateGuard

    check: Callable[[], bool] = GlobalStateGuard().check
    return check


def empty_on(kind: str) -> Callable[[Any, Any, torch.dtype], torch.Tensor]:
    """What Inductor's code makes a tensor with on the current device of a kind (`cpu` or `cuda`), given shape, strides
    and dtype. It takes half as long as `torch.empty_strided`.
    """
    from torch._C._dynamo import guards

    found: Callable[[Any, Any, torch.dtype], torch.Tensor] = getattr(guards, f"_empty_strided_{kind}")
    return found


@functools.cache
def decomposition_table() -> Mapping[Any, Callable[..., Any]]:
    """Torch's formulas for operators."""
    from torch._decomp import decomposition_table

    return decomposition_table


pad_sequence: Callable[..., torch.Tensor] = torch._C._nn.pad_sequence
"""What `torch.nn.utils.rnn.pad_sequence` calls."""

tensor_of_numbers: Callable[..., torch.Tensor] = torch._refs.tensor
"""What Dynamo calls in the place of `torch.tensor`, given numbers that vary."""

copy_each: Callable[..., None] = torch._foreach_copy_
"""Write tensors to others, which are of the same shapes, in as few launches as torch can."""


# --- torch: modes and state -------------------------------------------------------------------------------------------

functorch_level = torch._C._functorch.peek_interpreter_stack
"""The innermost transform of `torch.func` that is at work, None if there is none."""

function_modes = torch._C._len_torch_function_stack
"""How many modes hear of torch's functions that are called."""

dispatch_modes = torch._C._len_torch_dispatch_stack
"""How many modes hear of torch's operators that are run."""

jit_state = torch._C._get_tracing_state
"""What `torch.jit.trace` is at, None if it is not at work."""

is_autocast = torch._C._is_any_autocast_enabled
"""Whether autocast is on for any kind of device."""

WithoutAutocast: Any = torch._C._DisableAutocast
"""A context in which autocast is off for all kinds of devices."""

saved_tensors_hooks = torch._C._autograd._top_saved_tensors_default_hooks
"""The hooks of tensors that are saved for backward, None if there are none; called with False."""


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether something runs with each call of a module, as that which `torch.nn.utils.weight_norm` sets weights by."""
    own = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return any(own) or "forward" in module.__dict__


def is_loss_parallel() -> bool:
    """Whether DTensors compute cross entropies as inside of `torch.distributed.tensor.parallel.loss_parallel`."""
    module = sys.modules.get("torch.distributed.tensor")  # which takes long to import
    if module is None:
        return False
    return torch.ops.aten._log_softmax.default in module.DTensor._op_dispatcher._custom_op_handlers


def is_functional() -> bool:
    """Whether `torch.func` or forward-mode AD is at work."""
    return functorch_level() is not None or forward_ad._current_level >= 0


def has_function_modes() -> bool:
    """Whether something hears of all functions of torch that are called, but for what gives new tensors a device."""
    if function_modes() == 0:
        return False
    return any(not isinstance(mode, DeviceContext) for mode in torch.overrides._get_current_function_mode_stack())


def default_device() -> torch.device | None:
    """Where torch makes tensors if a call of it says nothing, by `set_default_device` or `with torch.device`."""
    if function_modes() == 0:
        return None
    modes = reversed(torch.overrides._get_current_function_mode_stack())
    return next((mode.device for mode in modes if isinstance(mode, DeviceContext)), None)


def outside_of_modes() -> contextlib.AbstractContextManager[Any]:
    """Where tensors are real, in the midst of a trace."""
    return torch.utils._python_dispatch._disable_current_modes()


def drawing_once() -> Any:
    """A context in which torch draws one number for all that it maps over.

    Else it draws one for each, or refuses to; what was drawn in forward is one for all.
    """
    keys = [torch._C._dispatch_key_parse(name) for name in ("VmapMode", "FuncTorchVmapMode")]
    return torch._C._ExcludeDispatchKeyGuard(functools.reduce(operator.or_, map(torch._C.DispatchKeySet, keys)))


def cuda_functions() -> tuple[Callable[[], int], Callable[[Any], int], Callable[[], bool]]:
    """The current CUDA device; its current stream, as CUDA knows it, by the device; whether that is being captured."""
    return (
        torch._C._cuda_getDevice,
        torch._C._cuda_getCurrentRawStream,
        torch._C._cuda_isCurrentStreamCapturing,
    )


def direct_apply(function: Any) -> Callable[..., Any]:
    """`apply` of an `autograd.Function`, which does not ask whether torch.func transforms the call.

    What autograd calls would look each time whether the class has a `backward` or a `vjp`.
    """
    if hasattr(function, "_backward_cls"):
        function._backward_cls.apply = function.backward
    return super(torch.autograd.Function, function).apply


GRAD_SWITCH = "torch._C._set_grad_enabled"
"""What the code of Dynamo's graphs calls where a loss turns gradients on or off."""

profiled: Callable[[str], contextlib.AbstractContextManager[Any]] = torch._C._profiler._RecordFunctionFast
"""A range of a name in profiles, which costs next to nothing where no profiler is at work."""


# --- Dynamo -----------------------------------------------------------------------------------------------------------


def break_of(graph: torch.fx.GraphModule) -> tuple[str | None, list[tuple[str, int]]]:
    """Torch's reason to end a graph of Dynamo's before the function does, None if it did not, and the frames there."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None, []
    return _first_sentence(str(reason.reason)), [(frame.filename, frame.lineno) for frame in reason.user_stack]


def _first_sentence(text: str) -> str:
    """The kind of a graph break, and its explanation, from torch's message of many lines."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    explained = next((line.removeprefix("Explanation:").strip() for line in lines if "Explanation:" in line), "")
    first = lines[0] if lines else ""
    return (f"{first}: {explained}" if explained else first).rstrip(".")


def source_of(node: torch.fx.Node) -> str:
    """Where Dynamo has found an argument of a graph, such as `L['self']._buffers['weight']`.

    An argument of a graph inside of another has but a name, such as `l_target_`.
    """
    argument = node.meta.get("grapharg")
    if argument is None or argument.source is None:
        return str(node.target).removeprefix("l_").rstrip("_")
    return _name_of_source(argument.source)


def _name_of_source(source: Any) -> str:
    return str(source.name() if callable(source.name) else source.name)  # a method before torch 2.12


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
        from torch._dynamo.symbolic_convert import TensorifyState

        def convert(**options: Any) -> Any:
            # Numbers that the captures of other functions have fixed, by the names of their symbols.
            TensorifyState.clear()
            lists, most = options.pop("lists", ()), options.pop("operations", None)
            limit = contextlib.nullcontext() if most is None else _at_most(most)
            changes = (_inside_loss(), _formula_of_padding(), _asked_once(), lengths_of(lists), limit)
            with options_of_dynamo(**options), contextlib.ExitStack() as stack:
                for each in changes:
                    stack.enter_context(each)
                return self._convert(frame, cache_entry, hooks, frame_state, skip=skip + 3)

        return self._around(frame, convert)


def captures(
    function: Callable[..., Any], backend: Callable[..., Any], around: Callable[..., Any], *, fullgraph: bool
) -> Callable[..., Any]:
    """A function that runs `function` by way of Dynamo, `backend` and `around`; see `Frames`."""
    from torch._dynamo import eval_frame
    from torch._dynamo.hooks import Hooks

    # Whether functions that two losses call, and Dynamo captures, are captured for each.
    isolates = "isolate_recompiles" in inspect.signature(eval_frame._optimize_catch_errors).parameters
    more: dict[str, Any] = {"isolate_recompiles": True} if isolates else {}
    context = eval_frame._optimize_catch_errors(
        Frames(backend, around, fullgraph=fullgraph),
        Hooks(None, None, None),
        fullgraph=fullgraph,
        **more,
    )
    return context(function)


class _Untraceable(set[type]):
    """The classes of tensors whose `__torch_function__` Dynamo does not trace as Python runs it.

    To Dynamo, functions of torch that are called there do not ask for it again. That is so if nothing is computed there
    but in `DisableTorchFunctionSubclass`, as in torch's own, and torchvision's. Classes that hear of operators, too
    (`__torch_dispatch__`), are another matter.
    """

    def __contains__(self, kind: Any) -> bool:
        method = kind.__torch_function__
        if method is torch._C._disabled_torch_function_impl or hears_of_operators(kind):
            return False
        function = getattr(method, "__func__", None)
        is_torchs = function is torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
        return not (is_torchs or getattr(function, "__module__", "").startswith("torchvision.tv_tensors"))


UNTRACEABLE: Any = _Untraceable()
"""The classes of tensors whose functions Python is to run; a container that is asked for one."""


@contextlib.contextmanager
def options_of_dynamo(
    *, dynamic: str, knows_values: bool, knows_numbers: bool = False, static: bool = False
) -> Iterator[None]:
    """Options of Dynamo's for one capture.

    Args:
        dynamic: a pattern of the names of arguments whose sizes are symbols from the first call.
        knows_values: whether sizes that values decide, and numbers read from tensors, stay in the graph.
        knows_numbers: whether numbers are taken as they are.
        static: whether all numbers and sizes are taken as they are.
    """
    from torch._dynamo import config
    from torch._functorch import config as aot
    from torch.compiler import config as compiler
    from torch.fx.experimental import _config as symbolic

    chosen: dict[str, Any] = {
        "capture_scalar_outputs": knows_values,
        "capture_dynamic_output_shape_ops": knows_values,
        "specialize_float": static or knows_numbers,
        "specialize_int": static or knows_numbers,
        "allow_unspec_int_on_nn_module": not (static or knows_numbers),
        "automatic_dynamic_shapes": not static,
        "recompile_limit": 1 << 20,  # captures are counted by whoever asks for them
        "accumulated_recompile_limit": 1 << 20,
        # What is said after a graph, and does not end it; methods of loggers are not among what torch can put off.
        "reorderable_logging_functions": config.reorderable_logging_functions | {print, warnings.warn},
        "suppress_errors": False,
        "nontraceable_tensor_subclasses": UNTRACEABLE,
        "record_runtime_overhead": False,  # which is two calls of Python around each graph
    }
    known = {name: value for name, value in chosen.items() if hasattr(config, name)}  # not all are in torch 2.11
    with (
        config.patch(known),
        compiler.patch(dynamic_sources="" if static else dynamic),  # type: ignore[attr-defined]
        symbolic.patch(use_duck_shape=False),  # type: ignore[attr-defined]
        aot.patch(fake_tensor_propagate_real_tensors=False),
    ):
        yield


@contextlib.contextmanager
def _formula_of_padding() -> Iterator[None]:
    """While a function is captured, `pad_sequence` is this formula: torch's fixes all lengths, or which is longest."""
    from torch._dynamo.convert_frame import compile_lock

    op, key = torch.ops.aten.pad_sequence.default, torch._C.DispatchKey.CompositeImplicitAutograd
    with compile_lock:
        own = op.py_kernels.get(key)
        op.py_kernels[key] = _padded
        op._dispatch_cache.clear()
        try:
            yield
        finally:
            del op.py_kernels[key]
            if own is not None:
                op.py_kernels[key] = own
            op._dispatch_cache.clear()


def _padded(
    sequences: Sequence[torch.Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> torch.Tensor:
    torch._check(len(sequences) > 0, lambda: "received an empty list of sequences")
    longest = functools.reduce(torch.sym_max, [each.shape[0] for each in sequences])
    rows = []
    for each in sequences:
        missing = longest - each.shape[0]
        widths = [missing, 0] if padding_side == "left" else [0, missing]
        rows.append(torch.constant_pad_nd(each, [*[0, 0] * (each.dim() - 1), *widths], padding_value))
    return torch.stack(rows, 0 if batch_first else 1)


@contextlib.contextmanager
def lengths_of(lists: Sequence[str]) -> Iterator[None]:
    """While a function is captured, first dimensions of the tensors in arguments of these names are of any length.

    Torch takes a size that is 0 or 1 as it is, and all others to be 2 or more. `backed_size_oblivious` has it not ask
    whether a size is 1; but its symbols would still be positive ones, so that `max(len(t), 1)` were `len(t)`.
    """
    if not lists:
        yield
        return
    from torch._dynamo.source import TensorProperty, TensorPropertySource
    from torch.fx.experimental import _config as symbolic
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils._sympy.numbers import int_oo

    create, within = ShapeEnv.create_symbol, tuple(f"L['{name}'][" for name in lists)

    def created(shapes: Any, value: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        is_size = isinstance(source, TensorPropertySource) and source.prop is TensorProperty.SIZE
        is_length = is_size and source.idx == 0 and _name_of_source(source.base).startswith(within)
        kwargs["do_not_specialize_zero_one"] = is_length
        if not is_length:
            return create(shapes, value, source, *args, **kwargs)
        kwargs["positive"] = None
        symbol = create(shapes, value, source, *args, **kwargs)
        if symbol.is_Symbol:
            shapes.constrain_symbol_range(symbol, compiler_min=0, compiler_max=int_oo)
        return symbol

    with _in_place_of(ShapeEnv, "create_symbol", created), symbolic.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        yield


class TooManyOperationsError(Exception):
    """A function has more operations than are to be captured."""


@contextlib.contextmanager
def _at_most(operations: int) -> Iterator[None]:
    """Have Dynamo give a function up once a graph of it has more than so many operations on tensors.

    Raises:
        TooManyOperationsError: it has.
    """
    from torch._dynamo.output_graph import SubgraphTracer

    create, counts = SubgraphTracer.create_node, collections.Counter[Any]()

    def created(tracer: Any, *args: Any, **kwargs: Any) -> Any:
        node = create(tracer, *args, **kwargs)
        reads = (isinstance(each.meta.get("example_value"), torch.Tensor) for each in node.all_input_nodes)
        if node.op in ("call_function", "call_method") and node.target is not operator.getitem and any(reads):
            counts[tracer] += 1
            if counts[tracer] > operations:
                raise TooManyOperationsError
        return node

    with _in_place_of(SubgraphTracer, "create_node", created):
        try:
            yield
        except Exception:
            if any(count > operations for count in counts.values()):  # Dynamo raises an error of its own
                raise TooManyOperationsError from None
            raise


@contextlib.contextmanager
def _in_place_of(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Have this thread call another function where torch's compiler calls its own; others wait, or call torch's."""
    from torch._dynamo.convert_frame import compile_lock

    own, thread = getattr(owner, name), threading.get_ident()

    @functools.wraps(own)
    def called(*args: Any, **kwargs: Any) -> Any:
        return (function if threading.get_ident() == thread else own)(*args, **kwargs)

    with compile_lock:
        setattr(owner, name, called)
        try:
            yield
        finally:
            setattr(owner, name, own)


def know_functions() -> None:
    """Have torch note its own functions, which it looks for by name at first: Dynamo those that stay calls in graphs,
    and `torch.overrides` those that tensor subclasses hear of.
    """
    from torch._dynamo import trace_rules

    trace_rules.get_torch_obj_rule_map()
    torch.overrides.get_testing_overrides()
    torch.overrides.get_overridable_functions()


def know_formulas(formulas: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
    """Have Dynamo trace functions of torch by formulas in Python, inside of a loss and for symbolic sizes or numbers.

    What Dynamo has a way of its own for keeps it, and so does a call for which a formula returns `NotImplemented`.
    """
    from torch._dynamo.utils import proxy_args_kwargs
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    def handler(formula: Callable[..., Any]) -> Callable[..., Any]:
        def handle(_: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            if not _now.is_inside:
                return None
            given = [each for each in pytree.tree_leaves(proxy_args_kwargs(args, kwargs)) if hasattr(each, "node")]
            if not any(map(_has_symbols, (each.node.meta.get("example_value") for each in given))):
                return None
            result = tx.inline_user_function_return(VariableTracker.build(tx, formula), args, kwargs)
            return None if result.is_constant_match(NotImplemented) else result

        return handle

    handlers = TorchInGraphFunctionVariable._get_handlers()
    for function, formula in formulas.items():
        handlers.setdefault(function, handler(formula))


def _has_symbols(value: Any) -> bool:
    """Whether a value of a trace is a symbolic number, or a tensor of symbolic sizes."""
    numbers = value.shape if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(each, (torch.SymInt, torch.SymFloat)) for each in numbers)


@contextlib.contextmanager
def _asked_once() -> Iterator[None]:
    """While a function is captured, have Dynamo know that within `__torch_function__` functions of torch do not ask for
    it again.

    It says that they do, so that what torch has written in Python (`x ** 2`, `1 - x`) would call itself.
    """
    from torch._dynamo.convert_frame import compile_lock
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    def handler(known: Callable[..., Any]) -> Callable[..., Any]:
        def handle(variable: Any, tx: Any, *args: Any) -> Any:
            result = known(variable, tx, *args)
            is_asked = tx.symbolic_torch_function_state.torch_function_subclass_enabled
            return result if is_asked else VariableTracker.build(tx, False)

        return handle

    handlers, overrides = TorchInGraphFunctionVariable._get_handlers(), torch.overrides
    asking: tuple[Any, ...] = (
        overrides.has_torch_function,
        overrides.has_torch_function_unary,
        overrides.has_torch_function_variadic,
    )
    with compile_lock:
        own = {function: handlers[function] for function in asking}
        handlers.update({function: handler(known) for function, known in own.items()})
        try:
            yield
        finally:
            handlers.update(own)


def forget(code: CodeType) -> None:
    """Have Dynamo forget what it has captured of some code."""
    from torch._C._dynamo.eval_frame import reset_code

    reset_code(code)


def left_to_python(reason: str, *, always: bool, deep: bool = False) -> Any:
    """What tells Dynamo to run a frame as it is: `always`, or this once; `deep` if what it calls is left, too."""
    return _answer("SKIP", "SKIP" if deep else "DEFAULT", reason, always=always)


def captures_no_more(reason: str) -> Any:
    """What tells Dynamo to use what it has captured of some code, and to capture no more of it."""
    return _answer("RUN_ONLY", "RUN_ONLY", reason)


def _answer(own: str, called: str, reason: str, *, always: bool = True) -> Any:
    from torch._C._dynamo import eval_frame
    from torch._dynamo.types import ConvertFrameReturn

    actions = eval_frame._FrameAction
    strategy = eval_frame._FrameExecStrategy(getattr(actions, own), getattr(actions, called))
    answer = ConvertFrameReturn(frame_exec_strategy=strategy, apply_to_code=always)
    answer.skip_reason = reason  # which torch 2.11 does not ask for
    return answer


def continues(code: CodeType, first: CodeType) -> bool:
    """Whether Dynamo has made some code of other code, to go on in it after a graph break."""
    from torch._dynamo.resume_execution import ContinueExecutionCache

    made = ContinueExecutionCache.generated_code_metadata.get(code)
    return made is not None and made.code is first


def skip_reason_of(answer: Any) -> str | None:
    """Why Dynamo has captured nothing of a frame."""
    return getattr(answer, "skip_reason", "torch leaves it to Python")


def reasons_to_capture(frame: Any) -> list[str]:
    """Torch's reasons why no capture of a frame's code holds for it."""
    from torch._dynamo import guards
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    found = []
    for entry in _debug_get_cache_entry_list(frame.f_code):
        reason = guards.get_guard_fail_reason(
            entry.guard_manager, entry.code, frame.f_locals, entry.compile_id, entry.backend
        )
        first = " ".join(str(reason).split("\n")[0].split())
        found.append(re.sub(r"^\d+/\d+: ", "", first))
    return found


def is_of_call(error: Exception) -> bool:
    """Whether Dynamo failed as an operation, or the function itself, refuses what it is given, and will say so."""
    from torch._dynamo.exc import ObservedException, TorchRuntimeError

    return isinstance(error, TorchRuntimeError) or isinstance(error.__cause__, ObservedException)


def reason_of(error: BaseException) -> str:
    """Torch's reason not to capture a function, in a sentence."""
    return _first_sentence(str(error)) or type(error).__name__


def frames_of(error: BaseException) -> list[tuple[str, int]]:
    """File and line of each frame of the user's that Dynamo was in when it gave up, outermost first."""
    return [(frame.filename, frame.lineno) for frame in getattr(error, "real_stack", None) or ()]


def locks_of_dynamo() -> list[Any]:
    """What the thread holds that Dynamo captures a function in; none before Dynamo is first used."""
    module = sys.modules.get("torch._dynamo.convert_frame")
    return [] if module is None else [module.compile_lock]


def cause_of(error: BaseException) -> BaseException:
    """What a backend raised, out of what Dynamo makes of it."""
    from torch._dynamo.exc import BackendCompilerFailed

    while isinstance(error, BackendCompilerFailed):
        error = error.inner_exception
    return error


class _Now(threading.local):
    """What this thread is at: whether it captures a loss, or has Dynamo trace one as an operator."""

    is_inside = False


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


def aot_module(graph: torch.fx.GraphModule, example: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """A graph of Dynamo's by way of AOTAutograd."""
    from torch._functorch.aot_autograd import aot_module_simplified

    return aot_module_simplified(graph, example, **options)


def fake_mode() -> Any:
    """The mode of the fake tensors of the graph that is being compiled; its `shape_env` has their sizes."""
    return torch._guards.TracingContext.get().fake_mode


def fakes_of(operands: Sequence[Any]) -> list[Any] | None:
    """The operands of an operator that AOTAutograd traces, with their fake tensors; None if a tensor has none."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    found = []
    with outside_of_modes():
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

    mode = next(each.fake_mode for each in fakes if isinstance(each, torch.Tensor))  # type: ignore[attr-defined]
    unknown = mode.shape_env.ignore_fresh_unbacked_symbols()
    with outside_of_modes(), tracing(TracingContext(mode)), unknown, _inside_loss():
        with mode:
            new = [
                torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=each.device)
                if isinstance(each, torch.Tensor)
                else each
                for each in fakes
            ]
        for each in itertools.compress(new, wanted):
            each.requires_grad_()
        yield new


def boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as AOTAutograd calls compiled ones: with a list, which is empty afterwards."""

    def run(arguments: list[Any]) -> Any:
        given = tuple(arguments)
        arguments.clear()
        return function(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def is_plain_call(*, parts: bool) -> bool:
    """Whether AOTAutograd has nothing to do around the graph that is being compiled: it changes none of its inputs,
    and returns no views; where it takes tensors apart, and wraps `parts` again, nothing but that.
    """
    from torch._functorch._aot_autograd.schemas import OutputType

    metadata = torch._guards.TracingContext.get().fw_metadata
    assert metadata is not None
    own = {OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view}
    own |= {OutputType.is_input} if parts else set()  # the offsets of a jagged tensor
    changes = any(each.mutates_data or each.mutates_metadata for each in metadata.input_info)
    is_wrapped = metadata.num_intermediate_bases or metadata.tokens or metadata.is_rng_op_functionalized
    return not changes and not is_wrapped and all(each.output_type in own for each in metadata.output_info)


def arguments_of(graph: torch.fx.Graph) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """The placeholders of AOTAutograd's graph: those of its arguments, and those of the upstream gradients.

    An argument that wraps a tensor, as a DTensor does, has several: what it wraps, how, and its sizes.
    """
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    upstream = [node for node in placeholders if node.name.startswith("tangents")]
    return [node for node in placeholders if node not in upstream], upstream


def place_of(node: torch.fx.Node) -> int:
    """Which argument of Dynamo's graph a placeholder of AOTAutograd's is, or is a part of."""
    described = node.meta["desc"]
    while hasattr(described, "base"):
        described = described.base
    return int(described.idx)


def part_of(described: Any) -> tuple[Any, str | None]:
    """What a value at the edge of AOTAutograd's graph belongs to, a result or an argument, and which part of it it is.

    Of an upstream gradient, and of a gradient, that is what it is the gradient of.
    """
    attribute = getattr(described, "attr", None)
    whole = described if attribute is None else described.base
    return getattr(whole, "output", getattr(whole, "grad_of", whole)), attribute


def mutated_places(joint: torch.fx.GraphModule, count: int) -> frozenset[int]:
    """The arguments of a joint graph that are changed in place."""
    described = joint.graph.output_node().meta["desc"][:count]
    changed = [getattr(each, "mutated_input", None) for each in described]
    return frozenset(each.idx for each in changed if each is not None)


def partitioned(
    joint: torch.fx.GraphModule, count: int, kept: Sequence[torch.Tensor]
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Graphs of forward and backward that tell AOTAutograd what these take and return; nobody runs them.

    Forward returns its results, its tensors, what it has `kept`, its objects (the mesh of a DTensor), and its numbers;
    backward takes numbers first, and objects after what was kept.
    """
    inputs, tangents = arguments_of(joint.graph)
    results: Any = joint.graph.output_node().args[0]

    forward = torch.fx.Graph()
    given = [_copy(forward, node) for node in inputs]
    made = forward.call_function(tuple, (given,))
    returned = [
        each if not isinstance(each, torch.fx.Node) else _part(forward, made, k, each.meta["val"])
        for k, each in enumerate(results[:count])
    ]
    tensors = [node for node in given if isinstance(node.meta["val"], torch.Tensor)]
    others = [node for node in given if not isinstance(node.meta["val"], torch.Tensor)]
    objects, numbers = [each for each in others if is_object(each)], [each for each in others if not is_object(each)]
    saved = [_part(forward, made, k, node.meta["val"]) for k, node in enumerate(tensors)]
    more = [_part(forward, made, k, each) for k, each in enumerate(kept)]
    forward.output((*returned, *saved, *more, *objects, *numbers))

    backward = torch.fx.Graph()
    for node in numbers:
        _copy(backward, node)
    for k, node in enumerate((*saved, *more)):
        backward.placeholder(f"saved_{k}").meta["val"] = node.meta["val"]
    for node in objects:
        _copy(backward, node)
    arrived = [_copy(backward, node) for node in tangents]
    found = backward.call_function(tuple, (arrived,))
    gradients = [
        None if each is None else _part(backward, found, k, each.meta["val"]) for k, each in enumerate(results[count:])
    ]
    backward.output(tuple(gradients))
    return torch.fx.GraphModule({}, forward), torch.fx.GraphModule({}, backward)


def is_object(node: torch.fx.Node) -> bool:
    """Whether a placeholder of AOTAutograd's stands for neither a tensor nor a number, but for a DTensor's mesh."""
    from torch._library.fake_class_registry import FakeScriptObject

    return isinstance(node.meta["val"], FakeScriptObject)


def _copy(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    copy = graph.placeholder(node.name)
    copy.meta.update(node.meta)
    return copy


def _part(graph: torch.fx.Graph, whole: torch.fx.Node, place: int, value: Any) -> torch.fx.Node:
    part = graph.call_function(operator.getitem, (whole, place))
    part.meta["val"] = value
    return part


def inductor(graph: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
    """A graph compiled by torch's own backend."""
    from torch._inductor.compile_fx import compile_fx

    compiled: Any = compile_fx(graph, example)
    return compiled


# --- symbolic shapes --------------------------------------------------------------------------------------------------


def lengths_as_usual() -> contextlib.AbstractContextManager[Any]:
    """A context for what is compiled within `lengths_of`, but asks whether sizes are 1."""
    from torch.fx.experimental import _config as symbolic

    context: contextlib.AbstractContextManager[Any] = symbolic.patch(backed_size_oblivious=False)  # type: ignore[attr-defined]
    return context


def fake_like(fake: Any, sizes: Sequence[Any]) -> torch.Tensor:
    """A new fake tensor like another one, contiguous and of other sizes, as an argument of a graph."""
    with outside_of_modes(), fake.fake_mode:
        new = torch.empty(sizes, dtype=fake.dtype, device=fake.device)
    return new.requires_grad_(fake.requires_grad)


def new_size(shapes: Any, value: int, name: str, *, is_length: bool) -> Any:
    """A symbol of a `ShapeEnv` that nothing else is known of, as a size of this value has; 0 and 1 are as they are if
    `is_length`.
    """
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    create = shapes.create_symbol if is_length else shapes.create_unspecified_symbol
    source = ConstantSource(name)
    symbol = create(value, source, dynamic_dim=DimDynamic.DYNAMIC)
    return shapes.create_symintnode(symbol, hint=value, source=source)


def rewrite_guards(shapes: Any, known: Mapping[Any, Any]) -> None:
    """Have the guards of a `ShapeEnv` ask for what some symbols are known to be."""
    for place, guard in enumerate(shapes.guards):
        if not known.keys().isdisjoint(guard.expr.free_symbols):
            shapes.guards[place] = guard._replace(expr=guard.expr.xreplace(known))


def replace_symbol(shapes: Any, symbol: Any, other: Any) -> None:
    """Have a `ShapeEnv` write a size that values decide as another one, which is the same."""
    shapes._set_replacement(symbol, other, "values decide that they are equal")


def hints_of(shapes: Any) -> Mapping[Any, Any]:
    """The sizes of the call that was captured, by the symbols of a `ShapeEnv`."""
    known = getattr(shapes, "backed_var_to_val", None)  # `var_to_val` before torch 2.12
    return shapes.var_to_val if known is None else known


@functools.cache
def size_functions() -> Any:
    """Torch's functions in expressions over sizes: `FloorDiv`, `Mod` and `ToFloat` among them."""
    from torch.utils._sympy import functions

    return functions


def size_printer() -> Any:
    """The class that writes expressions over sizes as Python."""
    from torch.utils._sympy.printers import PythonPrinter

    return PythonPrinter


# --- Triton -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def interpreter_converting(better: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Have Triton's interpreter convert numbers by `better(its own way)`, if it has one (Triton up to 3.8)."""
    from triton.runtime import interpreter

    convert = getattr(interpreter, "_convert_float", None)
    if convert is None:
        yield
        return
    interpreter._convert_float = better(convert)
    try:
        yield
    finally:
        interpreter._convert_float = convert


def is_refusal(error: Exception) -> bool:
    """Whether a kernel is refused: by Triton, the assembler, or the device, which has no room for it or cannot load it.

    MLIR, LLVM and the driver raise errors of no class of their own. While a kernel is compiled or loaded, they come out
    of Triton's compiler; those of a launch, and of the interpreter, do not.
    """
    from triton.compiler import CompilationError
    from triton.runtime.errors import InterpreterError, OutOfResources, PTXASError

    if isinstance(error, (CompilationError, OutOfResources, PTXASError)):
        return True
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not isinstance(error, InterpreterError) and any(name.startswith("triton.compiler") for name in frames)


def compiled_for(target: tuple[str, int | str, int], function: Any, options: Mapping[str, Any], **source: Any) -> Any:
    """What Triton makes of a function for a target: its backend, architecture and threads per warp; see `ASTSource`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    return triton.compile(ASTSource(fn=function, **source), target=GPUTarget(*target), options=dict(options))


# --- kernels (Hugging Face) -------------------------------------------------------------------------------------------


def hub_repository(name: str, device: str, mode: Any) -> Any:
    """The repository that `kernels` takes for a layer, by the mapping in force; None if none fits device and mode."""
    from kernels.layer.globals import _KERNEL_MAPPING
    from kernels.layer.repos import _select_repository

    of_device = _KERNEL_MAPPING.get().get(name, {}).get(device)
    options = None if of_device is None else of_device.repos
    found = None if options is None else _select_repository(options, mode=mode)
    return None if found is None else found[0]


def hub_repositories(name: str) -> list[Any]:
    """All repositories for a layer in the mapping in force: of every device, capability and mode."""
    from kernels.layer.globals import _KERNEL_MAPPING

    found: list[Any] = []
    for of_device in _KERNEL_MAPPING.get().get(name, {}).values():
        intervals = getattr(of_device, "repos_by_capability", None)
        pending = [] if intervals is None else [intervals.root]
        found += of_device.repos.values() if intervals is None else ()
        while pending:
            if (node := pending.pop()) is not None:
                found += node.data.values()
                pending += (node.left, node.right)
    return found


def hub_path(repository: Any) -> Any:
    """The folder of a `LocalLayerRepository`."""
    return repository._repo_path
