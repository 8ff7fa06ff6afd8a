"""What we use of torch and Triton that is not public is there, and does what we use it for: `make compat`."""

from __future__ import annotations

import ast
import collections
import contextlib
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import sympy
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd import forward_ad

from autogen import compat

ROOT = Path(__file__).parents[2]
aten = torch.ops.aten


def x() -> Tensor:
    return torch.arange(6.0).reshape(2, 3)


# --- torch: tensors and operators -------------------------------------------------------------------------------------


def under_vmap(question: Callable[[Tensor], bool]) -> bool:
    found: list[bool] = []
    torch.vmap(lambda t: (found.append(question(t)), t)[1])(x())
    return found[0]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        return t * 2

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        Doubled.saw = compat.is_legacy_batched(upstream[0])
        return upstream[0] * 2

    saw = False


@pytest.mark.parametrize(
    ("question", "what"),
    [
        (compat.is_functorch_wrapped, lambda: under_vmap(compat.is_functorch_wrapped)),
        (compat.is_batched, lambda: under_vmap(compat.is_batched)),
        (compat.is_zero_tensor, lambda: compat.is_zero_tensor(torch._efficientzerotensor(2, 3))),
    ],
    ids=["wrapped", "batched", "zeros"],
)
def test_tensors_of_a_kind_are_told_from_plain_ones(
    question: Callable[[Tensor], bool], what: Callable[[], Any]
) -> None:
    assert not question(x()) and what() is True


def test_tensors_are_told_that_are_mapped_over_by_autograd() -> None:
    y = x().requires_grad_()
    torch.autograd.grad(Doubled.apply(y).reshape(-1), y, torch.eye(6), is_grads_batched=True)
    assert Doubled.saw and not compat.is_legacy_batched(y)


def test_nested_arguments_are_walked() -> None:
    leaves, structure = compat.pytree.tree_flatten((1, {"a": [2, None]}))
    assert leaves == [1, 2, None] and compat.pytree.tree_unflatten(leaves, structure) == (1, {"a": [2, None]})
    assert compat.pytree.tree_map_only(int, str, (1, [2.0])) == ("1", [2.0])
    assert compat.pytree.tree_leaves([None, 1], is_leaf=lambda each: each is None) == [None, 1]


def test_leaves_of_nested_containers_have_places() -> None:
    pair = collections.namedtuple("pair", ["low", "high"])
    nested = {"a": [1, (2, None)], "b": pair(3, 4), 5: collections.OrderedDict(c=6)}
    assert compat.places_of(nested) == ["a.0", "a.1.0", "a.1.1", "b.low", "b.high", "5.c"]
    assert compat.places_of(x()) == [""]
    structure = compat.pytree.tree_structure({"a": 1, "b": [2]})
    assert structure.flatten_up_to({"b": ["y"], "a": "x"}) == ["x", "y"]
    with pytest.raises(ValueError, match="missing key"):
        structure.flatten_up_to({"b": ["y"], "c": "x"})


def test_jagged_tensors_are_made_again() -> None:
    values, offsets = torch.zeros(2, 5, 3), torch.tensor([0, 2, 5])
    for least, greatest in ((None, None), (2, 3)):
        jagged = torch.nested.nested_tensor_from_jagged(values, offsets, None, 2, least, greatest)
        extras = compat.jagged_extras(jagged)
        assert extras == {"jagged_dim": 2, "min_seqlen": least, "max_seqlen": greatest}
        again = torch.nested.nested_tensor_from_jagged(values, offsets, **extras)
        assert [each.shape for each in again.unbind()] == [(2, 2, 3), (2, 3, 3)]


def test_operators_have_schemas() -> None:
    schema = compat.schema_of(aten.sum.dim_IntList)
    assert compat.is_op(aten.sum.dim_IntList) and not compat.is_op(operator.getitem)
    assert schema.name == "aten::sum" and str(schema.returns[0].type) == "Tensor" and not schema.is_mutable
    assert "dim" in [each.name for each in schema.arguments]
    assert not compat.schema_of(aten.view.default).arguments[0].alias_info.is_write
    assert compat.schema_of(operator.getitem) is None
    shown = {op: compat.shows_its_first(op) for op in (aten.view.default, aten.exp.default, aten.exp_.default)}
    assert list(shown.values()) == [True, False, False] and not compat.shows_its_first(operator.getitem)


