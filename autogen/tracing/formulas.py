"""torch functions whose fake implementation is missing or differs from the real one: how they are traced.

`multi_margin_loss` cannot be traced as it stands, as torch has no fake implementation of its backward. While a
loss is traced, a call to it runs the formula below; outside a trace nothing changes. Of other ops the fake
implementation takes what the real one refuses, gives another dtype, or is missing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import decomposition_table
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.overrides import TorchFunctionMode

from autogen.errors import UnsupportedOpError
from autogen.tracing import checks, padding, products, resizing
from autogen.tracing.arguments import reduction_of, widened
from autogen.tracing.bindings import TAKINGNUMBERS
from autogen.tracing.by_numbers import BY_NUMBERS
from autogen.tracing.cross_entropy import cross_entropy
from autogen.tracing.source import current_statement
from autogen.tracing.symbols import NUMBERS

aten = torch.ops.aten


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
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


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
