"""Drop the terms of backward that belong to outputs without an upstream gradient.

A zero in its place would not do: torch does not go through such outputs, and 0 times an infinite derivative is nan. So
every node of backward is a sum of terms, each with the upstream gradient of one output as a factor, and terms are left
out. Where that cannot be seen of a node (a gradient formula of the user's own), torch has to give the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from enum import Enum

from autogen import compat, ir
from autogen.errors import ScheduleError
from autogen.ir import Node
from autogen.ir.program import Root
from autogen.ir.torch_step import TorchStep
from autogen.scheduling.plan import Direction
from autogen.scheduling.rewrites.simplify import simplify

# Of one argument; what goes along axes, if it is a sum.
_LINEAR = ("neg", "cast", "reduce", "scan", *ir.ROUNDINGS.values())


class _Kind(Enum):
    """What a value in backward consists of."""

    FREE = "of no upstream gradient"
    MISSING = "of terms that are left out"
    ARRIVES = "of others as well"


def without(
    direction: Direction,
    arrives: Mapping[str, bool],
    connected: Container[str],
    moved: Callable[[Node, Node], None] = lambda old, new: None,
) -> Direction:
    """Backward without the upstream gradients that do not arrive, for those results that are `connected` with others.

    `arrives` tells it of each by its name; `moved` hears of every node that changed because of it.

    Raises:
        ScheduleError: it is not clear which terms are theirs.
    """
    rest = _Omission(direction, arrives, moved).result(connected)
    return rest.on(simplify([root.node for root in rest.roots], moved))


class _Omission:
    """The terms of a direction, as far as they are known: by node, and by the name of what steps of torch make."""

    def __init__(self, direction: Direction, arrives: Mapping[str, bool], moved: Callable[[Node, Node], None]) -> None:
        self._direction, self._moved = direction, moved
        self._kinds: dict[Node, _Kind] = {}
        self._made = {name: _Kind.ARRIVES if is_there else _Kind.MISSING for name, is_there in arrives.items()}
        self._nodes: dict[Node, Node] = {}
        self._operands = {root.buffer.name: root for root in direction.operands}
        for step in direction.steps:
            kinds = set(map(self._of_buffer, step.reads)) - {_Kind.FREE}
            if len(kinds) > 1:
                raise _unclear()  # torch may add them, or multiply
            kind = kinds.pop() if kinds else _Kind.FREE
            if kind is _Kind.MISSING and _has_bias(step):
                raise _unclear()  # of zeros, torch gives the bias
            self._made |= dict.fromkeys(step.writes, kind)

    def result(self, connected: Container[str]) -> Direction:
        """The direction without the terms."""
        results = []
        for root in self._direction.results:
            kind = self._enter(root.node)
            if root.buffer.name not in connected:
                continue
            if kind is _Kind.FREE and not _is_zero(root.node):
                raise _unclear()
            results.append(self._on(root))
        operands = tuple(map(self._on, self._direction.operands))
        return replace(self._direction, results=tuple(results), operands=operands).needed()

    def _on(self, root: Root) -> Root:
        self._enter(root.node)
        return replace(root, node=self._nodes[root.node])

    def _enter(self, root: Node) -> _Kind:
        """Look at a node and all below it."""
        for node in ir.topological([root], self._kinds):
            kind = self._kinds[node] = self._kind(node)
            if kind is _Kind.MISSING:
                self._nodes[node] = ir.const(0, node.dtype)
                continue
            self._nodes[node] = new = ir.rebuild(node, [self._nodes[arg] for arg in node.args])
            if new is not node:
                self._moved(node, new)
        return self._kinds[root]

    def _of_buffer(self, name: str) -> _Kind:
        if name in self._operands and name not in self._made:
            self._made[name] = self._enter(self._operands[name].node)
        return self._made.get(name, _Kind.FREE)

    def _kind(self, node: Node) -> _Kind:
        kinds = [self._kinds[arg] for arg in node.args]
        if node.op == "load":
            kinds.append(self._of_buffer(node.attrs[0].name))
            if kinds[-1] is _Kind.MISSING and set(kinds[:-1]) <= {_Kind.FREE}:
                return _Kind.MISSING
        present = set(kinds) - {_Kind.FREE}
        if not present:
            return _Kind.FREE
        is_sum = node.op in ("add", "sub", "where")
        terms = list(zip(node.args, kinds, strict=False))[node.op == "where" :]
        if is_sum and any(kind is _Kind.FREE and not _is_zero(arg) for arg, kind in terms):
            raise _unclear()  # the term that depends on none may be one of those that are left out
        if _Kind.MISSING not in present:
            return _Kind.ARRIVES
        if is_sum and (node.op != "where" or kinds[0] is _Kind.FREE):
            return _Kind.ARRIVES if _Kind.ARRIVES in present else _Kind.MISSING
        is_factor = node.op == "mul" and _Kind.FREE in kinds
        is_factor = is_factor or (node.op == "div" and kinds[1] is _Kind.FREE)
        is_factor = is_factor or (node.op in _LINEAR and (node.op not in ir.ALONG_AXES or node.attrs[0] == "sum"))
        if is_factor and (node.op != "cast" or node.dtype.is_floating_point):
            return _Kind.MISSING
        raise _unclear()


def _has_bias(step: TorchStep) -> bool:
    """Whether torch adds a tensor to the product that a step is, as a convolution does."""
    args, kwargs = step.arguments
    known = [each.name for each in compat.schema_of(step.target).arguments] if step.is_op else []
    return {**dict(zip(known, args, strict=False)), **kwargs}.get("bias") is not None


def _is_zero(node: Node) -> bool:
    return node.op == "const" and node.attrs[0] == 0


def _unclear() -> ScheduleError:
    return ScheduleError("a gradient that is no sum of one for each output")
