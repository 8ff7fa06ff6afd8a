"""Order the kernels and extern steps of one direction.

A step of torch runs before the first region by which all that it reads can be there; what it reads from kernels, they
store one region earlier. A result shares the launches of the first region that has any, or is computed in the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autogen import ir
from autogen.ir import Node
from autogen.ir.names import unique
from autogen.ir.program import Root, stored
from autogen.ir.provenance import Provenance
from autogen.scheduling.launches.cuts import is_statistic, kernels
from autogen.scheduling.launches.fit import memory_order
from autogen.scheduling.plan import Direction, Step, names_of


def alias_of(root: Root) -> str | None:
    """The tensor of a step that a result simply is, if it is one; not a view, as that may be one of an input."""
    node = root.node
    if node.op != "load" or node.attrs[0].role != "torch" or node.args:
        return None
    buffer = node.attrs[0]
    if (buffer.shape, buffer.dtype) != (root.buffer.shape, root.buffer.dtype):
        return None
    same = all(size == 1 or at == own for size, at, own in zip(buffer.shape, node.attrs[1], root.index, strict=True))
    return buffer.name if same else None


class _Regions:
    """Where everything happens that a direction has to do.

    `runs_before[i]` is the region before which the i-th step runs, `stored_in` the one in which an operand is stored.
    What no step reads is stored in the first that can, for kernels of the next.
    """

    def __init__(self, direction: Direction) -> None:
        self._made_before: dict[str, int] = {}
        operands = {root.buffer.name: root for root in direction.operands}
        read = {name for step in direction.steps for name in step.reads}
        self._for_kernels = {name: root for name, root in operands.items() if name not in read}
        self.runs_before: list[int] = []
        last = 0
        for step in direction.steps:
            region = last if step.is_ordered else 0
            for name in step.reads:
                region = max(region, self._before(name))
                if name in operands:
                    region = max(region, self.first(operands[name].node) + 1)
            last = region if step.is_ordered else last
            self._made_before |= dict.fromkeys(step.writes, region)
            self.runs_before.append(region)
        self.stored_in: dict[str, int] = {}
        for step, region in zip(direction.steps, self.runs_before, strict=True):
            for name in operands.keys() & set(step.reads):
                self.stored_in[name] = min(self.stored_in.get(name, region - 1), region - 1)
        self._made_before |= {name: region + 1 for name, region in self.stored_in.items()}
        self.stored_in |= {name: self._before(name) - 1 for name in self._for_kernels}
        self.last = max([*(self.first(root.node) for root in direction.results), *self.runs_before], default=0)

    def first(self, node: Node) -> int:
        """The first region in which all is there that a value is computed from."""
        return max(map(self._before, names_of([node])), default=0)

    def _before(self, name: str) -> int:
        """The region before which a buffer is made, 0 for what is there."""
        if name in self._for_kernels and name not in self._made_before:
            self._made_before[name] = self.first(self._for_kernels[name].node) + 1
        return self._made_before.get(name, 0)

    def of_result(self, root: Root) -> int:
        """The region of a result: the first with launches that it may share."""
        first = self.first(root.node)
        return min((region for region in self.stored_in.values() if region >= first), default=self.last)


def sequence(
    direction: Direction,
    hints: Mapping[str, int],
    provenance: Provenance,
    kept: Sequence[Root] = (),
) -> tuple[Step, ...]:
    """The steps of a direction in their order; `kept` are statistics to be stored on the way."""
    regions = _Regions(direction)
    roots_of = _roots(direction, kept, regions)
    everything = (*direction.roots, *kept)
    taken = {*names_of(root.node for root in everything), *(root.buffer.name for root in everything)}
    taken.update(name for step in direction.steps for name in (*step.reads, *step.writes))
    _EarlyStores(regions, hints, provenance, taken).move(roots_of)
    found: list[Step] = []
    launches = 0
    for region, roots in enumerate(roots_of):
        steps = [step for step, before in zip(direction.steps, regions.runs_before, strict=True) if before == region]
        name = f"{direction.name}_{launches + 1}" if launches else direction.name
        made = kernels(name, roots, hints, provenance, taken)
        if launches and made:
            ran = [step.name for step in steps if not step.is_free] or [step.name for step in steps]
            names = ", ".join(dict.fromkeys(ran))
            reason = f"torch runs {names} before it" if ran else "an index picks from what is stored before it"
            made = (replace(made[0], cut=reason), *made[1:])
        launches += len(made)
        found += [*steps, *made]
    return tuple(found)


def _roots(direction: Direction, kept: Sequence[Root], regions: _Regions) -> list[list[Root]]:
    """What the kernels of each region store."""
    found: list[list[Root]] = [[] for _ in range(regions.last + 1)]
    for root in direction.operands:
        if root.buffer.name in regions.stored_in:
            found[regions.stored_in[root.buffer.name]].append(root)
    for root in direction.results:
        if alias_of(root) is None:
            found[regions.of_result(root)].append(root)
    for root, region in [(root, _region_of_kept(root, found, regions)) for root in kept]:
        found[region].append(root)
    return found


def _region_of_kept(kept: Root, roots_of: Sequence[list[Root]], regions: _Regions) -> int:
    """The region of a statistic: one that computes it, or reads what it is computed from, or else the first."""
    for region, roots in enumerate(roots_of):
        if kept.node in ir.topological(root.node for root in roots):
            return region
    read = set(names_of([kept.node]))
    for region in range(regions.first(kept.node), len(roots_of)):
        if read <= set(names_of(root.node for root in roots_of[region])):
            return region
    return regions.of_result(kept)


class _EarlyStores:
    """What a region reduces of tensors that nothing else in it reads, stored by an earlier one that reads them as well,
    if that takes no more launches.
    """

    def __init__(self, regions: _Regions, hints: Mapping[str, int], provenance: Provenance, taken: set[str]) -> None:
        self._regions, self._hints, self._provenance, self._taken = regions, hints, provenance, taken
        self._launches: dict[tuple[Root, ...], int] = {}

    def move(self, roots_of: Sequence[list[Root]]) -> None:
        """Move reductions from the roots of each region to those of earlier ones."""
        for region, roots in enumerate(roots_of):
            early, read = self._reductions([root.node for root in roots], region)
            loads: dict[Node, Node] = {}
            for node in early:
                if not read.issuperset(names_of([node])):
                    here = next((root for root in roots if is_statistic(root, node)), None)
                    own = self._stored(node, here, roots_of[:region])
                    if own is not None:
                        loads[node] = own.read()
                        roots[:] = [root for root in roots if root is not own]
            nodes = ir.replace([root.node for root in roots], loads, self._provenance.moved)
            roots[:] = [replace(root, node=node) for root, node in zip(roots, nodes, strict=True)]

    def _reductions(self, nodes: Sequence[Node], region: int) -> tuple[list[Node], set[str]]:
        """The uppermost reductions below nodes that may be computed before a region, and what is read but for them."""

        def is_early(node: Node) -> bool:
            return node.op == "reduce" and self._regions.first(node) < region

        met = ir.downward(nodes, is_early)
        return list(filter(is_early, met)), {node.attrs[0].name for node in met if node.op == "load"}

    def _stored(self, node: Node, here: Root | None, roots_of: Sequence[list[Root]]) -> Root | None:
        """The root of an earlier region that a reduction is, or has been made; of `here`, if it is one of a region."""
        read = set(names_of([node]))
        for roots in roots_of[self._regions.first(node) :]:
            own = next((root for root in roots if is_statistic(root, node)), None)
            if own is None and read <= set(names_of(root.node for root in roots)):
                own = self._added(node, here, roots)
            if own is not None:
                return own
        return None

    def _added(self, node: Node, here: Root | None, roots: list[Root]) -> Root | None:
        """A new root for a reduction, if no launch is needed for it."""
        place = memory_order(ir.topological(root.node for root in roots), roots, self._hints)
        name = unique(self._provenance.called(node), self._taken)
        new = here or stored(node, name, "scratch", sorted(node.axes, key=place))
        taken = {*self._taken, name}
        if self._count([*roots, new], taken) > self._count(roots, taken):
            return None
        self._taken.add(new.buffer.name)
        roots.append(new)
        return new

    def _count(self, roots: Sequence[Root], taken: set[str]) -> int:
        """How many launches some roots need."""
        key = tuple(roots)
        if key not in self._launches:
            self._launches[key] = len(kernels("", roots, self._hints, self._provenance, set(taken)))
        return self._launches[key]
