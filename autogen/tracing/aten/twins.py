"""Ops that write in place or to `out`, and the ops that return what these write: only the latter are recorded."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autogen.errors import SourceLine, UnsupportedOpError
from autogen.torch_step import is_random
from autogen.tracing.aten.aliases import is_where

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


@functools.cache
def writes_each_element(func: Any) -> bool:
    """Whether an op writes each element of its first argument, as computed from what is at the same place of others."""
    twin = functional_twin(func) if func._schema.is_mutable else None
    return twin is not None and torch.Tag.pointwise in twin.tags


@functools.cache
def writes_out(func: Any) -> bool:
    """Whether an op writes to its argument `out`."""
    return any(each.is_out for each in func._schema.arguments)


@functools.cache
def _returning_twin(func: Any) -> Any:
    """The op that returns what `func` writes to `out`, None if there is none."""
    given = [(each.name, str(each.type)) for each in func._schema.arguments if not each.is_out]
    packet = func._overloadpacket
    for op in (getattr(packet, name) for name in packet.overloads()):
        if not op._schema.is_mutable and [(each.name, str(each.type)) for each in op._schema.arguments] == given:
            return op
    return None


def write_out(func: Any, args: Any, kwargs: Any, where: SourceLine | None) -> torch.Tensor:
    """`out`, with what the op returns that writes there.

    Raises:
        UnsupportedOpError: there is none, or not all that `func` does is to write that: an `out` of another size is
            given this one, one of another dtype may decide in which it computes, and one that is also read may be
            refused.
    """
    twin, out = _returning_twin(func), kwargs.get("out")
    if twin is None or is_random(func) or not isinstance(out, torch.Tensor):
        raise UnsupportedOpError(str(func), where=where)
    kwargs = {name: value for name, value in kwargs.items() if name != "out"}
    read = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    if any(not _may_be_read(each, out, twin) for each in read):
        raise UnsupportedOpError(f"{func} on memory that it reads", where=where)
    result: torch.Tensor = twin(*args, **kwargs)
    if (result.shape, result.dtype, result.device) != (out.shape, out.dtype, out.device):
        raise UnsupportedOpError(f"{func} of another size, dtype or device than its result", where=where)
    return out.copy_(result)


def _may_be_read(tensor: torch.Tensor, out: torch.Tensor, op: Any) -> bool:
    """Whether an op that writes to `out` may read a tensor: one in other memory, or element by element."""
    is_elsewhere = tensor.untyped_storage()._cdata != out.untyped_storage()._cdata
    return is_elsewhere or (torch.Tag.pointwise in op.tags and is_where(tensor, out))
