"""The user's names and source lines for the values of a loss, for readable kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

from autogen import ir
from autogen.errors import SourceLine
from autogen.ir.names import NUMBER

# What an unnamed value is called, where its op's own name does not read as one.
_NOUNS = {
    "add": "total",
    "sub": "difference",
    "mul": "product",
    "div": "quotient",
    "neg": "negated",
    "exp": "exponential",
    "exp_nonpositive": "exponential",
    "exp_summand": "exponential",
    "exp_half": "exponential",
    "log": "logarithm",
    "sqrt": "root",
    "pow": "power",
    "abs": "magnitude",
    "where": "selected",
    "maximum": "larger",
    "minimum": "smaller",
    "eq": "is_equal",
    "ne": "differs",
    "lt": "is_less",
    "le": "at_most",
    "gt": "is_greater",
    "ge": "at_least",
    "round_to_float16": "rounded",
    "round_to_bfloat16": "rounded",
    "logical_and": "both",
    "logical_or": "either",
    "logical_not": "is_not",
}


# Likewise, where one of its arguments is a number.
_WITH_NUMBER = {"add": "shifted", "mul": "scaled", "div": "scaled", "maximum": "clamped", "minimum": "clamped"}


@dataclass(frozen=True)
class Origin:
    """Where a value comes from: the user's statement, and whether it belongs to a gradient."""

    line: SourceLine | None
    backward: bool


@dataclass(frozen=True)
class Provenance:
    """Names and source lines of nodes, for the reader of the generated kernel. The first to speak is kept.

    `loss` is what the loss is called, `inputs` its tensors in the order of its signature; `sources` tells which of them
    a kept statistic was computed from.
    """

    loss: str
    inputs: tuple[str, ...]
    names: dict[ir.Node, str] = field(default_factory=dict)
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    origins: dict[ir.Node, Origin] = field(default_factory=dict)
    _users: set[ir.Node] = field(default_factory=set)

    def name(self, node: ir.Node, name: str, *, users: bool = False) -> ir.Node:
        """Call a node `name` in the kernel; returns the node. A name from the user's own code wins, of these the last:
        what is picked of a variable is called as what it is assigned to.
        """
        if node.args and (users or node not in self.names):
            self.names[node] = name
            if users:
                self._users.add(node)
        return node

    def called(self, node: ir.Node) -> str:
        """What to call a node: the user's name for it, a lowering's, or one made from what it does."""
        if node in self.names:
            return self.names[node]
        if node.op == "load":
            buffer = node.attrs[0]
            if node.args and node.args[0].op == "load":
                return f"{buffer.name}_at_{node.args[0].attrs[0].name}"
            return buffer.name
        if node.op == "cast":
            return self.called(node.args[0])
        if node.op == "scalar":
            return str(node.attrs[0]).removesuffix(NUMBER) if node.attrs[0].is_Symbol else "scalar"
        if node.op == "reduce":
            return f"{self.called(node.args[0])}_{node.attrs[0]}"
        if node.op == "scan":
            return f"{self.called(node.args[0])}_cum{node.attrs[0]}"
        if node.op in _WITH_NUMBER and any(arg.op == "const" for arg in node.args):
            return _WITH_NUMBER[node.op]
        return _NOUNS.get(node.op, node.op)

    def qualified(self, node: ir.Node, known: dict[ir.Node, tuple[str, ...]]) -> str:
        """`called`, with the tensors that the value comes from if they are two: for values that are called alike.

        From which tensors what is below it comes is `known` to further calls.
        """
        for below in ir.topological([node], known):
            names = dict.fromkeys(name for arg in below.args for name in known[arg])
            if below.op == "load":
                buffer = below.attrs[0]
                own = (buffer.name,) if buffer.role == "input" else self.sources.get(buffer.name, ())
                names |= dict.fromkeys(own)
            known[below] = tuple(names)[:3]  # more than two are not told
        return "_".join([self.called(node), *known[node]]) if len(known[node]) == 2 else self.called(node)

    def moved(self, old: ir.Node, new: ir.Node) -> None:
        """A pass made `new` out of `old`: it inherits what is known."""
        if old in self.names and new not in self._users:
            self.name(new, self.names[old], users=old in self._users)
        if old in self.origins:
            self.locate(new, self.origins[old])

    def locate(self, node: ir.Node, origin: Origin) -> None:
        """Say where a node, and all below it that nobody claimed, comes from."""
        todo = [node]
        while todo:
            current = todo.pop()
            if current not in self.origins and current.args:
                self.origins[current] = origin
                todo += current.args
