"""Run the pipeline one pass at a time, and compare what each pass gives.

A loss here is a module or a plain function of tensors; nothing is decorated, emitted or launched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from autogen.capture.graph import JointGraph
from autogen.decorator import call_of
from autogen.dispatch.watch import Run
from autogen.lowering import Program, Root, lower
from autogen.runtime.segments import KernelSegment
from autogen.scheduling.launches.kernel import Kernel
from autogen.scheduling.plan import Plan
from autogen.scheduling.rewrites.same_bits import ComparedSumError
from autogen.scheduling.schedule import backward_of, schedule
from tests.unit.evaluate import stored

Loss = Callable[..., Any]


def run_of(loss: Loss, *args: Any, **kwargs: Any) -> tuple[Run, KernelSegment]:
    """The only segment of a call, with the arguments that it is given."""
    dispatcher, args = call_of(loss, args)
    (run,), _ = dispatcher.look("loss", args, kwargs, anywhere=True, mandatory=True)
    assert run.captured.runner is not None
    return run, run.captured.runner


def joint_of(loss: Loss, *args: Any, **kwargs: Any) -> JointGraph:
    """The joint graph of a call and its gradients."""
    return run_of(loss, *args, **kwargs)[1].segment.graph


def program_of(loss: Loss, *args: Any, **kwargs: Any) -> tuple[Program, dict[str, int]]:
    """A call as IR, and its sizes."""
    run, segment = run_of(loss, *args, **kwargs)
    return lower(segment.segment.graph, "loss"), segment.kernels_for(run.arguments)[1]


def plan_of(loss: Loss, *args: Any, **kwargs: Any) -> tuple[Plan, dict[str, int]]:
    """A call as kernels, and its sizes."""
    run, segment = run_of(loss, *args, **kwargs)
    sizes = segment.kernels_for(run.arguments)[1]
    for stores_sums in (False, True):
        program = lower(segment.segment.graph, "loss", stores_sums=stores_sums)
        with contextlib.suppress(ComparedSumError):
            return schedule(program, "loss", sizes, training=bool(program.gradients)), sizes
    raise AssertionError("sums that are in memory are compared in the end")


def ops_of(joint: JointGraph, *, backward: bool = False) -> list[str]:
    """The names of the ops that the results need, of the forward or of the backward part."""
    todo = [each.node for each in (*joint.outputs, *joint.gradients) if each is not None]
    needed: set[torch.fx.Node] = set()
    while todo:
        node = todo.pop()
        needed.add(node)
        todo += (arg for arg in node.all_input_nodes if arg not in needed)
    return [
        str(node.target).removeprefix("aten.")
        for node in joint.graph.nodes
        if node in needed and "geometry" in node.meta and node.meta["backward"] == backward
    ]


class Reference:
    """What torch computes for a call: `outputs`, an `upstream` gradient for each, and `gradients` by input name."""

    def __init__(self, loss: Loss, *args: Any, **kwargs: Any) -> None:
        run, segment = run_of(loss, *args, **kwargs)
        names = [each.name for each in segment.segment.graph.inputs]
        inputs = [run.arguments[place] for place in segment.segment.tensors]
        self.tensors = dict(zip(names, (each.detach() for each in inputs), strict=True))
        results = [r for r in torch.utils._pytree.tree_leaves(loss(*args, **kwargs)) if isinstance(r, torch.Tensor)]
        titles = ["loss"] if len(results) == 1 else [f"loss_{k}" for k in range(len(results))]
        self.outputs = {name: result.detach() for name, result in zip(titles, results, strict=True)}
        generator = torch.Generator().manual_seed(0)
        self.upstream = {
            f"grad_{name}": torch.rand(result.shape, dtype=result.dtype, generator=generator) + 0.5
            for name, result in zip(titles, results, strict=True)
            if result.requires_grad
        }
        wanted = {n: t for n, t in zip(names, inputs, strict=True) if t.requires_grad}
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


def weighted(x: torch.Tensor, t: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A loss of tensors (N, C) with a weight per column."""
    return torch.nn.functional.binary_cross_entropy_with_logits(x, t, pos_weight=weight)
