"""Host code for what Triton has compiled, without a device: what Triton's launcher is called with, and when."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch
from triton.runtime.errors import InterpreterError, OutOfResources, PTXASError

from autogen import ir
from autogen.emission.source import KernelSource, Partial
from autogen.errors import CompileError, StorageError
from autogen.ir.sizes import Evaluator
from autogen.ir.torch_step import Operand, SizeArgument, TorchStep
from autogen.runtime import build, direct, launch, scratch
from autogen.runtime.directions import Direction
from autogen.runtime.launch import Launch, Written, triton_around
from autogen.runtime.packing import PACK
from autogen.runtime.route import Route
from autogen.scheduling.launches.kernel import PROGRAMS
from autogen.tiling.tiler import Tiling
from autogen.tiling.variant import Variant
from tests.unit.tuned import launcher_of

aten = torch.ops.aten
CPU = torch.device("cpu")
N = sympy.Symbol("N", integer=True, positive=True)


class CudaLauncher:
    """Triton's launcher, as it is in 3.6 and 3.7."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails = False

    def __call__(self, gridX: Any, gridY: Any, gridZ: Any, stream: Any, function: Any, *args: Any) -> None:
        if self.fails:
            raise RuntimeError("no memory")
        self.calls.append((gridX, gridY, gridZ, stream, function, *args))


class OtherLauncher(CudaLauncher):
    def __call__(self, gridX: Any, gridY: Any, gridZ: Any, function: Any, stream: Any, *args: Any) -> None:  # type: ignore[override]
        raise AssertionError


class Kernel:
    """A Triton function, and what it compiles to."""

    function, packed_metadata = 77, (4, 1, 0)

    def __init__(self) -> None:
        self.run: Any = CudaLauncher()
        self.through_triton: list[tuple[Any, ...]] = []
        self.warps: list[int] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launched(*args: Any, num_warps: int, enable_fp_fusion: bool) -> Any:
            self.through_triton.append(args)
            self.warps.append(num_warps)
            return self

        return launched


class Device:
    stream, is_capturing = 5, False


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """A kernel on a device that is none."""
    kernel = Kernel()
    monkeypatch.setattr(build, "load_function", lambda name, text: kernel)
    monkeypatch.setattr(Device, "stream", 5)
    monkeypatch.setattr(Device, "is_capturing", False)
    streams = direct.Streams(lambda: None, lambda index: Device.stream, lambda: Device.is_capturing)
    monkeypatch.setattr(direct, "streams_of", lambda kind: streams)
    monkeypatch.setattr(scratch, "_scratches", {})
    direct._say.cache_clear()
    direct._is_known.cache_clear()
    yield kernel


class Prepares:
    """A launcher that has one launch."""

    def __init__(self, launch: Launch) -> None:
        self.prepare = lambda sizes, device: launch


def written_of(*, partials: int = 0) -> Written:
    buffers = tuple(ir.Buffer(name, torch.float32, (N,), (sympy.S.One,), "input") for name in "xy")
    kinds = tuple(Partial(f"p{k}", torch.float32, PROGRAMS) for k in range(partials))
    source = KernelSource("k", "", buffers, kinds, (("n", N),), ("BLOCK",), ())
    return Written(source, ("x", "y"), Evaluator([N]), Evaluator([each.count for each in kinds]))


def launch_of(
    *, partials: int = 0, programs: int = 3, n: int = 160, num_warps: int = 4, written: Written | None = None
) -> Launch:
    written = written or written_of(partials=partials)
    tiling = Tiling(Variant(wide=False), (("BLOCK", 64),), programs, num_warps)
    return Launch(written, tiling, {"N": n}, CPU)


def prepared(
    launches: Sequence[Launch] | None = None, given: Any = "xy", made: str = "", packed: Any = (), **of: int
) -> Direction:
    """Kernels that take `x` and `y`, each of which is given or made; returns what was made, and None."""
    geometry = {name: ((160,), (1,), torch.float32) for name in made}
    launchers: Any = [Prepares(each) for each in ([launch_of(**of)] if launches is None else launches)]
    route = Route(given, {}, geometry, dict(packed), launchers, {}, [*made, None])
    return Direction(route.procedure(tuple(geometry.values()), tuple(dict(packed).values()), {"N": 160}, CPU), "test")


