"""Ops that write in place, and the ops that return what these write: only the latter are recorded."""

from __future__ import annotations

import functools
from typing import Any

import torch

aten = torch.ops.aten

# What changes how a tensor looks at its memory, and the view that it is then.
TURNED = {
    aten.detach_.default: aten.detach.default,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.unsqueeze_.default: aten.unsqueeze.default,
}

# Where an in-place op's functional twin does not have its name.
_TWINS = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.normal_.default: aten.normal_functional.default,
}


@functools.cache
def functional_twin(func: Any) -> Any:
    """The op that returns what an in-place op writes, None if there is none."""
    packet = getattr(aten, func._schema.name.removeprefix("aten::").rstrip("_"), None)
    return _TWINS.get(func) or getattr(packet, func._overloadname, None)
