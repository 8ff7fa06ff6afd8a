"""Guards: the relations between sizes and strides under which a trace holds, as one compiled function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import sympy
import torch

from autogen.frozen import frozen
from autogen.names import NUMBER, identifier, unique
from autogen.sizes import Script, python_printer
from autogen.tracing.domain.entries import Size

_LETTERS = ("N", "C")
_ATTRIBUTES = {"shape": "shape", "stride": "stride()"}

# Where a size is read: tensor, dimension, "shape" or "stride"; a float: its position, 0, "float".
Place: TypeAlias = tuple[int, int, str]


@frozen
class Known:
    """A symbolic tensor or float of a trace, and the stage at which it is known. What `is_computed` has no size that
    is not known from others.
    """

    name: str
    value: Any
    stage: int = 0
    is_computed: bool = False


class Guards:
    """Names for the sizes of a trace, and the check that a later call may use it.

    `symbols` maps every free size to where it is read. Tensors and floats that are found only when others are known
    have a *stage* of their own: relations are checked as early as they can be, and those of a later stage are why it
    `is_staged`.
    """

    def __init__(
        self,
        symbols: dict[sympy.Symbol, Place],
        relations: Sequence[sympy.Basic],
        renamed: dict[sympy.Symbol, sympy.Expr],
        read_as: dict[sympy.Symbol, sympy.Symbol],
        stages: Mapping[sympy.Symbol, int],
    ) -> None:
        self.symbols = symbols
        self._renamed, self._read_as = renamed, read_as
        # Sizes that the code or torch has compared with a number, such as a slice that turned out to have one element.
        pairs = [pair for r in relations if isinstance(r, sympy.Eq) for pair in (r.args, r.args[::-1])]
        self._settled = {left: right for left, right in pairs if right.is_Integer}

        def stage(relation: sympy.Basic) -> int:
            return max((stages.get(symbol, 0) for symbol in relation.free_symbols), default=0)

        self.is_staged = any(map(stage, relations))
        self._read = {
            k: _reader(
                {symbol: place for symbol, place in symbols.items() if stages.get(symbol, 0) == k},
                [relation for relation in relations if stage(relation) == k],
            )
            for k in {0, *stages.values()}
        }

    @property
    def texts(self) -> tuple[str, ...]:
        """All that a call is asked, as code."""
        return tuple(script.text for script in self._read.values())

    @classmethod
    def of(
        cls,
        shapes: Any,
        tensors: Sequence[Known],
        floats: Sequence[Known] = (),
        *,
        is_wider: bool = False,
    ) -> Guards:
        """Collect what a `ShapeEnv` learned while symbolic `tensors` and `floats` were traced.

        If it `is_wider`, floats that were found in tensors need not be what they are in this call.
        """
        home: dict[sympy.Symbol, Place] = {}
        stages: dict[sympy.Symbol, int] = {}
        geometry: list[tuple[Place, sympy.Expr]] = []
        for position, known in enumerate(tensors):
            if known.is_computed:
                continue
            for kind, values in (("shape", known.value.shape), ("stride", known.value.stride())):
                for dim, value in enumerate(values):
                    # Before replacement: a size that turned out to equal another still is read here.
                    is_symbolic = isinstance(value, torch.SymInt)
                    expression: sympy.Expr = value.node._expr if is_symbolic else sympy.Integer(value)
                    if kind == "shape" or known.value.shape[dim] != 1:  # a dimension of size 1 is never stepped
                        geometry.append(((position, dim, kind), expression))
                    if expression.is_Symbol:
                        home.setdefault(expression, (position, dim, kind))
        solved = {old: shapes.replace(old) for old in home}
        names = _name_symbols(home, solved, tensors)
        renamed = {old: sympy.Symbol(name, integer=True, positive=True) for old, name in names.items()}
        granted = []
        for position, known in enumerate(floats):
            old = known.value.node._expr
            home[old], solved[old] = (position, 0, "float"), shapes.replace(old)
            # Unlike any name that a kernel has of its own, such as `row`.
            name = unique(identifier(known.name) + NUMBER, {str(new) for new in renamed.values()})
            is_size = isinstance(known.value, torch.SymInt)
            renamed[old] = sympy.Symbol(name, integer=True, positive=True) if is_size else sympy.Symbol(name, real=True)
            if is_wider and known.stage and not is_size:
                granted.append(sympy.Eq(renamed[old], solved[old], evaluate=False))
        free = {old: place for old, place in home.items() if solved[old] == old}
        relations = [
            sympy.Eq(renamed[old], expression.xreplace(renamed), evaluate=False)
            for old, expression in solved.items()
            if expression != old
        ]
        for guard in shapes.guards:
            relation = guard.expr.xreplace(renamed)
            if relation not in (sympy.true, *relations):
                relations.append(relation)
        relations = [each for each in relations if each not in granted]
        mapping = {old: expression.xreplace(renamed) for old, expression in solved.items()}
        read_as = dict(renamed)
        for (position, dim, kind), expression in geometry:
            if expression not in free or home[expression] != (position, dim, kind):
                there = sympy.Symbol(f"{kind}_{position}_{dim}", integer=True, nonnegative=True)
                home[there] = (position, dim, kind)
                renamed[there] = there
                relations.append(sympy.Eq(there, shapes.replace(expression).xreplace(renamed), evaluate=False))
        for old, (position, _, kind) in home.items():
            stages[renamed[old]] = (floats if kind == "float" else tensors)[position].stage
            if stages[renamed[old]] and kind == "shape" and old in read_as:
                # The key of a call says this of its arguments: sizes of 0 and 1 are no symbols.
                relations.append(sympy.Ge(renamed[old], 2, evaluate=False))
        return cls({renamed[old]: place for old, place in home.items()}, relations, mapping, read_as, stages)

    def expression(self, value: Any) -> sympy.Expr:
        """A size (a number, a torch symbol or a recorded `Size`) as an expression over the named sizes."""
        expression = _sympy(value)
        for _ in range(8):  # a replacement may lead to another
            replaced = expression.xreplace(self._renamed)
            if replaced == expression:
                break
            expression = replaced
        return self._settled.get(expression, expression)

    def read(
        self,
        tensors: Sequence[torch.Tensor],
        floats: Sequence[float] = (),
        *,
        stage: int = 0,
        sizes: Mapping[str, Any] | None = None,
    ) -> dict[str, Any] | None:
        """The sizes and floats of a call by name, or None if the trace does not hold for it; of a later stage, given
        the tensors, floats and `sizes` of those before.
        """
        read = self.reader(stage)
        return dict(sizes or {}) if read is None else read(tensors, floats, sizes or {})

    def reader(self, stage: int) -> Callable[..., dict[str, Any] | None] | None:
        """What reads the tensors, floats and sizes of a stage; None if there is nothing to read."""
        read = self._read.get(stage)
        return None if read is None else read.run

    def text(self, size: Size, place: str) -> str | None:
        """`value` as Python writes it, with the sizes at a `place`, by name; None if it may be an integer or not."""
        known = {old: sympy.Symbol(place.format(str(new)), **new.assumptions0) for old, new in self._read_as.items()}
        expression = size.expression.xreplace(known)
        if not expression.is_integer:
            return None
        try:
            return f"({python_printer().doprint(expression)})"
        except NotImplementedError:
            return None

    def value(self, size: Size, sizes: Mapping[str, Any]) -> int | float:
        """The value of a recorded size, given those that had been read before it."""
        symbols = {old: sizes[str(new)] for old, new in self._read_as.items() if str(new) in sizes}
        number = sympy.sympify(size.expression.xreplace(symbols))
        return int(number) if number.is_integer else float(number)


def settle_factors(shapes: Any, fakes: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Where two products of sizes have turned out equal, as after `a.flatten(0, 1) + b.flatten()`, take their factors
    for equal, if in this call they are: the two then have the same axes. A factor may be what a slice leaves of a size.
    """
    hints = {
        _sympy(size): sympy.Integer(real)
        for fake, tensor in zip(fakes, tensors, strict=True)
        for size, real in zip(fake.shape, tensor.shape, strict=True)
    }
    for guard in list(shapes.guards):
        if not isinstance(guard.expr, sympy.Eq):
            continue
        sides = [sympy.Mul.make_args(shapes.replace(side)) for side in guard.expr.args]
        real = {factor: factor.xreplace(hints) for side in sides for factor in side if not factor.is_number}
        if any(number.free_symbols for number in real.values()):
            continue
        (left, right) = ([factor for factor in side if factor not in other] for side, other in (sides, sides[::-1]))
        for factor in filter(real.__contains__, left):
            alike = next((each for each in right if real.get(each) == real[factor]), None)
            if alike is not None:
                right.remove(alike)
                shapes.evaluate_expr(sympy.Eq(factor, alike))


