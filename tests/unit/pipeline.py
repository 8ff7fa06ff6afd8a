"""The pipeline, one pass at a time: what the tests of a pass start from, and what they compare with.

A loss here is a module or a plain function of tensors; nothing is decorated, emitted or launched.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from autogen.calls.binding import Binding, bind
from autogen.dispatch.compilations import needs_gradient
from autogen.lowering import Program, Root, decompositions, lower
from autogen.scheduling.kernel import Kernel
from autogen.scheduling.plan import Plan
from autogen.scheduling.schedule import backward_of, schedule
from autogen.tracing.trace import Trace
from autogen.tracing.tracer import trace
from tests.unit.evaluate import stored

Loss = Callable[..., Any]


def binding_of(loss: Loss, *args: Any, **kwargs: Any) -> Binding:
    """A call, taken apart."""
    module = loss if isinstance(loss, torch.nn.Module) else None
    function = type(loss).forward if module is not None else loss
    return bind(function, inspect.signature(function), module, args, kwargs)


def trace_of(loss: Loss, *args: Any, **kwargs: Any) -> Trace:
    """The joint graph of a call and its gradients."""
    binding = binding_of(loss, *args, **kwargs)
    return trace(binding.replay, binding.names, binding.tensors, needs_gradient(binding), decompositions())


def program_of(loss: Loss, *args: Any, **kwargs: Any) -> tuple[Program, dict[str, int]]:
    """A call as IR, and its sizes."""
    traced = trace_of(loss, *args, **kwargs)
    sizes = traced.domain.guards.read(binding_of(loss, *args, **kwargs).tensors)
    assert sizes is not None
    return lower(traced, "loss"), sizes


def plan_of(loss: Loss, *args: Any, **kwargs: Any) -> tuple[Plan, dict[str, int]]:
    """A call as kernels, and its sizes."""
    program, sizes = program_of(loss, *args, **kwargs)
    return schedule(program, "loss", sizes, training=bool(program.gradients)), sizes


def ops_of(traced: Trace, *, backward: bool = False) -> list[str]:
    """The names of the ops that the results need, of the forward or of the backward part."""
    todo = [each.node for each in (*traced.outputs, *traced.gradients) if each is not None]
    needed: set[torch.fx.Node] = set()
    while todo:
        node = todo.pop()
        needed.add(node)
        todo += (arg for arg in node.all_input_nodes if arg not in needed)
    return [
        str(node.target).removeprefix("aten.")
        for node in traced.graph.nodes
        if node in needed and "geometry" in node.meta and node.meta["backward"] == backward
    ]


class Reference:
    """What torch computes for a call: `outputs`, an `upstream` gradient for each, and `gradients` by input name."""

    def __init__(self, loss: Loss, *args: Any, **kwargs: Any) -> None:
        binding = binding_of(loss, *args, **kwargs)
        self.tensors = dict(zip(binding.names, (t.detach() for t in binding.tensors), strict=True))
        results = [r for r in torch.utils._pytree.tree_leaves(loss(*args, **kwargs)) if isinstance(r, torch.Tensor)]
        names = ["loss"] if len(results) == 1 else [f"loss_{k}" for k in range(len(results))]
        self.outputs = {name: result.detach() for name, result in zip(names, results, strict=True)}
        generator = torch.Generator().manual_seed(0)
        self.upstream = {
            f"grad_{name}": torch.rand(result.shape, dtype=result.dtype, generator=generator) + 0.5
            for name, result in zip(names, results, strict=True)
            if result.requires_grad
        }
        wanted = {n: t for n, t in zip(binding.names, binding.tensors, strict=True) if t.requires_grad}
        differentiable = [result for result in results if result.requires_grad]
        self.gradients: dict[str, torch.Tensor] = {}
        if differentiable and wanted:
            found = torch.autograd.grad(
                differentiable, list(wanted.values()), list(self.upstream.values()), allow_unused=True
            )
            self.gradients = {f"grad_{n}": g for n, g in zip(wanted, found, strict=True) if g is not None}

    def check(self, outputs: Sequence[Root], gradients: Sequence[Root], sizes: Mapping[str, int]) -> None:
        """Compare roots over the inputs with what torch computed."""
        known = {**self.tensors, **self.upstream}
        torch.testing.assert_close(stored(outputs, known, sizes), self.outputs, equal_nan=True)
        torch.testing.assert_close(stored(gradients, known, sizes), self.gradients, equal_nan=True)

    def check_plan(self, plan: Plan, sizes: Mapping[str, int]) -> None:
        """Compare a plan's kernels, run one after the other, with what torch computed."""
        known = {**self.tensors, **self.upstream}
        device = torch.device("cpu")
        for step in plan.forward:
            if isinstance(step, Kernel):
                known |= stored(step.roots, known, sizes)
            else:
                step(known, sizes, device)
        torch.testing.assert_close({name: known[name] for name in self.outputs}, self.outputs, equal_nan=True)
        for step in backward_of(plan):
            if isinstance(step, Kernel):
                known |= stored(step.roots, known, sizes)
            else:
                step(known, sizes, device)
        known |= {name: known[own] for name, own in plan.aliases.items()}
        found = {name: known[name] for name in self.gradients}
        torch.testing.assert_close(found, self.gradients, equal_nan=True)


def check(loss: Loss, *args: Any, **kwargs: Any) -> None:
    """Compare the IR of a call, evaluated, with what torch computes."""
    program, sizes = program_of(loss, *args, **kwargs)
    Reference(loss, *args, **kwargs).check(program.outputs, program.gradients, sizes)


def floats(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = True, seed: int = 0) -> torch.Tensor:
    """Normally distributed numbers that ask for their gradient."""
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)
    return tensor.requires_grad_(grad)


def positive(*shape: int, grad: bool = True) -> torch.Tensor:
    """Numbers between 0 and 1 that ask for their gradient."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.rand(shape, generator=generator).requires_grad_(grad)


def pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A loss of two tensors (..., C) of one shape."""
    return (x * y).sum(-1).mean()
