"""The intermediate representation: immutable, hash-consed scalar expressions over axes.

A node is a scalar expression over *axes*. An axis is an integer variable with a size; a node that
mentions axis `n` stands for one value per `n`. Broadcasting is therefore nothing at all (the node
simply does not mention the axis), an elementwise op has the axes of its arguments, and a reduction
binds axes and so removes them.

    %0 = load input[n, c]          f32  {n, c}
    %1 = reduce max over c (%0)    f32  {n}
    %2 = sub(%0, %1)               f32  {n, c}

Eight kinds of node exist beside the scalar ops of `autogen.ir.ops`:

    const   a Python number
    index   the value of an integer expression over axes and sizes (arange, numel, one-hot columns)
    scalar  a number that differs from launch to launch: the value of an expression over sizes and floats, which the
            host computes in double precision
    load    one element of a tensor, at an index that may itself be computed (gather)
    search  how many numbers of a sorted tensor are at most a value: of offsets, the sequence that an item belongs to
    cast    the same value in another dtype
    reduce  sum, product, max or min over one or more axes
    scan    a running sum, product, or logarithm of a sum of exponentials, along one axis, which it keeps: up to each
            place, or from each place on

Equal nodes are the same object, so common subexpressions cost nothing and `is` compares values.

Half precision is a storage format: values are computed in float32, or in float64 for float64. Only casts that the loss
itself asks for (`x.half()`, and the gradient of `x.float()`) round on the way (`rounded`).
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

REDUCTIONS = ("sum", "prod", "max", "min")
SCANS = ("sum", "prod", "logaddexp")
EXTREMES = ("max", "min")
ALONG_AXES = ("reduce", "scan")  # what looks at other places than its own
EXPONENTIALS = ("exp", "exp_nonpositive", "exp_summand", "exp_half")

_FLOATS = (torch.float32, torch.float64)
_SHORT = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}

# The dtypes of tensors that kernels read and write.
STORED = frozenset(_SHORT)


class Axis(sympy.Symbol):  # type: ignore[misc]  # sympy is untyped
    """An integer variable that runs from 0 to `size` - 1."""

    __slots__ = ("size",)
    size: sympy.Expr

    def __new__(cls, name: str, size: sympy.Expr) -> Axis:
        axis = sympy.Symbol.__xnew__(cls, name, integer=True, nonnegative=True)
        axis.size = sympy.sympify(size)
        return axis

    def _hashable_content(self) -> tuple[Any, ...]:
        return (*super()._hashable_content(), self.size)


def hole(position: int) -> sympy.Symbol:
    """The place in a load's index that is filled by the value of argument `position`."""
    return sympy.Symbol(f"_{position}", integer=True)


def is_hole(symbol: sympy.Expr) -> bool:
    """Whether a symbol is a `hole`."""
    return isinstance(symbol, sympy.Symbol) and symbol.name[:1] == "_" and symbol.name[1:].isdigit()


