"""Scheduling: IR results → launches and torch's steps between them, and what forward keeps for backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autogen import ir
from autogen.errors import ComparedSumError, ScheduleError
from autogen.ir import Node
from autogen.names import unique
from autogen.options import Gradient
from autogen.program import Program, Root
from autogen.provenance import Provenance
from autogen.scheduling.launches.cuts import stored
from autogen.scheduling.launches.kernel import Granted, Kernel, memory_order
from autogen.scheduling.order.early import gradients_in_forward
from autogen.scheduling.order.regions import alias_of, sequence
from autogen.scheduling.plan import Direction, Early, Plan, Step, names_of
from autogen.scheduling.rewrites.compared import compared_sums, may_differ
from autogen.scheduling.rewrites.equivalence import Equivalents, limits_of
from autogen.scheduling.rewrites.pairwise import pairs_term_by_term
from autogen.scheduling.rewrites.precision import in_half_precision, in_sums
from autogen.scheduling.rewrites.returned import compared_in_memory
from autogen.scheduling.rewrites.simplify import simplify


def schedule(
    program: Program, name: str, hints: Mapping[str, int], *, training: bool, gradient: Gradient = "backward"
) -> Plan:
    """Plan the launches of a program.

    Args:
        program: the loss and its gradients.
        name: the loss's name, for the kernels.
        hints: the sizes of a sample call; they order loops by memory, and nothing depends on them being right.
        training: whether backward may follow; if not, nothing is kept for it.
        gradient: which direction is to compute the gradient, if it can.

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
    roots = in_half_precision((*forward.roots, *backward.roots), provenance.moved)
    sums = compared_sums([root.node for root in roots])
    forward, backward = forward.of(roots[: len(forward.roots)]), backward.of(roots[len(forward.roots) :])
    steps, statistics = _forward(forward, backward, hints, provenance)
    early = Early()
    if training and gradient == "forward":
        early = gradients_in_forward(forward, backward, statistics.roots, statistics.loads, hints, provenance)
    backward = backward.on(_read_back([root.node for root in backward.roots], statistics, provenance))
    if may_differ(sums, steps, [root.node for root in backward.roots]):
        raise ComparedSumError
    kept = {root.buffer.name: root.buffer for root in statistics.roots}
    made = {root.buffer.name: root.buffer for root in forward.operands}
    made |= {buffer.name: buffer for step in forward.steps for buffer in step.results if buffer is not None}
    kept |= {each: made[each] for each in _names_read(backward) if each in made}
    return Plan(
        name=name,
        forward=early.steps or steps,
        outputs=tuple(root.buffer for root in forward.results),
        saved=tuple(kept.values()),
        gradients=backward.results,
        gradient_of=program.gradient_of if training else (),
        aliases=aliases_of((*forward.results, *backward.results)),
        hints=hints,
        provenance=provenance,
        direction=backward,
        early=early,
        fixed=fixed,
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
    steps = sequence(direction.on(nodes), plan.hints, plan.provenance)
    return tuple(replace(step, granted=tuple(granted)) if isinstance(step, Kernel) else step for step in steps)


def _directions(program: Program, name: str, *, training: bool) -> tuple[Direction, Direction]:
    """What is to be done forward, as some output needs it or it draws random numbers, and what is left for backward."""
    drawn = [made for step in program.steps if step.is_random and not step.backward for made in step.writes]
    forward = Direction(f"{name}_forward", program.outputs, program.operands, program.steps).needed(drawn)
    gradients = program.gradients if training else ()
    backward = Direction(f"{name}_backward", gradients, program.operands, program.steps)
    return forward, backward.needed(done=forward.made())


def _names_read(direction: Direction) -> list[str]:
    return [
        *names_of(root.node for root in direction.roots),
        *(name for step in direction.steps for name in step.reads),
    ]


def aliases_of(results: Iterable[Root]) -> dict[str, str]:
    """The results that a step of torch makes, and the tensors of steps that they are."""
    found = {root.buffer.name: alias_of(root) for root in results}
    return {name: own for name, own in found.items() if own is not None}


@dataclass(frozen=True)
class _Kept:
    """Statistics that forward stores, and how each reduction in the gradients is read from them."""

    roots: tuple[Root, ...] = ()
    loads: Mapping[Node, Node] = field(default_factory=dict)


def _statistics(
    forward: Direction,
    backward: Direction,
    hints: Mapping[str, int],
    provenance: Provenance,
    *,
    at_hand: bool,
) -> _Kept:
    """The reductions in the gradients that do not wait for the upstream gradient, as results of forward.

    All of them, or those that are `at_hand` as forward computes them anyway; in the order in which it does. What is the
    same under other axes is kept once.
    """
    computed = ir.topological(root.node for root in forward.roots)
    offered = set(computed)
    later = backward.made()
    waits: dict[Node, bool] = {}
    order = ir.topological(root.node for root in backward.roots)
    place = memory_order(order, backward.roots, hints)
    for node in order:
        upstream = node.op == "load" and (node.attrs[0].role == "upstream" or node.attrs[0].name in later)
        waits[node] = upstream or any(waits[arg] for arg in node.args)
    wanted: set[Node] = set()
    read_as: dict[Node, tuple[Node, Mapping[ir.Axis, ir.Axis | Node]]] = {}
    limits = limits_of([root.node for root in backward.roots])
    known = Equivalents()
    for node in computed:
        if node.op == "reduce":
            known.add(node)
    seen: set[Node] = set()
    todo = [root.node for root in backward.roots]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "reduce" and not waits[node]:
            shorter = None if node in offered else known.find_within(node, limits[node])
            if node not in offered and not at_hand and shorter is None:
                known.add(node)
            read_as[node] = (node, {}) if node in offered else shorter or known.find(node) or (node, {})
            if read_as[node][0] in offered or not at_hand:
                wanted.add(read_as[node][0])
                continue
            del read_as[node]
        todo += node.args
    ordered = [node for node in (*computed, *order) if node in wanted]
    called = Counter(provenance.called(node) for node in set(ordered))
    found: dict[Node, Root] = {}
    taken = {*provenance.inputs, *(root.buffer.name for root in (*forward.roots, *backward.roots))}
    taken.update(node.attrs[0].name for node in (*computed, *order) if node.op == "load")
    taken.update(name for step in (*forward.steps, *backward.steps) for name in (*step.reads, *step.writes))
    for node in dict.fromkeys(ordered):
        alike = called[provenance.called(node)] > 1
        name = unique(provenance.qualified(node, {}) if alike else provenance.called(node), taken)
        taken.add(name)
        provenance.names[node] = name  # both kernels call it so
        provenance.sources[name] = tuple(dict.fromkeys(names_of([node])))
        found[node] = stored(node, name, "saved", sorted(node.axes, key=place))
    loads = {
        node: ir.load(found[own].buffer, [under.get(axis, axis) for axis in found[own].index])
        for node, (own, under) in read_as.items()
    }
    return _Kept(tuple(found.values()), loads)


def _forward(
    forward: Direction, backward: Direction, hints: Mapping[str, int], provenance: Provenance
) -> tuple[tuple[Step, ...], _Kept]:
    """The forward launches and the statistics that they keep, all or those computed anyway, if that costs no launch."""
    plain = sequence(forward, hints, provenance)
    for at_hand in (False, True):
        statistics = _statistics(forward, backward, hints, provenance, at_hand=at_hand)
        roots = in_sums([*forward.roots, *statistics.roots], provenance.moved)
        direction, kept = forward.of(roots[: len(forward.roots)]), roots[len(forward.roots) :]
        try:
            steps = sequence(direction, hints, provenance, kept)
        except ScheduleError:
            continue
        # One program that computes everything has no registers for more than it needs.
        is_full = any(isinstance(step, Kernel) and step.one_block for step in steps)
        if len(steps) <= len(plain) and (at_hand or not is_full):
            return steps, statistics
    return plain, _Kept()


def _read_back(nodes: Sequence[Node], kept: _Kept, provenance: Provenance) -> list[Node]:
    """The gradients with kept statistics read from memory."""
    for node, read in kept.loads.items():
        provenance.moved(node, read)
    return ir.replace(nodes, kept.loads, provenance.moved)
