"""Find values that must have the same bits wherever they are computed.

Backward of `v.amax(0)` looks where `v` equals the maximum, and somewhere it must. If `v` depends on a sum, such as a
mean, two kernels that add it up in different orders make two values of it, which differ in their last bits: nothing
equals its maximum then. So does one kernel that adds up `s` along two axes, for `s[:, None] >= s`. Such sums have to be
in memory, for everything to read the same bits. Values that are made of the same numbers by the same operations are
the same, as no product is fused with a sum (`autogen.runtime.build.OPTIONS`), and their extremes are, in any order.

`v >= v.topk(3).values[-1]` holds for three elements, as torch hands back numbers that it was given. It was given `v`
as it is in memory: rounded, if that is half precision, and with its sums added up by the kernel that has stored it. A
kernel that computes `v` once more has other last bits, and its elements miss their own threshold. So the comparison
reads `v`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from autogen import ir
from autogen.errors import ScheduleError
from autogen.ir import Node, is_inexact
from autogen.ir.program import Program, Root
from autogen.scheduling.launches.kernel import Kernel
from autogen.scheduling.plan import Step
from autogen.scheduling.rewrites.equivalence import Equivalents

# What jumps where two values meet.
SHARP = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "sign"})


class ComparedSumError(ScheduleError):
    """A sum is compared with itself, and would be added up in more than one order; see `compiler.compile_graph`."""

    def __init__(self) -> None:
        super().__init__("a sum is compared with itself, and added up in more than one order")


def compared_sums(roots: Sequence[Node]) -> set[Node]:
    """The sums of values that are compared with extremes of themselves, or with themselves along other axes.

    Raises:
        ComparedSumError: an extreme is of other sums, as where these are seen through a view.
    """
    found: set[Node] = set()
    for node in ir.topological(roots):
        if node.op in SHARP:
            met = ir.downward([node], _is_extreme)
            around = set(filter(is_inexact, met))
            within = set(filter(is_inexact, ir.topological(filter(_is_extreme, met))))
            known, _ = _equivalents(within)
            if within and any(known.find(each) is None for each in around):
                raise ComparedSumError
            if around and (within or _equivalents(around)[1]):
                found |= around | within
    return found


def may_differ(sums: set[Node], steps: Sequence[Step], later: Sequence[Node]) -> bool:
    """Whether some of the compared sums may be added up more than once, by the steps of forward or for what is computed
    `later`. A kernel alone may do so with a scan: where it needs the values in two layouts, Triton may have it run
    twice.
    """
    kernels = [step for step in steps if isinstance(step, Kernel)]
    if len(kernels) > 1 or any(kernel.parts or kernel.last_block for kernel in kernels):
        return bool(sums)
    computed = ir.topological(root.node for kernel in kernels for root in kernel.roots)
    is_repeated = not sums.isdisjoint(ir.topological(later)) or _equivalents(filter(is_inexact, computed))[1]
    return bool(sums) and (is_repeated or any(node.op == "scan" for node in sums))


def _equivalents(nodes: Iterable[Node]) -> tuple[Equivalents, bool]:
    """These nodes, and whether some are the same but for the names of their axes."""
    known, has_equals = Equivalents(), False
    for node in nodes:
        has_equals = has_equals or known.find(node) is not None
        known.add(node)
    return known, has_equals


def _is_extreme(node: Node) -> bool:
    return node.op == "reduce" and node.attrs[0] in ir.EXTREMES


def compared_in_memory(program: Program) -> Program:
    """The program, with what is compared with results of torch's steps read from where these steps have read it."""
    operands = {root.node: root for root in program.operands if _has_other_bits(root)}
    if not operands:
        return program
    return _Rewriting(program, operands).run()


def _has_other_bits(root: Root) -> bool:
    """Whether what is in memory may differ from what another kernel computes."""
    return root.buffer.dtype in ir.ROUNDINGS or any(map(is_inexact, ir.topological([root.node])))


class _Rewriting:
    def __init__(self, program: Program, operands: dict[Node, Root]) -> None:
        self._program, self._operands = program, operands
        self._known = Equivalents()
        for node in operands:
            self._known.add(node)
        names = {root.buffer.name for root in operands.values()}
        self._made_of: dict[str, frozenset[str]] = {}
        for root in program.operands:
            own = {root.buffer.name} & names
            self._made_of[root.buffer.name] = frozenset(own)
        for step in program.steps:
            self._made_of |= dict.fromkeys(step.writes, self._of(step.reads))
        self._below: dict[Node, frozenset[str]] = {}

    def run(self) -> Program:
        roots = (*self._program.outputs, *self._program.gradients, *self._program.operands)
        nodes = ir.transform([root.node for root in roots], self._rule, self._program.provenance.moved)
        found = iter([replace(root, node=node) for root, node in zip(roots, nodes, strict=True)])
        outputs, gradients, operands = (
            tuple(next(found) for _ in part)
            for part in (self._program.outputs, self._program.gradients, self._program.operands)
        )
        return replace(self._program, outputs=outputs, gradients=gradients, operands=operands)

    def _of(self, names: Iterable[str]) -> frozenset[str]:
        """The operands that some buffers are made of."""
        return frozenset().union(*(self._made_of.get(name, ()) for name in names))

    def _rule(self, node: Node) -> Node:
        below = frozenset().union(*(self._below[arg] for arg in node.args))
        if node.op == "load":
            below |= self._of([node.attrs[0].name])
        if node.op in SHARP and below:
            node = self._read(node, below)
        self._below[node] = below
        return node

    def _read(self, node: Node, below: frozenset[str]) -> Node:
        """A comparison that reads these operands."""
        loads: dict[Node, Node] = {}

        def ends(each: Node) -> bool:
            met = self._known.find(each)
            root = self._operands[met[0]] if met else None
            if met and root and root.buffer.name in below:
                read = root.read()
                loads[each] = ir.load_at(read, read.args, [entry.xreplace(met[1]) for entry in read.attrs[1]])
            return each in loads or is_inexact(each)

        ir.downward([node], ends)
        return ir.replace([node], loads, self._program.provenance.moved)[0]
