"""Capture the loss that is exported, and find out what its kernels assume of their caller."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import sympy
import torch

from autogen.capture.graph import EdgeTensor, JointGraph
from autogen.compiler import kernel_name
from autogen.decorator import call_of
from autogen.dispatch.backend import Captured
from autogen.dispatch.dispatcher import Dispatcher
from autogen.errors import ExportError
from autogen.runtime.availability import PLAIN_TYPES
from autogen.runtime.backwards import Backward
from autogen.runtime.compiled import CompiledLoss
from autogen.runtime.launch import Launcher, kernels_in

_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NOT_OF_THE_LOSS = ("training", "use_autogen", "forward")  # the last of an instance that is decorated
_ARGUMENT = re.compile(r"L\['(\w+)'\]")
_USE_PACKAGE = "Use the loss with autogen installed."
_STATE = re.compile(r"(?:\._buffers|\._parameters|\.__dict__)\['(\w+)'\]|\.(\w+)")


@dataclass(frozen=True)
class Bound:
    """A tensor that the kernels read: what it is called there, and where a call has it (`target`, `self.weight`)."""

    edge: EdgeTensor
    source: str
    has_gradient: bool

    @property
    def is_state(self) -> bool:
        """Whether it is of the loss's module."""
        return self.source.startswith("self.")


@dataclass(frozen=True)
class Subject:
    """A loss that can be exported.

    Attributes:
        title: the loss's name.
        name: the same as the name of a function, which kernels begin with.
        parameters: what the loss is called with, without the module.
        kind: the class of the module, None of a function.
        owner: what the loss calls its module, None of a function.
        tensors: what kernels are given: the arguments in their order, then what is of the module.
        conditions: Python expressions over the loss's parameters and `self` that are true where the kernels compute the
            loss, whatever the tensors.
        fixed: the same, for people: `reduction='mean'`.
        state: what of the module decides, by name, with its type.
        compiled: the kernels.
        graph: the loss in torch's operations, as Dynamo has captured it.
        sources: where a call has the arguments of this graph, as Dynamo says it.
        training: whether there is a backward.
    """

    title: str
    name: str
    parameters: tuple[inspect.Parameter, ...]
    kind: type | None
    owner: str | None
    tensors: tuple[Bound, ...]
    conditions: tuple[str, ...]
    fixed: tuple[str, ...]
    state: Mapping[str, str]
    compiled: CompiledLoss
    graph: torch.fx.GraphModule
    sources: tuple[str, ...]
    training: bool

    @property
    def joint(self) -> JointGraph:
        """The joint graph."""
        return self.compiled.joint

    @property
    def launchers(self) -> tuple[Launcher, ...]:
        """All kernels."""
        return self.forward + (kernels_in(self.backward.steps) if self.backward else ())

    @property
    def forward(self) -> tuple[Launcher, ...]:
        """Forward's kernels."""
        return kernels_in(self.compiled.forward)

    @property
    def backward(self) -> Backward | None:
        """Backward, for an upstream gradient that is laid out like the loss."""
        return self.compiled.backwards.usual() if self.training else None


