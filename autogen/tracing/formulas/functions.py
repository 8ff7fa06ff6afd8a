"""torch's functions that cannot be traced as they are, or would make a trace for each number: their formulas.

`multi_margin_loss` is one, as torch has no fake implementation of its backward. While a loss is traced, a call to it
runs the formula below; outside a trace nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from autogen.errors import UnsupportedOpError
from autogen.tracing.aten import checks
from autogen.tracing.formulas import products, resizing
from autogen.tracing.formulas.arguments import reduced, reduction_of, widened
from autogen.tracing.formulas.bindings import TAKINGNUMBERS
from autogen.tracing.formulas.by_numbers import BY_NUMBERS
from autogen.tracing.formulas.cross_entropy import cross_entropy
from autogen.tracing.source import current_statement
from autogen.tracing.symbols import NUMBERS


class FormulaMode(TorchFunctionMode):
    """Replaces the functions of `FORMULAS` by their formula; `set_data` hears of new data in a tensor, and `read` of a
    tensor that is asked what no trace knows. A distribution need not look at what `takes` takes for valid.
    """

    def __init__(
        self,
        set_data: Callable[[Tensor, Tensor], None],
        read: Callable[[Tensor, str], None],
        takes: Callable[[Tensor], bool],
    ) -> None:
        super().__init__()
        self._set_data = set_data
        self._read = read
        self._takes = takes

    def __torch_function__(
        self,
        func: Any,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func == _SET_DATA:
            return self._set_data(*args)
        if func is torch._is_all_true and self._takes(*args):
            return True
        if func in _UNKNOWN:
            self._read(args[0], _UNKNOWN[func])
        return FORMULAS.get(func, func)(*args, **(kwargs or {}))


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`sum_{c != y} max(0, margin - x_y + x_c)^p * w_y / C`, as `torch.nn.functional.multi_margin_loss`."""
    reduction = reduction_of(reduction, size_average, reduce)
    mode = torch.nn._reduction.get_enum(reduction)  # which refuses what is none
    if not input.is_floating_point():
        raise NotImplementedError(f"multi_margin_loss of {input.dtype}")
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    if target.dtype != torch.int64:
        raise RuntimeError(f"expected scalar type Long but found {target.dtype}")
    if weight is not None and weight.dim() != 1:
        raise ValueError("weight must be one-dimensional")
    if torch.is_autocast_enabled(input.device.type):  # in full precision, as torch's own
        input, weight = widened(input), None if weight is None else widened(weight)
    scores = input.reshape(1, -1) if input.dim() < 2 else input
    labels = target.reshape(-1)
    if scores.dim() != 2 or scores.shape[1] == 0:
        raise RuntimeError(f"input should be a vector or a matrix of scores, got: {list(input.shape)}")
    if target.dim() > 1 or labels.shape[0] != scores.shape[0]:
        raise RuntimeError(f"inconsistent target size, got: {list(target.shape)}")
    classes = scores.shape[1]
    if weight is not None:
        is_other_dtype = weight.dtype != input.dtype and labels.shape[0] > 0  # of no rows, torch takes any
        if weight.shape[0] != classes or weight.requires_grad or is_other_dtype:
            raise RuntimeError(f"a weight that torch refuses: {weight.dtype} {list(weight.shape)}")
        weight = weight.to(input.dtype)
    if target.device.type == "cpu" and ((labels < 0) | (labels >= classes)).any():
        raise RuntimeError("target out of range")
    label = labels.unsqueeze(1)
    violation = margin - scores.gather(1, label) + scores
    is_positive, is_other = violation > 0, torch.arange(classes, device=input.device) != label
    violation = violation.where(is_positive, 0.0).where(is_other, 0.0)
    if p == 2:
        violation = violation * violation
    if weight is not None:
        violation = violation * weight[labels].unsqueeze(1).where(is_positive, 0.0).where(is_other, 0.0)
    loss = violation.sum(dim=1) / classes
    if mode == torch.nn._reduction.get_enum("mean"):
        return loss.mean() if loss.shape[0] else loss.sum()  # torch's mean of no loss is 0 here
    if mode == torch.nn._reduction.get_enum("sum"):
        return loss.sum()
    return loss.reshape(()) if target.dim() == 0 else loss


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """`0.5 * (log(max(var, eps)) + (x - t)^2 / max(var, eps))`, as `torch.nn.functional.gaussian_nll_loss`.

    torch looks for a negative variance, and raises. On a GPU that would be a wait at each call: there it makes nan.
    """
    if input.device.type == "cpu" or isinstance(var, float) or reduction not in ("none", "mean", "sum"):
        return F.gaussian_nll_loss(input, target, var, full, eps, reduction)
    return _unchecked_gaussian_nll_loss(input, target, var, full, eps, reduction)