@dataclass(frozen=True)
class Buffer:
    """A tensor in memory: `shape` and `strides` are sympy expressions, in elements.

    `role` is "input", "upstream" (the gradient that autograd hands to backward), "saved" (a
    statistic that forward keeps for backward), "scratch" (what one kernel stores for the next step),
    "torch" (made by torch between kernels), "view" (of one of these, or of an input) or "output".

    Where a dimension has size 1, its stride is 0, as it is never stepped. `allocated` are the strides that torch would
    give the tensor, if it is for the user.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    role: str
    allocated: tuple[sympy.Expr, ...] | None = None

    def offset(self, index: Sequence[sympy.Expr]) -> sympy.Expr:
        """Elements between the first element and the one at `index`."""
        return sympy.expand(sum((i * s for i, s in zip(index, self.strides, strict=True)), sympy.S.Zero))

    def numel(self) -> sympy.Expr:
        """How many elements the tensor has."""
        return sympy.Mul(*self.shape)

    def describe(self) -> str:
        """`float32 (N, C)`, with the strides where they are not those of a contiguous tensor."""
        dtype = str(self.dtype).removeprefix("torch.")
        if not self.shape:
            return f"{dtype} scalar"
        text = f"{dtype} ({', '.join(map(str, self.shape))}{',' if len(self.shape) == 1 else ''})"
        if self.strides == contiguous_strides(self.shape):
            return text
        return f"{text}, strides ({', '.join(map(str, self.strides))})"


def contiguous_strides(shape: Sequence[sympy.Expr]) -> tuple[sympy.Expr, ...]:
    """Row-major strides of `shape`; a dimension of size 1 gets stride 0, as it is never stepped."""
    strides: list[sympy.Expr] = []
    step: sympy.Expr = sympy.S.One
    for size in reversed(shape):
        strides.append(sympy.S.Zero if size == 1 else step)
        step = step * size
    return tuple(reversed(strides))


class Node:
    """One value. Build nodes with the functions below, never directly.

    `axes` are those that it has a value for each of; `reduces` tells whether it, or a node below, is a reduction.
    """

    __slots__ = ("__weakref__", "args", "attrs", "axes", "dtype", "op", "reduces")

    op: str
    args: tuple[Node, ...]
    dtype: torch.dtype
    attrs: tuple[Any, ...]
    axes: frozenset[Axis]
    reduces: bool

    def __repr__(self) -> str:
        return format_nodes([self]).splitlines()[-1]


_interned: weakref.WeakValueDictionary[tuple[Any, ...], Node] = weakref.WeakValueDictionary()


def intern(op: str, args: tuple[Node, ...], dtype: torch.dtype, attrs: tuple[Any, ...]) -> Node:
    """The node that consists of these, and breaks no rule; for passes there are the functions below."""
    key = (op, tuple(map(id, args)), dtype, attrs)
    node = _interned.get(key)
    if node is None:
        node = Node()
        node.op, node.args, node.dtype, node.attrs = op, args, dtype, attrs
        node.axes = _axes_of(node)
        node.reduces = op == "reduce" or any(arg.reduces for arg in args)
        _interned[key] = node
    return node


def _axes_of(node: Node) -> frozenset[Axis]:
    axes = frozenset().union(*(arg.axes for arg in node.args))
    if node.op == "reduce":
        return axes - set(node.attrs[1])
    if node.op in ("index", "load"):
        expressions = node.attrs if node.op == "index" else node.attrs[1]
        symbols = (symbol for e in expressions for symbol in e.free_symbols)
        return axes | {symbol for symbol in symbols if isinstance(symbol, Axis)}
    return axes


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of a stored `dtype` are computed: half precision is widened."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def const(value: float | int | bool, dtype: torch.dtype) -> Node:
    """A number; an integer that its dtype has not is the one of the same last bits, as in torch."""
    if dtype == torch.bool:
        value = bool(value)
    elif dtype in _FLOATS:
        value = float(value) if dtype == torch.float64 else _within_single(float(value))
    else:
        limits = torch.iinfo(dtype)
        value = (int(value) - limits.min) % 2**limits.bits + limits.min
    # 0.0 == -0.0 and nan != nan: the text keeps the dictionary honest.
    return intern("const", (), dtype, (value, repr(value)))


def _within_single(value: float) -> float:
    """A number that single precision has only as another: infinite, 0, or of fewer bits."""
    normal = torch.finfo(torch.float32)
    return value if normal.tiny <= abs(value) <= normal.max else ctypes.c_float(value).value


def index(expression: sympy.Expr | int) -> Node:
    """The value of an integer expression over axes and sizes."""
    expression = sympy.sympify(expression)
    if expression.is_Integer:
        return const(int(expression), torch.int64)
    return intern("index", (), torch.int64, (expression,))


def scalar(expression: sympy.Expr, dtype: torch.dtype) -> Node:
    """A number that a kernel is given when it is launched, rounded to `dtype` then."""
    return intern("scalar", (), compute_dtype(dtype), (expression,))


def load(buffer: Buffer, at: Sequence[sympy.Expr | Node]) -> Node:
    """The element of `buffer` at index `at`; an entry that is a node is a computed index.

    A computed index outside the tensor reads nan (0 for integers, false for bool), never memory.
    """
    args: list[Node] = []
    entries: list[sympy.Expr] = []
    inside: list[Node] = []
    for entry, size, stride in zip(at, buffer.shape, buffer.strides, strict=True):
        if stride == 0:  # the same element along the whole dimension, so that no address has to be checked
            inside += [is_inside(entry, size)] if isinstance(entry, Node) else []
            entry = sympy.S.Zero
        elif isinstance(entry, Node):
            args.append(entry)
            entry = hole(len(args) - 1)
        entries.append(sympy.sympify(entry))
    node = intern("load", tuple(args), compute_dtype(buffer.dtype), (buffer, tuple(entries)))
    for condition in inside:
        node = apply("where", condition, node, nothing(node.dtype))
    return node


def is_inside(place: Node, size: sympy.Expr) -> Node:
    """Whether a computed index is one of a dimension of the given size."""
    return apply("logical_and", apply("ge", place, const(0, torch.int64)), apply("lt", place, index(size)))


def nothing(dtype: torch.dtype) -> Node:
    """What is read outside of a tensor."""
    return const(math.nan if dtype.is_floating_point else 0, dtype)


def search(first: Node, dim: int, size: sympy.Expr, value: Node) -> Node:
    """How many of `size` sorted integers, in memory from `first` on along dimension `dim`, are at most a value.

    Of offsets without their 0, that is which sequence the item at place `value` belongs to.
    """
    return intern("search", (value, first), torch.int64, (dim, sympy.sympify(size)))


def load_at(node: Node, args: Sequence[Node], entries: Sequence[sympy.Expr], buffer: Buffer | None = None) -> Node:
    """The load `node` at other entries, in which `args` fill its holes; of what `buffer` says of its tensor."""
    return intern("load", tuple(args), node.dtype, (buffer or node.attrs[0], tuple(entries)))


def reload(node: Node, buffer: Buffer) -> Node:
    """The element of `buffer` at the index of the load `node`."""
    args = iter(node.args)
    return load(buffer, [next(args) if is_hole(entry) else entry for entry in node.attrs[1]])


def cast(node: Node, dtype: torch.dtype) -> Node:
    """`node` in `dtype`. Half precision is a storage format here: casting to it changes nothing, `rounded` does."""
    dtype = compute_dtype(dtype)
    if node.dtype == dtype:
        return node
    is_single = node.dtype == torch.float32  # which has rounded the number
    if node.op == "scalar" and dtype in _FLOATS and not is_single:
        return scalar(node.attrs[0], dtype)
    if node.op == "const":
        value = ctypes.c_float(node.attrs[0]).value if is_single else node.attrs[0]
        if dtype in (*_FLOATS, torch.bool) or math.isfinite(value):
            return const(value, dtype)
    return intern("cast", (node,), dtype, ())


HELD_BY_HALVES = (torch.bool, torch.uint8, torch.int8)
"""The dtypes of which half precision has every value."""

ROUNDINGS = {torch.float16: "round_to_float16", torch.bfloat16: "round_to_bfloat16"}


def rounded(node: Node, dtype: torch.dtype) -> Node:
    """`node` in `dtype`, and if that is half precision, rounded to it: in single precision first, as torch does it."""
    node = cast(node, dtype)
    if dtype in ROUNDINGS and node.op == "const":
        return const(torch.tensor(node.attrs[0], dtype=node.dtype, device="cpu").to(dtype).item(), node.dtype)
    return apply(ROUNDINGS[dtype], node) if dtype in ROUNDINGS else node


def to_store(node: Node, dtype: torch.dtype) -> Node:
    """`node` as what is stored in `dtype`, which rounds it."""
    return cast(node.args[0] if node.op == ROUNDINGS.get(dtype) else node, dtype)


def apply(op: str, *args: Node) -> Node:
    """A scalar op of the op table; raises `TypeError` if the dtypes break its rule."""
    from autogen.ir.ops import OPS

    return intern(op, args, OPS[op].result_dtype([arg.dtype for arg in args]), ())


def reduce(kind: str, axes: Iterable[Axis], body: Node) -> Node:
    """`body` reduced over `axes` (`kind` is one of `REDUCTIONS`)."""
    ordered = tuple(sorted(axes, key=str))
    if any(axis.size == 0 for axis in ordered):
        return const(identity(kind, body.dtype), body.dtype)
    return intern("reduce", (body,), body.dtype, (kind, ordered)) if ordered else body


def scan(kind: str, axis: Axis, body: Node, *, reverse: bool = False) -> Node:
    """`body` combined over the places of an axis up to each, itself included; from each on if `reverse`.

    `kind` is one of `SCANS`.
    """
    if axis not in body.axes and kind == "prod":
        body = at_each(axis, body)
    elif axis not in body.axes:
        count = cast(index(axis.size - axis if reverse else axis + 1), body.dtype)
        return apply("mul", count, body) if kind == "sum" else apply("add", body, apply("log", count))
    return intern("scan", (body,), body.dtype, (kind, (axis,), reverse))


def at_each(axis: Axis, body: Node) -> Node:
    """`body`, which is the same all along an axis, as a value per place of it."""
    return apply("where", apply("ge", index(axis), const(0, torch.int64)), body, const(0, body.dtype))


def along(node: Node, axes: Iterable[Axis], body: Node) -> Node:
    """What the reduction or scan `node` does, along other axes and of another body."""
    if node.op == "reduce":
        return reduce(node.attrs[0], axes, body)
    kind, _, is_reverse = node.attrs
    (axis,) = axes
    return scan(kind, axis, body, reverse=is_reverse)


def is_inexact(node: Node) -> bool:
    """Whether a node's last bits depend on the order in which a kernel adds or multiplies."""
    return node.op in ALONG_AXES and node.attrs[0] not in EXTREMES and node.dtype.is_floating_point


