"""The backend that Dynamo calls with each graph: it compiles kernels, or leaves the graph to torch and says why.

AOTAutograd is given a partition function of our own: the whole joint graph is captured, lowered and emitted there, and
AOTAutograd gets two small graphs that only say which tensors go where. Where it has nothing to do around the graph (no
input is written, no result is a view, no tensor is taken apart), its wrappers are left out, and the `KernelSegment` is
called directly. Of a DTensor, the graph is given the tensor of this process, and its mesh and sizes as arguments that
no kernel reads; of a jagged tensor, its values and offsets.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from autogen import compat
from autogen.capture import formulas
from autogen.capture.packing import Packing, packing_of, settle_lengths
from autogen.capture.source import innermost
from autogen.compiler import compile_graph, compile_segment
from autogen.dispatch.fallbacks import Fallbacks
from autogen.errors import ASKED_FOR, AutogenError, SourceLine, UnavailableError, defects_of
from autogen.lowering import decompositions
from autogen.runtime.availability import has_interpreter, is_sharded, is_taken_apart, require, without_class
from autogen.runtime.replays import Settings
from autogen.runtime.segments import KernelSegment
from autogen.settings.options import PLAIN, Options
from autogen.settings.policies import in_torch

Runner = Callable[..., Any]


@dataclass
class Captured:
    """One graph of a loss, as `explain` tells of it.

    `runner` is what runs it: a `KernelSegment`, None if that is torch. `reason` says why torch does. `ended_by` is
    torch's reason to end the graph where the loss goes on, with the user's `line`; `is_nested` if it is of a function
    that the loss calls between two graphs. `graph` is AOTAutograd's own. `sources` are where Dynamo has found the
    arguments of `formula`, its graph in torch's operations; `is_plain` says that a call is what the kernels do, with
    nothing of AOTAutograd's around it. `packing` has put tensors of lists together before.
    """

    runner: KernelSegment | None
    path: str
    reason: str
    error: AutogenError | None = None
    computes: bool = True
    ended_by: str | None = None
    line: SourceLine | None = None
    is_nested: bool = False
    graph: torch.fx.GraphModule | None = None
    formula: torch.fx.GraphModule | None = None
    sources: tuple[str, ...] = ()
    is_plain: bool = False
    packing: Packing | None = None

    @property
    def now(self) -> Captured:
        """The same, as it is after kernels have turned out not to compile."""
        fault = None if self.runner is None else self.runner.fault
        return self if fault is None else replace(self, runner=None, path="eager", reason=fault.reason, error=fault)


class Backend:
    """Makes runners for the graphs of one loss.

    Args:
        name: the loss's name.
        options: how the loss is to run.
        heard: is told of each graph.
        fallbacks: is told of kernels that turn out not to compile.
        mandatory: whether an `AutogenError` is raised instead of leaving a graph to torch.
        runs: whether kernels are to run; if not, they are made for tensors of any device, and torch runs the graphs.
    """

    def __init__(
        self,
        name: str,
        options: Options = PLAIN,
        heard: Callable[[Captured, Runner], Runner] | None = None,
        fallbacks: Fallbacks | None = None,
        *,
        mandatory: bool = False,
        runs: bool = True,
    ) -> None:
        self.name, self.options, self.mandatory, self.runs = name, options, mandatory, runs
        self.may_fail = True  # whether a fault of torch's is to be raised, as there is another way to capture
        self._heard, self._fallbacks = heard, fallbacks or Fallbacks()
        self.__name__ = "autogen"

    def __call__(self, graph: torch.fx.GraphModule, example: Sequence[Any]) -> Runner:
        captured, runner = self._run(graph, example)
        captured.ended_by, frames = compat.break_of(graph)
        captured.line = innermost(frames)
        if captured.error is not None and self.mandatory:
            raise captured.error
        runner = runner if self._heard is None else self._heard(captured, runner)
        runner = runner if captured.packing is None else captured.packing.around(runner)
        return _without_classes(runner, example)

    def _run(self, graph: torch.fx.GraphModule, example: Sequence[Any]) -> tuple[Captured, Runner]:
        if not _computes(graph) or _is_condition(graph):
            return Captured(None, "eager", "it computes nothing", computes=False), _in_torch(graph)
        compilation: Compilation | None = None
        try:
            if self.runs:
                if _device(example).type == "cpu" and not has_interpreter() and self.options.cpu == "inductor":
                    captured = Captured(None, "inductor", "tensors on the CPU are for torch's own compiler")
                    return captured, compat.inductor(graph, example)
                require([without_class(each) for each in example if isinstance(each, torch.Tensor)])
            formulas.replace(graph)
            shapes = compat.fake_mode().shape_env
            packing = packing_of(graph, shapes)
            inner, given = (graph, example) if packing is None else (packing.graph, packing.given(example))
            with contextlib.nullcontext() if self.may_fail else defects_of(self.name), compat.lengths_as_usual():
                settle_lengths(inner, shapes)
                compilation = Compilation(self.name, self.options, inner, self._fallbacks, mandatory=self.mandatory)
                runner, segment = compilation.run(given)
            captured = Captured(segment, segment.compiled.path, segment.compiled.reason, graph=compilation.captured)
            captured.formula, captured.sources = inner, compilation.sources
            captured.is_plain = compilation.is_plain and packing is None
            if packing is not None:
                packing.settle()
                reasons = [packing.reason, *([captured.reason] if captured.path == "partial" else [])]
                captured.packing, captured.path, captured.reason = packing, "partial", "; ".join(reasons)
            return captured, runner if self.runs else _in_torch(inner)
        except ASKED_FOR:
            raise
        except AutogenError as error:
            joint = None if compilation is None else compilation.captured
            return Captured(None, "eager", error.reason, error, graph=joint), _in_torch(graph)


def dynamo_backend(graph: torch.fx.GraphModule, example: Sequence[Any]) -> Runner:
    """The backend of `torch.compile(loss, backend="autogen")`: kernels for a graph where there are some, else torch."""
    backend = Backend("loss")
    backend.may_fail = False
    return backend(graph, example)


class Compilation:
    """One graph through AOTAutograd, and on to kernels."""

    def __init__(
        self,
        name: str,
        options: Options,
        graph: torch.fx.GraphModule,
        fallbacks: Fallbacks | None = None,
        *,
        mandatory: bool = False,
    ) -> None:
        self.name, self.options, self.graph, self._mandatory = name, options, graph, mandatory
        self._fallbacks = fallbacks or Fallbacks()
        arguments = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self.sources = tuple(map(compat.source_of, arguments))
        self.names = list(map(_name_of, arguments))
        self._takes_apart = ""  # what kind of tensors AOTAutograd takes apart around the kernels
        self.runner: KernelSegment | None = None
        self.captured: torch.fx.GraphModule | None = None  # AOTAutograd's own, of which the compiler takes a copy
        self.is_plain = False
        self.settings = Settings()  # before AOTAutograd changes them

    def run(self, example: Sequence[Any]) -> tuple[Runner, KernelSegment]:
        """What runs the graph, and its kernels."""
        if any(map(is_taken_apart, example)):
            self._takes_apart = "DTensor" if any(map(is_sharded, example)) else "jagged tensor"
        run = compat.aot_module(
            self.graph,
            example,
            partition_fn=self._partition,
            fw_compiler=self._forward,
            bw_compiler=self._backward,
            inference_compiler=self._inference,
            decompositions=dict(decompositions()),
        )
        assert self.runner is not None
        return (self.runner if self.is_plain else run), self.runner

    def _failed(self, error: AutogenError) -> None:
        """Say that torch runs the graph from now on."""
        if self._mandatory:
            raise error
        self._fallbacks.note(self.name, error.reason)
        self._fallbacks.say()

    def _look_around(self) -> None:
        """Find out whether AOTAutograd has anything to do around the kernels."""
        is_plain = compat.is_plain_call(parts=bool(self._takes_apart))
        if self._takes_apart and not is_plain:
            raise UnavailableError(
                f"a {self._takes_apart} is changed in place, or a view of one is returned", remedy="Return new tensors."
            )
        self.is_plain = is_plain and not self._takes_apart

    def _kernels(self, module: torch.fx.GraphModule, count: int, *, training: bool) -> KernelSegment:
        self.captured = module
        shapes = compat.fake_mode().shape_env
        with compat.outside_of_modes():
            segment, compiled = compile_segment(
                module, self.names, count, shapes, self.name, self.options, training=training
            )

        def again(sizes: dict[str, Any]) -> Any:
            with defects_of(self.name):
                return compile_graph(
                    segment.graph, self.name, segment.device, self.options, training=training, sizes=sizes
                )

        self.runner = KernelSegment(
            segment,
            again,
            compiled,
            _in_torch(self.graph),
            self._failed,
            self.settings,
            training=training,
            of_parts=bool(self._takes_apart),
        )
        return self.runner

    def _inference(self, module: torch.fx.GraphModule, example: Sequence[Any]) -> Runner:
        """Kernels for forward alone."""
        results: Any = module.graph.output_node().args[0]
        runner = self._kernels(module, len(results), training=False)
        self._look_around()
        return compat.boxed(lambda *arguments: runner.run(arguments))

    def _partition(
        self, joint: torch.fx.GraphModule, example: Sequence[Any], *, num_fwd_outputs: int, **_: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        """Kernels for both directions; what AOTAutograd is given are graphs that say which tensors go where."""
        runner = self._kernels(joint, num_fwd_outputs, training=True)
        self.mutated = compat.mutated_places(joint, num_fwd_outputs)
        return compat.partitioned(joint, num_fwd_outputs, runner.kept_fakes(compat.fake_mode()))

    def _forward(self, module: torch.fx.GraphModule, example: Sequence[Any]) -> Runner:
        self._look_around()
        assert self.runner is not None
        return compat.boxed(self.runner.forward_apart(self.mutated))

    def _backward(self, module: torch.fx.GraphModule, example: Sequence[Any]) -> Runner:
        assert self.runner is not None
        return compat.boxed(self.runner.backward_apart)


def _without_classes(runner: Runner, example: Sequence[Any]) -> Runner:
    """What runs a graph of Dynamo's, whose operations are those of plain tensors, on tensors like the example's."""
    if all(without_class(each) is each for each in example):
        return runner
    return lambda *arguments: runner(*map(without_class, arguments))


def _in_torch(graph: torch.fx.GraphModule) -> Runner:
    """A graph as torch runs it; it calls functions of torch's by name, which under `autogen.patch` are ours."""
    return functools.partial(in_torch, graph.forward)


