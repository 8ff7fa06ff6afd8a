"""Print IR nodes as readable statements.

A node gets a statement of its own if it has a name, is used more than once, or would make a line too long; all
others are written where they are used. Above the first statement that a line of the user's code became stands that
line.
"""

from __future__ import annotations

import math
import re
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable
from typing import Protocol

import sympy
import torch

from autogen import ir
from autogen.emission.sizes import Sizes
from autogen.ir import Node
from autogen.ir.names import identifier
from autogen.ir.ops import OPS, Precedence, Rule
from autogen.ir.provenance import Provenance

MAX_WIDTH = 88
MAX_LINE = 104
DEEP = 40  # operations, one inside the other: no expression that fits on a line has as many

TRITON_DTYPES = {
    torch.bool: "tl.int1",
    torch.uint8: "tl.uint8",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
}


def wrapped(text: str) -> str:
    """A module whose long lines that end in a call have the call's arguments on a line of their own."""
    return "\n".join(_wrapped_line(line) for line in text.split("\n"))


def _wrapped_line(line: str) -> str:
    cast = re.search(r"\.to\([\w.]+\)$", line)
    suffix = cast[0] if cast else ""
    call = line.removesuffix(suffix)
    if len(line) <= MAX_LINE or not call.endswith(")") or line.lstrip().startswith("#"):
        return line
    indent = line[: len(line) - len(line.lstrip())]
    depth = 0
    for position in range(len(call) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(call[position], 0)
        if depth == 0:
            inner = f"{indent}    {call[position + 1 : -1]}"
            if len(inner) > MAX_LINE:  # an argument a line
                inner = re.sub(r", (?=mask=|other=|cache_modifier=|eviction_policy=)", f",\n{indent}    ", inner)
            return f"{call[: position + 1]}\n{inner}\n{indent}){suffix}"
    return line


def shortened(code: str) -> str:
    """A line of code for a comment, cut at a comma or a space if it is long."""
    return code if len(code) <= MAX_WIDTH else re.sub(r"[,\s]+[^,\s]*$", " ...", code[:MAX_WIDTH], count=1)


def _is_size(node: Node) -> bool:
    return node.op == "cast" and node.args[0].op == "index" and not node.args[0].axes


def _is_number(node: Node) -> bool:
    return node.op == "const" or _is_size(node)


# What may be printed as a value of 32 bits although it is one of 64.
_NARROW = ("const", "index")
_TINY = torch.finfo(torch.float32).tiny


def _is_double(node: Node) -> bool:
    """Whether a node is a number in double precision."""
    return node.op == "const" and node.dtype == torch.float64


def _is_to_widen(node: Node, into: Node) -> bool:
    """Whether an argument has to be made one of 64 bits, as no other makes the arithmetic so: the first then is."""
    if into.dtype != torch.int64 or into.op == "load":
        return False
    values = [arg for arg in into.args if arg.dtype == torch.int64]
    return node is values[0] and all(arg.op in _NARROW for arg in values)


def _is_compared_with_places(node: Node, into: Node) -> bool:
    """Whether an argument, of 64 bits, is asked which place along an axis it is."""
    if into.op not in ("eq", "ne") or node.dtype != torch.int64 or node.op in _NARROW:
        return False
    return any(arg.op == "index" and isinstance(arg.attrs[0], ir.Axis) for arg in into.args)


class Names:
    """The identifiers of one kernel, each given out once."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self._taken = set(reserved)

    def reserve(self, names: Iterable[str]) -> None:
        """Gives none of `names` out from now on."""
        self._taken.update(names)

    def is_free(self, name: str) -> bool:
        """Whether nothing is called so yet."""
        return name not in self._taken

    def new(self, wanted: str) -> str:
        """`wanted` as an identifier, numbered if it is taken."""
        base = identifier(wanted) or "value"
        if re.fullmatch(r"(size|number)(_\d+)?", base):
            base += "_"  # `size_2` may be an argument, which gets its name where it is printed
        name, copy = base, 2
        while name in self._taken:
            name, copy = f"{base}_{copy}", copy + 1
        self._taken.add(name)
        return name


class Tile(Protocol):
    """What the printing of values needs to know of a shell."""

    @property
    def is_wide(self) -> bool:
        """Whether places have 64 bits."""

    def index_text(self, expression: sympy.Expr) -> str:
        """The value of an integer expression over the kernel's axes."""

    def search_text(self, node: Node, value: str) -> str:
        """The search for a value."""

    def condition_of(self, load: Node) -> Node | None:
        """The condition under which alone a load is wanted, if it is to be asked first."""

    def expansion(self, node: Node, into: Node) -> str:
        """The subscript that broadcasts a value for use in another: `[:, None]` for a row in an element."""


class Style:
    """What all bodies of one kernel share: names, comments, use counts and the helpers that were used.

    `tile` knows the shapes of values.
    """

    def __init__(
        self,
        roots: Iterable[Node],
        provenance: Provenance,
        sizes: Sizes,
        names: Names,
        tile: Tile,
    ) -> None:
        self.provenance = provenance
        self.sizes = sizes
        self.tile = tile
        self.names = names
        self.helpers: set[str] = set()
        self.shown: set[str] = set()  # comments
        self.uses: Counter[Node] = Counter()
        self.landings: set[Node] = set()  # of deep expressions: from one down to the next are fewer than `DEEP` nodes
        self.has_landings: set[Node] = set()  # the nodes above any
        depths: dict[Node, int] = {}
        self._wanted: Counter[str] = Counter()
        self._came_from: dict[Node, tuple[str, ...]] = {}
        targets = list(roots)
        for node in ir.topological(targets):
            self.uses.update(node.args)
            depths[node] = 1 + max((depths[arg] for arg in node.args), default=0)
            if any(arg in self.landings or arg in self.has_landings for arg in node.args):
                self.has_landings.add(node)
            if depths[node] == DEEP:
                self.landings.add(node)
                depths[node] = 0
            self._wanted[provenance.called(node)] += 1
        self.uses.update(targets)

    def name(self, node: Node, wanted: str | None = None) -> str:
        """A new identifier for a node. Where several would be called alike, the tensors they come from tell which."""
        called = wanted or self.provenance.called(node)
        if not wanted and self._wanted[called] > 1 and node.op != "load":
            called = self.provenance.qualified(node, self._came_from)
        return self.names.new(called)

    def helper(self, name: str) -> str:
        """A function of `autogen.device_math`, imported by the kernel's module."""
        self.helpers.add(name)
        return name


class Body:
    """A run of statements at one indentation.

    Args:
        style: what the kernel's bodies share.
        load: prints a load, given the node, the text of its computed indices, and the condition under which alone it
            is wanted.
        outer: a body whose values are visible here.
    """

    def __init__(self, style: Style, load: Callable[[Node, list[str], str], str], outer: Body | None = None) -> None:
        self.lines: list[str] = []
        self.known: ChainMap[Node, str] = ChainMap({}, *outer.known.maps) if outer else ChainMap({})
        self._style = style
        self._load = load

    def know(self, node: Node, text: str) -> None:
        """Use `text`, a name, for a node from here on."""
        self.known[node] = text

    def state(self, node: Node, wanted: str | None = None) -> str:
        """Give a node a statement of its own; returns its name."""
        if node in self.known:
            return self.known[node]
        text = self.text(node)
        return self.assign(node, text, wanted)

    def assign(self, node: Node, text: str, wanted: str | None = None) -> str:
        """A statement that computes a node by the given text."""
        name = self.name(node, wanted)
        self.lines.append(f"{name} = {text}")
        self.know(node, name)
        return name

    def name(self, node: Node, wanted: str | None = None) -> str:
        """A name for a node, after the user's line that it comes from."""
        name = self._style.name(node, wanted)
        self._say_where(node)
        return name

    def text(self, node: Node) -> str:
        """The text of a node, as an argument of a call: of a number in double precision, Triton would take float32."""
        text = self._compose(node)[0]
        return f"tl.full((), {text}, tl.float64)" if _is_double(node) else text

    def value(self, node: Node) -> tuple[str, int]:
        """The text of a node and its precedence; the node gets a statement first if it deserves one."""
        if node in self.known:
            return self.known[node], Precedence.ATOM
        if self._deserves_statement(node):
            return self.state(node), Precedence.ATOM
        text, precedence = self._compose(node)
        if len(text) > MAX_WIDTH and node.args:
            return self.assign(node, text), Precedence.ATOM
        return text, precedence

    def operand(self, node: Node) -> str:
        """The text of a node as an operand of anything: in parentheses unless it is atomic."""
        text, precedence = self.value(node)
        return text if precedence >= Precedence.ATOM else f"({text})"

    def _deserves_statement(self, node: Node) -> bool:
        if node.op in ("const", "index") or (node.op == "cast" and node.args[0].op in ("index", "const")):
            return False
        if node.op in ("load", "scalar", "search", *ir.ALONG_AXES):
            return True
        if node.op == "cast" and node.args[0].op == "load":
            return False
        return self._style.uses[node] > 1 or node in self._style.provenance.names

    def _compose(self, node: Node) -> tuple[str, int]:
        if node in self.known:
            return self.known[node], Precedence.ATOM
        if node in self._style.has_landings:
            self._state_landings(node)
        match node.op:
            case "const":
                return self._literal(node)
            case "scalar":
                # Triton's interpreter hands it over as a Python number.
                text = self._style.sizes.number(node.attrs[0], node.dtype)
                return f"tl.full((), {text}, {TRITON_DTYPES[node.dtype]})", Precedence.ATOM
            case "index":
                text = self._style.tile.index_text(node.attrs[0])
                return text, Precedence.ATOM if text.isidentifier() else Precedence.SUM
            case "load":
                places = [self.state(arg) + self._style.tile.expansion(arg, node) for arg in node.args]
                return self._load(node, places, self.guard(node)), Precedence.ATOM
            case "search":
                value = self._widened(node.args[0]) if node.args[0].op in _NARROW else self.state(node.args[0])
                return self._style.tile.search_text(node, value), Precedence.ATOM
            case "cast":
                return self._cast(node)
            case "reduce" | "scan":
                raise AssertionError(f"a reduction or running sum outside its place: {node!r}")
        op = OPS[node.op]
        for helper in op.helpers:
            self._style.helper(helper)
        if op.precedence >= Precedence.ATOM:
            args = [self._call_argument(arg, node) for arg in node.args]
            return op.triton.format(*args), Precedence.ATOM
        args = []
        leads = op.triton.startswith("{0}")  # nothing binds tighter than what stands on the left of it all
        for position, arg in enumerate(node.args):
            text, precedence = self._infix_argument(arg, node)
            tight = precedence > op.precedence or (
                precedence == op.precedence and leads and position == 0 and op.precedence != Precedence.COMPARE
            )
            args.append(text if tight else f"({text})")
        return op.triton.format(*args), op.precedence

    def guard(self, load: Node) -> str:
        """The condition under which alone a load is wanted, in its shape; none if it always is."""
        condition = self._style.tile.condition_of(load)
        return "" if condition is None else self.state(condition) + self._style.tile.expansion(condition, load)

    def _state_landings(self, node: Node) -> None:
        """Give some nodes of a deep expression statements, the lowest first, so that it is printed on a stack that is
        not deep: Python's cannot always be made deeper, as with 3.12 after `torch.compile`.
        """
        for below in ir.topological(node.args, self.known):
            if below in self._style.landings and below not in self.known:
                self.state(below)

    def broadcast(self, node: Node, into: Node) -> tuple[str, int]:
        """The text of a node for use in another, which may have more dimensions."""
        text, precedence = self.value(node)
        subscript = self._style.tile.expansion(node, into)
        if not subscript:
            return text, precedence
        return f"{text if precedence >= Precedence.ATOM else f'({text})'}{subscript}", Precedence.ATOM

    def term(self, node: Node) -> str:
        """The text of a value that is to be reduced."""
        if node.dtype == torch.int64 and node.op in _NARROW:
            return self._widened(node)
        return self.value(node)[0]

    def _widened(self, node: Node) -> str:
        """A position, size or number in 64 bits; Triton keeps it in 32 if it fits."""
        text, precedence = self.value(node)
        if not node.axes:
            return f"tl.full((), {text}, tl.int64)"
        return f"{text if precedence >= Precedence.ATOM else f'({text})'}.to(tl.int64)"

    def _infix_argument(self, node: Node, into: Node) -> tuple[str, int]:
        if _is_to_widen(node, into):
            return self._widened(node) + self._style.tile.expansion(node, into), Precedence.ATOM
        expansion = self._style.tile.expansion(node, into)
        if expansion and not self._style.tile.is_wide and _is_compared_with_places(node, into):
            return f"{self._style.helper('narrow')}({self.value(node)[0]}){expansion}", Precedence.ATOM
        if _is_double(node) and OPS[into.op].rule == Rule.COMPARE:  # for which Triton takes a float in single precision
            return self.text(node), Precedence.ATOM
        if node.dtype == torch.bool and not node.axes and into.axes:
            return f"{self._style.helper('one_condition')}({self.value(node)[0]})", Precedence.ATOM
        # Beside a tensor an integer size is promoted as a cast would, beside a number to float32.
        if _is_size(node) and (node.dtype != torch.float64 or not all(map(_is_number, into.args))):
            return self.value(node.args[0])
        return self.broadcast(node, into)

    def _call_argument(self, node: Node, into: Node) -> str:
        if _is_double(node):
            return self.text(node)
        if _is_to_widen(node, into):
            return self._widened(node) + self._style.tile.expansion(node, into)
        return self.broadcast(node, into)[0]

    def _literal(self, node: Node) -> tuple[str, int]:
        value = node.attrs[0]
        if isinstance(value, bool):
            return f"tl.full((), {value}, tl.int1)", Precedence.ATOM
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")', Precedence.ATOM
        if value == 0 and math.copysign(1, value) < 0:  # as a number, Triton would take it for 0.0
            return f"{self._style.helper('neg')}(tl.full((), 0.0, {TRITON_DTYPES[node.dtype]}))", Precedence.ATOM
        if node.dtype == torch.float32 and 0 < abs(value) < _TINY:  # as a number, Triton would take it for a double
            return f"tl.full((), {value!r}, {TRITON_DTYPES[node.dtype]})", Precedence.ATOM
        return repr(value), Precedence.ATOM if value >= 0 else Precedence.UNARY

    def _cast(self, node: Node) -> tuple[str, int]:
        (arg,) = node.args
        if node.dtype == torch.bool:
            text, precedence = self.value(arg)
            return f"{text if precedence > Precedence.COMPARE else f'({text})'} != 0", Precedence.COMPARE
        if arg.op == "index" and not arg.axes:
            # A size may be a Python number when Triton specialises on it.
            one = "1.0" if node.dtype == torch.float32 else f"tl.full((), 1, {TRITON_DTYPES[node.dtype]})"
            return f"{self._style.sizes.factor(arg.attrs[0])} * {one}", Precedence.PRODUCT
        # As torch does it: straight to 8 bits, a GPU would have 0 for what is negative.
        by = ".to(tl.int64)" if node.dtype == torch.uint8 and arg.dtype.is_floating_point else ""
        return f"{self.operand(arg)}{by}.to({TRITON_DTYPES[node.dtype]})", Precedence.ATOM

    def _say_where(self, node: Node) -> None:
        origin = self._style.provenance.origins.get(node)
        if origin is None or origin.line is None:
            return
        code = shortened(origin.line.code)
        comment = f"# gradient of: {code}" if origin.backward else f"# {code}"
        if comment not in self._style.shown:
            self._style.shown.add(comment)
            self.lines.append(comment)