def tensors(*offsets: int) -> list[torch.Tensor]:
    return [torch.zeros(64)[offset:] for offset in offsets]


def test_the_second_launch_is_direct(kernel: Kernel) -> None:
    run, given = prepared(), tensors(0, 0)
    for _ in range(3):
        run(given)
    assert len(kernel.through_triton) == 1
    pointers = [each.data_ptr() for each in given]
    assert kernel.run.calls == [(3, 1, 1, 5, 77, (4, 1, 0), None, None, None, *pointers, 160, 64)] * 2


def test_what_triton_does_not_tell_apart_is_launched_directly(kernel: Kernel) -> None:
    """Other sizes, of the same kind; not a 1, or what 16 does not divide, nor with other warps, nor too large."""
    written = written_of()
    for n, num_warps in ((160, 4), (176, 4), (0, 4), (1, 4), (161, 4), (3, 4), (160, 8), (2**31, 4)):
        prepared([launch_of(n=n, num_warps=num_warps, written=written)])(tensors(0, 0))
    assert len(kernel.through_triton) == 5
    assert [call[-2] for call in kernel.run.calls] == [176, 0, 3]


def test_a_program_has_no_more_threads_than_it_may(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warps of AMD's GPUs may have 64."""
    device = torch.device("cuda", 0)
    tilings = [Tiling(Variant(wide=False), (("BLOCK", 64),), 3, num_warps) for num_warps in (8, 32)]
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr("autogen.runtime.launch.device_context", lambda device: contextlib.nullcontext())
    for warp_size in (32, 64):
        properties = SimpleNamespace(warp_size=warp_size)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, found=properties: found)
        for tiling in tilings:
            Launch(written_of(), tiling, {"N": 160}, device)(tensors(0, 0))
    assert kernel.warps == [8, 32, 8, 16]


def test_code_is_written_for_what_comes_again(kernel: Kernel) -> None:
    run, written = prepared(), []
    for offsets in ((0, 0), (0, 1), (0, 1), (0, 0), (0, 0)):
        run(tensors(*offsets))
        written.append(len(run._written))
    assert written == [0, 0, 1, 2, 2]


def test_each_alignment_is_compiled_by_triton(kernel: Kernel) -> None:
    run = prepared()
    for offsets in ((0, 0), (0, 1), (1, 0), (0, 2), (0, 4), (1, 1), (1, 0)):
        run(tensors(*offsets))
    assert len(kernel.through_triton) == 4  # all, the second, the first, and neither
    assert len(kernel.run.calls) == 3


