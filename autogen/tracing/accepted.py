"""Which dtypes and numbers an op takes: of that, fake tensors know less than the op.

A difference of booleans, or a number that a half cannot hold, is an error of torch's only when the op runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten

# Ops that keep the number of dimensions in mind, and not the sizes, beside those that torch calls pointwise.
_LIKE_POINTWISE = {
    aten._log_softmax.default,
    aten._softmax.default,
    aten.binary_cross_entropy.default,
    aten.binary_cross_entropy_with_logits.default,
    aten.huber_loss.default,
    aten.log_sigmoid_forward.default,
    aten.logsumexp.default,
    aten.masked_fill_.Scalar,
    aten.mean.default,
    aten.mean.dim,
    aten.mse_loss.default,
    aten.smooth_l1_loss.default,
    aten.soft_margin_loss.default,
    aten.soft_margin_loss_backward.default,
    aten.var.correction,
}

# Ops whose formulas would take tensors of several dtypes, which they do not.
_PRODUCTS = {aten.addmm.default, aten.addmv.default, aten.baddbmm.default, aten.mv.default}

# Where the number is that a tensor is filled with.
_FILLED_WITH = {
    aten.constant_pad_nd.default: 2,
    aten.fill.Scalar: 1,
    aten.fill_.Scalar: 1,
    aten.full.default: 1,
    aten.full_like.default: 1,
    aten.new_full.default: 2,
}

_SAMPLES = {torch.SymBool: True, torch.SymFloat: 1.0, torch.SymInt: 1}


def require_accepted(func: Any, args: Any, kwargs: Any) -> None:
    """Run a pointwise op, or a product, on tensors of one element, if it may not take their dtypes or its numbers.

    Filling is tried on two elements, as a single one takes numbers that it cannot hold.

    Raises:
        Exception: what torch raises.
    """
    if func in _FILLED_WITH:
        place = _FILLED_WITH[func]
        number = args[place] if len(args) > place else 0
        dtype = kwargs.get("dtype") or (args[0].dtype if isinstance(args[0], torch.Tensor) else None)
        args, kwargs, func = ([2], number), {"dtype": dtype}, aten.full.default
    elif torch.Tag.pointwise not in func.tags and func not in _LIKE_POINTWISE and func not in _PRODUCTS:
        return
    leaves, spec = pytree.tree_flatten((args, kwargs))
    is_mixed = func in _PRODUCTS and len({leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)}) > 1
    if not is_mixed and all(_is_taken(leaf) for leaf in leaves):
        return
    with _disable_current_modes():
        args, kwargs = pytree.tree_unflatten(map(_sample, leaves), spec)
        try:
            func(*args, **kwargs)
        except NotImplementedError:
            if not all(leaf.is_floating_point() for leaf in leaves if isinstance(leaf, torch.Tensor)):
                raise  # else of a narrow float, which says something of the CPU only


def _is_taken(leaf: Any) -> bool:
    """Whether every op takes an argument: a float tensor, or a number that all floats can hold, and that is not 0."""
    if isinstance(leaf, torch.Tensor):
        return leaf.is_floating_point()
    if isinstance(leaf, (bool, torch.SymBool)):  # which no tensor can be subtracted from
        return False
    return not isinstance(leaf, (int, float)) or 0 < abs(leaf) <= torch.finfo(torch.half).max


def _sample(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return torch.ones((1,) * leaf.dim(), dtype=leaf.dtype, device="cpu")
    return _SAMPLES.get(type(leaf), leaf)