def identity(kind: str, dtype: torch.dtype) -> float | int:
    """What a reduction or scan of nothing is."""
    if kind in ("sum", "prod"):
        return int(kind == "prod")
    if dtype.is_floating_point:
        return math.inf if kind == "min" else -math.inf
    limits = torch.iinfo(dtype)
    return limits.max if kind == "min" else limits.min


def rebuild(node: Node, args: Sequence[Node]) -> Node:
    """`node` with other arguments."""
    if all(new is old for new, old in zip(args, node.args, strict=True)):
        return node
    if node.op == "cast":
        return cast(args[0], node.dtype)
    if node.op in ALONG_AXES:
        return along(node, node.attrs[1], args[0])
    if node.op in ("load", "search"):
        return intern(node.op, tuple(args), node.dtype, node.attrs)
    return apply(node.op, *args)


def topological(roots: Iterable[Node], known: Container[Node] = ()) -> list[Node]:
    """Every node below `roots`, arguments first; without the `known` ones, and what only they need."""
    order: list[Node] = []
    seen: set[Node] = set()
    for root in roots:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in seen or node in known:
                stack.pop()
                continue
            below = [arg for arg in node.args if arg not in seen and arg not in known]
            if below:
                below.reverse()
                stack += below
            else:
                seen.add(node)
                order.append(node)
                stack.pop()
    return order


