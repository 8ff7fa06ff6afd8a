"""Fake results that an op on small tensors tells of, without what torch asks of the symbols of sizes to find them.

That is dozens of comparisons for each op, and was more than half of a trace. Where tensors are contiguous, many ops
have contiguous results whose sizes are some of theirs: with a number of its own for each symbol, one call without
values finds out which, and with what dtype, for all calls that are alike.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

aten = torch.ops.aten

# Beside those that torch tags as pointwise: ops that raise where sizes differ that have to be equal, and ask no more.
_UNTAGGED = frozenset(
    {
        aten._log_softmax.default,
        aten._log_softmax_backward_data.default,
        aten._softmax.default,
        aten._softmax_backward_data.default,
        aten._to_copy.default,
        aten.all.default,
        aten.all.dim,
        aten.amax.default,
        aten.amin.default,
        aten.any.default,
        aten.any.dim,
        aten.argmax.default,
        aten.argmin.default,
        aten.binary_cross_entropy.default,
        aten.binary_cross_entropy_backward.default,
        aten.binary_cross_entropy_with_logits.default,
        aten.cumprod.default,
        aten.cumsum.default,
        aten.elu_backward.default,
        aten.full_like.default,
        aten.hardsigmoid_backward.default,
        aten.hardtanh_backward.default,
        aten.huber_loss.default,
        aten.huber_loss_backward.default,
        aten.leaky_relu_backward.default,
        aten.linalg_vector_norm.default,
        aten.log_sigmoid_backward.default,
        aten.masked_fill.Tensor,
        aten.masked_fill_.Scalar,
        aten.mean.default,
        aten.mean.dim,
        aten.mish_backward.default,
        aten.mse_loss.default,
        aten.mse_loss_backward.default,
        aten.nll_loss_backward.default,
        aten.nll_loss_forward.default,
        aten.nll_loss2d_backward.default,
        aten.nll_loss2d_forward.default,
        aten.norm.ScalarOpt_dim,
        aten.ones_like.default,
        aten.prod.default,
        aten.prod.dim_int,
        aten.smooth_l1_loss.default,
        aten.smooth_l1_loss_backward.default,
        aten.soft_margin_loss.default,
        aten.soft_margin_loss_backward.default,
        aten.softplus_backward.default,
        aten.sum.default,
        aten.sum.dim_IntList,
        aten.var.correction,
        aten.zeros_like.default,
    }
)
_PLAIN = (bool, float, int, str, torch.dtype, torch.layout, type(None))
_CONTIGUOUS = (torch.contiguous_format, torch.preserve_format)  # what these make of contiguous tensors
_REFUSALS = (AssertionError, IndexError, RuntimeError, TypeError, ValueError)  # by ops, as where sizes differ
_STAND_INS = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157)  # the sizes of small tensors


class _Kind(NamedTuple):
    """A tensor, as far as it tells of the result; a symbol among its sizes is one of `_STAND_INS`."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class _StandIns:
    """What stands for the symbols of a call, a number for each that differs from the others."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}  # by expression
        self._symbols: dict[int, Any] = {}

    def number(self, size: int | torch.SymInt) -> int | None:
        """What stands for a size, if it is a symbol; None if nothing can."""
        if type(size) is int:
            return None if size in _STAND_INS else size
        expression = size.node.expr  # type: ignore[union-attr]
        found = self._numbers.get(expression)
        if found is None and len(self._numbers) < len(_STAND_INS) and _is_large(size):
            found = self._numbers[expression] = _STAND_INS[len(self._numbers)]
            self._symbols[found] = size
        return found

    def kind(self, tensor: FakeTensor) -> _Kind | None:
        """What the result depends on, of a tensor whose dimensions have the order of those of a new one."""
        shape, strides = tensor.shape, tensor.stride()
        sizes = tuple(map(self.number, shape))
        if None in sizes:
            return None
        known = _strides(sizes, tuple(map(_expression, shape)), tuple(map(_expression, strides)))
        return None if known is None else _Kind(tensor.dtype, sizes, known)  # type: ignore[arg-type]

    def size(self, number: int) -> int | torch.SymInt:
        """What a number stands for."""
        return self._symbols.get(number, number)


def probed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of an op on fake tensors; None if it is not one that small tensors tell of."""
    if not _is_probed(func):
        return None
    if torch.Tag.pointwise in func.tags:
        _broadcast([each for each in args if type(each) is FakeTensor])
    kinds: list[Hashable] = []
    stand_ins = _StandIns()
    device: torch.device | None = None
    for each in (*args, *kwargs.values()):
        kind: Hashable = None
        if type(each) is FakeTensor:
            is_usual = each.constant is None and each.layout is torch.strided and not each.is_complex()
            if is_usual and (device is None or each.device == device):
                device, mode, kind = each.device, each.fake_mode, stand_ins.kind(each)
        elif type(each) in _PLAIN or (type(each) is torch.memory_format and each in _CONTIGUOUS):
            kind = type(each), each
        elif type(each) is torch.SymInt:
            number = stand_ins.number(each)
            kind = None if number is None else (int, number)
        elif type(each) is list and all(type(item) is int for item in each):
            kind = list, tuple(each)
        elif type(each) is torch.device and each == device:
            kind = torch.device, "meta"
        if kind is None:
            return None
        kinds.append(kind)
    if device is None:
        return None
    found = _probe(func, tuple(kinds), tuple(kwargs), torch.get_default_dtype())
    if found is None:
        return None
    if func._schema.is_mutable:
        return args[0]
    with in_kernel_invocation_manager(mode):
        made = [torch.empty(list(map(stand_ins.size, sizes)), dtype=dtype, device="meta") for dtype, sizes in found]
    results = [FakeTensor(mode, each, device) for each in made]
    return results[0] if len(func._schema.returns) == 1 else tuple(results)


