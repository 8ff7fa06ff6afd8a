"""Choose which products of a loss are made in chunks of rows, and what forward and backward then do.

A loss that is one number has its gradient computed in forward, chunk by chunk, for an upstream gradient of 1, as long
as nothing that a gradient depends on is known only when all chunks are done; backward then scales what has been kept.
In half precision of few exponents (float16), and where there are several results, backward makes the products again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy
import torch

from autogen import ir
from autogen.ir import Node
from autogen.ir.names import unique
from autogen.ir.program import Root
from autogen.ir.provenance import Provenance
from autogen.ir.torch_step import Operand, TorchStep
from autogen.scheduling.chunks.body import NotByRowsError
from autogen.scheduling.chunks.divide import divided, values_of_rows
from autogen.scheduling.chunks.matrices import PRODUCTS, scale
from autogen.scheduling.chunks.size import ChunkSize
from autogen.scheduling.order.regions import alias_of
from autogen.scheduling.plan import Direction, Early, RowProducts, names_of
from autogen.scheduling.rewrites.simplify import simplify
from autogen.settings.options import Options


@dataclass(frozen=True)
class InChunks:
    """A loss in chunks.

    `backward` makes the products again, as a whole: it is divided when it is scheduled. `kept` are the values of rows
    that forward stores for it, by how it reads them. `early` is backward where forward has computed the gradients.
    `whole` says why large products are made as a whole, and `undivided` are those that are small enough.
    """

    forward: Direction
    backward: Direction
    products: tuple[RowProducts, ...] = ()
    kept: Mapping[Node, Node] = field(default_factory=dict)
    early: Early = field(default_factory=Early)
    whole: str = ""
    undivided: tuple[ChunkSize, ...] = ()


def in_chunks(
    forward: Direction,
    backward: Direction,
    hints: Mapping[str, int],
    provenance: Provenance,
    options: Options,
    *,
    training: bool,
) -> InChunks:
    """A loss whose large products are made in chunks of rows."""
    groups, undivided, whole = list[RowProducts](), list[ChunkSize](), ""
    for group in _groups(forward, options, training=training):
        if not group.size.is_less_than_all(hints):
            undivided.append(group.size)
            continue
        reason = ""
        for part in (group, *group.alone(hints)):  # of a network, the last product may be divided
            try:
                _check(part, forward, backward, provenance)
            except NotByRowsError as error:
                reason = reason or _reason(error, provenance)
            else:
                groups.append(part)
                break
        else:
            whole = whole or reason
    plain = InChunks(forward, backward, whole=whole, undivided=tuple(undivided))
    return _divided(plain, groups, provenance) if groups else plain


def _groups(forward: Direction, options: Options, *, training: bool) -> list[RowProducts]:
    """The products that kernels read, those of the same rows together."""
    read = set(names_of(root.node for root in forward.roots))
    found: dict[sympy.Expr, list[ir.Buffer]] = {}
    for step in forward.steps:
        (result, *_) = step.results
        if step.target in PRODUCTS and result is not None and result.name in read:
            found.setdefault(result.shape[0], []).append(result)
    return [RowProducts.of(each, options.chunk, options.sums, gradients=training) for each in found.values()]


def _again(backward: Direction, forward: Direction, group: RowProducts) -> Direction:
    """Backward that makes products again."""
    steps = [step for step in forward.steps if not set(group.names).isdisjoint(step.writes)]
    return replace(backward, steps=(*steps, *backward.steps))


def _check(group: RowProducts, forward: Direction, backward: Direction, provenance: Provenance) -> None:
    """Raise unless both directions can be divided."""
    again = _again(backward, forward, group)
    kept = values_of_rows(again, group, provenance)
    loads = divided(forward, group, provenance, kept).kept
    if backward.results:
        nodes = ir.replace([root.node for root in again.roots], loads)
        divided(again.on(nodes), group, provenance, gradients=_results(backward))


def _divided(plain: InChunks, groups: Sequence[RowProducts], provenance: Provenance) -> InChunks:
    forward, backward = plain.forward, plain.backward
    for group in groups:
        backward = _again(backward, forward, group)
    kept: dict[Node, Node] = {}
    values = [values_of_rows(backward, group, provenance) for group in groups]
    upstream, early = _upstream_of(backward), Early()
    together = None
    if isinstance(upstream, str) or not backward.results:
        early = Early(refused=upstream if isinstance(upstream, str) else "")
    elif any(_is_of_few_exponents(forward, group) for group in groups):
        early = Early(refused="small gradients would be 0 in float16")
    else:
        try:
            together = _with_gradients(plain, groups, values, upstream, provenance)
        except NotByRowsError as error:
            early = Early(refused=_reason(error, provenance))
    if together is not None:
        forward, kept, early = together
    else:
        for group, own in zip(groups, values, strict=True):
            result = divided(forward, group, provenance, own)
            forward = result.direction
            kept |= result.kept
    backward = backward.on(ir.replace([root.node for root in backward.roots], kept, provenance.moved))
    return replace(
        plain,
        forward=forward,
        backward=backward,
        products=tuple(groups),
        kept={b: a for a, b in kept.items()},
        early=early,
    )


def _with_gradients(
    plain: InChunks,
    groups: Sequence[RowProducts],
    values: Sequence[Sequence[Node]],
    upstream: Node,
    provenance: Provenance,
) -> tuple[Direction, dict[Node, Node], Early]:
    """Forward with what the gradients are for an upstream gradient of 1, what it keeps, and what backward then does.

    Raises:
        NotByRowsError: they depend on what is known when all chunks are done.
    """
    forward, backward = plain.forward, plain.backward
    nodes = ir.replace(
        [root.node for root in backward.roots], {upstream: ir.const(1, upstream.dtype)}, provenance.moved
    )
    ones = backward.on(simplify(nodes, provenance.moved))
    both = Direction(
        forward.name,
        (*forward.results, *ones.results),
        (*forward.operands, *ones.operands),
        (*forward.steps, *ones.steps),
    )
    kept: dict[Node, Node] = {}
    for group, own in zip(groups, values, strict=True):
        result = divided(both, group, provenance, own, _results(backward))
        both = result.direction
        kept |= result.kept
    ordered = [name for step in forward.steps if step.is_ordered for name in step.writes]
    first = replace(both, results=both.results[: len(forward.results)]).needed(
        [*ordered, *(load.attrs[0].name for load in kept.values())]
    )
    made = first.made()
    results, scalings = list[Root](), list[TorchStep]()
    taken = {*names_of(root.node for root in both.roots), *(root.buffer.name for root in both.roots), *made}
    for root in both.results[len(forward.results) :]:
        whole = alias_of(root)
        if whole in made:
            buffer = replace(root.node.attrs[0], name=unique(f"{whole}_scaled", taken))
            taken.add(buffer.name)
            operands = Operand(root.node.attrs[0].name), Operand(upstream.attrs[0].name)
            scalings.append(TorchStep(scale, (operands, {}), (buffer,), None, backward=True))
            results.append(replace(root, node=ir.reload(root.node, buffer)))
        else:
            results.append(replace(root, node=ir.apply("mul", upstream, root.node)))
    later = Direction(backward.name, tuple(results), both.operands, (*both.steps, *scalings)).needed(done=made)
    buffers = {root.buffer.name: root.buffer for root in first.operands}
    buffers |= {each.name: each for step in first.steps for each in step.results if each is not None}
    read = [*names_of(root.node for root in later.roots), *(name for step in later.steps for name in step.reads)]
    saved = tuple(buffers[name] for name in dict.fromkeys(read) if name in buffers)
    return first, kept, Early(kept=saved, direction=later)


def _results(direction: Direction) -> set[str]:
    return {root.buffer.name for root in direction.results}


def _upstream_of(backward: Direction) -> Node | str:
    """The one upstream gradient, if that is a number; else why there is none."""
    order = ir.topological(root.node for root in backward.roots)
    found = [node for node in order if node.op == "load" and node.attrs[0].role == "upstream"]
    if len(found) != 1 or found[0].attrs[0].shape:
        return "the loss is not one number"
    return found[0]


def _is_of_few_exponents(forward: Direction, group: RowProducts) -> bool:
    made = {each.name: each.dtype for step in forward.steps for each in step.results if each is not None}
    return any(made[name] == torch.float16 for name in group.names)


def _reason(error: NotByRowsError, provenance: Provenance) -> str:
    origin = provenance.origins.get(error.node) if error.node is not None else None
    line = f" ({origin.line})" if origin is not None and origin.line is not None else ""
    return f"{error.reason}{line}"
