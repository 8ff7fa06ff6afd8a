"""Compute results in as few kernels as possible.

All in one kernel if they fit. If not, first fit: a result joins the first kernel that has room for it. A result that
does not fit alone has reductions that no single walk over the data can give; the largest of them that does fit is
stored by a kernel of its own, and read back. What is too much work for one kernel, or has too many values at once, is
cut first (`autogen.scheduling.launches.pieces`). Kernels that need not wait for each other are parts of one launch
(`autogen.scheduling.launches.horizontal`).

In between, two forms of one launch are tried: one program for everything, of at most `MAX_IN_ONE_PROGRAM` elements,
whose kernels hold for such sizes only (`Kernel.holds`); and one whose last block computes what is left of nested
reductions (`last_block`). Beyond `FEW_IN_ONE` elements, parts with programs of their own are preferred, where one
launch has them all. `Kernel.cut` says why there are several launches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from autogen import ir
from autogen.errors import ScheduleError
from autogen.ir import Node
from autogen.ir.names import unique
from autogen.ir.program import Root, stored
from autogen.ir.provenance import Provenance
from autogen.scheduling.launches.cost import cheapest, cost_of
from autogen.scheduling.launches.demand import MOST_WORK, demand_of, is_bearable, work_of
from autogen.scheduling.launches.fit import fit, memory_order, one_block
from autogen.scheduling.launches.horizontal import side_by_side, sums_apart
from autogen.scheduling.launches.kernel import LONG_WALK, PAIRED, ROWS_ADJACENT, Kernel
from autogen.scheduling.launches.last_block import with_last_block
from autogen.scheduling.launches.pieces import in_pieces
from autogen.scheduling.launches.split_rows import split_rows
from autogen.scheduling.rewrites.pairwise import coordinates_apart

_Made = tuple[tuple[Kernel, ...], set[str]]  # with the names that are taken then

TOO_MUCH = "together it would be too much for one kernel"


def kernels(
    name: str, roots: Sequence[Root], hints: Mapping[str, int], provenance: Provenance, taken: set[str]
) -> tuple[Kernel, ...]:
    """The kernels that compute all roots, in the order in which they run; none for results without elements.

    What they store for each other gets names that are not `taken`, to which these are added.

    Raises:
        ScheduleError: a result fits into no kernel, nor do its parts.
    """
    roots = [each for root in roots if 0 not in root.buffer.shape for each in coordinates_apart(root)]
    if not roots:
        return ()
    names = set(taken)
    if sum(map(work_of, ir.topological(root.node for root in roots))) <= MOST_WORK:
        found = _fewest(name, roots, hints, provenance, names)
        if all(is_bearable(demand_of(kernel)) for kernel in found):
            taken |= names
            return found
    try:
        return _of_pieces(name, roots, hints, provenance, taken)
    except ScheduleError:
        return _fewest(name, roots, hints, provenance, taken)


def _of_pieces(
    name: str, roots: Sequence[Root], hints: Mapping[str, int], provenance: Provenance, taken: set[str]
) -> tuple[Kernel, ...]:
    """The kernels that compute all roots, which together would be too much for one."""
    made: list[Kernel] = []
    for piece in in_pieces(roots, hints, provenance, taken):
        found = _fewest(f"{name}_{len(made) + 1}" if made else name, piece, hints, provenance, taken)
        made += [replace(found[0], cut=TOO_MUCH) if made else found[0], *found[1:]]
    return tuple(made)


def _fewest(
    name: str, roots: Sequence[Root], hints: Mapping[str, int], provenance: Provenance, taken: set[str]
) -> tuple[Kernel, ...]:
    """The kernels that compute all roots, whatever it takes of each: the cheapest of one, and of several."""
    reason = ""

    def one() -> _Made:
        nonlocal reason
        try:
            return (_not_of_few(_one(name, roots, hints, provenance), roots, hints, provenance),), set(taken)
        except ScheduleError as error:
            reason = error.reason
            raise

    def several(forms: Sequence[Root], *, simple: bool) -> _Made:
        own = set(taken)
        return _several(name, forms, hints, provenance, own, simple=simple), own

    def candidates() -> Iterator[Callable[[], _Made]]:
        yield one
        apart = [replace(root, node=node) for root, node in zip(roots, sums_apart(roots, provenance), strict=True)]
        for each in [roots, apart] if reason and apart != roots else [roots]:  # apart they are in double precision
            yield partial(several, each, simple=False)
            yield partial(several, each, simple=True)

    found, names = cheapest(candidates(), lambda made: cost_of(made[0], hints))
    taken |= names
    return tuple(replace(kernel, cut=reason if k else "") for k, kernel in enumerate(found))


def _several(
    name: str,
    roots: Sequence[Root],
    hints: Mapping[str, int],
    provenance: Provenance,
    taken: set[str],
    *,
    simple: bool,
) -> tuple[Kernel, ...]:
    """The kernels for roots that are too much for one. If they are to be `simple`, what is small is a part of its own,
    side by side with others, rather than the work of a last block.
    """
    cut = _cut(roots, hints, provenance, taken, simple=simple)
    groups = _grouped(name, cut, hints, provenance, simple=simple)
    found = [_not_of_few(_streaming(name, group, hints, provenance), group, hints, provenance) for group in groups]
    return side_by_side(name, found, [root.buffer for root in roots], provenance)


def _grouped(
    name: str, roots: Sequence[Root], hints: Mapping[str, int], provenance: Provenance, *, simple: bool
) -> list[list[Root]]:
    """Roots by kernel, each in the first that has room for it."""
    groups: list[list[Root]] = []
    for root in roots:
        made = {each.buffer: k for k, group in enumerate(groups) for each in group}
        first = max((made[b] + 1 for b in root.reads() if b in made), default=0)
        for group in groups[first:]:
            if _fits(name, [*group, root], hints, provenance, simple=simple):
                group.append(root)
                break
        else:
            groups.append([root])
    return groups


def is_statistic(root: Root, node: Node) -> bool:
    """Whether a root is just a reduction, and no result of the loss."""
    return _is_value(root, node) and 0 not in root.buffer.shape and root.buffer.role in ("saved", "scratch")


def _one(name: str, roots: Sequence[Root], hints: Mapping[str, int], provenance: Provenance) -> Kernel:
    """One kernel for all roots; a single program for what is small, rather than a last block with much to do."""
    candidates = (
        partial(_streaming, name, roots, hints, provenance, simple=True),
        partial(one_block, name, roots, hints),
        partial(_streaming, name, roots, hints, provenance),
    )
    return cheapest(candidates, lambda kernel: cost_of([kernel], hints))


def _streaming(
    name: str, roots: Sequence[Root], hints: Mapping[str, int], provenance: Provenance, *, simple: bool = False
) -> Kernel:
    """A kernel of many programs for all roots; if it is to be `simple`, its last block only combines numbers."""
    try:
        kernel = fit(name, roots, hints)
        if not kernel.holds(hints):
            return _of_one_row(kernel, hints, provenance)
    except ScheduleError as error:
        if not simple:
            with contextlib.suppress(ScheduleError):
                return with_last_block(name, roots, hints, provenance)
        raise error
    together = _together(kernel, hints)
    if kernel.leaves_a_device_idle(hints, together):
        return _split(kernel, roots, hints, provenance) or kernel
    return kernel


def _of_one_row(kernel: Kernel, hints: Mapping[str, int], provenance: Provenance) -> Kernel:
    """A kernel of several programs, for one row that no program can have.

    Raises:
        ScheduleError: there is none, or there are more rows.
    """
    if kernel.rows or not kernel.whole_rows:
        raise ScheduleError("the loss is too large for one program")
    apart = kernel.in_steps(provenance.moved)
    if apart is not kernel:
        with contextlib.suppress(ScheduleError):
            found = fit(kernel.name, apart.roots, hints)
            if found.holds(hints):
                return found
    return split_rows(apart, hints, provenance)


def _not_of_few(kernel: Kernel, roots: Sequence[Root], hints: Mapping[str, int], provenance: Provenance) -> Kernel:
    """A kernel, not made for few long rows if they may come later and another splits them."""
    together = _together(kernel, hints)
    if kernel.last_block or kernel.leaves_a_device_idle(hints, together):
        return kernel
    few, long = dict.fromkeys(_symbols(kernel.rows), 2), dict.fromkeys(_symbols(kernel.columns), 2 * LONG_WALK)
    later = {**hints, **few, **long}
    with contextlib.suppress(ZeroDivisionError):  # sizes that other sizes are divided by do not come so
        if kernel.leaves_a_device_idle(later, together) and _split(kernel, roots, later, provenance):
            return replace(kernel, together=together)
    return kernel


def _symbols(axes: Sequence[ir.Axis]) -> list[str]:
    """What the sizes of some axes depend on."""
    return [str(symbol) for axis in axes for symbol in axis.size.free_symbols]


def _split(kernel: Kernel, roots: Sequence[Root], hints: Mapping[str, int], provenance: Provenance) -> Kernel | None:
    """A kernel of which several programs share a row, and the last block computes the rest, if there is one."""
    apart = kernel.in_steps(provenance.moved)
    for each in (roots, apart.roots):
        with contextlib.suppress(ScheduleError):
            split = with_last_block(kernel.name, each, hints, provenance)
            if not split.whole_rows:
                return split
    with contextlib.suppress(ScheduleError):
        return split_rows(apart, hints, provenance)
    return None


def _together(kernel: Kernel, hints: Mapping[str, int]) -> int:
    """How many rows a program has at once, at most."""
    if not kernel.whole_rows or not kernel.rows:
        return 1
    place = memory_order(ir.topological(kernel.computed), kernel.roots, hints)
    are_adjacent = place(kernel.rows[-1]) > place(kernel.columns[-1])
    return PAIRED if kernel.is_of_pairs else ROWS_ADJACENT if are_adjacent else 1


def _fits(
    name: str, roots: Sequence[Root], hints: Mapping[str, int], provenance: Provenance, *, simple: bool = False
) -> bool:
    try:
        _streaming(name, roots, hints, provenance, simple=simple)
    except ScheduleError:
        return False
    return True


def _cut(
    roots: Sequence[Root], hints: Mapping[str, int], provenance: Provenance, taken: set[str], *, simple: bool
) -> list[Root]:
    """The roots, each of which fits alone, and before them the reductions that had to be stored for that."""
    found: list[Root] = []
    place = memory_order(ir.topological(root.node for root in roots), roots, hints)
    fitting: dict[Node, bool] = {}
    kept: dict[Node, Node] = {}

    def fits_alone(node: Node) -> bool:
        if node not in fitting:
            fitting[node] = _fits(
                "part", [stored(node, "part", "scratch", sorted(node.axes, key=place))], hints, provenance
            )
        return fitting[node]

    def reading(root: Root) -> Root:
        """A root that reads what others have stored, which then need not be computed again."""
        (node,) = ir.replace([root.node], {n: k for n, k in kept.items() if n is not root.node}, provenance.moved)
        return replace(root, node=node)

    for root in roots:
        if any(_is_same(each, root) for each in found):
            continue
        if kept and not _fits("whole", [root], hints, provenance, simple=simple):
            root = reading(root)
        while not _fits("whole", [root], hints, provenance, simple=simple):
            part = _largest_part(root.node, fits_alone)
            if part is None:
                _streaming("whole", [root], hints, provenance)  # which says why, if this does not fit either
                break
            forms = ((each, form) for each in roots if not _is_same(each, root) for form in (each, reading(each)))
            wanted, first = next(((each, form) for each, form in forms if _is_value(form, part)), (None, None))
            if first is None:
                name = unique(provenance.called(part), taken)
                taken.add(name)
                first = stored(part, name, "scratch", sorted(part.axes, key=place))
            found.append(first)
            kept[part] = first.read()
            if wanted is not None:
                kept[wanted.node] = kept[part]
            provenance.moved(part, kept[part])
            (node,) = ir.replace([root.node], {part: kept[part]}, provenance.moved)
            root = replace(root, node=node)
        if root.node.op in ir.ALONG_AXES and _is_value(root, root.node):
            kept[root.node] = root.read()
        found.append(root)
    return found


def _is_same(a: Root, b: Root) -> bool:
    """Whether two roots store the same."""
    return a.buffer is b.buffer and a.index == b.index


def _is_value(root: Root, node: Node) -> bool:
    """Whether a root is just a node, as it is."""
    return root.node is node and root.buffer.dtype == node.dtype


def _largest_part(node: Node, fits_alone: Callable[[Node], bool]) -> Node | None:
    """The first reduction or running sum below a node that fits into a kernel and is in no larger one that does."""
    order = ir.topological(node.args)
    fitting = [each for each in order if each.op in ir.ALONG_AXES and fits_alone(each)]
    covered: set[Node] = set()
    for each in fitting:
        covered.update(below for below in ir.topological(each.args) if below.op in ir.ALONG_AXES)
    return next((each for each in fitting if each not in covered), None)
