"""Domains: the calls that a trace holds for, and what a call computes before its kernels to find out.

That is written out as one function. For a loss that reads `n = (y > 0).sum().item()`, and `torch.nonzero(x)` where no
`x` is negative::

    def bind(tensors, floats):
        if is_autocast():
            with without_autocast():
                return bind(tensors, floats)
        known = read_0(tensors, floats, {})
        if known is None:
            return None
        is_enabled = is_grad_enabled()
        set_grad_enabled(False)
        try:
            t0 = tensors[0].detach()
            v1 = op_1(t0, 0)
            v2 = op_2(v1)
            number = v2.item()
            if number is not False:
                return None
            v3 = op_3(t0)
            found = tensors_of(v3)
            v4, = found
            tensors = [*tensors, *found]
            known = read_2(tensors, floats, known)
            if known is None:
                return None
            …
            return Bound(known, tuple(tensors[2:]))
        finally:
            set_grad_enabled(is_enabled)

What comes after a branch is computed only if that is taken: it may be an error if not. What sizes alone decide is kept
(`autogen.tracing.domain.kept`): that `n` of `mask = ~torch.eye(C)`, whose elements are found and summed up later, is ::

            kept = kept_1.get(known['C'])
            if kept is None:
                v3 = op_3(known['C'])
                v4 = op_4(v3)
                number = …
                kept = kept_1.put((number, v4), known['C'])
            number, v4, = kept

Where the sizes of a call are known already, and branches are all there is, `holds` is the same without the sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autogen.calls.binding import Bound
from autogen.frozen import frozen
from autogen.sizes import SCOPE
from autogen.torch_step import call_text, constant_text, is_random
from autogen.tracing.domain.entries import Entry, Found, Number, Predicate, Size, tensors_of
from autogen.tracing.domain.guards import Guards
from autogen.tracing.domain.kept import Kept

Holds = Callable[[Sequence[torch.Tensor]], bool]
"""Whether a call takes the branches of a trace."""


@frozen
class Domain:
    """The calls that a trace holds for: sizes and strides that pass its guards, and the same branches taken.

    `ahead` is what has to be known for that, and for the kernels, over the tensors of `inputs` and the `constants` of
    the trace.
    """

    guards: Guards
    ahead: list[Entry]
    inputs: list[torch.fx.Node]
    constants: dict[torch.fx.Node, torch.Tensor]

    @property
    def predicates(self) -> list[Predicate]:
        """The numbers that the code took into Python."""
        return [entry for entry in self.ahead if isinstance(entry, Predicate)]

    @property
    def found(self) -> list[Found]:
        """The tensors that torch computes ahead."""
        return [entry for entry in self.ahead if isinstance(entry, Found)]

    @property
    def key(self) -> tuple[Hashable, ...]:
        """What tells the traces of one kind of call apart."""
        return self.guards.texts, tuple(repr(each.value) for each in self.predicates)

    @property
    def is_by_values(self) -> bool:
        """Whether values in tensors decide, too, if a call is one of these."""
        return bool(self.predicates) or self.guards.is_staged

    def sizes(self, tensors: Sequence[torch.Tensor], floats: Sequence[float] = ()) -> dict[str, Any] | None:
        """The sizes and floats of a call by name, or None if the trace does not hold for it."""
        bound = self.bind(tensors, floats)
        return None if bound is None else bound.sizes

    def bind(self, tensors: Sequence[torch.Tensor], floats: Sequence[float] = ()) -> Bound | None:
        """A call with all that is known ahead, or None if the trace does not hold for it."""
        if self.ahead:
            return self._binder(tensors, floats)
        known = self.guards.read(tensors, floats)
        return None if known is None else Bound(known)

    def checks(self, sizes: Mapping[str, Any]) -> Holds:
        """Whether a call of certain `sizes` takes the branches, where nothing else is known ahead."""
        holds: Holds = _Writer(self, sizes).run("holds", "tensors")
        return holds

    @functools.cached_property
    def _binder(self) -> Callable[[Sequence[torch.Tensor], Sequence[float]], Bound | None]:
        bind: Callable[..., Bound | None] = _Writer(self, None).run("bind", "tensors, floats")
        return bind

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_binder"}


class _Writer:
    """Writes one function; of `sizes`, if they are the same in all calls."""

    def __init__(self, domain: Domain, sizes: Mapping[str, Any] | None) -> None:
        self._domain, self._sizes = domain, sizes
        self._names: dict[torch.fx.Node, str] = {}
        # The nodes that sizes alone decide, and the sizes.
        self._of_sizes: dict[torch.fx.Node, dict[str, None]] = {node: {} for node in domain.constants}
        self._scope: dict[str, Any] = {
            **SCOPE,
            "is_autocast": torch._C._is_any_autocast_enabled,
            "without_autocast": torch._C._DisableAutocast,
            "is_grad_enabled": torch.is_grad_enabled,
            "set_grad_enabled": torch._C._set_grad_enabled,
            "tensors_of": tensors_of,
            "Bound": Bound,
        }

    def run(self, name: str, parameters: str) -> Callable[..., Any]:
        """The function."""
        refused = "None" if self._sizes is None else "False"
        exec(compile("\n".join(self._lines(name, parameters, refused)), "<ahead code>", "exec"), self._scope)
        function: Callable[..., Any] = self._scope[name]
        return function

    def _lines(self, name: str, parameters: str, refused: str) -> Iterator[str]:
        domain = self._domain
        yield f"def {name}({parameters}):"
        yield "    if is_autocast():"  # the casts of autocast are part of the graph already
        yield "        with without_autocast():"
        yield f"            return {name}({parameters})"
        if self._sizes is None:
            yield from (f"    {line}" for line in self._read(0, "{}"))
        yield "    is_enabled = is_grad_enabled()"
        yield "    set_grad_enabled(False)"
        yield "    try:"
        self._names = {node: constant_text(tensor, self._scope) for node, tensor in domain.constants.items()}
        used = {node for entry in domain.ahead for node in _read_by(entry)}
        for k, node in enumerate(domain.inputs):
            self._names[node] = f"t{k}"
            if node in used:
                yield f"        t{k} = tensors[{k}].detach()"
        for stage, entry in enumerate(domain.ahead, 1):
            yield from (f"        {line}" for line in self._entry(stage, entry, refused))
        if self._sizes is None:
            yield f"        return Bound(known, tuple(tensors[{len(domain.inputs)}:]))"
        else:
            yield "        return True"
        yield "    finally:"
        yield "        set_grad_enabled(is_enabled)"

    def _entry(self, stage: int, entry: Entry, refused: str) -> Iterator[str]:
        is_found = isinstance(entry, Found)
        result = "found" if is_found else "number"
        lines = list(map(self._computed, entry.order))
        value = self._names[entry.node]
        lines.append(f"found = tensors_of({value})" if is_found else f"number = {value}.item()")
        sizes = self._sizes_of({entry.node: None, **dict.fromkeys(entry.order)})
        if sizes is None:
            yield from lines
        else:
            self._scope[f"kept_{stage}"] = Kept()
            later = {node for each in self._domain.ahead[stage:] for node in _read_by(each)}
            results = "".join(f"{each}, " for each in (result, *(self._names[n] for n in entry.order if n in later)))
            yield f"kept = kept_{stage}.get({', '.join(sizes)})"
            yield "if kept is None:"
            yield from (f"    {line}" for line in lines)
            yield f"    kept = kept_{stage}.put({', '.join([f'({results})', *sizes])})"
            yield f"{results}= kept"
        if isinstance(entry, Predicate):
            yield f"if {self._differs(entry, result)}:"
            yield f"    return {refused}"
        elif isinstance(entry, Number):
            if isinstance(entry.symbolic, torch.SymFloat):  # the symbol is a finite one
                yield "if not math.isfinite(number):"
                yield f"    return {refused}"
            yield "floats = [*floats, number]"
        elif isinstance(entry, Found):
            for k, node in enumerate(entry.placeholders):
                self._names[node] = f"found_{stage}_{k}"
                if sizes is not None:
                    self._of_sizes[node] = sizes
            yield f"{''.join(f'{self._names[node]}, ' for node in entry.placeholders)}= found"
            yield "tensors = [*tensors, *found]"
        if self._sizes is None:
            yield from self._read(stage, "known")

    def _computed(self, node: torch.fx.Node) -> str:
        """The line that computes a node."""
        arguments = call_text((tuple(node.args), dict(node.kwargs)), self._written)
        name = self._names[node] = f"v{len(self._names)}"
        self._scope[f"op_{name[1:]}"] = node.target
        read = [leaf for leaf in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(leaf, Size)]
        before = self._sizes_of(node.all_input_nodes)
        # Of numbers that are no integers, 0.0 and -0.0 would be one.
        if before is not None and not is_random(node.target) and all(size.expression.is_integer for size in read):
            self._of_sizes[node] = before | dict.fromkeys(map(self._written, read))
        return f"{name} = op_{name[1:]}({arguments})"

    def _sizes_of(self, nodes: Iterable[torch.fx.Node]) -> dict[str, None] | None:
        """The sizes that decide some nodes; None if something else does as well."""
        found = [self._of_sizes.get(node) for node in nodes]
        return None if None in found else {size: None for sizes in found for size in sizes or ()}

    def _read(self, stage: int, before: str) -> Iterator[str]:
        """What a stage makes known of sizes, and whether its guards hold."""
        reader = self._domain.guards.reader(stage)
        if reader is None:
            yield from (f"known = {before}" for _ in range(not stage))
            return
        self._scope[f"read_{stage}"] = reader
        yield f"known = read_{stage}(tensors, floats, {before})"
        yield "if known is None:"
        yield "    return None"

    def _written(self, leaf: Any) -> str:
        if isinstance(leaf, torch.fx.Node):
            return self._names[leaf]
        if not isinstance(leaf, Size):
            return constant_text(leaf, self._scope)
        if self._sizes is not None:
            return constant_text(self._domain.guards.value(leaf, self._sizes), self._scope)
        text = self._domain.guards.text(leaf, "known[{!r}]")
        if text is None:
            return f"{constant_text(self._domain.guards.value, self._scope)}({constant_text(leaf, self._scope)}, known)"
        return text

    def _differs(self, predicate: Predicate, number: str) -> str:
        """That a number is not the one of a predicate."""
        if isinstance(predicate.value, bool):
            return f"{number} is not {predicate.value}"
        return f"not {constant_text(predicate.holds, self._scope)}({number})"


def _read_by(entry: Entry) -> Iterator[torch.fx.Node]:
    """The nodes that have to be known for an entry."""
    yield entry.node
    for node in entry.order:
        yield from node.all_input_nodes
