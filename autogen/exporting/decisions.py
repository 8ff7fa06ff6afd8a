"""The launch parameters of a kernel for all sizes: as rules from sizes to configurations, and as host code.

In process, `autogen.tiling.tiler.Tiler` decides for the sizes of each call. Here its default is asked once for each
power of two of what it looks at, and what it says of 2^k holds for all sizes beyond 2^(k-1): a tile for more columns
has room for fewer. Variants that only pay where rows begin anywhere in memory are not exported, nor are offsets of 64
bits.

To export another kind of kernel: its launch parameters in `export_plan.jinja` and `Decisions.context`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy

from autogen.emission.source import KernelSource
from autogen.ir.sizes import next_power_of_2, python_printer
from autogen.runtime.launch import Launcher
from autogen.scheduling.launches.kernel import CHUNKS, MAX_IN_ONE_PROGRAM, MAX_WALKED_AGAIN, PROGRAMS, ROWS_ADJACENT
from autogen.tiling.space import Space
from autogen.tiling.tiler import INT32_MAX, MARGIN, Config, Extents, Tiler
from autogen.tiling.variant import Variant

MOST_ELEMENTS = INT32_MAX - MARGIN
_POWERS = 32  # of two, that sizes go up to

Intervals = dict[str, tuple[int, int]]
Rule = dict[str, Any]
"""`rows`, `columns`: from which size to which; `tiles`, `looped` if so, `num_warps`: the configuration."""


def text_of(expression: sympy.Basic) -> str:
    """An expression over sizes as Python."""
    text: str = python_printer().doprint(expression)
    return text


class Decisions(Tiler):
    """What decides how a kernel is launched; `name` is the kernel's."""

    def __init__(self, launcher: Launcher) -> None:
        kernel = launcher.kernel
        super().__init__(kernel, Space(kernel))
        self.name, self.kernel, self._launcher = kernel.name, kernel, launcher
        rows, inner, columns, kept, *reached = map(sympy.expand, self._sizes.expressions)
        self._extents = {"columns": columns, "kept": kept, "inner_rows": inner, "rows": rows}
        self._reached = _greatest([sympy.expand(rows * columns * kept), *reached])
        self._varying = [name for name, size in self._extents.items() if not size.is_Integer]
        if inner == rows and not rows.is_Integer:
            self._varying.remove("inner_rows")

    def rules(self, sizes: Mapping[str, int]) -> list[Rule]:
        """First what was tuned, or set, for sizes like those of the example, then the default."""
        config, origin = self._launcher.config(sizes)
        found = self._defaults(self._varying, {})
        if origin != "default":
            extents = self.extents(sizes)
            near = {name: _interval(next_power_of_2(getattr(extents, name))) for name in self._varying}
            found.insert(0, (near, config))
        return [_rule(intervals, config) for intervals, config in found]

    def _defaults(self, varying: Sequence[str], known: dict[str, int]) -> list[tuple[Intervals, Config]]:
        """The default by intervals of what varies; neighbouring ones with the same are one."""
        if not varying:
            return [({}, self._default_of(known))]
        name, *others = varying
        found: list[tuple[tuple[int, int], list[tuple[Intervals, Config]]]] = []
        for power in range(_POWERS):
            low, high = _interval(1 << power)
            within = self._defaults(others, {**known, name: high})
            if found and found[-1][1] == within:
                (low, _), _ = found.pop()
            found.append(((low, high), within))
        return [({name: interval, **rest}, config) for interval, within in found for rest, config in within]

    def _default_of(self, known: Mapping[str, int]) -> Config:
        fixed = {name: int(size) for name, size in self._extents.items() if size.is_Integer}
        every = {**fixed, **known}
        every.setdefault("inner_rows", every["rows"])
        return self._default(Extents(**every, whole=(), held=1, wide=False))

    def limits(self) -> Iterator[str]:
        """Conditions on sizes, as text, within which the kernel is made for them."""
        yield from (f"{text_of(size)} <= {MOST_ELEMENTS}" for size in self._reached)
        for held in self.kernel.in_one_program:
            yield from filter(None, [_fits(held.expressions, MAX_IN_ONE_PROGRAM)])
        for columns, both in self.kernel.walked_again:
            few = _fits(columns.expressions, ROWS_ADJACENT), _fits(both.expressions, MAX_WALKED_AGAIN)
            if all(few):
                yield f"({' or '.join(few)})"

    def variants(self, rules: Sequence[Rule]) -> dict[str, KernelSource]:
        """The kernel in all its variants that the rules ask for, by the end of their names."""
        variants = {}
        if not all("looped" in rule for rule in rules):
            variants[""] = Variant()
            if self._may_stride:
                variants["_strided"] = Variant(strided=True)
        if any("looped" in rule for rule in rules):
            variants["_looped"] = Variant(looped=True)
        return {ending: self._launcher.source(variant) for ending, variant in variants.items()}

    def symbols(self, variants: Mapping[str, KernelSource]) -> list[str]:
        """The sizes that decide the launch, by name."""
        needed = [*self._extents.values(), *self._whole.expressions]
        needed += [size for source in variants.values() for _, size in source.sizes]
        needed += [each.count for source in variants.values() for each in source.partials]
        if self._one_program is not None:
            needed += [size for held in self._one_program.in_one_program for size in held.expressions]
        return sorted(map(str, {each for size in needed for each in size.free_symbols} - {PROGRAMS, CHUNKS}))

    def context(self, rules: Sequence[Rule]) -> dict[str, Any]:
        """What the template of a plan says of the kernel."""
        variants = self.variants(rules)
        inner = "inner_rows" in self._varying
        read = {"columns": not self._is_flat, "kept": self.is_chunked, "inner_rows": inner, "rows": True}
        return {
            "name": self.name,
            "symbols": self.symbols(variants),
            "extents": {name: text_of(size) for name, size in self._extents.items() if read[name]},
            "varying": self._varying,
            "tiles": list(rules[0]["tiles"]),
            "is_flat": self._is_flat,
            "row_tiles": "rows // inner_rows * cdiv(inner_rows, ROWS)" if inner else "cdiv(rows, ROWS)",
            "col_tiles": "1" if self._whole_rows else "cdiv(columns, COLS)",
            "adjacent": "columns" if self.columns_adjacent else "inner_rows" if inner else "rows",
            "may_fill": self._whole_rows and self.columns_adjacent,
            "access": self._access,
            "has_totals": self._has_totals,
            "may_stride": "_strided" in variants,
            "is_half": self._totals > 2,
            "is_half_by_warps": self._totals == 2 and self._may_stride,
            "whole": dict(zip(self._whole_tiles, map(text_of, self._whole.expressions), strict=True)),
            "held": self._held_by_one(),
            "is_chunked": self.is_chunked,
            "keeps_columns": self._keeps_columns,
            "rows_of_chunk": self._rows_of_chunk,
            "inner": "inner_rows" if inner else "rows",
            "functions": {ending: self._call(ending, source) for ending, source in variants.items()},
        }

    def _call(self, ending: str, source: KernelSource) -> dict[str, Any]:
        return {
            "name": f"{self.name}{ending}",
            "counts": [text_of(partial.count) for partial in source.partials],
            "arguments": [*(text_of(size) for _, size in source.sizes), *source.tiles],
        }

    def _held_by_one(self) -> str:
        """How many elements the largest tile has of what the last program holds, as text."""
        if self._one_program is None:
            return ""
        held = [[size for size in each.expressions if size != 1] for each in self._one_program.in_one_program]
        tiles = [" * ".join(f"power_of_2({text_of(size)})" for size in each) for each in held if each]
        return f"max({', '.join(['1', *tiles])})"