def test_hooks_of_a_module() -> None:
    for register in ("forward_pre", "forward", "full_backward_pre", "full_backward"):
        layer = nn.Linear(2, 2)
        assert not compat.has_hooks(layer)
        hook = getattr(layer, f"register_{register}_hook")(lambda *_: None)
        assert compat.has_hooks(layer), register
        hook.remove()
        assert not compat.has_hooks(layer)
    layer.forward = layer.forward  # of the instance
    assert compat.has_hooks(layer)


def test_results_of_adaptive_softmax_have_its_class() -> None:
    loss = nn.AdaptiveLogSoftmaxWithLoss(3, 4, [2])
    assert type(loss(x(), torch.tensor([0, 3]))) is type(compat.ASMOutput(x(), x().sum()))


@pytest.mark.parametrize(
    ("flags", "name"), [((None, None), "mean"), ((False, None), "sum"), ((True, False), "none"), ((True, True), "mean")]
)
def test_flags_are_a_reduction(flags: tuple[bool | None, ...], name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compat.reduction_by_flags(*flags, emit_warning=False) == name
    with pytest.warns(UserWarning):
        compat.reduction_by_flags(*flags)


def test_a_clamp_is_as_it_is_in_this_version() -> None:
    y = torch.zeros(1, requires_grad=True)
    y.clamp(min=0).sum().backward()
    assert (y.grad == 0).item() == compat.CLAMPS_TIES
    try:
        is_kept = torch.equal(torch.ones(1, dtype=torch.uint8).clamp(max=300), torch.ones(1, dtype=torch.uint8))
    except RuntimeError:
        is_kept = False
    assert is_kept == compat.TAKES_ANY_BOUND


def test_a_function_is_applied_directly() -> None:
    y = x().requires_grad_()
    z = compat.direct_apply(Doubled)(y)
    z.sum().backward()
    assert torch.equal(z, 2 * x()) and torch.equal(y.grad, torch.full((2, 3), 2.0))


def test_views_share_a_storage() -> None:
    y = x()
    assert compat.storage_of(y) == compat.storage_of(y[1:]) != compat.storage_of(y.clone())


def test_dynamos_guard_tells_geometries_apart() -> None:
    check = compat.tensor_guard([x()])
    with torch.inference_mode():
        made_elsewhere = x()
    others: list[Any] = [
        *(x().t(), x().mT.contiguous(), x().int(), x()[:1], x().to("meta"), x().to_sparse(), made_elsewhere),
        *(x().requires_grad_(), nn.Parameter(x()), nn.Parameter(x(), requires_grad=False)),
        *(torch._neg_view(x()), torch._efficientzerotensor(2, 3)),
    ]
    assert check(x() + 1) and not any(map(check, others))


def test_dynamos_guard_tells_settings_apart() -> None:
    check = compat.state_guard()
    assert check()
    with torch.no_grad():
        assert not check()
    with torch.autocast("cpu", dtype=torch.float16):
        assert not check()
        half = compat.state_guard()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not half()
    assert check() and not half()


def test_inductors_allocator_is_there() -> None:
    made = compat.empty_on("cpu")((2, 3), (1, 2), torch.float64)
    assert (made.shape, made.stride(), made.dtype) == ((2, 3), (1, 2), torch.float64)
    assert compat.empty_on("cuda")


def test_there_are_formulas_for_operators() -> None:
    table = compat.decomposition_table()
    assert torch.allclose(
        table[aten.binary_cross_entropy.default](x() / 9, x() / 6), aten.binary_cross_entropy(x() / 9, x() / 6)
    )


# --- torch: modes and state -------------------------------------------------------------------------------------------


class FunctionMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class DispatchMode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def functional() -> Iterator[None]:
    level = torch._C._functorch._grad_increment_nesting()
    assert level
    try:
        yield
    finally:
        torch._C._functorch._grad_decrement_nesting()


CONTEXTS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "torch.func": (functional, compat.functorch_level),
    "torch.func or forward AD": (functional, compat.is_functional),
    "forward AD": (forward_ad.dual_level, compat.is_functional),
    "functions": (FunctionMode, compat.has_function_modes),
    "functions and devices": (lambda: torch.device("meta"), compat.function_modes),
    "operators": (DispatchMode, compat.dispatch_modes),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), compat.is_autocast),
    "hooks": (
        lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
        lambda: compat.saved_tensors_hooks(False),
    ),
    "a device": (lambda: torch.device("meta"), compat.default_device),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_state_is_known(name: str) -> None:
    context, question = CONTEXTS[name]
    assert not question()
    with context():
        assert question()
    assert not question()


