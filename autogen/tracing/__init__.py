"""Tracing: one call of a loss → one joint `torch.fx` graph of the loss and its gradients.

The loss runs once on fake tensors with symbolic sizes, then `torch.autograd.grad` runs on its result, and a
recorder below autograd writes down both. Every derivative is therefore torch's own: ties, clamps, norms at
zero, `no_grad`, `detach` and custom `autograd.Function`s included.

A trace holds for every call that passes its `guards`: the relations between sizes and strides that the code or
torch relied on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols
from torch.utils import _pytree as pytree

from autogen.errors import AutogenError, TraceError, ValueBranchError
from autogen.ir import contiguous_strides
from autogen.tracing.guards import Guards, settle_factors
from autogen.tracing.recorder import Recorder, Size, evaluate
from autogen.tracing.source import statement_that_raised


@dataclass(frozen=True)
class TracedTensor:
    """A tensor at the edge of the graph; shape and strides are sympy expressions over the trace's sizes."""

    name: str
    dtype: torch.dtype
    shape: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    node: torch.fx.Node


@dataclass(frozen=True)
class Domain:
    """The calls that a trace holds for: sizes and strides that pass its guards, and the same branches taken.

    `predicates` are the numbers that the code took into Python, with their values, over the tensors of `inputs` and
    the `constants` of the trace.
    """

    guards: Guards
    predicates: list[tuple[torch.fx.Node, bool | int]]
    inputs: list[torch.fx.Node]
    constants: dict[torch.fx.Node, torch.Tensor]

    def sizes(self, tensors: Sequence[torch.Tensor], floats: Sequence[float] = ()) -> dict[str, Any] | None:
        """The sizes and floats of a call by name, or None if the trace does not hold for it."""
        sizes = self.guards.read(tensors, floats)
        if sizes is None or not self.predicates:
            return sizes
        real = {node: tensor.detach() for node, tensor in zip(self.inputs, tensors, strict=True)} | self.constants
        known = {symbol: sizes[str(symbol)] for symbol in self.guards.symbols}

        def size(value: Size) -> int | float:
            number = sympy.sympify(self.guards.expression(value).xreplace(known))
            return int(number) if number.is_integer else float(number)

        holds = all(evaluate(node, real, size) == value for node, value in self.predicates)
        return sizes if holds else None