def test_alignments_beyond_those_with_code(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autogen.runtime.directions._MOST_WRITTEN", 1)
    run = prepared()
    for offsets in ((0, 0), (0, 1), (0, 1), (0, 0)):
        run(tensors(*offsets))
    assert len(kernel.through_triton) == 3 and len(kernel.run.calls) == 1


def test_results_are_made_anew_in_each_call(kernel: Kernel) -> None:
    run, (x,) = prepared([launch_of(), launch_of(programs=5)], given="x", made="y"), tensors(0)
    found = [run([x]) for _ in range(3)]
    assert all(none is None for _, none in found)
    assert len({each.data_ptr() for each, _ in found}) == 3 and all(each.shape == (160,) for each, _ in found)
    for k in (1, 2):
        first, second = kernel.run.calls[2 * k - 2 : 2 * k]
        assert (first[0], second[0]) == (3, 5)
        assert first[9:11] == second[9:11] == (x.data_ptr(), found[k][0].data_ptr())


def test_parts_of_a_tensor(kernel: Kernel) -> None:
    """They are given to Triton as tensors, and as addresses afterwards, whether their owner is given or made."""
    geometry = (5,), (1,), torch.float32
    packed = {"x": (0, geometry), "y": (32, geometry)}
    memory = torch.arange(64, dtype=torch.uint8)
    run = prepared(given=[PACK], packed=packed)
    for _ in range(2):
        run([memory])
    x, y = kernel.through_triton[0][:2]
    assert x.shape == y.shape == (5,) and y.dtype == torch.float32
    assert kernel.run.calls[-1][9:11] == (memory.data_ptr(), memory.data_ptr() + 32) == (x.data_ptr(), y.data_ptr())
    run([memory[4:]])
    run([memory[4:]])
    assert kernel.run.calls[-1][9] == memory.data_ptr() + 4 and len(kernel.through_triton) == 2


def test_nothing_to_launch(kernel: Kernel) -> None:
    run = prepared([], given="x", made="y")
    assert [run(tensors(0))[0].shape for _ in range(3)] == [(160,)] * 3
    assert not kernel.through_triton and len(run._written) == 1


def test_partial_results_and_the_counter_belong_to_the_stream(kernel: Kernel) -> None:
    run, given = prepared(partials=2), tensors(0, 0)
    run(given), run(given), run(given)
    assert [type(each) for each in kernel.through_triton[0][2:5]] == [torch.Tensor] * 3
    Device.stream = 6
    run(given)
    *same, other = [call[11:14] for call in kernel.run.calls]
    assert same[0] == same[1] and set(same[0]).isdisjoint(other)
    first, second, counter = same[0]
    assert second - first >= 3 * 4 and first % 16 == second % 16 == 0 and counter not in range(first, second + 12)


def test_a_larger_launch_takes_more_memory(kernel: Kernel) -> None:
    small, large, given = prepared(partials=1), prepared(partials=1, programs=4000), tensors(0, 0)
    for run in (small, small, large, large):
        run(given)
    (memory,) = scratch._scratches[CPU].values()
    assert memory.room >= 4000 * 4


def test_memory_of_a_graph_is_its_own(kernel: Kernel) -> None:
    run, given = prepared(partials=1), tensors(0, 0)
    run(given)
    Device.is_capturing = True
    run(given), run(given)
    assert len(kernel.through_triton) == 3 and not kernel.run.calls


def step(target: Any, *arguments: Any, made: str, strides: Sequence[int] = (1,)) -> TorchStep:
    """A step of torch that makes tensors of one dimension."""
    expressions = tuple(map(sympy.Integer, strides))
    shape = (N,) * len(strides)
    buffers = [None if each == "_" else ir.Buffer(each, torch.float32, shape, expressions, "torch") for each in made]
    return TorchStep(target, (arguments, {}), buffers, None, backward=False)


def direction(*steps: Any, given: str, wanted: str) -> Direction:
    """Steps of torch and launches (which take `x` and `y`) in turn."""
    ready = [Prepares(each) if isinstance(each, Launch) else each for each in steps]
    return Direction(Route(given, {}, {}, {}, ready, {}, list(wanted)).procedure((), (), {"N": 4}, CPU), "test")


def test_steps_of_torch_between_launches(kernel: Kernel) -> None:
    first = step(aten.sort.default, Operand("x"), 0, made="y_")
    second = step(aten.add.Tensor, Operand("y"), Operand("x"), made="z")
    run = direction(first, launch_of(), second, given="x", wanted="yz")
    for call in range(3):
        x = torch.tensor([3.0, 1.0, 2.0, float(call)])
        y, z = run([x])
        assert y.tolist() == sorted(x.tolist()) and torch.equal(z, x + y)
    assert len(kernel.through_triton) == 1 and len(kernel.run.calls) == 2
    assert kernel.run.calls[-1][9:11] == (x.data_ptr(), y.data_ptr())


def test_what_torch_makes_is_laid_out_as_kernels_expect(kernel: Kernel) -> None:
    """Other strides than before, or an address that is not aligned: it is copied."""
    results = [torch.arange(float(k), 12.0 + k)[k % 3 :: 2][:4] for k in range(6)]
    results[2:4] = [torch.ones(64)[1:5], torch.ones(64)[4:8]]
    made = iter(results)

    def odd(x: torch.Tensor) -> torch.Tensor:
        return next(made)

    odd._schema = aten.abs.default._schema  # type: ignore[attr-defined]
    run = direction(step(odd, Operand("x"), made="y"), launch_of(), given="x", wanted="y")
    found = [run(tensors(0))[0] for _ in range(6)]
    assert all(torch.equal(each, result) for each, result in zip(found, results, strict=True))
    assert all(each.stride() == (1,) and not each.data_ptr() % 16 for each in found)
    assert [each.data_ptr() for each in found[1:]] == [call[10] for call in kernel.run.calls]
    assert found[3].data_ptr() == results[3].data_ptr() and found[2].data_ptr() != results[2].data_ptr()


def test_unaligned_results_of_torch_stay_where_they_are(kernel: Kernel) -> None:
    """Triton has compiled a kernel for any address then."""
    run = direction(step(aten.slice.Tensor, Operand("x"), 0, 1, 5, made="y"), launch_of(), given="x", wanted="y")
    for _ in range(3):
        x = torch.arange(64.0)
        (y,) = run([x])
        assert y.data_ptr() == x.data_ptr() + 4
    assert len(kernel.run.calls) == 2


def test_steps_of_torch_are_not_cast(kernel: Kernel) -> None:
    run = direction(step(aten.mm.default, Operand("x"), Operand("x"), made="y", strides=(4, 1)), given="x", wanted="y")
    x = torch.rand(4, 4)
    expected = x @ x
    for enabled in (True, True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            assert torch.equal(run([x])[0], expected)
            assert torch.is_autocast_enabled("cpu") is enabled
    assert len(run._written) == 1


def test_numbers_of_steps_that_differ_from_call_to_call(kernel: Kernel) -> None:
    run = direction(step(aten.mul.Scalar, Operand("x"), SizeArgument(N / 2), made="y"), given="x", wanted="y")
    x = torch.arange(4.0)
    for number in (4, 6, 8):
        assert torch.equal(run([x], {"N": number})[0], x * number / 2)
    assert torch.equal(run([x])[0], x * 2)


def test_lists_and_constants_among_the_arguments(kernel: Kernel) -> None:
    x, inf = torch.arange(4.0), float("inf")
    joined = step(aten.cat.default, [Operand("x"), Operand("x")], made="y")
    filled = step(aten.full.default, [SizeArgument(N), 2], inf, made="z", strides=(2, 1))
    parts = step(aten.split.Tensor, Operand("x"), 2, made="ab")
    alone = step(aten.split.Tensor, Operand("x"), 4, made="c")
    run = direction(joined, filled, parts, alone, given="x", wanted="yzabc")
    for _ in range(3):
        y, z, a, b, c = run([x])
        assert torch.equal(y, torch.cat([x, x])) and torch.equal(z, torch.full((4, 2), inf))
        assert torch.equal(torch.cat([a, b]), x) and torch.equal(c, x)


def test_a_step_that_fails_leaves_no_counter(kernel: Kernel) -> None:
    run = direction(launch_of(partials=1), step(aten.view.default, Operand("x"), [4], made="z"), given="xy", wanted="z")
    fitting = [torch.rand(4), torch.rand(4)]
    run(fitting), run(fitting)
    assert scratch._scratches[CPU]
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        run([torch.rand(5), torch.rand(4)])
    assert not scratch._scratches[CPU]


def test_a_launch_that_fails_leaves_no_counter(kernel: Kernel) -> None:
    run, given = prepared(partials=1), tensors(0, 0)
    run(given), run(given)
    kernel.run.fails = True
    with pytest.raises(RuntimeError, match="no memory"):
        run(given)
    assert not scratch._scratches[CPU] and not scratch._counters


def test_an_interrupt_in_an_interpreted_kernel_leaves_no_counter() -> None:
    scratch.ticket_counter(CPU).fill_(1)
    with pytest.raises(KeyboardInterrupt), triton_around(CPU, "kernel"):
        raise KeyboardInterrupt
    assert not scratch.ticket_counter(CPU).any()


def test_profilers_are_told_by_triton(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    run, given = prepared(), tensors(0, 0)
    run(given)
    hook = direct._runtime().launch_enter_hook
    monkeypatch.setattr(hook, "calls", [print])
    run(given)
    assert len(kernel.through_triton) == 2 and not kernel.run.calls


def test_numbers_that_differ_from_call_to_call(kernel: Kernel) -> None:
    run, given = prepared(), tensors(0, 0)
    for number in (160, 176, 192):
        run(given, {"N": number})
    assert [each[-2:] for each in kernel.run.calls] == [(176, 64), (192, 64)]


def test_numbers_where_none_were_expected(kernel: Kernel) -> None:
    run, given = prepared(), tensors(0, 0)
    run(given), run(given), run(given, {"N": 176})
    assert [each[-2:] for each in (*kernel.run.calls, *kernel.through_triton)] == [(160, 64), (160, 64), (176, 64)]


@pytest.mark.parametrize("change", ["launcher", "handle"])
def test_another_triton_is_left_to_launch_itself(
    kernel: Kernel, change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if change == "launcher":
        kernel.run = OtherLauncher()
    else:
        monkeypatch.delattr(Kernel, "function")
    with caplog.at_level(logging.INFO, "autogen"):
        run = prepared()
        for _ in range(3):
            run(tensors(0, 0))
        prepared()(tensors(0, 0))
    assert len(kernel.through_triton) == 4
    assert len([each for each in caplog.records if "kernel[grid]" in each.message]) == 1


def test_the_installed_triton_is_known() -> None:
    from triton.backends.nvidia.driver import CudaLauncher as Installed

    direct._is_known.cache_clear()
    assert direct._is_known(Installed)
    assert not direct.is_watched()


def test_a_thread_that_needs_a_text_while_another_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given none whose arguments are not known yet."""
    launcher, sizes = launcher_of(torch.nn.MSELoss(), torch.randn(30, 7), torch.randn(30, 7))
    is_emitted = threading.Event()

    def slowly(expressions: Any) -> Evaluator:
        is_emitted.set()
        time.sleep(0.05)
        return Evaluator(expressions)

    monkeypatch.setattr(launch, "Evaluator", slowly)
    monkeypatch.setattr(build, "load_function", lambda *_: None)
    with ThreadPoolExecutor(1) as other:
        first = other.submit(launcher.prepare, sizes, CPU)
        is_emitted.wait()
        assert launcher.prepare(sizes, CPU).names == first.result().names


def fail(error: Exception, module: str) -> None:
    """Raise an error out of a module of Triton's."""
    scope: dict[str, Any] = {"__name__": module, "error": error}
    exec("def run():\n    raise error", scope)
    scope["run"]()


PASS = RuntimeError("PassManager::run failed")
NO_ROOM = OutOfResources(300_000, 232_448, "shared memory")
COMPILER, LAUNCHER, INTERPRETER = (
    "triton.compiler.compiler",
    "triton.backends.nvidia.driver",
    "triton.runtime.interpreter",
)


@pytest.mark.parametrize(
    ("error", "module", "expected"),
    [
        (NO_ROOM, COMPILER, CompileError),
        (NO_ROOM, LAUNCHER, CompileError),
        (PTXASError("Internal Triton PTX codegen error"), "triton.backends.nvidia.compiler", CompileError),
        (PASS, COMPILER, CompileError),
        (RuntimeError("Triton Error [CUDA]: device kernel image is invalid"), COMPILER, CompileError),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), LAUNCHER, RuntimeError),
        (OSError("No space left on device"), COMPILER, StorageError),
        (InterpreterError("IndexError()"), "triton.runtime.interpreter", InterpreterError),
        (ValueError("of a hook"), LAUNCHER, ValueError),
    ],
    ids=str,
)
def test_what_is_a_refusal(error: Exception, module: str, expected: type[Exception]) -> None:
    with pytest.raises(expected) as raised, triton_around(CPU, "k"):
        fail(error, module)
    assert raised.type is expected
    assert raised.value is error or raised.value.__cause__ is error
