"""Checks: whether a call takes the branches that its loss took when it was traced, written out as one function.

`if (x < 0).any():` is, for tensors of one geometry::

    def holds(given):
        if is_autocast():
            with without_autocast():
                return holds(given)
        is_enabled = is_grad_enabled()
        set_grad_enabled(False)
        try:
            t0, = given
            v0 = op_0(t0, 0)
            v1 = op_1(v0)
            if v1.item() is not False:
                return False
            return True
        finally:
            set_grad_enabled(is_enabled)

What comes after a check is computed only if that holds: it may be an error if not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from autogen.torch_step import call_text, constant_text
from autogen.tracing.entries import Predicate, Size
from autogen.tracing.trace import Domain

Holds = Callable[[Sequence[torch.Tensor]], bool]


def checks_of(domain: Domain, sizes: Mapping[str, Any]) -> Holds:
    """The predicates of a trace, for calls of certain `sizes`."""
    scope: dict[str, Any] = {
        "is_autocast": torch._C._is_any_autocast_enabled,
        "without_autocast": torch._C._DisableAutocast,
        "is_grad_enabled": torch.is_grad_enabled,
        "set_grad_enabled": torch._C._set_grad_enabled,
    }
    exec(compile("\n".join(_lines(domain, sizes, scope)), "<checks>", "exec"), scope)
    written: Holds = scope["holds"]
    return written


def _lines(domain: Domain, sizes: Mapping[str, Any], scope: dict[str, Any]) -> Iterator[str]:
    inputs = [f"t{k}" for k in range(len(domain.inputs))]
    names = dict(zip(domain.inputs, inputs, strict=True))
    names |= {node: constant_text(tensor, scope) for node, tensor in domain.constants.items()}

    def written(leaf: Any) -> str:
        if isinstance(leaf, torch.fx.Node):
            return names[leaf]
        return constant_text(domain.guards.value(leaf, sizes) if isinstance(leaf, Size) else leaf, scope)

    yield "def holds(given):"
    yield "    if is_autocast():"  # the casts of autocast are part of the graph already
    yield "        with without_autocast():"
    yield "            return holds(given)"
    yield "    is_enabled = is_grad_enabled()"
    yield "    set_grad_enabled(False)"
    yield "    try:"
    yield f"        {''.join(f'{name}, ' for name in inputs)}= given"
    for predicate in domain.predicates:
        for node in predicate.order:
            arguments = call_text((tuple(node.args), dict(node.kwargs)), written)
            k = len(names) - len(inputs)
            scope[f"op_{k}"], names[node] = node.target, f"v{k}"
            yield f"        v{k} = op_{k}({arguments})"
        yield f"        if {_differs(predicate, f'{names[predicate.node]}.item()', scope)}:"
        yield "            return False"
    yield "        return True"
    yield "    finally:"
    yield "        set_grad_enabled(is_enabled)"


def _differs(predicate: Predicate, number: str, scope: dict[str, Any]) -> str:
    """That a number is not the one of a predicate."""
    if isinstance(predicate.value, bool):
        return f"{number} is not {predicate.value}"
    return f"not {constant_text(predicate.holds, scope)}({number})"
