"""Tracing: one call of a loss → one joint `torch.fx` graph of the loss and its gradients.

The loss runs once on fake tensors with symbolic sizes, then `torch.autograd.grad` runs on its result, and a
recorder below autograd writes down both. Every derivative is therefore torch's own: ties, clamps, norms at
zero, `no_grad`, `detach` and custom `autograd.Function`s included.

A trace holds for every call that passes its `guards`: the relations between sizes and strides that the code or
torch relied on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from autogen.errors import AutogenError, TraceError
from autogen.ir import contiguous_strides
from autogen.tracing.guards import Guards
from autogen.tracing.recorder import Recorder, Size, evaluate


@dataclass(frozen=True)
class TracedTensor:
    """A tensor at the edge of the graph; shape and strides are sympy expressions over the trace's sizes."""

    name: str
    dtype: torch.dtype
    shape: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    node: torch.fx.Node


@dataclass
class Trace:
    """The joint graph of one loss, for one class of inputs.

    `upstream[i]` is the gradient that backward is given for `outputs[i]`, `gradients[i]` the one that it returns
    for `inputs[i]`; each is None where there is none. `predicates` are booleans that the code branched on; the
    trace holds where they have the same values.
    """

    graph: torch.fx.Graph
    inputs: list[TracedTensor]
    outputs: list[TracedTensor]
    upstream: list[TracedTensor | None]
    gradients: list[TracedTensor | None]
    structure: pytree.TreeSpec
    others: list[Any]
    guards: Guards
    predicates: list[tuple[torch.fx.Node, bool]]

    def sizes(self, tensors: Sequence[torch.Tensor]) -> dict[str, int] | None:
        """The sizes of a call by name, or None if the trace does not hold for it."""
        sizes = self.guards.read(tensors)
        if sizes is None or not self.predicates:
            return sizes
        real = {each.node: tensor.detach() for each, tensor in zip(self.inputs, tensors, strict=True)}
        known = {sympy.Symbol(name, integer=True, positive=True): value for name, value in sizes.items()}

        def size(value: Size) -> int | float:
            number = sympy.sympify(self.guards.expression(value).xreplace(known))
            return int(number) if number.is_integer else float(number)

        holds = all(evaluate(node, real, size) == value for node, value in self.predicates)
        return sizes if holds else None

    def result(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The loss's own return value around the given output tensors."""
        rest = iter(tensors)
        leaves = [next(rest) if leaf is _TENSOR else leaf for leaf in self.others]
        return pytree.tree_unflatten(leaves, self.structure)


_TENSOR = object()


def trace(
    run: Callable[[Sequence[torch.Tensor]], Any],
    names: Sequence[str],
    tensors: Sequence[torch.Tensor],
    needs_gradient: Sequence[bool],
    decompositions: dict[Any, Any],
) -> Trace:
    """Record `run(tensors)` and the gradients of its results.

    Args:
        run: the loss, as a function of its tensors.
        names: what the user calls each tensor.
        tensors: the tensors of this call; only their metadata is looked at.
        needs_gradient: which of them are differentiated.
        decompositions: op → formula, for ops to be recorded in parts.

    Raises:
        AutogenError: a kind of code that cannot be traced, with the user's line.
        TraceError: the loss itself raised.
    """
    # Importing these pulls in torch._dynamo, about a second: only when a loss is really traced.
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    from autogen.tracing.formulas import CORRECTIONS, FormulaMode

    shapes = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    mode.cache_enabled = False  # every trace has symbols of its own: never a hit, and half of a trace's time
    recorder = Recorder({**decompositions, **CORRECTIONS})

    def fake_of(tensor: torch.Tensor, name: str, needs: bool) -> torch.Tensor:
        dynamic = [DimDynamic.DYNAMIC if size > 1 else DimDynamic.STATIC for size in tensor.shape]
        context: Any = StatelessSymbolicContext(dynamic_sizes=dynamic)
        fake = mode.from_tensor(tensor.detach(), symbolic_context=context, source=ConstantSource(name))
        with mode:
            return fake.detach().requires_grad_(needs)

    differentiated = any(needs_gradient)
    with torch.inference_mode(False), torch.set_grad_enabled(differentiated):
        fakes = [fake_of(*each) for each in zip(tensors, names, needs_gradient, strict=True)]
        for each in zip(names, fakes, tensors, strict=True):
            recorder.placeholder(*each)
        try:
            with mode, recorder, FormulaMode():
                returned = run(fakes)
        except AutogenError:
            raise
        except Exception as error:
            raise TraceError("the loss", cause=error) from error
        leaves, structure = pytree.tree_flatten(returned)
        results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not results:
            raise TraceError("the loss", cause=TypeError(f"it returned {type(returned).__name__}, not a tensor"))
        starts = [k for k, result in enumerate(results) if result.requires_grad]
        seeds: dict[int, torch.Tensor] = {}
        gradients: dict[int, torch.Tensor] = {}
        if starts:
            for k in starts:
                with mode:
                    seeds[k] = torch.empty_like(results[k])
                recorder.placeholder(f"grad_{_output_name(k, len(results))}", seeds[k])
            wanted = [k for k, needs in enumerate(needs_gradient) if needs]
            with mode, recorder:
                found = torch.autograd.grad(
                    [results[k] for k in starts],
                    [fakes[k] for k in wanted],
                    [seeds[k] for k in starts],
                    allow_unused=True,
                )
            gradients = {k: each for k, each in zip(wanted, found, strict=True) if each is not None}

    guards = Guards.of(shapes, list(zip(names, fakes, strict=True)))

    def traced(name: str, tensor: torch.Tensor, dense: bool = True) -> TracedTensor:
        shape = tuple(map(guards.expression, tensor.shape))
        strides = tuple(
            sympy.S.Zero if size == 1 else guards.expression(stride)
            for size, stride in zip(shape, tensor.stride(), strict=True)
        )
        if dense and any(stride == 0 for size, stride in zip(shape, strides, strict=True) if size != 1):
            strides = contiguous_strides(shape)
        return TracedTensor(name, tensor.dtype, shape, strides, recorder.node_of(tensor))

    def output_name(k: int) -> str:
        return _output_name(k, len(results))

    return Trace(
        graph=recorder.graph,
        inputs=[traced(name, fake, dense=False) for name, fake in zip(names, fakes, strict=True)],
        outputs=[traced(output_name(k), result) for k, result in enumerate(results)],
        upstream=[traced(f"grad_{output_name(k)}", seeds[k]) if k in seeds else None for k in range(len(results))],
        gradients=[traced(f"grad_{name}", gradients[k]) if k in gradients else None for k, name in enumerate(names)],
        structure=structure,
        others=[_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves],
        guards=guards,
        predicates=recorder.predicates,
    )


def _output_name(position: int, count: int) -> str:
    return "loss" if count == 1 else f"loss_{position}"
