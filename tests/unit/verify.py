"""Verify the rules of the IR."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from autogen import ir
from autogen.ir.ops import OPS


@dataclass(frozen=True)
class _In:
    """Where a rule is broken; a listing of the node, made only if it is printed."""

    node: ir.Node

    def __str__(self) -> str:
        return f"in {self.node!r}"


def verify(roots: Iterable[ir.Node]) -> None:
    """Raise `AssertionError` if a graph breaks a rule of the IR; run after every pass (see `tests/conftest.py`)."""
    for node in ir.topological(roots):
        where = _In(node)
        assert node.dtype == ir.compute_dtype(node.dtype), f"{node.dtype} is a storage dtype, {where}"
        if node.op == "const":
            assert not node.args and not node.axes, f"a constant depends on nothing, {where}"
        elif node.op == "scalar":
            assert not node.args and node.dtype.is_floating_point, f"a float is given, {where}"
        elif node.op == "index":
            assert not node.args and node.dtype == torch.int64, f"an index is an int64 leaf, {where}"
        elif node.op == "load":
            buffer, entries = node.attrs
            assert len(entries) == len(buffer.shape), f"rank of the index differs from the tensor's, {where}"
            places = sorted(str(s) for e in entries for s in e.free_symbols if ir.is_hole(s))
            expected = sorted(str(ir.hole(k)) for k in range(len(node.args)))
            assert places == expected, f"each argument fills one place, {where}"
            assert all(arg.dtype == torch.int64 for arg in node.args), f"an index is int64, {where}"
        elif node.op == "search":
            value, first = node.args
            assert node.dtype == value.dtype == torch.int64, f"a place is int64, {where}"
            assert first.op == "load" and not first.axes and not first.args, f"one place is the first, {where}"
        elif node.op == "cast":
            assert len(node.args) == 1 and node.args[0].dtype != node.dtype, f"a cast to itself, {where}"
        elif node.op == "reduce":
            kind, axes = node.attrs
            assert kind in ir.REDUCTIONS, f"unknown reduction {kind}, {where}"
            assert axes and not node.axes & set(axes), f"reduced axes are bound, {where}"
            assert node.dtype == node.args[0].dtype, f"a reduction keeps its dtype, {where}"
        elif node.op == "scan":
            kind, axes, _ = node.attrs
            assert kind in ir.SCANS and len(axes) == 1, f"unknown scan {kind} along {axes}, {where}"
            assert node.args[0].axes >= set(axes), f"what a scan combines depends on its axis, {where}"
            assert node.dtype == node.args[0].dtype != torch.bool, f"a scan keeps its dtype, {where}"
        else:
            assert node.op in OPS, f"unknown op {node.op}, {where}"
            assert node.dtype == OPS[node.op].result_dtype([a.dtype for a in node.args]), f"dtype rule, {where}"