def test_a_device_is_no_mode_that_hears_of_functions() -> None:
    with torch.device("meta"):
        assert not compat.has_function_modes() and compat.default_device() == torch.device("meta")


def test_a_trace_of_torchscript_is_known() -> None:
    found: list[Any] = []
    assert compat.jit_state() is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(lambda t: (found.append(compat.jit_state()), t + 1)[1], x(), check_trace=False)
    assert found[0] is not None


def test_autocast_can_be_left() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert (x() @ x().t()).dtype == torch.bfloat16
        with compat.WithoutAutocast():
            assert (x() @ x().t()).dtype == torch.float32 and not compat.is_autocast()


def test_tensors_are_real_outside_of_modes() -> None:
    with DispatchMode(), compat.outside_of_modes():
        assert compat.dispatch_modes() == 0


def test_what_is_drawn_once_is_the_same_for_all() -> None:
    def drawn(t: Tensor) -> Tensor:
        with compat.drawing_once():
            return t + torch.rand(())

    found = torch.vmap(drawn)(torch.zeros(3))
    assert found.unique().numel() == 1


@pytest.mark.gpu
def test_cuda_tells_its_device_and_stream() -> None:
    device, stream, is_capturing = compat.cuda_functions()
    assert device() == torch.cuda.current_device() and not is_capturing()
    assert stream(device()) == torch.cuda.current_stream().cuda_stream


# --- Dynamo -----------------------------------------------------------------------------------------------------------


