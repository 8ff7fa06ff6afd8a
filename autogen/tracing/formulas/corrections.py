"""ATen ops whose fake implementation is missing or differs from the real one: by which formula each is recorded.

Of some the fake implementation takes what the real one refuses; of others it gives another dtype, or asks for sizes as
integers. A formula that returns NotImplemented leaves the op as it is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.fx.experimental.symbolic_shapes import guard_or_false

from autogen.tracing.aten import checks
from autogen.tracing.formulas import padding, resizing

aten = torch.ops.aten


def _huber_loss(input: Tensor, target: Tensor, *options: Any) -> Any:
    if input.dtype == target.dtype:
        return NotImplemented
    wide = torch.promote_types(input.dtype, target.dtype)
    return aten.huber_loss(input.to(wide), target.to(wide), *options).to(input.dtype)


def _in_dtype_of_first(op: Any, position: int) -> Callable[..., Any]:
    """`op` with the argument at `position` cast to the dtype of the first, as it does not promote."""

    def cast(*args: Any) -> Any:
        other = args[position] if position < len(args) else None
        if other is None or other.dtype == args[0].dtype:
            return NotImplemented
        return op(*args[:position], other.to(args[0].dtype), *args[position + 1 :])

    return cast


def _in_dtype_of_target(input: Tensor, target: Tensor, *rest: Any) -> Any:
    """`binary_cross_entropy_with_logits`, whose fake result is of the wider dtype before torch 2.12."""
    tensors = [each for each in (input, target, *rest) if isinstance(each, Tensor)]
    if all(each.dtype == target.dtype for each in tensors):
        return NotImplemented
    wide = functools.reduce(torch.promote_types, (each.dtype for each in tensors))
    given = (each.to(wide) if isinstance(each, Tensor) else each for each in (input, target, *rest))
    return aten.binary_cross_entropy_with_logits(*given).to(target.dtype)


def _index_add(op: Any) -> Callable[..., Tensor]:
    """torch's formula for the op `index_add`, for a source that is not broadcast."""

    def add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
        wanted, given = [list(each.shape) for each in (input, source)]
        if wanted and source.dim() == input.dim():
            wanted[dim] = given[dim]
        checks.refuse(wanted != given, f"a source of the shape {given} for rows of {wanted}")
        result: Tensor = decomposition_table[op](input, dim, index.reshape(-1), source, alpha=alpha)
        return result

    return add


def _multilabel_margin_loss(input: Tensor, target: Tensor, reduction: int) -> Any:
    """Of a single row, the fake loss has a dimension too many."""
    if input.dim() > 1 or reduction != torch.nn._reduction.get_enum("none"):
        return NotImplemented
    loss, is_target = aten.multilabel_margin_loss_forward(input.reshape(1, -1), target.reshape(1, -1), reduction)
    return loss.reshape(()), is_target.reshape(target.shape)


def _shrink_backward(grad: Tensor, input: Tensor, lambd: float) -> Tensor:
    """The gradient of `hardshrink` and `softshrink`, whose ops refuse symbolic sizes."""
    return grad.masked_fill(input.abs() <= lambd, 0)