def _broadcast(tensors: Sequence[FakeTensor]) -> None:
    """Guard that sizes are equal where torch would have to, at several times the cost: one symbol is left of them."""
    met: dict[int, torch.SymInt] = {}  # by dimension, from the last
    for tensor in tensors:
        for dim, size in enumerate(reversed(tensor.shape)):
            if isinstance(size, torch.SymInt) and _is_large(size):
                other = met.setdefault(dim, size)
                if other.node.expr != size.node.expr:
                    bool(other == size)


def _is_large(size: Any) -> bool:
    """Whether a size is known to be neither 0 nor 1, for which torch has other rules, and guards."""
    expression = size.node.expr
    if free_unbacked_symbols(expression):
        return False
    return bool(size.node.shape_env.bound_sympy(expression).lower >= 2)


@functools.cache
def _is_probed(func: Any) -> bool:
    if torch.Tag.pointwise not in func.tags and func not in _UNTAGGED:
        return False
    if torch.Tag.nondeterministic_seeded in func.tags:
        return False
    schema = func._schema
    aliases = [each.alias_info for each in (*schema.arguments, *schema.returns)]
    written = [each.alias_info is not None for each in schema.arguments]
    is_in_place = schema.is_mutable and written == [True, *[False] * (len(written) - 1)] and len(schema.returns) == 1
    return is_in_place or not any(aliases)


def _expression(number: int | torch.SymInt) -> Any:
    return number if type(number) is int else number.node.expr  # type: ignore[union-attr]


@functools.lru_cache(1024)
def _strides(numbers: tuple[int, ...], sizes: tuple[Any, ...], strides: tuple[Any, ...]) -> tuple[int, ...] | None:
    """Strides for a tensor of the sizes `numbers`, which stand for `sizes`; None if its dimensions may be in disorder.

    It is asked what symbols are, not what their values are, which guards would.
    """
    found: list[int] = []
    expected: Any = 1  # of a tensor without gaps
    stand_in = 1
    is_last = True  # of the dimensions that have places next to each other
    for number, size, stride in zip(reversed(numbers), reversed(sizes), reversed(strides), strict=True):
        if stride == 0 and number != 1:  # expanded
            found.append(0)
            continue
        if stride != expected:
            if is_last and number != 1:
                expected, stand_in = stride, 2
            elif type(stride) is int and type(expected) is int and stride > expected:
                expected = stand_in = stride
            else:
                return None
        found.append(stand_in)
        is_last = is_last and number == 1
        if number != 0:
            expected, stand_in = expected * size, stand_in * number
    return tuple(reversed(found))


@functools.lru_cache(4096)
def _probe(
    func: Any, kinds: tuple[Any, ...], names: tuple[str, ...], default_dtype: torch.dtype
) -> list[tuple[torch.dtype, tuple[int, ...]]] | None:
    """Dtypes and sizes of the results; None if they are not contiguous or of other sizes, or if the op raises, which is
    left to it.
    """
    known = {0, 1}.union(*(each.sizes for each in kinds if isinstance(each, _Kind)))
    with torch.utils._python_dispatch._disable_current_modes():
        given = [
            torch.empty_strided(each.sizes, each.strides, dtype=each.dtype, device="meta")
            if isinstance(each, _Kind)
            else each[1]
            for each in kinds
        ]
        positional = len(given) - len(names)
        try:
            result = func(*given[:positional], **dict(zip(names, given[positional:], strict=True)))
        except _REFUSALS:
            return None
        results = (result,) if isinstance(result, torch.Tensor) else result
        for each in results:
            if not known.issuperset(each.shape) or each.stride() != torch.empty(each.shape, device="meta").stride():
                return None
    return [(each.dtype, tuple(each.shape)) for each in results]
