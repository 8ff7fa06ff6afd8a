"""Which dtypes and numbers an op takes: of that, fake tensors know less than the op.

A difference of booleans, or a number that a half cannot hold, is an error of torch's only when the op runs.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten

# Ops that keep the number of dimensions in mind, and not the sizes, beside those that torch calls pointwise.
_LIKE_POINTWISE = {
    aten._log_softmax.default,
    aten._prelu_kernel.default,
    aten._softmax.default,
    aten.binary_cross_entropy.default,
    aten.binary_cross_entropy_with_logits.default,
    aten.huber_loss.default,
    aten.log_sigmoid_forward.default,
    aten.logcumsumexp.default,
    aten.logsumexp.default,
    aten.masked_fill_.Scalar,
    aten.mean.default,
    aten.mean.dim,
    aten.mse_loss.default,
    aten.rsub.Tensor,
    aten.smooth_l1_loss.default,
    aten.soft_margin_loss.default,
    aten.soft_margin_loss_backward.default,
    aten.std.correction,
    aten.std_mean.correction,
    aten.var.correction,
    aten.var_mean.correction,
}

# Ops that make images of another size, of floats and, some of them, of bytes.
_RESIZING = {
    *(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default),
    *(aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest3d.default),
    *(aten._upsample_nearest_exact1d.default, aten._upsample_nearest_exact2d.default),
    *(aten._upsample_nearest_exact3d.default, aten.upsample_linear1d.default, aten.upsample_bilinear2d.default),
    *(aten.upsample_trilinear3d.default, aten.upsample_bicubic2d.default),
}

# Ops whose formulas would take tensors of several dtypes, which they do not, beside those of indices.
_OF_ONE_DTYPE = {
    *(aten.addmm.default, aten.addmv.default, aten.baddbmm.default, aten.mv.default, aten.linalg_cross.default),
    *(aten.index_add.default, aten.index_add_.default, aten.index_copy.default, aten.index_copy_.default),
    *(aten.index_put.default, aten.index_put_.default),  # but for one value
    *(aten.lerp.Scalar, aten.lerp.Tensor, aten.lerp_.Scalar, aten.lerp_.Tensor),
    *(aten.native_batch_norm.default, aten.native_group_norm.default, aten.native_layer_norm.default),
}

_TRIED = (_LIKE_POINTWISE, _RESIZING, _OF_ONE_DTYPE)


def _put(x: torch.Tensor, indices: Any, values: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
    """Two values at indices: where a mask is, one value would be of any dtype."""
    return x.new_zeros(2), [torch.arange(2)], values if values.dim() == 0 else values.new_zeros(2)


# Their arguments for tensors of one element, where these tell sizes.
_OF_ONE_ELEMENT: dict[Any, Callable[..., tuple[Any, ...]]] = {
    aten.index_put.default: _put,
    aten.index_put_.default: _put,
    aten.native_group_norm.default: lambda x, weight, bias, *sizes: (x, weight, bias, 1, 1, 1, 1, *sizes[4:]),
    aten.native_layer_norm.default: lambda x, shape, *rest: (x, [1] * len(shape), *rest),
}

# Where the number is that a tensor is filled with.
_FILLED_WITH = {
    aten.constant_pad_nd.default: 2,
    aten.fill.Scalar: 1,
    aten.fill_.Scalar: 1,
    aten.full.default: 1,
    aten.full_like.default: 1,
    aten.new_full.default: 2,
    aten.scalar_tensor.default: 0,
}

_SAMPLES = {torch.SymBool: True, torch.SymInt: 1}
_COMPUTED_WITH = ("number", "Optional[number]", "float", "Optional[float]", "Tensor")  # which may be a number, too


def require_accepted(func: Any, args: Any, kwargs: Any) -> None:
    """Run an op on tensors of one element, if it may not take their dtypes or its numbers.

    Filling is tried on two elements, as a single one, which a scalar is, takes numbers that halves cannot hold.

    Raises:
        Exception: what torch raises.
    """
    if func in _FILLED_WITH:
        place = _FILLED_WITH[func]
        number = args[place] if len(args) > place else 0
        dtype = kwargs.get("dtype") or (args[0].dtype if isinstance(args[0], torch.Tensor) else None)
        shape = [] if func is aten.scalar_tensor.default else [2]
        args, kwargs, func = (shape, number), {"dtype": dtype}, aten.full.default
    elif torch.Tag.pointwise not in func.tags and not any(func in ops for ops in _TRIED):
        return
    leaves, spec = pytree.tree_flatten((args, kwargs))
    if func in (aten.index_put.default, aten.index_put_.default) and _is_filling(*args):
        return
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    dtypes = {kwargs.get("dtype"), *(tensor.dtype for tensor in tensors)} - {None}
    leaves = [_as_large(leaf, dtypes) if isinstance(leaf, torch.SymFloat) else leaf for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    is_mixed = func in _OF_ONE_DTYPE and len({tensor.dtype for tensor in tensors}) > 1
    is_of_floats = all(dtype.is_floating_point for dtype in dtypes)
    if is_of_floats and not is_mixed and all(map(_is_taken, _numbers(func, args, kwargs))):
        return
    size = 3 if func is aten.linalg_cross.default else 1
    value = 0 if func in _OF_ONE_DTYPE else 1  # which is an index
    with _disable_current_modes(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one element, which the loss has not
        args, kwargs = pytree.tree_unflatten([_sample(leaf, size, value) for leaf in leaves], spec)
        args = _OF_ONE_ELEMENT[func](*args) if func in _OF_ONE_ELEMENT else args
        try:
            func(*args, **kwargs)
        except NotImplementedError:
            is_of_narrow = any(tensor.dtype.itemsize < 4 for tensor in tensors)
            if not is_of_narrow or not all(tensor.is_floating_point() for tensor in tensors):
                raise  # else of a narrow float, which says something of the CPU only


def _is_filling(x: Any, indices: Any, values: torch.Tensor, *rest: Any) -> bool:
    """Whether one value is written where a mask is, which is then of any dtype."""
    has_mask = any(each is not None and each.dtype == torch.bool for each in indices)
    return has_mask and all(isinstance(size, int) and size == 1 for size in values.shape)


def _as_large(number: torch.SymFloat, dtypes: set[torch.dtype]) -> float:
    """A float that halves can hold if they can hold one that varies, which is what the trace is for; else one that they
    cannot.
    """
    most = min((torch.finfo(dtype).max for dtype in (torch.half, torch.bfloat16) if dtype in dtypes), default=None)
    return 1.0 if most is None or -most <= number <= most else 2 * most


@functools.cache
def _places(func: Any) -> tuple[tuple[int, str], ...]:
    """Where an op is given the numbers that it computes with, which are not dimensions, sizes or flags."""
    arguments = enumerate(func._schema.arguments)
    return tuple((k, argument.name) for k, argument in arguments if str(argument.type) in _COMPUTED_WITH)


def _numbers(func: Any, args: Any, kwargs: Any) -> list[Any]:
    return [args[k] if k < len(args) else kwargs.get(name) for k, name in _places(func)]


def _is_taken(leaf: Any) -> bool:
    """Whether every op of floats takes a number, as all of them can hold it, and it is not 0."""
    if isinstance(leaf, (bool, torch.SymBool)):  # which no tensor can be subtracted from
        return False
    return not isinstance(leaf, (int, float)) or 0 < abs(leaf) <= torch.finfo(torch.half).max


def _sample(leaf: Any, size: int, value: int) -> Any:
    if isinstance(leaf, torch.Tensor):
        return torch.full((size,) * leaf.dim(), value, dtype=leaf.dtype, device="cpu")
    return _SAMPLES.get(type(leaf), leaf)