@dataclass
class Trace:
    """The joint graph of one loss, for one class of inputs.

    `upstream[i]` is the gradient that backward is given for `outputs[i]`, `gradients[i]` the one that it returns
    for `inputs[i]`; each is None where there is none. `constants` are tensors that the loss builds from numbers.
    """

    graph: torch.fx.Graph
    domain: Domain
    inputs: list[TracedTensor]
    constants: list[TracedTensor]
    outputs: list[TracedTensor]
    upstream: list[TracedTensor | None]
    gradients: list[TracedTensor | None]
    structure: pytree.TreeSpec
    others: list[Any]
    numbers: dict[sympy.Symbol, torch.fx.Node]

    def result(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The loss's own return value around the given output tensors; last among them are those of its numbers."""
        rest = iter(tensors)
        leaves = [next(rest) if leaf is _TENSOR else leaf for leaf in self.others]
        if any(isinstance(leaf, _Number) for leaf in leaves):
            known = dict(zip(self.numbers, (tensor.item() for tensor in rest), strict=True))
            leaves = [leaf.value(known) if isinstance(leaf, _Number) else leaf for leaf in leaves]
        return pytree.tree_unflatten(leaves, self.structure)


_TENSOR = object()


@dataclass(frozen=True)
class _Number:
    """A number in the result of a loss, which it took from tensors."""

    expression: sympy.Expr

    def value(self, known: dict[sympy.Symbol, int | float]) -> int | float:
        """The number, given those of the tensors."""
        number = self.expression.xreplace({symbol: sympy.sympify(value) for symbol, value in known.items()})
        return int(number) if number.is_Integer else float(number)


def trace(
    run: Callable[[Sequence[torch.Tensor], Sequence[Any]], Any],
    names: Sequence[str],
    tensors: Sequence[torch.Tensor],
    needs_gradient: Sequence[bool],
    decompositions: dict[Any, Any],
    *,
    floats: Mapping[str, float] | None = None,
    exact: bool = False,
    static: bool = False,
) -> Trace:
    """Record `run(tensors)` and the gradients of its results.

    Args:
        run: the loss, as a function of its tensors and of `floats`.
        names: what the user calls each tensor.
        tensors: the tensors of this call; only their metadata is looked at.
        needs_gradient: which of them are differentiated.
        decompositions: op → formula, for ops to be recorded in parts.
        floats: numbers that differ from call to call.
        exact: whether the integers that the code reads are taken as they are, and are a condition of the trace.
        static: whether sizes are taken as they are, too.

    Raises:
        AutogenError: a kind of code that cannot be traced, with the user's line.
        TraceError: the loss itself raised.
    """
    tracing = _Tracing(names, tensors, needs_gradient, decompositions, floats=floats or {}, exact=exact, static=static)
    try:
        with torch.inference_mode(False), torch.set_grad_enabled(any(needs_gradient)):
            leaves, structure = pytree.tree_flatten(tracing.forward(run))
            results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            outputs = [_output_name(k, len(results)) for k in range(len(results))]
            upstream, gradients = tracing.backward(outputs, results)
            others = [_TENSOR if isinstance(leaf, torch.Tensor) else _number(leaf) for leaf in leaves]
            if any(isinstance(leaf, _Number) for leaf in others):
                results += tracing.numbers()
                outputs += [f"number_{k}" for k in range(len(results) - len(outputs))]
                upstream += [None] * (len(results) - len(upstream))
    except AutogenError as error:
        error.domain = tracing.domain()
        error.reads_numbers = bool(tracing.recorder.numbers)
        raise
    domain = tracing.domain()

    def traced(name: str, tensor: torch.Tensor | None, dense: bool = True) -> TracedTensor | None:
        if tensor is None:
            return None
        shape = tuple(map(domain.guards.expression, tensor.shape))
        strides = tuple(
            sympy.S.Zero if size == 1 else domain.guards.expression(stride)
            for size, stride in zip(shape, tensor.stride(), strict=True)
        )
        if dense and any(stride == 0 for size, stride in zip(shape, strides, strict=True) if size != 1):
            strides = contiguous_strides(shape)
        return TracedTensor(name, tensor.dtype, shape, strides, tracing.recorder.node_of(tensor))

    def all_of(names: Sequence[str], tensors: Sequence[torch.Tensor], dense: bool = True) -> list[TracedTensor]:
        found = [traced(*each, dense) for each in zip(names, tensors, strict=True)]
        return [each for each in found if each is not None]

    return Trace(
        graph=tracing.recorder.graph,
        domain=domain,
        inputs=all_of(names, tracing.fakes, dense=False),
        constants=[
            TracedTensor(str(node.target), each.dtype, _integers(each.shape), _integers(each.stride()), node)
            for node, each in domain.constants.items()
        ],
        outputs=all_of(outputs, results),
        upstream=[traced(f"grad_{name}", each) for name, each in zip(outputs, upstream, strict=True)],
        gradients=[traced(f"grad_{name}", each) for name, each in zip(names, gradients, strict=True)],
        structure=structure,
        others=others,
        numbers={symbol: tracing.recorder.node_of(each) for symbol, each in tracing.recorder.numbers.items()},
    )


class _Tracing:
    """The run of a loss on fake tensors."""

    def __init__(
        self,
        names: Sequence[str],
        tensors: Sequence[torch.Tensor],
        needs_gradient: Sequence[bool],
        decompositions: dict[Any, Any],
        *,
        floats: Mapping[str, float],
        exact: bool,
        static: bool,
    ) -> None:
        # Importing these pulls in torch._dynamo, about a second: only when a loss is really traced.
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        from autogen.tracing.formulas import CORRECTIONS

        self._names = names
        self._tensors = tensors
        self._needs_gradient = needs_gradient
        self._static = static
        self._shapes = ShapeEnv(duck_shape=False)
        self._mode = FakeTensorMode(shape_env=self._shapes, allow_non_fake_inputs=True)
        self._mode.cache_enabled = False  # every trace has symbols of its own: never a hit, and half of a trace's time
        self.recorder = Recorder({**decompositions, **CORRECTIONS}, exact=exact)
        self._floats = [(name, self._symbolic(name, value)) for name, value in floats.items()]
        with torch.inference_mode(False):
            self.fakes = [self._fake_of(*each) for each in zip(tensors, names, needs_gradient, strict=True)]
        self._placeholders = [self.recorder.placeholder(*each) for each in zip(names, self.fakes, tensors, strict=True)]

    def _symbolic(self, name: str, value: float) -> Any:
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        source = ConstantSource(name)
        symbol = self._shapes.create_unspecified_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC)
        return self._shapes.create_symfloatnode(symbol, hint=value, source=source)

    def _fake_of(self, tensor: torch.Tensor, name: str, needs: bool) -> torch.Tensor:
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        varies = [size > 1 and not self._static for size in tensor.shape]
        dynamic = [DimDynamic.DYNAMIC if each else DimDynamic.STATIC for each in varies]
        context: Any = StatelessSymbolicContext(dynamic_sizes=dynamic)
        fake = self._mode.from_tensor(tensor.detach(), symbolic_context=context, source=ConstantSource(name))
        with self._mode:
            return fake.detach().requires_grad_(needs)

    def numbers(self) -> list[torch.Tensor]:
        """The tensors whose values the code took into Python, as results of the loss."""
        with self._mode, self.recorder:
            return [tensor.detach().reshape(()) for tensor in self.recorder.numbers.values()]

    def domain(self) -> Domain:
        """The calls that take the way recorded so far."""
        settle_factors(self._shapes, self.fakes, self._tensors)
        guards = Guards.of(self._shapes, list(zip(self._names, self.fakes, strict=True)), self._floats)
        return Domain(guards, self.recorder.predicates, self._placeholders, self.recorder.constants)

    def forward(self, run: Callable[[Sequence[torch.Tensor], Sequence[Any]], Any]) -> Any:
        """Record the loss; returns what it returns."""
        from autogen.tracing.formulas import FormulaMode

        try:
            with self._mode, self.recorder, FormulaMode():
                returned = run(self.fakes, [number for _, number in self._floats])
        except AutogenError:
            raise
        except GuardOnDataDependentSymNode as error:
            raise ValueBranchError("a size that depends on values", where=statement_that_raised(error)) from error
        except Exception as error:
            raise TraceError("the loss", cause=error, where=statement_that_raised(error)) from error
        if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(returned)):
            raise TraceError("the loss", cause=TypeError(f"it returned {type(returned).__name__}, not a tensor"))
        return returned

    def backward(
        self, names: Sequence[str], results: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
        """Record the gradients; returns the upstream gradient of every result and the gradient of every input."""
        upstream: list[torch.Tensor | None] = [None] * len(results)
        gradients: list[torch.Tensor | None] = [None] * len(self.fakes)
        starts = [k for k, result in enumerate(results) if result.requires_grad]
        wanted = [k for k, needs in enumerate(self._needs_gradient) if needs]
        if not starts:
            return upstream, gradients
        seeds = []
        for k in starts:
            with self._mode:
                seeds.append(torch.empty_like(results[k]))
            self.recorder.placeholder(f"grad_{names[k]}", seeds[-1])
            upstream[k] = seeds[-1]
        try:
            with self._mode, self.recorder:
                found = torch.autograd.grad(
                    [results[k] for k in starts], [self.fakes[k] for k in wanted], seeds, allow_unused=True
                )
        except AutogenError:
            raise
        except GuardOnDataDependentSymNode as error:
            raise ValueBranchError("a size that depends on values") from error
        except Exception as error:
            raise TraceError("the gradient of the loss", cause=error) from error
        for k, gradient in zip(wanted, found, strict=True):
            gradients[k] = gradient
        return upstream, gradients


def _number(leaf: Any) -> Any:
    """What is no tensor in the result of a loss; symbols are to be read once the loss has run."""
    if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        if isinstance(leaf, torch.SymBool) or leaf.node.expr.free_symbols != free_unbacked_symbols(leaf):
            raise ValueBranchError("a number in its result")
        return _Number(leaf.node.expr)
    return leaf


def _integers(sizes: Sequence[int]) -> tuple[sympy.Expr, ...]:
    return tuple(map(sympy.Integer, sizes))


def _output_name(position: int, count: int) -> str:
    return "loss" if count == 1 else f"loss_{position}"
