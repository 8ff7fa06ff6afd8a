"""Schedule a program: kernels and extern steps in order, and what forward saves for backward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from autogen import ir
from autogen.ir import Node
from autogen.ir.program import Program, Root
from autogen.ir.provenance import Provenance
from autogen.ir.torch_step import TorchStep
from autogen.scheduling.chunks.divide import divided
from autogen.scheduling.chunks.planning import in_chunks
from autogen.scheduling.launches.instructions import shown_exactly, with_instructions
from autogen.scheduling.launches.kernel import Granted, Kernel
from autogen.scheduling.launches.unread import with_conditions
from autogen.scheduling.order.early import gradients_in_forward
from autogen.scheduling.order.regions import alias_of, sequence
from autogen.scheduling.order.statistics import with_statistics
from autogen.scheduling.plan import Direction, Plan, Step, names_of
from autogen.scheduling.rewrites.pairwise import pairs_term_by_term
from autogen.scheduling.rewrites.same_bits import ComparedSumError, compared_in_memory, compared_sums, may_differ
from autogen.scheduling.rewrites.simplify import simplify
from autogen.scheduling.rewrites.softmax import normalizers
from autogen.settings.options import PLAIN, Options


def schedule(
    program: Program,
    name: str,
    hints: Mapping[str, int],
    *,
    training: bool,
    options: Options = PLAIN,
) -> Plan:
    """Plan the launches of a program.

    Args:
        program: the loss and its gradients.
        name: the loss's name, for the kernels.
        hints: the sizes of a sample call; they order loops by memory, and nothing depends on them being right.
        training: whether backward may follow; if not, nothing is kept for it.
        options: which direction is to compute the gradient, if it can, and how products are divided.

    Raises:
        ScheduleError: the graph does not fit the kernels known.
        ComparedSumError: it may do so if its sums are in memory.
    """
    program = compared_in_memory(program)
    provenance = program.provenance
    forward, backward = _directions(program, name, training=training)
    forward, backward, fixed = pairs_term_by_term(forward, backward, hints, provenance.moved)
    forward = forward.on(simplify([root.node for root in forward.roots], provenance.moved))
    backward = backward.on(simplify([root.node for root in backward.roots], provenance.moved))
    nodes = normalizers([root.node for root in (*forward.roots, *backward.roots)], provenance.moved)
    forward, backward = forward.on(nodes[: len(forward.roots)]), backward.on(nodes[len(forward.roots) :])
    sums = compared_sums([root.node for root in (*forward.roots, *backward.roots)])
    chunks = in_chunks(forward, backward, hints, provenance, options, training=training)
    steps, statistics, backward = with_statistics(chunks.forward, chunks.backward, hints, provenance)
    forward, early = chunks.forward, chunks.early
    if training and options.gradient == "forward" and not chunks.products:
        early = gradients_in_forward(forward, backward, statistics.roots, statistics.loads, hints, provenance)
    backward = backward.on(statistics.read_back([root.node for root in backward.roots], provenance))
    if may_differ(sums, steps, [root.node for root in backward.roots]):
        raise ComparedSumError
    kept = {root.buffer.name: root.buffer for root in statistics.roots}
    made = {root.buffer.name: root.buffer for root in forward.operands}
    made |= {buffer.name: buffer for step in forward.steps for buffer in step.results if buffer is not None}
    again = backward.made()
    kept |= {each: made[each] for each in _names_read(backward) if each in made and each not in again}
    early = replace(early, kept=tuple(buffer for buffer in early.kept if buffer.name not in kept))
    return Plan(
        name=name,
        forward=_finished(early.steps or steps, backward.roots, {}, provenance),
        outputs=tuple(root.buffer for root in forward.results),
        saved=tuple(kept.values()),
        gradients=backward.results,
        gradient_of=program.gradient_of if training else (),
        aliases=aliases_of((*forward.results, *backward.results)),
        hints=hints,
        provenance=provenance,
        direction=backward,
        kept={**chunks.kept, **{load: node for node, load in statistics.loads.items()}},
        early=early,
        fixed=fixed,
        in_chunks=chunks.products,
        undivided=chunks.undivided,
        whole=chunks.whole,
    )


def backward_of(
    plan: Plan,
    upstream: Mapping[str, ir.Buffer] | None = None,
    granted: Sequence[Granted] = (),
    direction: Direction | None = None,
) -> tuple[Step, ...]:
    """A plan's launches backward; `upstream` gives upstream gradients, by name, another layout than their output's.

    With `granted`, they have nothing to do where that is so. `direction` is a part of the plan's own.
    """
    upstream = upstream or {}

    def relaid(node: Node) -> Node:
        if node.op == "load" and node.attrs[0].role == "upstream" and node.attrs[0].name in upstream:
            return ir.reload(node, upstream[node.attrs[0].name])
        return node

    moved, direction = plan.provenance.moved, direction or plan.direction
    nodes = ir.transform([root.node for root in direction.roots], relaid, moved)
    nodes = simplify(nodes, moved)  # what is the same everywhere leaves its sums
    steps = _finished(sequence(direction.on(nodes), plan.hints, plan.provenance), (), plan.kept, plan.provenance)
    return tuple(replace(step, granted=tuple(granted)) if isinstance(step, Kernel) else step for step in steps)


def backward_in_chunks(plan: Plan, direction: Direction) -> Direction:
    """Backward, or a part of it, that makes products again in chunks.

    Raises:
        NotByRowsError: it cannot be computed row by row.
    """
    for products in plan.in_chunks:
        if direction.made().issuperset(products.names):
            gradients = {root.buffer.name for root in direction.results}
            result = divided(direction, products, plan.provenance, gradients=gradients)
            direction = result.direction
    return direction


def steps_of(direction: Direction, hints: Mapping[str, int], provenance: Provenance) -> tuple[Step, ...]:
    """The steps of a direction that stands for itself: of a chunk, or of gradients that forward keeps."""
    return _finished(sequence(direction, hints, provenance), (), {}, provenance)


def _directions(program: Program, name: str, *, training: bool) -> tuple[Direction, Direction]:
    """What is to be done forward, as some output needs it or it draws random numbers or is a collective, and what is
    left for backward.
    """
    once = [made for step in program.steps if step.is_ordered and not step.backward for made in step.writes]
    forward = Direction(f"{name}_forward", program.outputs, program.operands, program.steps).needed(once)
    gradients = program.gradients if training else ()
    backward = Direction(f"{name}_backward", gradients, program.operands, program.steps)
    return forward, backward.needed(done=forward.made())


def _finished(
    steps: Sequence[Step], later: Sequence[Root], kept: Mapping[Node, Node], provenance: Provenance
) -> tuple[Step, ...]:
    """Steps with the instructions of their kernels chosen, and what these need not read; `later` is computed from what
    they store, and `kept` are the reductions that they read.
    """
    roots = [root for step in steps if isinstance(step, Kernel) for root in step.roots]
    read = [name for step in steps if isinstance(step, TorchStep) for name in step.reads]
    exact = shown_exactly([*roots, *later], read)
    moved, found = provenance.moved, list[Step]()
    for step in steps:
        if isinstance(step, Kernel):
            step = with_conditions(with_instructions(step, exact, kept, moved), kept, moved)
        found.append(step)
    return tuple(found)


def _names_read(direction: Direction) -> list[str]:
    return [
        *names_of(root.node for root in direction.roots),
        *(name for step in direction.steps for name in step.reads),
    ]


def aliases_of(results: Iterable[Root]) -> dict[str, str]:
    """The results that a step of torch makes, and the tensors of steps that they are."""
    found = {root.buffer.name: alias_of(root) for root in results}
    return {name: own for name, own in found.items() if own is not None}