def _sympy(value: Any) -> sympy.Expr:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.expr
    if isinstance(value, Size):
        return value.expression
    return sympy.sympify(value)


def _name_symbols(
    home: dict[sympy.Symbol, Place],
    solved: dict[sympy.Symbol, sympy.Expr],
    tensors: Sequence[Known],
) -> dict[sympy.Symbol, str]:
    """N, C, D1, D2 … for the first tensor that has dimensions; `weight_size0`, `input_stride1` for the rest.

    Of sizes that are equal, the one that stands for all gets the letter.
    """
    leading = next((k for k, known in enumerate(tensors) if known.value.dim()), 0)
    names: dict[sympy.Symbol, str] = {}
    for symbol, (position, dim, kind) in home.items():
        if kind == "shape" and position == leading and solved[symbol].is_Symbol:
            names.setdefault(solved[symbol], _LETTERS[dim] if dim < len(_LETTERS) else f"D{dim - 1}")
    for symbol, (position, dim, kind) in home.items():
        names.setdefault(symbol, f"{tensors[position].name}_{kind.replace('shape', 'size')}{dim}")
    return names


def _reader(symbols: Mapping[sympy.Symbol, Place], relations: Sequence[sympy.Basic]) -> Script:
    """Of tensors, floats and the sizes known before, the sizes and floats by name; None if a relation does not hold."""
    printer = python_printer()
    lines = ["def run(tensors, floats, sizes):"]
    dims: dict[str, dict[int, str]] = {}  # each shape, and all strides of a tensor, are asked for once
    again: list[str] = []
    for symbol, (position, dim, kind) in symbols.items():
        if kind == "float":
            number = f"floats[{position}]"  # an integer that varies is a float to the trace
            lines.append(f"    {symbol} = {number if symbol.is_integer else f'float({number})'}")
            continue
        names = dims.setdefault(f"tensors[{position}].{_ATTRIBUTES[kind]}", {})
        if names.setdefault(dim, str(symbol)) != str(symbol):
            again.append(f"    {symbol} = {names[dim]}")
    for text, names in dims.items():
        lines.append(f"    {', '.join(names.get(dim, '_') for dim in range(max(names) + 1))}, *_ = {text}")
    lines += again
    before = {symbol for relation in relations for symbol in relation.free_symbols} - symbols.keys()
    lines += [f"    {symbol} = sizes[{str(symbol)!r}]" for symbol in sorted(before, key=str)]
    checks = " and ".join(f"({printer.doprint(relation)})" for relation in relations) or "True"
    lines += ["    try:", f"        if not ({checks}):", "            return None"]
    lines += ["    except ZeroDivisionError:  # by a stride", "        return None"]
    lines.append(f"    return {{**sizes, {', '.join(f'{str(s)!r}: {s}' for s in symbols)}}}")
    return Script("\n".join(lines))