def _rrelu(
    input: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Tensor:
    """`rrelu_with_noise`, which writes the slopes that it draws to `noise`: to be read by its gradient."""
    if not training:
        return aten.leaky_relu(input, (lower + upper) / 2)
    result, drawn = aten.rrelu_with_noise_functional(input, noise, lower, upper, training, generator)
    noise.copy_(drawn)
    return result


def _rrelu_(input: Tensor, *options: Any, **more: Any) -> Tensor:
    return input.copy_(_rrelu(input, *options, **more))


def _with_degrees_of_freedom(
    input: Tensor, dims: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    """Of a variance without a degree of freedom, autograd divides by 0, which Python does not."""
    # A single number has its dimensions 0 and -1 in words only.
    count = math.prod(input.shape[dim] for dim in dims or range(input.dim())) if input.dim() else 1
    is_without = guard_or_false(count > 0) and guard_or_false(count <= (1 if correction is None else correction))
    checks.refuse(is_without, "a variance without a degree of freedom")
    return NotImplemented


def _bucketize(input: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    """Of no boundaries, torch's formula has the dtype of the input."""
    if len(boundaries):
        return decomposition_table[aten.bucketize.Tensor](input, boundaries, out_int32=out_int32, right=right)
    return torch.zeros_like(input, dtype=torch.int32 if out_int32 else torch.int64)


def _repeat(input: Tensor, repeats: Sequence[Any]) -> Any:
    """Copies in the order of memory of torch's own; those of its formula may be transposed, and have no views."""
    shape = [1] * (len(repeats) - input.dim()) + list(input.shape)
    if len(repeats) < input.dim() or not repeats:
        return NotImplemented
    pairs = list(zip(repeats, shape, strict=True))
    copies = input.reshape([each for size in shape for each in (1, size)]).expand([each for p in pairs for each in p])
    return copies.clone(memory_format=torch.contiguous_format).view([count * size for count, size in pairs])


def _bernoulli(self: Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Tensor:
    """Draws for elements in the order in which they lie in memory; what torch has to return them, in that of places."""
    if self.is_contiguous():
        return NotImplemented
    strides = self.stride()
    order = sorted(range(self.dim()), key=lambda dim: -strides[dim])
    drawn = self.new_empty([self.shape[dim] for dim in order]).bernoulli_(p, generator=generator)
    return self.copy_(drawn.permute([order.index(dim) for dim in range(self.dim())]))


def _normal(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    """Standard normal draws, which `randn` makes without a tensor to begin with."""
    is_standard = (mean, std) == (0.0, 1.0) and self.dtype.is_floating_point
    if not is_standard or generator is not None or not self.is_contiguous():
        return NotImplemented
    return self.copy_(torch.randn(self.shape, dtype=self.dtype, device=self.device))


def _polygamma_(input: Tensor, order: int) -> Tensor:
    """`polygamma_`, whose arguments have another order than those of `polygamma`."""
    return input.copy_(torch.polygamma(order, input))


def _all(*formulas: Callable[..., Any]) -> Callable[..., Any]:
    """Some formulas in turn, up to the first that applies."""

    def apply(*args: Any, **kwargs: Any) -> Any:
        results = (formula(*args, **kwargs) for formula in formulas)
        return next((result for result in results if result is not NotImplemented), NotImplemented)

    return apply


_INTEGER_DIVISIONS = (
    *(aten.div.Tensor_mode, aten.div_.Tensor_mode, aten.fmod.Tensor, aten.fmod_.Tensor),
    aten.floor_divide.default,
    *(aten.remainder.Tensor, aten.remainder_.Tensor, aten.remainder.Scalar_Tensor),
)
_PRODUCTS = (aten.addmm.default, aten.addmv.default, aten.baddbmm.default)
_WRITES_AT_INDICES = (aten.index_put.default, aten.index_put_.default)
_EXTREMES = (aten.max.default, aten.max.dim, aten.min.default, aten.min.dim)

# Ops whose fake implementation is missing, takes what the real one refuses, or gives another dtype, or that cannot be
# recorded as they are. A check of values is made where torch makes it on the CPU; on a GPU it would wait for that.
CORRECTIONS: dict[Any, Callable[..., Any]] = {
    aten.bernoulli_.float: _bernoulli,
    aten.normal_.default: _normal,
    aten._is_all_true.default: aten.all.default,
    aten._is_any_true.default: aten.any.default,
    aten.binary_cross_entropy.default: _all(
        checks.of_one_dtype(0, 1),
        checks.within(0, 1, 2),
        checks.in_unit_interval,
        _in_dtype_of_first(aten.binary_cross_entropy.default, 2),
    ),
    aten.binary_cross_entropy_with_logits.default: _all(checks.within(1, 0, 2, 3), _in_dtype_of_target),
    aten.bucketize.Tensor: _bucketize,
    **dict.fromkeys(_INTEGER_DIVISIONS, checks.not_by_zero),
    aten.floor_divide_.Tensor: functools.partial(aten.div_.Tensor_mode, rounding_mode="floor"),
    aten.constant_pad_nd.default: padding.constant_pad_nd,
    aten.diagonal_scatter.default: checks.of_part(aten.diagonal.default),
    **{op: _all(checks.of_product, decomposition_table[op]) for op in _PRODUCTS},
    **dict.fromkeys(_WRITES_AT_INDICES, checks.at_indices),
    aten.select_scatter.default: checks.of_part(aten.select.int),
    aten.slice_scatter.default: checks.of_part(aten.slice.Tensor),
    aten.hardshrink_backward.default: _shrink_backward,
    aten.huber_loss.default: _huber_loss,
    aten.huber_loss_backward.default: checks.of_one_dtype(1, 2),
    **dict.fromkeys(_EXTREMES, checks.of_some_elements),
    aten.multilabel_margin_loss_forward.default: _multilabel_margin_loss,
    aten.nll_loss_forward.default: _all(checks.of_one_dtype(0, 2), checks.of_class_index(torch.int64, torch.uint8)),
    aten.nll_loss2d_forward.default: _all(
        checks.of_one_dtype(0, 2), checks.of_each_place, checks.of_class_index(torch.int64)
    ),
    aten.index_add.default: _index_add(aten.index_add.default),
    aten.index_add_.default: _index_add(aten.index_add_.default),
    aten.reflection_pad1d.default: padding.reflection_pad(aten.reflection_pad1d.default),
    aten.reflection_pad2d.default: padding.reflection_pad(aten.reflection_pad2d.default),
    aten.reflection_pad3d.default: padding.reflection_pad(aten.reflection_pad3d.default),
    aten.reflection_pad1d_backward.default: padding.reflection_pad_backward,
    aten.reflection_pad2d_backward.default: padding.reflection_pad_backward,
    aten.reflection_pad3d_backward.default: padding.reflection_pad_backward,
    aten.repeat.default: _repeat,
    aten.rrelu_with_noise.default: _rrelu,
    aten.rrelu_with_noise_.default: _rrelu_,
    aten.smooth_l1_loss.default: checks.positive_beta,
    aten._softmax.default: checks.along_dimension,
    aten.soft_margin_loss.default: _all(checks.within(0, 1), _in_dtype_of_first(aten.soft_margin_loss.default, 1)),
    aten.softshrink_backward.default: _shrink_backward,
    aten.std.correction: _with_degrees_of_freedom,
    aten.std_mean.correction: _with_degrees_of_freedom,
    aten.var.correction: _with_degrees_of_freedom,
    aten.var_mean.correction: _with_degrees_of_freedom,
    **dict.fromkeys((aten.masked_fill_.Scalar, aten.masked_fill_.Tensor), checks.of_mask),
    aten.polygamma_.default: _polygamma_,
    aten._linalg_check_errors.default: checks.were_factorised,
    **dict.fromkeys((aten._assert_async.default, aten._assert_async.msg), checks.is_asserted),
    **{op: resizing.resized(op) for op in resizing.RESIZING},
}