def subject_of(loss: Any, example_inputs: Sequence[Any]) -> Subject:
    """Capture a loss with example inputs, which are copied, and laid out one row after the other.

    Gradients are those of the inputs that require one; where none does, of the first of floating point.

    Raises:
        ExportError: there is more to the loss than kernels.
        AutogenError: some part of the loss has no kernel.
        TypeError: the inputs do not fit the loss's signature, or `loss` is a class.
    """
    inputs = _examples(example_inputs)
    dispatcher, args = call_of(loss, inputs)
    title = dispatcher.name_of(args)
    bound = dispatcher.signature.bind(*args)  # a TypeError names what is missing
    bound.apply_defaults()
    owner = args[0] if dispatcher.owner is not None else None
    first = next(iter(dispatcher.signature.parameters)) if owner is not None else None
    parameters = tuple(each for name, each in dispatcher.signature.parameters.items() if name != first)
    for parameter in parameters:
        if parameter.kind not in _KINDS:
            raise ExportError(title, f"its parameter {parameter} takes any number of arguments", "Name each of them.")
    _refuse_changes(title, dispatcher, args)
    captured = _captured(title, dispatcher, args)
    assert captured.runner is not None and captured.formula is not None
    _refuse_more_than_kernels(title, captured)
    segment, compiled = captured.runner.segment, captured.runner.compiled
    joint, order = segment.graph, list(dispatcher.signature.parameters)
    tensors = []
    for place, edge, gradient in zip(segment.tensors, joint.inputs, joint.gradients, strict=True):
        source = source_of(captured.sources[place], first)
        if source is None:
            why = f"it reads a tensor that is neither an argument nor of its module, {captured.sources[place]}"
            raise ExportError(title, why, "Pass it as an argument, or register it as a buffer.")
        tensors.append(Bound(edge, source, gradient is not None))
    tensors.sort(key=lambda each: order.index(each.source) if each.source in order else len(order))
    fixed: dict[str, tuple[str, Any]] = {}
    for parameter in parameters:
        value = bound.arguments[parameter.name]
        if not isinstance(value, torch.Tensor):
            fixed[parameter.name] = f"the argument {parameter.name}", value
    if owner is not None:
        fixed |= {f"self.{name}": (f"its attribute {name}", value) for name, value in _attributes(owner)}
    for what, value in fixed.values():
        if not _is_plain(value):
            remedy = "Export a loss that keeps numbers, strings and tensors, and computes from these."
            raise ExportError(title, f"{what} is a {type(value).__name__}, which no condition can tell", remedy)
    return Subject(
        title,
        kernel_name(title),
        parameters,
        None if owner is None else type(owner),
        first,
        tuple(tensors),
        tuple(_condition(name, value) for name, (_, value) in fixed.items()),
        tuple(f"{name.removeprefix('self.')}={value!r}" for name, (_, value) in fixed.items()),
        _state(tensors, fixed),
        compiled,
        captured.formula,
        captured.sources,
        captured.runner.training,
    )


def _examples(inputs: Sequence[Any]) -> tuple[Any, ...]:
    copies = tuple(
        each.detach().clone(memory_format=torch.contiguous_format).requires_grad_(each.requires_grad)
        if isinstance(each, torch.Tensor)
        else each
        for each in inputs
    )
    tensors = [each for each in copies if isinstance(each, torch.Tensor)]
    if not any(each.requires_grad for each in tensors):
        for each in tensors:
            if each.is_floating_point():
                each.requires_grad_()
                break
    return copies


def _refuse_changes(title: str, dispatcher: Dispatcher, args: tuple[Any, ...]) -> None:
    """Run the loss in torch, once: it returns one tensor, and changes nothing."""
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    owner = args[0] if dispatcher.owner is not None else None
    if owner is not None:
        tensors += [*owner.buffers(), *owner.parameters()]
        if next(owner.children(), None) is not None:
            raise ExportError(
                title, "it has modules of its own", "Export each of these, or compute the loss in forward itself."
            )
    before = [each.detach().clone() for each in tensors]
    state = "" if owner is None else repr(list(_attributes(owner)))
    result = dispatcher.function(*args)
    if not isinstance(result, torch.Tensor):
        found = type(result).__name__
        raise ExportError(title, f"it returns a {found}, not one tensor", "Export a loss that returns one tensor.")
    is_same = all(_same(old, new) for old, new in zip(before, tensors, strict=True))
    if not is_same or (owner is not None and repr(list(_attributes(owner))) != state):
        raise ExportError(title, "a call changes its inputs or its module", "Keep what changes outside of the loss.")


def _same(old: torch.Tensor, new: torch.Tensor) -> bool:
    return old.shape == new.shape and bool(((old == new) | (old != old)).all())


def _captured(title: str, dispatcher: Dispatcher, args: tuple[Any, ...]) -> Captured:
    options = replace(dispatcher.options, gradient="backward", policy=None)
    apart = Dispatcher(dispatcher.function, dispatcher.name, options, dispatcher.owner)
    runs, refused = apart.look(title, args, {}, anywhere=True)
    computing = [run.captured for run in runs if run.captured.computes]
    if len(computing) != 1:
        why = refused or f"torch captures {len(computing)} graphs of it"
        raise ExportError(title, why, "Write the loss as one graph; autogen.explain lists where it breaks.")
    if computing[0].error is not None:
        raise computing[0].error
    return computing[0]


