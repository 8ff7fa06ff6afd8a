"""Values that are compared with what torch has made of them.

`v >= v.topk(3).values[-1]` holds for three elements, as torch hands back numbers that it was given. It was given `v`
as it is in memory: rounded, if that is half precision, and with its sums added up by the kernel that has stored it. A
kernel that computes `v` once more has other last bits, and its elements miss their own threshold. So the comparison
reads `v`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autogen import ir
from autogen.ir import Node, is_inexact
from autogen.program import Program, Root
from autogen.scheduling.rewrites.compared import SHARP
from autogen.scheduling.rewrites.equivalence import Equivalents


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