def loads(roots: Iterable[Node]) -> list[Node]:
    """The distinct loads below `roots`, in the order of their first use."""
    return [node for node in topological(roots) if node.op == "load"]


def downward(roots: Sequence[Node], ends: Callable[[Node], bool]) -> list[Node]:
    """The nodes met on the way down from `roots`, each once; of those where the way `ends`, not what is below them."""
    found: dict[Node, None] = {}
    todo = list(reversed(roots))
    while todo:
        node = todo.pop()
        if node not in found:
            found[node] = None
            todo += () if ends(node) else reversed(node.args)
    return list(found)


def transform(
    roots: Sequence[Node],
    rule: Callable[[Node], Node],
    moved: Callable[[Node, Node], None] = lambda old, new: None,
) -> list[Node]:
    """`roots` with `rule` applied to every node once, from the leaves up; `moved` hears of every node that changed."""
    done: dict[Node, Node] = {}
    for node in topological(roots):
        done[node] = rule(rebuild(node, [done[arg] for arg in node.args]))
        if done[node] is not node:
            moved(node, done[node])
    return [done[root] for root in roots]


def replace(
    roots: Sequence[Node],
    replacements: Mapping[Node, Node],
    moved: Callable[[Node, Node], None] = lambda old, new: None,
) -> list[Node]:
    """`roots` with some nodes replaced, topmost first: what is below a replaced node is not looked at.

    `moved` hears of every node that changed because of it.
    """
    done = dict(replacements)
    for node in topological(roots, replacements) if replacements else ():
        done[node] = rebuild(node, [done[arg] for arg in node.args])
        if done[node] is not node:
            moved(node, done[node])
    return [done.get(root, root) for root in roots]


def format_nodes(roots: Iterable[Node]) -> str:
    """A listing a person can read: one node a line, arguments first."""
    lines: list[str] = []
    number: dict[Node, str] = {}
    for node in topological(roots):
        number[node] = f"%{len(number)}"
        args = [number[arg] for arg in node.args]
        if node.op == "const":
            text = f"const {node.attrs[0]}"
        elif node.op == "scalar":
            text = f"scalar {node.attrs[0]}"
        elif node.op == "index":
            text = f"index {node.attrs[0]}"
        elif node.op == "load":
            buffer, entries = node.attrs
            filled = {hole(k): sympy.Symbol(arg) for k, arg in enumerate(args)}
            text = f"load {buffer.name}[{', '.join(str(e.xreplace(filled)) for e in entries)}]"
        elif node.op == "search":
            text = f"search {args[0]} from {args[1]} on, along dimension {node.attrs[0]}"
        elif node.op == "reduce":
            kind, axes = node.attrs
            text = f"reduce {kind} over {', '.join(map(str, axes))} ({args[0]})"
        elif node.op == "scan":
            kind, (axis,), is_reverse = node.attrs
            text = f"scan {kind} along {axis}{' from the end' * is_reverse} ({args[0]})"
        else:
            text = f"{node.op}({', '.join(args)})"
        axes = ", ".join(sorted(map(str, node.axes)))
        lines.append(f"{f'{number[node]} = {text}':<46}{_SHORT[node.dtype]:<5}{{{axes}}}")
    return "\n".join(lines)