def _refuse_more_than_kernels(title: str, captured: Captured) -> None:
    """Raise unless kernels are all there is to a call."""
    runner = captured.runner
    assert runner is not None
    compiled, segment = runner.compiled, runner.segment
    if compiled.path != "generated" or not compiled.is_closed:
        raise ExportError(title, compiled.reason, _USE_PACKAGE)
    if segment.graph.constants:
        raise ExportError(title, "it builds a tensor from numbers", "Register that as a buffer of a module.")
    returned = segment.returned
    is_one = len(returned) == len(segment.graph.outputs) == 1 and returned[0].output == 0
    if not is_one or returned[0].moved is not None:
        raise ExportError(title, "what it returns is not computed, or is several tensors", "Return one new tensor.")
    for symbol, place in segment.graph.sizes.symbols.items():
        if place.kind == "number":
            raise ExportError(title, f"it computes with {symbol}, which is in no tensor", "Keep it as a Python number.")
    if not captured.is_plain:
        raise ExportError(title, "it writes to what it is given", "Have it make new tensors.")
    if compiled.plan.fixed:
        raise ExportError(title, "its kernels are made for the sizes of the example alone", _USE_PACKAGE)
    for launcher in compiled.launchers:
        if launcher.kernel.parts:
            raise ExportError(title, f"{launcher.kernel.name} is several kernels side by side", _USE_PACKAGE)
        if launcher.kernel.one_block:
            why = f"{launcher.kernel.name} is one program, as the example is so small"
            raise ExportError(title, why, "Pass inputs as large as those that the loss is for.")
    for edge in segment.graph.inputs:
        if edge.strides != _dense(edge.shape):
            why = f"its tensor {edge.name} does not lie in memory one row after the other"
            raise ExportError(title, why, "Make it contiguous.")


def _dense(shape: Sequence[sympy.Expr]) -> tuple[sympy.Expr, ...]:
    strides = [sympy.Mul(*shape[place + 1 :]) for place in range(len(shape))]
    return tuple(sympy.S.Zero if size == 1 else stride for size, stride in zip(shape, strides, strict=True))


def source_of(source: str, owner: str | None) -> str | None:
    """Where a call has a tensor, from Dynamo's words for it; None if that is neither an argument nor of the module."""
    found = _ARGUMENT.match(source)
    rest = source[found.end() :] if found else None
    if found and found[1] != owner and not rest:
        return found[1]
    state = _STATE.fullmatch(rest) if found and rest and found[1] == owner else None
    return f"self.{state[1] or state[2]}" if state else None


def _attributes(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """What a loss's module keeps, beside tensors that are there."""
    for name, value in vars(module).items():
        if not name.startswith("_") and name not in _NOT_OF_THE_LOSS and not isinstance(value, torch.Tensor):
            yield name, value
    for held in (vars(module)["_buffers"], vars(module)["_parameters"]):
        yield from ((name, value) for name, value in held.items() if value is None)
    kinds = type(module).__mro__[: type(module).__mro__.index(torch.nn.Module)]
    functions = [each for kind in kinds for each in vars(kind).values() if isinstance(each, FunctionType)]
    if any("training" in function.__code__.co_names for function in functions):
        yield "training", module.training


def _state(tensors: Sequence[Bound], fixed: Mapping[str, tuple[str, Any]]) -> dict[str, str]:
    own = {name.removeprefix("self."): value for name, (_, value) in fixed.items() if name.startswith("self.")}
    kinds = {name: "Optional[Tensor]" if value is None else type(value).__name__ for name, value in own.items()}
    return kinds | {each.source.removeprefix("self."): "Tensor" for each in tensors if each.is_state}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return type(value) in PLAIN_TYPES and value == value


def _condition(name: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return f"{name} is {value}"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    return f"{name} == " + (text.replace("inf", 'float("inf")') if isinstance(value, float) else text)
