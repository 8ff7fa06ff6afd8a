"""The skeleton of a kernel: what it reads, reduces and stores, without the arithmetic of its loss.

How fast a kernel runs under a configuration is decided by its loads, stores and reductions, and hardly by the
arithmetic between them. So of a kernel these stay, each with its dtype, strides and index: the loads, the stores, the
totals and the reductions along rows, and which of them needs which. Each value between them becomes the sum of what it
depends on, under one function for its *arithmetic class*: none, `exp` (there is a function that is not exact),
`exp_half` (all of those are for results in half precision, or for sums) or `lgamma` (it has an op of `tiler.HEAVY`).

What a reduction costs depends on its form, too: a sum of `exp(x - max)` needs no walk of its own
(`scheduling.launches.running`), so it keeps that form. A computed index becomes the sum of what it is computed from;
what is then out of bounds is not read, as always. What the last block computes becomes a skeleton as well: most of a
loss's own formula is there.

Names are those of places, so losses of the same pattern have the same skeleton, to the byte.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from autogen import ir
from autogen.ir import Axis, Buffer, Node
from autogen.ir.ops import OPS
from autogen.ir.program import Root
from autogen.ir.provenance import Provenance
from autogen.scheduling.launches.kernel import CHUNKS, PROGRAMS, Kernel, LastBlock
from autogen.scheduling.launches.running import Running, largest_of
from autogen.tiling.tiler import HEAVY


@dataclass(frozen=True)
class Skeleton:
    """A kernel without its arithmetic; `pattern` tells all about it, `names` which size of the kernel each size is."""

    kernel: Kernel
    provenance: Provenance
    pattern: str
    names: Mapping[str, str]

    @classmethod
    def of(cls, kernel: Kernel) -> Skeleton:
        """The skeleton of a kernel."""
        builder = _Builder(kernel)
        found = builder.kernel()
        read = tuple(buffer.name for buffer in builder.buffers.values() if buffer.role == "input")
        names = {str(new): str(old) for old, new in builder.symbols.items()}
        return cls(found, Provenance("the skeleton of a loss", read), _pattern(found), names)

    def sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The skeleton's sizes, given those of the kernel."""
        return {new: sizes[old] for new, old in self.names.items()}

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of its tensors."""
        nodes = ir.topological(self.kernel.computed)
        buffers = [node.attrs[0] for node in nodes if node.op == "load"] + [root.buffer for root in self.kernel.roots]
        return tuple(sorted({str(buffer.dtype).removeprefix("torch.") for buffer in buffers}))


def _pattern(kernel: Kernel) -> str:
    """All about a skeleton, as text."""
    axes = (("rows", kernel.rows), ("kept", kernel.kept), ("columns", kernel.columns))
    lines = [f"{name}: {', '.join(f'{axis} < {axis.size}' for axis in group)}" for name, group in axes if group]
    last = kernel.last_block
    flags = {"whole rows": kernel.whole_rows, "one block": kernel.one_block, "last block": last is not None}
    lines.append(", ".join(name for name, holds in flags.items() if holds) or "many programs")
    nodes = [*kernel.totals, *(root.node for root in (*kernel.roots, *(last.kernel.roots if last else ())))]
    read = {node.attrs[0]: None for node in ir.topological(nodes) if node.op == "load"}
    lines += [f"{buffer.name}: {buffer.describe()}" for buffer in read]
    lines += [f"{r.buffer.name}[{', '.join(map(str, r.index))}]: {r.buffer.describe()}, written" for r in kernel.roots]
    return "\n".join([*lines, ir.format_nodes(nodes)])


class _Builder:
    """What has been renamed so far, and what has become of loads and reductions."""

    def __init__(self, kernel: Kernel) -> None:
        is_of_rows = kernel.whole_rows and not kernel.one_block
        self._kernel = kernel = kernel.in_steps() if is_of_rows else kernel
        self._written = {root.buffer for root in kernel.roots}
        self._axes: dict[Axis, Axis] = {}
        self.symbols: dict[sympy.Symbol, sympy.Symbol] = {}
        self.buffers: dict[Buffer, Buffer] = {}
        self._nodes: dict[Node, Node] = {}
        self._order: dict[Node, int] = {}  # of what a sum adds up
        self._running: dict[Node, Running] = {}
        for each in kernel.passes if is_of_rows else ():
            self._running |= {node: form for node, form in each.running.items() if form.shifts or form.restarts}

    def kernel(self) -> Kernel:
        """The skeleton."""
        kernel, last = self._kernel, self._kernel.last_block
        rows, kept, columns = (tuple(map(self._axis, g)) for g in (kernel.rows, kernel.kept, kernel.columns))
        for load in sorted(kernel.loads(), key=self._place):
            self._buffer(load.attrs[0])
            if not load.args:
                self._anchor(load)
        totals = tuple(map(self._anchor, kernel.totals))
        stores = self._roots(kernel.stores)
        last_block = None
        if last is not None:
            inner = last.kernel
            inside = replace(
                inner,
                name="skeleton_last_block",
                columns=tuple(map(self._axis, inner.columns)),
                stores=self._roots(inner.stores),
            )
            last_block = LastBlock(inside, self._roots(last.partials), last.chunked)
        return replace(
            kernel,
            name="skeleton",
            rows=rows,
            kept=kept,
            columns=columns,
            totals=totals,
            stores=stores,
            finals=self._roots(kernel.finals),
            last_block=last_block,
            granted=(),  # which may end a launch before it has done anything
            cut="",
        )

    def _place(self, load: Node) -> tuple[str, str, int]:
        """By what loads are put in order, which the order of arithmetic is not to decide."""
        return self._kernel.level(load).name, str(load.attrs[0].dtype), len(load.args)

    def _roots(self, roots: Iterable[Root]) -> tuple[Root, ...]:
        return tuple(
            Root(self._buffer(root.buffer), tuple(map(self._renamed, root.index)), self._value(root.node))
            for root in roots
        )

    def _renamed(self, expression: sympy.Expr) -> sympy.Expr:
        """An expression over axes and sizes, in names of places."""
        expression = sympy.sympify(expression)
        for symbol in sorted(expression.free_symbols, key=str):
            if isinstance(symbol, Axis):
                self._axis(symbol)
            elif symbol not in self.symbols and symbol not in (CHUNKS, PROGRAMS) and not str(symbol).startswith("_"):
                name = f"s{len(self.symbols)}"
                self.symbols[symbol] = sympy.Symbol(name, integer=True, positive=True)
        return expression.xreplace({**self.symbols, **self._axes})

    def _axis(self, axis: Axis) -> Axis:
        if axis not in self._axes:
            size = self._renamed(axis.size)
            self._axes[axis] = Axis(f"a{len(self._axes)}", size)
        return self._axes[axis]

    def _buffer(self, buffer: Buffer) -> Buffer:
        if buffer not in self.buffers:
            role = "output" if buffer in self._written else "partial" if buffer.role == "partial" else "input"
            name = {"output": "out", "partial": "part", "input": "t"}[role] + str(len(self.buffers))
            shape, strides = (tuple(map(self._renamed, each)) for each in (buffer.shape, buffer.strides))
            self.buffers[buffer] = Buffer(name, buffer.dtype, shape, strides, role)
        return self.buffers[buffer]

    def _anchor(self, node: Node) -> Node:
        """A load, a reduction or a running sum, which stays one."""
        if node not in self._nodes:
            self._nodes[node] = self._load(node) if node.op == "load" else self._along(node)
            self._order.setdefault(self._nodes[node], len(self._order))
        return self._nodes[node]

    def _load(self, node: Node) -> Node:
        buffer, entries = node.attrs
        at = ir.load(self._buffer(buffer), [0] * len(entries))
        return ir.load_at(at, [self._value(arg) for arg in node.args], [self._renamed(entry) for entry in entries])

    def _along(self, node: Node) -> Node:
        form = self._running.get(node)
        body = self._value(node.args[0]) if form is None else self._following(node.args[0], form)
        if form is None and node.args[0].reduces and body.dtype.is_floating_point:
            body = ir.apply("abs", body)  # which waits for them, as a sum would not
        axes = [self._axis(axis) for axis in node.attrs[1]]
        found, copy = ir.along(node, axes, body), 1
        while found in self._order and node.dtype != torch.bool:  # two of the same would be one
            copy += 1
            found = ir.along(node, axes, ir.apply("mul", body, ir.const(copy, body.dtype)))
        return found

    def _following(self, body: Node, form: Running) -> Node:
        """A summand that follows running maxima, in its form: with each exponential, and the power of what is shifted;
        or what is reduced where elements equal one.
        """
        largest = {shift: self._anchor(largest_of(shift)) for shift in form.shifts}
        if form.restarts is not None:
            largest[form.restarts] = self._anchor(form.restarts)
        exponential = "exp_half" if _CHEAP & _taken_apart([body])[1] else "exp"
        shifted = {shift: ir.apply("sub", node.args[0], node) for shift, node in largest.items()}
        followed = [ir.apply(exponential, shifted[shift]) for shift in form.scales]
        followed += [shifted[shift] for shift, _ in form.moves for _ in form.lower]
        own = {*map(largest_of, largest), *_taken_apart([arg for each in largest for arg in largest_of(each).args])[0]}
        rest = [each for each in _taken_apart([body])[0] if each not in own]
        values = [*([self._sum(rest, body.dtype)] if rest else []), *followed]
        if form.restarts is not None:
            node = largest[form.restarts]
            at = ir.apply("eq", node.args[0], node)
            return ir.apply("where", at, values[0] if values else ir.const(1, body.dtype), ir.const(0, body.dtype))
        return functools.reduce(lambda one, other: ir.apply("mul", one, other), values)

    def _value(self, node: Node) -> Node:
        """The plainest value that depends on what a node depends on."""
        if node.op in _LEAVES:
            return self._anchor(node)
        if node.op == "index":
            return ir.index(self._renamed(node.attrs[0]))
        below, ops = _taken_apart([node])
        covered = frozenset().union(*(each.axes for each in below))
        missing = [ir.index(self._axis(axis)) for axis in sorted(node.axes - covered, key=str)]
        found = self._sum(below, node.dtype, missing)
        function = _function_of(ops)
        return ir.apply(function, found) if function and found.dtype.is_floating_point else found

    def _sum(self, below: Sequence[Node], dtype: torch.dtype, more: Sequence[Node] = ()) -> Node:
        terms = sorted({self._anchor(each) for each in below}, key=lambda each: self._order[each])
        number = torch.float32 if dtype == torch.bool else dtype
        found = ir.const(0, number)
        for position, term in enumerate([*terms, *more]):
            found = ir.cast(term, number) if position == 0 else ir.apply("add", found, ir.cast(term, number))
        return ir.cast(found, dtype)


def _taken_apart(nodes: Sequence[Node]) -> tuple[list[Node], set[str]]:
    """The leaves that nodes are computed from, not those below these, and the ops by which they are."""
    met = ir.downward(nodes, lambda node: node.op in _LEAVES)
    return [node for node in met if node.op in _LEAVES], {node.op for node in met if node.op not in _LEAVES}


_LEAVES = ("load", *ir.ALONG_AXES)
_CHEAP = {op.half for op in OPS.values() if op.half} | {"exp_summand"}


def _function_of(ops: set[str]) -> str | None:
    """The function that stands for some arithmetic."""
    if ops & HEAVY:
        return "lgamma"
    costly = {op for op in ops if op in OPS and OPS[op].helpers and OPS[op].ulp > 0.5}
    return ("exp_half" if costly <= _CHEAP else "exp") if costly else None
