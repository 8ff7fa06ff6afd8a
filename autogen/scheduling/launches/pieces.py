"""Split results that are too much for one kernel into pieces, which store values for each other.

The order in which everything would be computed is cut into *segments* of little work, where they leave the fewest bytes
to later ones. A piece computes the results of its segments, and what later pieces read. Of an earlier segment it reads
what that has stored; but if this would be much, as of the values that gradients need, the piece computes it again, from
what the segment itself has begun with.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autogen import ir
from autogen.ir import Node
from autogen.ir.names import unique
from autogen.ir.program import Root, stored
from autogen.ir.provenance import Provenance
from autogen.ir.sizes import evaluator_of, hint
from autogen.scheduling.launches.demand import FREE, MOST_LIVE, MOST_WORK, OF_ROW, demand, is_bearable, work_of
from autogen.scheduling.launches.fit import memory_order
from autogen.scheduling.launches.kernel import spaces

WORK, LIVE = 500, 48  # of a segment,
AGAIN = 600  # and of what it needs of others, where these are computed again
FEW = 4  # values of a segment are stored rather than computed again
CHEAP = 20  # instructions are less than to store their result, and to read it


def in_pieces(
    roots: Sequence[Root], hints: Mapping[str, int], provenance: Provenance, taken: set[str]
) -> list[list[Root]]:
    """Roots in the order in which they are to be computed, a list for each piece, with what it stores for later ones.

    What is stored gets names that are not `taken`, to which these are added.
    """
    order = ir.topological(root.node for root in roots)
    place = memory_order(order, roots, hints)
    loads: dict[Node, Node] = {}
    found: list[list[Root]] = []
    for piece in _Cut(order, roots, hints).pieces():
        new = []
        for node in piece.left:
            name = unique(provenance.called(node), taken)
            taken.add(name)
            new.append(stored(node, name, "scratch", sorted(node.axes, key=place)))
        own = [*new, *piece.roots]
        nodes = ir.replace([root.node for root in own], loads, provenance.moved)
        found.append([replace(root, node=node) for root, node in zip(own, nodes, strict=True)])
        for root in new:
            loads[root.node] = root.read()
            provenance.moved(root.node, loads[root.node])
    return found


@dataclass(frozen=True)
class _Piece:
    """Segments that one piece computes, by number; its roots, and the values that it leaves to later pieces."""

    segments: range
    roots: tuple[Root, ...]
    left: tuple[Node, ...] = ()


class _Cut:
    """How the values of an order are told apart."""

    def __init__(self, order: Sequence[Node], roots: Sequence[Root], hints: Mapping[str, int]) -> None:
        self._order, self._roots = order, roots
        self._uses: dict[Node, list[int]] = {}
        for position, node in enumerate(order):
            for arg in node.args:
                self._uses.setdefault(arg, []).append(position)
        self._bytes: dict[Node, int] = {}
        self._alone: dict[Node, float] = {}  # instructions of a value and all below it
        largest = spaces(roots)
        self._widths = {axes: OF_ROW >> any(axes < other for other in largest) * 2 for axes in {n.axes for n in order}}
        for node in order:
            size = math.prod(map(hint, evaluator_of(*(axis.size for axis in sorted(node.axes, key=str)))(hints)))
            self._bytes[node] = size * node.dtype.itemsize
            below = sum(self._alone[arg] for arg in node.args)
            self._alone[node] = math.inf if node.op in ir.ALONG_AXES else work_of(node) + below
        in_memory = [node.attrs[0] for node in order if node.op == "load"] + [root.buffer for root in roots]
        sizes = (math.prod(map(hint, evaluator_of(*buffer.shape)(hints))) for buffer in in_memory)
        self._most = 8 * max(sizes, default=1)  # bytes: what is larger than all tensors is never stored
        self._segment: dict[Node, int] = {}
        start = number = 0
        while start < len(order):
            end = self._end(start)
            self._segment.update(dict.fromkeys(order[start:end], number))
            start, number = end, number + 1

    def segment(self, node: Node) -> int | None:
        """The segment of a value, if there is one already."""
        return self._segment.get(node)

    def dear(self, nodes: Iterable[Node]) -> set[Node]:
        """Those of some values that are better stored than computed again, if they are few."""
        return {node for node in nodes if self._alone[node] > CHEAP and self._bytes[node] <= self._most}

    def width(self, node: Node) -> int:
        return self._widths[node.axes] if node.axes and node.op not in FREE else 0

    def _end(self, start: int) -> int:
        """Where the segment ends that begins at a position: in the second half of what it has room for."""
        work, live, position = 0, 0, start
        works: list[int] = []
        ends: dict[int, int] = {}
        again = _Again(self)
        while position < len(self._order):
            node = self._order[position]
            again.reach(node, position)
            work += work_of(node)
            if node.op != "load":
                live += self.width(node)
                last = self._uses.get(node, [position])[-1]
                ends[last] = ends.get(last, 0) + self.width(node)
            if position > start and (work > WORK or again.work > AGAIN or max(live, again.live) > LIVE * OF_ROW):
                if again.work > AGAIN:  # before it needed anything of one more
                    position = max(again.newest, start + 1)
                break
            live -= ends.get(position, 0)
            works.append(work)
            position += 1
        else:
            return position
        works = works[: position - start]
        steps = [0] * (len(works) + 2)  # of the bytes that are left at each end, for what comes soon after
        for k, node in enumerate(self._order[start:position]):
            uses = self._uses.get(node, [])
            soon = bisect.bisect_left(uses, 2 * position - start)
            last = uses[soon - 1] - start if soon else k
            if node.op not in (*FREE, "load") and last > k:
                steps[k + 1] += self._bytes[node]
                steps[min(last, len(works)) + 1] -= self._bytes[node]
        left, best, end = 0, math.inf, position
        for k in range(1, len(works) + 1):
            left += steps[k]
            if 2 * works[k - 1] >= works[-1] and left <= best:
                best, end = left, start + k
        return end

    def pieces(self) -> list[_Piece]:
        """The pieces, each of as many segments as it has room for."""
        of: dict[int, list[Root]] = {}
        for root in self._roots:
            of.setdefault(self._segment[root.node], []).append(root)
        kept = self._kept({number: [root.node for root in own] for number, own in of.items()})
        numbers = sorted({*of, *(self._segment[node] for node in kept)})
        found: list[_Piece] = []
        for number in numbers:
            own = _Piece(range(number, number + 1), tuple(of.get(number, ())))
            if found:
                both = _Piece(range(found[-1].segments.start, number + 1), found[-1].roots + own.roots)
                if is_bearable(demand(self._wanted(both, kept), self.width, known=self._outside(both, kept))):
                    found[-1] = both
                    continue
            found.append(own)
        read: set[Node] = set()
        for k, piece in reversed(list(enumerate(found))):
            left = tuple(node for node in self._order if node in read and self._segment[node] in piece.segments)
            found[k] = replace(piece, left=left)
            outside = self._outside(piece, kept)
            order = ir.topological([*(root.node for root in piece.roots), *left], outside)
            read.update(arg for node in order for arg in node.args if arg in outside)
            read.update(root.node for root in piece.roots if root.node in outside)
        return [piece for piece in found if piece.roots or piece.left]

    def _outside(self, piece: _Piece, kept: Collection[Node]) -> set[Node]:
        """What a piece may read."""
        return {node for node in kept if self._segment[node] not in piece.segments}

    def _wanted(self, piece: _Piece, kept: Collection[Node]) -> list[Node]:
        return [*(root.node for root in piece.roots), *(n for n in kept if self._segment[n] in piece.segments)]

    def _kept(self, wanted: dict[int, list[Node]]) -> set[Node]:
        """The values that segments store, so that others can compute what is `wanted` of them."""
        kept: set[Node] = set()
        for number in range(max(self._segment.values()), -1, -1):
            reached = {number: {*wanted.get(number, ()), *(n for n in kept if self._segment[n] == number)}}
            work = live = 0
            for own in range(number, -1, -1):
                met = reached.pop(own, set())
                if own < number:
                    met -= kept
                    again = self._below(met, own, kept)
                    dear = self.dear(met)
                    more = sum(map(work_of, again))
                    if len(dear) <= FEW or work + more > MOST_WORK or live + len(dear) > MOST_LIVE:
                        kept |= dear
                        met -= dear
                    else:
                        live += len(dear)
                inside = self._below(met, own, kept if own < number else ())
                work += sum(map(work_of, inside))
                for node in inside:
                    for arg in node.args:
                        if self._segment[arg] < own:
                            reached.setdefault(self._segment[arg], set()).add(arg)
        return kept

    def _below(self, nodes: Collection[Node], number: int, known: Collection[Node]) -> list[Node]:
        """The nodes of a segment that some of its own are computed from, these among them."""
        found = ir.downward(list(nodes), lambda node: self._segment[node] != number or node in known)
        return [node for node in found if self._segment[node] == number and node not in known]


class _Again:
    """What a new segment needs of earlier ones, where that is so much that it is computed again."""

    def __init__(self, cut: _Cut) -> None:
        self._cut = cut
        self._met: set[Node] = set()
        self._widths: dict[int, int] = {}  # of what is read of each segment
        self._works: dict[int, int] = {}
        self._seen: set[Node] = set()
        self.work = self.live = self.newest = 0

    def reach(self, node: Node, position: int) -> None:
        """Add what the node at a position is computed from; the `newest` is the first that needs the last segment."""
        for arg in self._cut.dear(node.args):
            number = self._cut.segment(arg)
            if number is None or arg in self._met:
                continue
            self._met.add(arg)
            if number not in self._widths:
                self.newest = position
            self._widths[number] = self._widths.get(number, 0) + self._cut.width(arg)
            todo = [arg]
            while todo:
                below = todo.pop()
                if below not in self._seen and self._cut.segment(below) == number:
                    self._seen.add(below)
                    self._works[number] = self._works.get(number, 0) + work_of(below)
                    todo += below.args
            many = [each for each, width in self._widths.items() if width > FEW * OF_ROW]
            self.work = sum(self._works.get(each, 0) for each in many)
            self.live = sum(self._widths[each] for each in many)