def _greatest(sizes: Sequence[sympy.Expr]) -> list[sympy.Expr]:
    """The sizes that are no factor of another, without those that are known."""
    varying = [size for size in dict.fromkeys(sizes) if not size.is_Integer]

    def divides(size: sympy.Expr, other: sympy.Expr) -> bool:
        return bool(size != other and sympy.cancel(other / size).as_numer_denom()[1] == 1)

    return [size for size in varying if not any(divides(size, other) for other in varying)]


def _interval(high: int) -> tuple[int, int]:
    """The sizes that are rounded up to a power of two."""
    return high // 2 + 1, high


def _rule(intervals: Intervals, config: Config) -> Rule:
    bounds = {name: list(interval) for name, interval in intervals.items()}
    how = {"looped": True} if config.looped else {}
    return {**bounds, "tiles": dict(config.tiles), **how, "num_warps": config.num_warps}


def _fits(sizes: Sequence[sympy.Expr], limit: int) -> str:
    """A condition under which sizes, rounded up to powers of two, have a product within a limit; "" for none."""
    varying = [size for size in sizes if not size.is_Integer]
    fixed = math.prod(next_power_of_2(int(size)) for size in sizes if size.is_Integer)
    doubled = 1 << max(len(varying) - 1, 0)  # each but one may be rounded up to nearly twice itself
    if not varying and fixed <= limit:
        return ""
    return f"{text_of(sympy.Mul(*varying))} <= {limit // (fixed * doubled)}"