def _unchecked_gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor, full: bool, eps: float, reduction: str
) -> Tensor:
    if var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    elif var.shape != input.shape:
        differing = [own for own, size in zip(var.shape, input.shape, strict=False) if own != size]
        if var.dim() != input.dim() or sum(differing) != 1:
            raise ValueError("var is of incorrect size")
    var = var.where(var >= 0, float("nan"))
    with torch.no_grad():  # the gradient is that of var also where it is too small
        var.clamp_(min=eps)
    loss = 0.5 * (var.log() + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduced(loss, reduction)


def _masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """`torch.masked_select` by an index, of which more is known."""
    input, mask = torch.broadcast_tensors(input, mask)
    checks.of_mask(input, mask)
    return input[mask]


def _cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """`torch.cov` without weights, which looks at their sum although that is a size."""
    free = input.shape[-1] - correction if input.dim() else 0
    if fweights is not None or aweights is not None or input.dim() > 2 or not input.is_floating_point() or free <= 0:
        return torch.cov(input, correction=correction, fweights=fweights, aweights=aweights)
    rows = torch.atleast_2d(input)
    centred = rows - rows.mean(1, keepdim=True)
    return (centred @ centred.t() / free).squeeze()


def _corrcoef(input: Tensor) -> Tensor:
    """`torch.corrcoef`, by the formula above."""
    covariance = _cov(input)
    if not covariance.dim():
        return covariance / covariance
    deviation = covariance.diagonal().sqrt()
    return (covariance / deviation[:, None] / deviation).clamp(-1, 1)


def _fill_diagonal(input: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """`Tensor.fill_diagonal_` of a matrix, by a view of the diagonal: torch's own takes its sizes as they are."""
    if input.dim() != 2 or wrap:
        return input.fill_diagonal_(fill_value, wrap)
    input.diagonal().fill_(fill_value)
    return input


_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
_PROPERTIES = ("_backward_hooks", "_base", "_version", "grad", "grad_fn", "is_leaf", "retains_grad")
_UNKNOWN = {getattr(Tensor, name).__get__: name for name in _PROPERTIES}
_UNKNOWN |= {Tensor._is_view: "_is_view", Tensor.data_ptr: "data_ptr"}
_UNKNOWN |= {getattr(Tensor.grad, name): "grad" for name in ("__set__", "__delete__")}
# A hook on an input stays there, and is for the gradient that others give it, too.
_UNKNOWN |= {getattr(Tensor, name): name for name in ("register_hook", "register_post_accumulate_grad_hook")}


def _retain_grad(input: Tensor) -> None:
    """No trace has the gradients of what it makes."""
    raise UnsupportedOpError("retain_grad", where=current_statement())


def _pow(input: Any, exponent: Any, **options: Any) -> Any:
    """`torch.pow`. A number that varies is made a tensor: torch fixes exponents, and takes no logarithm of a symbol."""
    if isinstance(input, torch.SymFloat) or (isinstance(input, torch.SymInt) and exponent.is_floating_point()):
        input = _as_tensor(input, exponent)
    elif isinstance(exponent, NUMBERS) and isinstance(input, Tensor) and input.is_floating_point():
        exponent = _as_tensor(exponent, input)
    return torch.pow(input, exponent, **options)


def _as_tensor(number: Any, beside: Tensor) -> Tensor:
    """A number beside a tensor, of whose dtype the result is."""
    is_floating = beside.is_floating_point()
    dtype = torch.promote_types(beside.dtype, torch.float32) if is_floating else torch.get_default_dtype()
    return beside.new_full((), number, dtype=dtype)


def _rpow(input: Tensor, other: Any) -> Any:
    return _pow(other, input)


FORMULAS: dict[Any, Callable[..., Any]] = {
    **TAKINGNUMBERS,
    **BY_NUMBERS,
    torch.pow: _pow,
    Tensor.pow: _pow,
    Tensor.__pow__: _pow,
    Tensor.__rpow__: _rpow,
    Tensor.retain_grad: _retain_grad,
    torch.masked_select: _masked_select,
    Tensor.masked_select: _masked_select,
    torch.cov: _cov,
    Tensor.cov: _cov,
    Tensor.fill_diagonal_: _fill_diagonal,
    torch.corrcoef: _corrcoef,
    Tensor.corrcoef: _corrcoef,
    F.gaussian_nll_loss: gaussian_nll_loss,
    F.multi_margin_loss: multi_margin_loss,
    F.cross_entropy: cross_entropy,
    F.interpolate: resizing.interpolate,
}
if products.LOOPS_OVER_ELEMENTS:
    FORMULAS |= {torch.cumprod: products.cumprod, Tensor.cumprod: products.cumprod}
