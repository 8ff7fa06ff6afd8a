"""What all shells share: parameters and their documentation, loads, stores, and the last block."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sympy
import torch

import autogen.templates
from autogen import compat, device_math, ir
from autogen.emission.body import TRITON_DTYPES, Body, Names, Style, wrapped
from autogen.emission.load import Load, asked
from autogen.emission.records import Record
from autogen.emission.sizes import Sizes
from autogen.emission.source import Function, KernelSource, Partial
from autogen.ir import Axis, Node
from autogen.ir.names import NUMBER
from autogen.ir.program import Root
from autogen.ir.provenance import Provenance
from autogen.ir.sizes import python_printer
from autogen.scheduling.launches.kernel import CHUNKS, Kernel, Level
from autogen.tiling.space import Space
from autogen.tiling.variant import Variant

if TYPE_CHECKING:
    import jinja2

# What the text of kernels says besides the names of their values.
RESERVED = device_math.NAMES | {
    "tl",
    "triton",
    "float",
    "range",
    "program",
    "programs",
    "start",
    "is_full",
    "offsets",
    "mask",
    "row",
    "row_mask",
    "col",
    "col_mask",
    "row_tiles",
    "first_col",
    "first_lane",
    "lane",
    "window_start",
    "window_end",
    "skew",
    "place",
    "row_start",
    "tile_start",
    "first_of_group",
    "overlapping",
    "inside",
    "is_last",
    "first",
    "partial",
    "arrived",
    "n_elements",
    "n_rows",
    "n_cols",
    "n_outer",
    "col_tiles",
    "row_tile",
    "tile",
    "part",
    "chunk",
    "chunks",
    "share",
    "counter_ptr",
    "BLOCK",
    "ROWS",
    "COLS",
    "ALIGN",
    "CHUNKS",
    "PARTIALS",
}

_TOLD = {"program": "which one of the part's", "programs": "how many the part has"}
_OPERATORS = {"sum": "+", "prod": "*"}
_ROLES = ("input", "torch", "view", "saved", "scratch", "upstream", "partial", "output")


def _quoted(text: str) -> str:
    """A text as it is written between triple quotes."""
    return repr(text)[1:-1].replace('"', '\\"')


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(autogen.templates.FOLDER),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, **context: Any) -> str:
    """A template of `templates/`, filled in."""
    return _environment().get_template(template).render(**context)


def identity(kind: str, dtype: torch.dtype) -> str:
    """The value that a reduction or scan starts from."""
    value = ir.identity(kind, dtype)
    if not dtype.is_floating_point:
        return str(value)
    return str(float(value)) if math.isfinite(value) else f'float("{value}")'


class Shell:
    """The emission of one kernel; subclasses fill their template.

    Args:
        kernel: what to emit.
        variant: how.
        provenance: names and source lines.
        variables: the kernel variable of each merged axis.
        known: sizes that have a name of their own.
    """

    template: str
    tiles: tuple[str, ...]
    told: tuple[str, ...] = ()  # what a part of a kernel is told by that

    def __init__(
        self,
        kernel: Kernel,
        space: Space,
        variant: Variant,
        provenance: Provenance,
        variables: Mapping[Axis, str],
        known: Mapping[sympy.Expr, str],
    ) -> None:
        self.kernel, self.space, self.variant = kernel, space, variant
        self.sizes = Sizes(known, variables)
        self.last: Function | None = None
        loads = [*kernel.loads(), *(kernel.last_block.kernel.loads() if kernel.last_block else ())]
        shared = [root.buffer for root in kernel.last_block.partials] if kernel.last_block else []
        loaded = [*(load.attrs[0] for load in loads), *(each.buffer for each in kernel.granted)]
        read = list(dict.fromkeys(buffer for buffer in loaded if buffer not in shared))
        order = {name: position for position, name in enumerate(provenance.inputs)}
        read.sort(key=lambda buffer: (_ROLES.index(buffer.role), order.get(buffer.name, 0), buffer.name))
        made = dict.fromkeys(root.buffer for root in kernel.roots)
        written = sorted(made, key=lambda buffer: -_ROLES.index(buffer.role))
        self.buffers = [*read, *written]
        pointers = [f"{buffer.name}_ptr" for buffer in (*self.buffers, *shared)]
        self.names = Names([*RESERVED, *pointers, *variables.values(), *map(str, self._numbers(kernel))])
        self.style = Style(kernel.computed, provenance, self.sizes, self.names, self)
        self.passes: dict[Node, int] = dict.fromkeys(kernel.loads(), 1)
        self._conditions = dict(kernel.conditions)

    @property
    def is_wide(self) -> bool:
        """Whether places have 64 bits."""
        return self.variant.wide

    @property
    def is_part(self) -> bool:
        """Whether this is a part of a kernel, and not its own."""
        return bool(self.told)

    def _numbers(self, kernel: Kernel) -> set[sympy.Basic]:
        """The sizes and numbers that the kernel may be given."""
        axes = (*kernel.rows, *kernel.kept, *kernel.columns)
        expressions = [axis.size for axis in axes]
        expressions += [size for buffer in self.buffers for size in (*buffer.shape, *buffer.strides)]
        order = ir.topological(kernel.computed)
        expressions += [node.attrs[0] for node in order if node.op in ("index", "scalar")]
        expressions += [entry for node in order if node.op == "load" for entry in node.attrs[1]]
        return {symbol for each in expressions for symbol in each.free_symbols if not isinstance(symbol, Axis)}

    def emit(self, *called: Function) -> KernelSource:
        """The kernel's module, with the functions that it calls: what its last block does, if that is more than
        combining numbers, or its parts.
        """
        self.names.reserve(each.name for each in called)
        kernel = self.function(*called)
        text = render(
            "module.py.jinja",
            title=f"{self.kernel.name}: {self.summary()}",
            source=_quoted(self.style.provenance.loss),
            helpers=sorted(kernel.helpers.union(*(each.helpers for each in called))),
            functions=[each.text for each in (*called, kernel)],
        )
        return KernelSource(
            self.kernel.name,
            wrapped(text.rstrip("\n")) + "\n",
            tuple(self.buffers),
            kernel.partials,
            tuple(kernel.sizes.items()),
            kernel.tiles,
            tuple((*load, place) for place, each in enumerate((kernel, *called)) for load in each.loads),
            kernel.doubles,
        )

    def function(self, *called: Function) -> Function:
        """The kernel's function; if it calls one, that is what the last block does."""
        self.last = last = next(iter(called), None)
        if last:
            self.names.reserve(last.tiles)
            self.sizes.arguments |= {name: size for name, size in last.sizes.items() if size != CHUNKS}
            self.sizes.doubles |= last.doubles
        context = self.fill()
        granted = self._granted()
        totals = context["totals"]
        sizes = dict(self.sizes.arguments)
        draws_ticket = bool(totals) and not self.is_part
        tiles = (*self.tiles, *(last.tiles if last else ("PARTIALS",) if draws_ticket else ()))
        parameters = [*self.told, *(f"{buffer.name}_ptr" for buffer in self.buffers)]
        parameters += [total["pointer"] for total in totals]
        parameters += ["counter_ptr"] if draws_ticket else []
        parameters += sizes
        kinds = {**dict.fromkeys(self.sizes.doubles, "tl.float64"), **dict.fromkeys(tiles, "tl.constexpr")}
        text = render(
            self.template,
            name=self.kernel.name,
            parameters=[f"{each}: {kinds[each]}" if each in kinds else each for each in (*parameters, *tiles)],
            summary=self.summary(),
            documentation=self._documentation(totals),
            wide=".to(tl.int64)" if self.variant.wide else "",
            granted=granted,
            is_part=self.is_part,
            **context,
        )
        return Function(
            self.kernel.name,
            text.strip("\n"),
            (*parameters, *tiles),
            sizes,
            tiles,
            frozenset(self.style.helpers),
            tuple(self.passes.items()),
            tuple(Partial(total["pointer"], total["torch_dtype"], total["count"]) for total in totals),
            frozenset(self.sizes.doubles),
        )

    def _granted(self) -> str:
        """The condition under which there is nothing to do."""
        conditions = [
            f"tl.load({each.buffer.name}_ptr) == {self.sizes.text(each.value)}" for each in self.kernel.granted
        ]
        return " & ".join(f"({each})" for each in conditions) if len(conditions) > 1 else "".join(conditions)

    def index_text(self, expression: sympy.Expr) -> str:
        """The value of an integer expression over the kernel's axes."""
        level = self.kernel.level_of_axes(symbol for symbol in expression.free_symbols if isinstance(symbol, Axis))
        return self._in_shape(self.offset(self.space.merged(expression)), level, self.broadcast_variables(level))

    def broadcast_variables(self, level: Level) -> dict[sympy.Symbol, str]:
        """The kernel's variables in the shape that values of a level have, where it differs from their own."""
        return {}

    def expansion(self, node: Node, into: Node) -> str:
        """The subscript that broadcasts a value for use in another."""
        return ""

    def fill(self) -> dict[str, Any]:
        """The template's context; printing the body finds the sizes that the kernel needs."""
        raise NotImplementedError

    def summary(self) -> str:
        """One sentence on what a program does."""
        raise NotImplementedError

    def _documentation(self, totals: Sequence[Mapping[str, Any]]) -> list[str]:
        written = {root.buffer for root in self.kernel.roots}
        lines = [f"{name}: {_TOLD[name]}" for name in self.told]
        for buffer in self.buffers:
            note = " (written)" if buffer in written else ""
            lines.append(f"{buffer.name}_ptr: {buffer.describe()}{note}")
        for total in totals:
            lines.append(f"{total['pointer']}: {total['described']}")
        if totals and not self.is_part:
            lines.append("counter_ptr: int32 scalar, 0 before and after")
        for name, size in self.sizes.arguments.items():
            own = "a number" if name.endswith(NUMBER) else "a size"
            plain = size.replace(compat.size_functions().ToFloat, lambda integer: integer)
            text = size if size.is_integer else python_printer().doprint(plain)
            lines.append(f"{name}: {text if name != str(size) else own}")
        return lines

    def body(self, outer: Body | None = None) -> Body:
        """A new run of statements, inside the scope of `outer`."""
        return Body(self.style, self.print_load, outer)

    def pointer(
        self,
        buffer: ir.Buffer,
        index: Sequence[sympy.Expr],
        level: Level,
        computed: Sequence[str] = (),
        *,
        has_shape: bool = False,
    ) -> str:
        """The address of an element, as text, in the shape of a level; in any case if what is computed `has_shape`."""
        filled: dict[sympy.Symbol, str] = {ir.hole(k): text for k, text in enumerate(computed)}
        filled |= self.broadcast_variables(level)
        expression = self.offset(self.space.merged(buffer.offset(index)))
        offset = self.sizes.text(expression, filled) if has_shape else self._in_shape(expression, level, filled)
        return f"{buffer.name}_ptr" if offset == "0" else f"{buffer.name}_ptr + {offset}"

    def _in_shape(self, expression: sympy.Expr, level: Level, filled: Mapping[sympy.Symbol, str]) -> str:
        """An expression over the shell's variables as text, in the shape of a level."""
        missing = self.missing_axis(expression, level)
        text = self.sizes.text(expression, filled)
        return text if missing is None else f"{text} + 0 * {filled.get(missing, str(missing))}"

    def missing_axis(self, offset: sympy.Expr, level: Level) -> sympy.Symbol | None:
        """The axis without which an offset has not the shape of its level."""
        return None

    def offset(self, offset: sympy.Expr) -> sympy.Expr:
        """An offset over merged axes, over the axes that the shell has variables for."""
        return offset

    def mask_of(self, level: Level) -> str | None:
        """The mask under which values of a level exist."""
        raise NotImplementedError

    def load_mask(self, node: Node) -> str | None:
        """The mask under which a load reads; none of one number, which may be read at a place found in a whole row."""
        return self.mask_of(self.kernel.level(node)) if node.axes else None

    def padding(self, node: Node) -> str:
        """What a load has where its mask has nothing."""
        return "0.0" if node.attrs[0].dtype.is_floating_point else "0"

    def load(self, node: Node, computed: Sequence[str] = ()) -> Load:
        """The load that a node is."""
        buffer, index = node.attrs
        level = self.kernel.level(node)
        mask = self.load_mask(node)
        other = self.padding(node)
        each: list[str] = [mask] if mask else []
        common: list[str] = []  # checks of one place for all
        for entry, size in zip(index, buffer.shape, strict=True):
            for position, text in enumerate(computed):
                if entry == ir.hole(position):
                    checks = each if self.shape_of(node.args[position]) != Level.SCALAR else common
                    checks += [f"({text} >= 0)", f"({text} < {self.sizes.factor(size)})"]
                    other = 'float("nan")' if buffer.dtype.is_floating_point else "0"
        if each and common:  # Triton 3.9's interpreter takes no mask that is one number and many
            each = [f"tl.where({' & '.join(common)}, {' & '.join(each)}, False)"]
        checks = each or common
        widened = ir.compute_dtype(buffer.dtype) != buffer.dtype
        return Load(
            self.pointer(buffer, index, level, computed, has_shape=self._has_shape(node)),
            mask=" & ".join(checks) or None,
            other=other if checks else None,
            cast=f".to({TRITON_DTYPES[node.dtype]})" if widened else "",
        )

    def _has_shape(self, node: Node) -> bool:
        """Whether a load needs no more for its shape: it is of one number, or a computed index has the shape."""
        return not node.axes or any(each.axes and self.kernel.level(each) != Level.SCALAR for each in node.args)

    def search_text(self, node: Node, value: str) -> str:
        """A search, which reads by itself."""
        (dim, size), (buffer, index) = node.attrs, node.args[1].attrs
        first, step = self.pointer(buffer, index, Level.SCALAR), self.sizes.factor(buffer.strides[dim])
        return f"{self.style.helper('count_at_most')}({value}, {first}, {step}, {self.sizes.factor(size)})"

    def record_load(self, record: Record[Node], axis: sympy.Symbol, variable: str, mask: str) -> Load:
        """The load of a record for each place of an axis."""
        return replace(self.load(record.parts[0]), pointer=self._place(record, axis, variable), mask=f"{mask}[:, None]")

    def _place(self, record: Record[Any], axis: sympy.Symbol, variable: str) -> str:
        """The addresses of a record for each place of an axis."""
        start = self.sizes.text(self.offset(record.start), {axis: f"{variable}[:, None]"})
        return f"{record.buffer.name}_ptr + {start} + {record.places}"

    def take_apart(self, record: Record[Node], name: str, body: Body) -> None:
        """Name the parts of a record that has been read."""
        named = self.style.provenance.names
        parts = [
            body.name(node, None if node in named else f"{record.buffer.name}_{place}")
            for place, node in enumerate(record.parts)
        ]
        body.lines.append(f"{', '.join(parts)} = {self.style.helper(f'parts_of_{len(parts)}')}({name})")
        for node, part in zip(record.parts, parts, strict=True):
            body.know(node, part)

    @functools.cached_property
    def _read_directly(self) -> list[Node]:
        """The loads whose value is wanted: where a search begins, it is not."""
        order = ir.topological(self.kernel.computed)
        used = {arg for node in order for arg in (node.args[:1] if node.op == "search" else node.args)}
        wanted = used.union(self.kernel.computed)
        return [node for node in self.kernel.loads() if node in wanted]

    def print_load(self, node: Node, computed: list[str], condition: str) -> str:
        """A load as text, of what a condition asks for."""
        return str(asked(self.load(node, computed), condition))

    def condition_of(self, load: Node) -> Node | None:
        """The condition under which alone a load is wanted, if it is to be asked first; not of a whole launch."""
        condition = self._conditions.get(load)
        return None if condition is None or self.kernel.level(condition) == Level.SCALAR else condition

    def direct_loads(self, *levels: Level) -> list[Node]:
        """The loads at some levels whose index is not computed."""
        read = self._read_directly
        loads = [node for node in read if not node.args and self.kernel.level(node) in levels]
        return sorted(loads, key=lambda node: self.buffers.index(node.attrs[0]))

    def scalars(self) -> Body:
        """The values that there is one of, known from the start."""
        body = self.body()
        given = (node for node in ir.topological(self.kernel.computed) if node.op == "scalar")
        for node in (*given, *self.direct_loads(Level.SCALAR)):
            body.state(node)
        return body

    def store_text(self, root: Root, body: Body) -> dict[str, str]:
        """A store of a result, in pieces."""
        plain = root.node.op in ("const", "index")
        name = root.buffer.name if self.names.is_free(root.buffer.name) else f"reduced_{root.buffer.name}"
        value = body.text(root.node) if plain else body.state(root.node, name)
        value += self.broadcast_to(self.shape_of(root.node), self.store_level(root))
        return {"pointer": self.pointer(root.buffer, root.index, self.store_level(root)), "value": value}

    def record_store(
        self, record: Record[Root], body: Body, axis: sympy.Symbol, variable: str, mask: str
    ) -> dict[str, str]:
        """The store of a record for each place of an axis, in pieces."""
        parts = [body.state(root.node, f"{record.buffer.name}_{place}") for place, root in enumerate(record.parts)]
        value = self.names.new(record.buffer.name)
        body.lines.append(f"{value} = {self.style.helper(f'record_of_{len(parts)}')}({', '.join(parts)})")
        return {"pointer": self._place(record, axis, variable), "value": value, "mask": f"{mask}[:, None]"}

    def store_level(self, root: Root) -> Level:
        """The level at which a result is stored."""
        return self.kernel.level_of_axes(root.index_axes)

    def shape_of(self, node: Node) -> Level:
        """The level whose values have the shape of a node's."""
        return self.kernel.level(node)

    def broadcast_to(self, level: Level, into: Level) -> str:
        """The subscript that broadcasts a value of a level to another."""
        return ""

    def combine(self, kind: str, a: str, b: str) -> str:
        """Two partial results made one."""
        if kind in _OPERATORS:
            return f"{a} {_OPERATORS[kind]} {b}"
        return f"{self.style.helper(f'{kind}imum')}({a}, {b})"

    def accumulate(self, kind: str, name: str, value: str) -> str:
        """The statement that takes a value into a running result."""
        if kind in _OPERATORS:
            return f"{name} {_OPERATORS[kind]}= {value}"
        return f"{name} = {self.combine(kind, name, value)}"

    def running(self, node: Node, value: str, axis: int) -> str:
        """The scan `node` of a tile along one of its axes."""
        kind, _, is_reverse = node.attrs
        function = f"tl.cum{kind}" if kind in _OPERATORS else self.style.helper("logcumsumexp")
        return f"{function}({value}, {axis}{', reverse=True' * is_reverse})"

    def along(self, kind: str, value: str, axis: int) -> str:
        """A tile reduced along one of its axes."""
        return f"{'tl.sum' if kind == 'sum' else self.style.helper(f'{kind}_over')}({value}, {axis})"