class Capture:
    """A function by way of Dynamo, as losses are."""

    def __init__(self, function: Callable[..., Any], *, fullgraph: bool = False, **options: Any) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.sources: set[str] = set()
        self.frames: list[FrameType] = []
        self.code = function.__code__
        self.options = {"dynamic": r"L\['t'\]", "knows_values": True, **options}
        self.decide: Callable[..., Any] = lambda convert: convert(**self.options)
        self.run = compat.captures(function, self._backend, self._around, fullgraph=fullgraph)

    def _backend(self, graph: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        self.sources.update(compat.source_of(node) for node in self.placeholders)
        return graph

    def _around(self, frame: FrameType, convert: Callable[..., Any]) -> Any:
        self.frames.append(frame)
        return self.decide(convert)

    @property
    def placeholders(self) -> list[torch.fx.Node]:
        return [node for node in self.graphs[0].graph.nodes if node.op == "placeholder"]


@pytest.fixture(autouse=True)
def _dynamo_anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_function_is_captured_with_symbols_for_its_sizes() -> None:
    capture = Capture(lambda t: (t * t.shape[0]).sum())
    for rows in (2, 5):
        t = torch.ones(rows, 3)
        assert capture.run(t) == 3 * rows * rows
    assert len(capture.graphs) == 1
    assert "L['t']" in capture.sources
    assert any(isinstance(node.meta["example_value"], torch.SymInt) for node in capture.placeholders)
    assert compat.break_of(capture.graphs[0]) == (None, [])


def test_a_formula_is_traced_where_sizes_are_symbols() -> None:
    def formula(size: int, periodic: bool = True) -> Any:
        return torch.arange(size) * 3.0 if periodic else NotImplemented

    compat.know_formulas({torch.bartlett_window: formula})
    capture = Capture(lambda t: t + torch.bartlett_window(t.shape[0]) + torch.bartlett_window(3)[1])
    for size in (3, 5):
        expected = torch.arange(size) * 3.0 + torch.bartlett_window(3)[1]
        assert torch.equal(capture.run(torch.zeros(size)), expected)
    assert len(capture.graphs) == 1
    without, outside = Capture(ramp), torch.compile(lambda t: ramp(t, True), backend="eager", dynamic=True)
    for size in (3, 5):
        assert torch.equal(without.run(torch.zeros(size)), torch.bartlett_window(size, False))
        assert torch.equal(outside(torch.zeros(size)), torch.bartlett_window(size))


def ramp(t: Tensor, periodic: bool = False) -> Tensor:
    return t + torch.bartlett_window(t.shape[0], periodic)


class Named(Tensor):
    pass


class Computing(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_are_traced_through_functions_that_are_python() -> None:
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    handlers = TorchInGraphFunctionVariable._get_handlers()
    before = dict(handlers)
    capture = Capture(lambda t: 1 - t**2, fullgraph=True)
    found = capture.run(torch.full((3,), 2.0).as_subclass(Named))
    assert before == handlers
    assert type(found) is Named and torch.equal(found.as_subclass(Tensor), torch.full((3,), -3.0))


def test_classes_that_dynamo_leaves_alone() -> None:
    assert Named not in compat.UNTRACEABLE and Computing in compat.UNTRACEABLE
    assert nn.Parameter not in compat.UNTRACEABLE and compat.FakeTensor not in compat.UNTRACEABLE
    assert compat.hears_of_operators(compat.FakeTensor) and not compat.hears_of_operators(Computing)
    with pytest.raises(Exception, match="Computing"):
        Capture(lambda t: t * 2 + 1).run(x().as_subclass(Computing))
    with compat.WithoutSubclasses():
        assert type(x().as_subclass(Computing) * 2) is Tensor


def test_static_sizes_are_numbers() -> None:
    capture = Capture(lambda t: t.sum() * t.shape[0], static=True, knows_values=False)
    assert capture.run(torch.ones(2)) == 4 and capture.run(torch.ones(3)) == 9
    assert len(capture.graphs) == 2


def test_a_number_that_is_read_stays_in_the_graph() -> None:
    capture = Capture(lambda t: t * t[0].item(), fullgraph=True)
    assert torch.equal(capture.run(torch.full((2,), 3.0)), torch.full((2,), 9.0)) and len(capture.graphs) == 1


def test_numbers_are_symbols_whatever_others_have_fixed() -> None:
    from torch._dynamo.symbolic_convert import TensorifyState

    capture = Capture(lambda t, margin: t - margin)
    for margin in (0.5, 0.25, 0.125):
        for place in range(1000):
            TensorifyState.specialize(f"zf{place}")
        assert torch.equal(capture.run(torch.ones(2), margin), torch.full((2,), 1 - margin))
    assert len(capture.graphs) == 2


def test_a_graph_break_has_a_reason_and_a_line() -> None:
    def loss(t: Tensor) -> Tensor:
        y = t + 1
        torch._dynamo.graph_break()
        return y * 2

    capture = Capture(loss)
    assert torch.equal(capture.run(torch.ones(2)), torch.full((2,), 4.0))
    reason, frames = compat.break_of(capture.graphs[0])
    assert reason and "graph_break" in reason and frames[-1][0] == __file__


def test_a_refusal_has_a_reason_and_a_line() -> None:
    def loss(t: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return t

    with pytest.raises(Exception) as raised:
        Capture(loss, fullgraph=True).run(torch.ones(2))
    assert "graph_break" in compat.reason_of(raised.value) and "\n" not in compat.reason_of(raised.value)
    assert compat.frames_of(raised.value)[-1][0] == __file__
    assert not compat.is_of_call(raised.value)


def checked(t: Tensor) -> Tensor:
    if t.shape[0] != t.shape[1]:
        raise ValueError("not square")
    return t


@pytest.mark.parametrize("refuses", [lambda t: t @ t, checked])
def test_what_refuses_its_arguments_will_say_so(refuses: Any) -> None:
    with pytest.raises(Exception) as raised:
        Capture(refuses, fullgraph=True).run(torch.ones(2, 3))
    assert compat.is_of_call(raised.value)


def test_captures_have_no_limit_of_dynamos() -> None:
    capture = Capture(lambda t, k: t * len(k), static=True, knows_values=False)
    for k in range(12):
        assert torch.equal(capture.run(torch.ones(2), "a" * k), torch.full((2,), float(k)))
    assert len(capture.graphs) == 12


def test_an_error_of_a_backend_is_found() -> None:
    cause = ZeroDivisionError("ours")

    def backend(*_: Any) -> Any:
        raise cause

    run = compat.captures(
        lambda t: t + 1, backend, lambda _, convert: convert(dynamic="", knows_values=True), fullgraph=True
    )
    with pytest.raises(Exception) as raised:
        run(torch.ones(2))
    assert compat.cause_of(raised.value) is cause and compat.cause_of(cause) is cause


@pytest.mark.parametrize("always", [False, True])
def test_a_frame_is_left_to_python(always: bool) -> None:
    capture = Capture(lambda t: t + 1)
    answer = compat.left_to_python("of the test", always=always)
    assert compat.skip_reason_of(answer) == "of the test"
    capture.decide = lambda convert: answer
    for _ in range(3):
        assert torch.equal(capture.run(torch.ones(2)), torch.full((2,), 2.0))
    assert not capture.graphs and len(capture.frames) == (1 if always else 3)


def test_dynamo_says_why_it_captures_nothing() -> None:
    answers: list[Any] = []
    capture = Capture(lambda t: t)
    capture.decide = lambda convert: answers.append(convert(**capture.options)) or answers[-1]
    capture.run(torch.ones(2))
    assert answers[0].guarded_code is None and compat.skip_reason_of(answers[0])


def test_captures_can_be_forgotten_and_ended() -> None:
    capture = Capture(lambda t: t + 1)
    for _ in range(2):
        capture.run(torch.ones(2))
    assert len(capture.graphs) == 1
    compat.forget(capture.code)
    capture.run(torch.ones(2))
    assert len(capture.graphs) == 2
    reasons: list[list[str]] = []

    def decide(convert: Callable[..., Any]) -> Any:
        reasons.append(compat.reasons_to_capture(capture.frames[-1]))
        return compat.captures_no_more("of the test")

    capture.decide = decide
    for _ in range(2):
        assert capture.run(torch.ones(2, dtype=torch.float64)).dtype == torch.float64
    assert len(capture.graphs) == 2 and len(reasons) == 1 and "dtype" in reasons[0][0]


def test_dynamos_lock_is_one_that_a_child_can_release() -> None:
    (lock,) = compat.locks_of_dynamo()
    with lock:
        assert lock._is_owned()
    assert not lock._is_owned()


def test_a_loss_is_an_operator_of_a_graph() -> None:
    found: list[Any] = []

    def wrap(loss: Callable[..., Any]) -> Callable[..., Any]:
        found.append(loss)
        return lambda *operands: tuple(each + 1 for each in loss(*operands))

    wrap.is_mandatory = False  # type: ignore[attr-defined]

    def step(t: Tensor) -> Tensor:
        return compat.as_operator(wrap, torch.exp, t) * 2

    assert torch.allclose(torch.compile(step, backend="eager", fullgraph=True)(x()), (x().exp() + 1) * 2)
    assert isinstance(found[-1], torch.fx.GraphModule)


# --- AOTAutograd ------------------------------------------------------------------------------------------------------


class Joint:
    """A graph by way of AOTAutograd."""

    def __init__(self, function: Callable[..., Any], *example: Tensor) -> None:
        self.joint: torch.fx.GraphModule | None = None
        self.is_plain: list[bool] = []
        capture = Capture(function)
        capture.run(*example)
        graph = capture.graphs[0]
        given = [node.meta["example_value"] for node in capture.placeholders]
        self.fakes = given
        self.mode: Any = torch._guards.detect_fake_mode(given)
        with torch._guards.tracing(torch._guards.TracingContext(self.mode)):
            self.run = compat.aot_module(
                graph,
                given,
                partition_fn=self._partition,
                fw_compiler=self._compile,
                bw_compiler=self._compile,
                inference_compiler=self._compile,
                decompositions={},
            )

    def _partition(self, joint: torch.fx.GraphModule, _: Any, *, num_fwd_outputs: int, **__: Any) -> Any:
        assert compat.fake_mode() is self.mode
        self.joint, self.count = joint, num_fwd_outputs
        return compat.partitioned(joint, num_fwd_outputs, ())

    def _compile(self, graph: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        self.is_plain.append(compat.is_plain_call(parts=False))
        return compat.boxed(graph)


def results_of(graph: torch.fx.GraphModule) -> Any:
    return graph.graph.output_node().args[0]


def test_dynamo_knows_the_functions_of_torch_that_it_had_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import trace_rules

    original = torch.nn.functional.cross_entropy
    compat.know_functions()
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", lambda: None)
    assert original in trace_rules.get_torch_obj_rule_map()
    assert original in torch.overrides.get_testing_overrides()


def test_a_joint_graph_comes_apart() -> None:
    made = Joint(lambda t: t.exp().sum(), x().requires_grad_())
    assert made.joint is not None
    results = results_of(made.joint)
    assert made.count == 1 and len(results) >= 2
    assert compat.mutated_places(made.joint, made.count) == frozenset()
    forward, backward = compat.partitioned(made.joint, made.count, ())
    inputs = sum(node.op == "placeholder" and "tangents" not in node.name for node in made.joint.graph.nodes)
    assert len(results_of(forward)) == made.count + inputs and len(results_of(backward)) == inputs
    assert made.is_plain[0]


def test_what_is_changed_in_place_is_known() -> None:
    def loss(t: Tensor, buffer: Tensor) -> Tensor:
        buffer.add_(1)
        return (t * buffer).sum()

    made = Joint(loss, x().requires_grad_(), torch.zeros(2, 3))
    assert made.joint is not None
    assert len(compat.mutated_places(made.joint, made.count)) == 1 and not made.is_plain[0]


@pytest.fixture
def mesh() -> Iterator[Any]:
    """A mesh of two processes, of which there is one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def test_the_parts_of_a_dtensor_are_known(mesh: Any) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    given = [distribute_tensor(x(), mesh, [Shard(1)]).requires_grad_(wanted) for wanted in (False, True)]
    made = Joint(lambda t, u: (t * u).sum(), *given)
    assert made.joint is not None
    arguments, upstream = compat.arguments_of(made.joint.graph)
    assert len(arguments) > len(given) and any(isinstance(node.meta["val"], Tensor) for node in upstream)
    tensors = [node for node in arguments if isinstance(node.meta["val"], Tensor)]
    objects = [node for node in arguments if compat.is_object(node)]
    numbers = [node for node in arguments if node not in tensors and node not in objects]
    assert len(tensors) == 2 and len(objects) in (0, 2)  # of torch from 2.13 on
    assert all(isinstance(node.meta["val"], torch.SymInt) for node in numbers)
    places = [compat.place_of(node) for node in tensors]
    assert len(set(places)) == 2 and places == ([compat.place_of(node) for node in objects] or places)
    described = made.joint.graph.output_node().meta["desc"]
    gradients = dict(
        zip(map(compat.part_of, described[made.count :]), results_of(made.joint)[made.count :], strict=True)
    )
    first, second = (gradients.get(compat.part_of(node.meta["desc"])) for node in tensors)
    assert first is None and isinstance(second.meta["val"], Tensor)
    results = [compat.part_of(each) for each in described[: made.count]]
    assert compat.part_of(upstream[0].meta["desc"]) in results


def test_loss_parallel_is_known() -> None:
    from torch.distributed.tensor.parallel import loss_parallel

    assert not compat.is_loss_parallel()
    with loss_parallel():
        assert compat.is_loss_parallel()


def test_a_boxed_function_is_called_with_a_list_that_it_empties() -> None:
    given = [1, 2]
    run = compat.boxed(operator.add)
    assert run(given) == 3 and not given and run._boxed_call  # type: ignore[attr-defined]


def test_fake_tensors_and_their_shapes_are_known() -> None:
    made = Joint(lambda t: t.exp().sum(), x().requires_grad_())
    fake = next(each for each in made.fakes if isinstance(each, Tensor))
    assert isinstance(fake, compat.FakeTensor) and not isinstance(x(), compat.FakeTensor)
    shapes = made.mode.shape_env
    size = next(size for size in fake.shape if isinstance(size, torch.SymInt))
    assert compat.hints_of(shapes)[size.node.expr] in (2, 3)
    assert compat.fakes_of(made.fakes) == made.fakes and compat.fakes_of([x()]) is None
    with compat.apart(made.fakes, [isinstance(each, Tensor) for each in made.fakes]) as new:
        other = next(each for each in new if isinstance(each, Tensor))
        assert other.requires_grad and other.shape == fake.shape and other is not fake


@pytest.mark.slow
def test_inductor_compiles_a_graph() -> None:
    capture = Capture(lambda t: t + 1, static=True, knows_values=False)
    capture.run(x())
    (found,) = compat.inductor(capture.graphs[0], [x()])(x())
    assert torch.equal(found, x() + 1)


# --- symbolic shapes --------------------------------------------------------------------------------------------------


def test_a_size_is_written_as_another() -> None:
    shapes = torch.fx.experimental.symbolic_shapes.ShapeEnv()
    one, other = (shapes.create_unbacked_symint().node.expr for _ in range(2))
    compat.replace_symbol(shapes, one, other)
    assert shapes.replace(one) == shapes.replace(other)


def test_sizes_are_divided_as_integers() -> None:
    functions, n = compat.size_functions(), sympy.Symbol("n", integer=True, positive=True)
    assert functions.FloorDiv(n, 3).subs(n, 7) == 2 and functions.Mod(n, 3).subs(n, 7) == 1
    assert functions.ToFloat(n).args == (n,)
    assert eval(compat.size_printer()().doprint(functions.FloorDiv(n, 3)), {"n": 7}) == 2


# --- Triton -----------------------------------------------------------------------------------------------------------


def test_the_interpreter_converts_as_it_is_told() -> None:
    from triton.runtime import interpreter

    before = getattr(interpreter, "_convert_float", None)

    def twice(convert: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: convert(*args) * 2

    with compat.interpreter_converting(twice):
        changed = getattr(interpreter, "_convert_float", None)
    assert getattr(interpreter, "_convert_float", None) is before
    assert (before is None) == (triton.__version__ >= "3.9") and (changed is not before or before is None)


# --- lists ------------------------------------------------------------------------------------------------------------


def captured_of(function: Callable[..., Any], *args: Any, lists: Sequence[str] = (), **options: Any) -> list[Any]:
    """The graphs of a function of a list, which is called with each of the arguments."""
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        graphs.append((graph, compat.fake_mode().shape_env))
        return graph.forward

    def around(frame: FrameType, convert: Callable[..., Any]) -> Any:
        return convert(dynamic=r"L\['ts'\]", knows_values=True, lists=lists, **options)

    call = compat.captures(function, backend, around, fullgraph=True)
    for each in args:
        torch.testing.assert_close(call(each), function(each))
    return graphs


def test_lengths_of_lists_may_be_anything() -> None:
    def mean(ts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(ts)).sum() / max(len(ts[0]) + len(ts[1]), 1) / max(len(ts[1]), 1)

    lists = [[torch.ones(n, 2) for n in lengths] for lengths in ((3, 2), (0, 1), (1, 1), (0, 0), (5, 0))]
    assert len(captured_of(mean, *lists, lists=["ts"])) == 1
    assert len(captured_of(lambda ts: mean(ts), *lists)) > 1  # sizes of torch's are not


def test_padding_knows_no_lengths() -> None:
    def padded(ts: Sequence[Tensor]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(list(ts), True, 2.0, "left") * 2

    lists = [[torch.ones(n, 2) for n in lengths] for lengths in ((3, 2), (5, 6), (4, 4))]
    (found,) = captured_of(padded, *lists)
    assert compat.pad_sequence in [node.target for node in found[0].graph.nodes]


def test_numbers_of_lists_are_one_call() -> None:
    (found,) = captured_of(lambda ts: torch.tensor([len(t) for t in ts]), [torch.ones(2), torch.ones(3)])
    assert compat.tensor_of_numbers in [node.target for node in found[0].graph.nodes]


def test_functions_of_many_operations_are_given_up() -> None:
    def sums(ts: Sequence[Tensor]) -> Any:
        return sum(t.exp().sum() for t in ts)

    lists = [torch.ones(2), torch.ones(3)]
    assert len(captured_of(sums, lists, operations=10)) == 1
    with pytest.raises(compat.TooManyOperationsError):
        captured_of(lambda ts: sums(ts), lists, operations=4)


def test_new_sizes_and_the_guards_on_them() -> None:
    (found,) = captured_of(lambda ts: ts[0] * 2, [torch.ones(3, 2)])
    shapes = found[1]
    new, known = (compat.new_size(shapes, 5, name, is_length=True) for name in ("new", "known"))
    assert compat.new_size(shapes, 1, "one", is_length=True) == 1
    assert isinstance(compat.new_size(shapes, 1, "number", is_length=False), torch.SymInt)
    assert new < 9
    compat.rewrite_guards(shapes, {new.node.expr: known.node.expr + 1})
    assert sympy.Lt(known.node.expr + 1, 9) in [guard.expr for guard in shapes.guards]
    fake = next(node for node in found[0].graph.nodes if node.op == "placeholder" and "Tensor" in str(node.type))
    like = compat.fake_like(fake.meta["example_value"], [new, 3])
    assert like.dtype == torch.float32 and like.shape[0].node.expr == new.node.expr


def test_sizes_are_asked_for_as_usual() -> None:
    from torch.fx.experimental import _config as symbolic

    with symbolic.patch(backed_size_oblivious=True), compat.lengths_as_usual():  # type: ignore[attr-defined]
        assert not symbolic.backed_size_oblivious


def test_tensors_are_written_together() -> None:
    whole = torch.zeros(3, 2)
    compat.copy_each([whole[0], whole[2, :1]], [torch.ones(2), torch.ones(1)])
    assert whole.tolist() == [[1, 1], [0, 0], [1, 0]]


@pytest.mark.parametrize(("name", "is_refused"), [("OutOfResources", True), ("InterpreterError", False)])
def test_refusals_are_told_from_other_errors(name: str, is_refused: bool) -> None:
    from triton.runtime import errors

    kind = getattr(errors, name)
    error = kind(1, 2, "shared memory") if name == "OutOfResources" else kind("an error of the kernel")
    assert compat.is_refusal(error) == is_refused and not compat.is_refusal(ValueError())


def _adding(x_ptr: tl.tensor, n: tl.tensor, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, at < n) + 1, at < n)


def test_a_kernel_is_compiled_for_a_target() -> None:
    if triton.knobs.runtime.interpret:
        pytest.skip("Triton interprets in this process; tests/ptx compile")
    given = {"x_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    attributes = {(0,): [["tt.divisibility", 16]]}
    made = compat.compiled_for(
        ("cuda", 90, 32),
        triton.jit(_adding),
        {"num_warps": 1},
        signature=given,
        constexprs={"BLOCK": 64},
        attrs=attributes,
    )
    assert "st.global" in made.asm["ptx"]


# --- kernels (Hugging Face) -------------------------------------------------------------------------------------------


def test_the_hub_says_which_repositories_it_takes() -> None:
    kernels = pytest.importorskip("kernels")
    on_cpu, old, new = (kernels.LocalLayerRepository(Path(name), layer_name="Loss") for name in ("cpu", "old", "new"))
    training = kernels.Mode.TRAINING
    mapping: dict[str, Any] = {
        "Loss": {
            "cpu": on_cpu,
            kernels.Device("cuda", kernels.CUDAProperties(75, 89)): {training: old},
            kernels.Device("cuda", kernels.CUDAProperties(90, 100)): {training: new},
        }
    }
    with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
        assert compat.hub_repository("Loss", "cpu", training) is on_cpu
        assert compat.hub_repository("Loss", "mps", training) is None
        assert compat.hub_repository("Other", "cpu", training) is None
        assert set(compat.hub_repositories("Loss")) == {on_cpu, old, new}
    assert compat.hub_path(on_cpu) == Path("cpu")


# --- all of it --------------------------------------------------------------------------------------------------------

_PRIVATE = ("runtime", "compiler", "backends")


def _names(tree: ast.AST) -> Iterator[str]:
    """The names of torch and Triton that a module imports or goes through, and private methods of whatever."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def _is_private(name: str) -> bool:
    library, *parts = name.split(".")
    if library == "triton":
        return bool(parts) and (parts[0] in _PRIVATE or _is_hidden(parts))
    return library == "torch" and _is_hidden(parts)


def _is_hidden(parts: Sequence[str]) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in parts)


METHODS = (
    *("_is_zerotensor", "_neg_view", "_schema", "_cdata", "_current_level", "_parameters", "_modules"),
    *("_convert_float", "_get_current_function_mode_stack", "_boxed_call"),
)


def test_nothing_else_names_what_is_private() -> None:
    found = []
    for file in [*(ROOT / "autogen").rglob("*.py"), *(ROOT / "losses").rglob("*.py")]:
        if file != ROOT / "autogen" / "compat.py":
            names = set(_names(ast.parse(file.read_text())))
            own = {name for name in names if not name.startswith(("aten.", "torch.ops."))}
            found += [f"{file}: {name}" for name in own if _is_private(name) or name.rpartition(".")[2] in METHODS]
    assert not found


def test_profiled() -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler, compat.profiled("a range"):
        torch.ones(3)
    names = [event.name for event in profiler.events()]
    assert names.index("a range") < names.index("aten::ones")


def test_continues() -> None:
    codes = []

    def capture(frame: FrameType, convert: Callable[..., Any]) -> Any:
        codes.append(frame.f_code)
        return convert(dynamic="", knows_values=False)

    def two(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return inner(y) + 1

    def inner(y: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return y.exp()

    compat.captures(two, lambda graph, example: graph.forward, capture, fullgraph=False)(torch.ones(3))
    names = [code.co_name for code in codes if compat.continues(code, two.__code__)]
    assert len(names) == 2 and codes[0] is two.__code__ and len(codes) == 5


def test_grad_switch() -> None:
    codes: list[str] = []

    def note(graph: torch.fx.GraphModule, example: Any) -> Any:
        codes.append(graph.code)
        return graph.forward

    def loss(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x.exp()
        return x * y

    torch.compile(loss, backend=note, fullgraph=True)(torch.ones(3, requires_grad=True))
    assert f"{compat.GRAD_SWITCH}(False)" in codes[0]