def _computes(graph: torch.fx.GraphModule) -> bool:
    """Whether a graph computes tensors from tensors."""
    nodes = graph.graph.nodes
    has_tensors = any(n.op == "placeholder" and isinstance(n.meta.get("example_value"), torch.Tensor) for n in nodes)
    return has_tensors and any(node.op in ("call_function", "call_method", "call_module") for node in nodes)


def _is_condition(graph: torch.fx.GraphModule) -> bool:
    """Whether all that a graph gives is what the loss branches on, such as a check that raises."""
    results: Any = graph.graph.output_node().args[0]
    values = [each.meta.get("example_value") for each in results if isinstance(each, torch.fx.Node)]
    return (
        compat.break_of(graph)[0] is not None
        and len(values) == len(results) == 1
        and isinstance(values[0], torch.Tensor)
        and values[0].dim() == 0
        and not values[0].requires_grad
    )


def _device(example: Sequence[Any]) -> torch.device:
    devices = [each.device for each in example if isinstance(each, torch.Tensor)]
    return next((each for each in devices if each.type != "cpu"), torch.device("cpu"))


_PARTS = re.compile(r"[A-Za-z_]\w*")
_OUTER = frozenset({"L", "G", "self", "_parameters", "_buffers", "_modules", "size", "__closure__", "cell_contents"})


def _name_of(node: torch.fx.Node) -> str:
    """What the user calls an argument of a graph: the last name in where Dynamo has found it."""
    words = [word for word in _PARTS.findall(compat.source_of(node)) if word not in _OUTER]
    return words[-1] if words else node.name
