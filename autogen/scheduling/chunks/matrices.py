"""The matrix products of a chunk: which extern steps work by rows, and how each runs on some rows at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import sympy
import torch

from autogen import ir
from autogen.ir import Buffer
from autogen.ir.names import unique
from autogen.ir.torch_step import Operand, TorchStep
from autogen.scheduling.chunks.body import NotByRowsError, of_chunk
from autogen.settings.options import Sums

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default)
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_SLAB = 4096  # rows of a total whose product is made at once


class Matrix(NamedTuple):
    """A matrix of the rows of a chunk, by its name there; `is_turned` if they are its columns."""

    name: str
    is_turned: bool = False


class Sliced(NamedTuple):
    """What torch reads of a tensor in a chunk: its rows, along `dim`."""

    whole: str
    name: str
    dim: int


@dataclass
class Matrices:
    """Products of matrices whose rows are those of a chunk.

    Args:
        count: how many rows there are in all.
        taken: names of buffers.
        sums: in which precision totals are added up, of products in half precision.
        known: the matrices of a chunk, by the name of the whole.
        steps: what torch does in a chunk.
        sliced: what it reads by rows.
        rows: results of which each chunk makes its rows, by name.
        totals: results to which each chunk adds, by the name of what they are in the loss.
    """

    count: sympy.Expr
    taken: set[str]
    sums: Sums
    known: dict[str, Matrix] = field(default_factory=dict)
    steps: list[TorchStep] = field(default_factory=list)
    sliced: dict[tuple[str, int], Sliced] = field(default_factory=dict)
    rows: dict[str, Buffer] = field(default_factory=dict)
    totals: dict[str, Buffer] = field(default_factory=dict)

    def begin(self, step: TorchStep) -> None:
        """A product that kernels read."""
        (result,), (arguments, keywords) = step.results, step.arguments
        assert result is not None
        *bias, left, right = (each.name for each in arguments)
        operands = tuple(map(Operand, (*bias, self._slice(left, 0), right)))
        self._call(step, step.target, operands, of_chunk(result, result.shape[1]), **keywords)
        self.known[result.name] = Matrix(result.name)

    def add(self, step: TorchStep) -> None:
        """A step that reads matrices of the chunk.

        Raises:
            NotByRowsError: it is not known how to do it by rows.
        """
        arguments, result = step.arguments[0], step.results[0]
        own = self.known.get(step.reads[0])
        if result is not None and own is not None and step.target is aten.permute.default and arguments[1] == [1, 0]:
            self.known[result.name] = Matrix(own.name, not own.is_turned)
        elif result is not None and own is not None and step.target in _VIEWS and result.shape[0] == self.count:
            self.known[result.name] = own
        elif result is not None and step.target is aten.mm.default:
            self._multiply(step, result, *(each.name for each in arguments))
        else:
            raise NotByRowsError(f"torch runs {step.name} on all rows at once")

    def _multiply(self, step: TorchStep, result: Buffer, left: str, right: str) -> None:
        a, b = self.known.get(left), self.known.get(right)
        if a is not None and not a.is_turned and b is None:
            self.rows[result.name] = result
            made = replace(of_chunk(result, result.shape[1]), name=self._new(f"{result.name}_made"))
            self._call(step, product_into, (Operand(result.name), Operand(a.name), Operand(right)), made)
        elif (a is None or a.is_turned) and (b is None or not b.is_turned):
            total = self.total(result)
            self._call(
                step,
                add_product,
                (
                    Operand(total.name),
                    Operand(self._slice(left, 1) if a is None else a.name),
                    Operand(self._slice(right, 0) if b is None else b.name),
                    a is not None,
                ),
                replace(total, name=self._new(f"{total.name}_next")),
            )
        else:
            raise NotByRowsError(f"torch runs {step.name} on all rows at once")

    def total(self, result: Buffer) -> Buffer:
        """What chunks add to, for a result."""
        dtype = ir.compute_dtype(result.dtype) if self.sums == "float32" else result.dtype
        name = result.name if dtype == result.dtype else self._new(f"{result.name}_sum")
        strides = ir.contiguous_strides(result.shape)
        self.totals[result.name] = Buffer(name, dtype, result.shape, strides, "torch")
        return self.totals[result.name]

    def add_part(self, part: Buffer, total: Buffer) -> None:
        """Have what a kernel sums up over the rows of a chunk added to a total."""
        made = replace(total, name=self._new(f"{total.name}_next"))
        operands = Operand(total.name), Operand(part.name)
        self.steps.append(TorchStep(add, (operands, {}), (made,), None, backward=True))

    def _slice(self, name: str, dim: int) -> str:
        if (name, dim) not in self.sliced:
            self.sliced[name, dim] = Sliced(name, self._new(f"{name}_rows"), dim)
        return self.sliced[name, dim].name

    def _new(self, name: str) -> str:
        name = unique(name, self.taken)
        self.taken.add(name)
        return name

    def _call(self, step: TorchStep, target: Any, operands: tuple[Any, ...], result: Buffer, **keywords: Any) -> None:
        made = TorchStep(target, (operands, keywords), (result,), step.line, backward=step.backward)
        self.steps.append(made)


def product_into(rows: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A product, written to the rows of a chunk."""
    return torch.mm(left, right, out=rows)


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, is_turned: bool) -> torch.Tensor:
    """A product, added to a total that may be in single precision where the factors are in half; of `left` turned."""
    left = left.t() if is_turned else left
    if total.dtype == left.dtype:
        return torch.addmm(total, left, right, out=total)
    if total.is_cuda:  # cuBLAS adds in single precision
        return torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    wide = right.to(total.dtype)
    for start in range(0, total.shape[0], _SLAB):
        part = slice(start, start + _SLAB)
        torch.addmm(total[part], left[part].to(total.dtype), wide, out=total[part])
    return total


def add(total: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A sum over the rows of a chunk, added to a total."""
    return total.add_(part)


def scale(gradient: torch.Tensor, upstream: torch.Tensor) -> torch.Tensor:
    """A gradient for another upstream gradient than 1, in its place: nobody else has it."""
    return gradient.mul_(upstream)


def scale_copy(gradient: torch.Tensor, upstream: torch.Tensor) -> torch.Tensor:
    """The same, of what somebody else keeps."""
    return gradient * upstream
