"""Compare losses with torch's on the same call, by torch in double precision, or in more digits."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen.functional
import autogen.losses
from autogen import policy
from tests.interpret.launches import LAUNCHES
from tests.interpret.precise import HAS_MORE, Precise

# The largest error of a result may be this many times torch's largest, and ulps of the largest element.
_OVERALL = 2
# Each element may be this many times as wrong as torch's, and ulps; torch's error there is known from a few runs only.
_ANYWHERE = 32
# How torch's error in single precision tells the one in double precision.
_IN_DOUBLE = 8 * 2.0**-29


@dataclass(frozen=True)
class Call:
    """A call of a loss: its class by name, constructor arguments, inputs; or the function of that name with options.

    `wanted` says of which tensors, first among the inputs and then among the options, gradients are asked for; `None`
    means all of which torch gives one. `upstream` names the gradient that backward starts from, see `upstream_of`.
    """

    loss: str
    options: Mapping[str, Any]
    inputs: Sequence[Any]
    wanted: tuple[bool, ...] | None = None
    upstream: str = "eighths"
    functional: bool = False

    def tensors(self) -> list[Tensor]:
        """The tensors among inputs and options."""
        return [t for t in (*self.inputs, *self.options.values()) if isinstance(t, Tensor)]

    def __repr__(self) -> str:
        def short(value: Any) -> Any:
            return (*value.shape, value.stride(), str(value.dtype)[6:]) if isinstance(value, Tensor) else value

        options = ", ".join(f"{name}={short(value)}" for name, value in self.options.items())
        return f"{self.loss}({options})({', '.join(str(short(each)) for each in self.inputs)}), wanted={self.wanted}"


@dataclass
class Outcome:
    """What a call gave: a value and a gradient or None per wanted tensor; or the error it raised."""

    value: Tensor | None = None
    gradients: tuple[Tensor | None, ...] = ()
    error: Exception | None = None
    launches: tuple[int, int] = (0, 0)


def upstream_of(kind: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An upstream gradient: random multiples of 1/8, which every dtype holds, or all the same; in several layouts."""
    shape = tuple(shape)
    if kind in ("ones", "expanded"):
        return torch.ones(shape, dtype=dtype) if kind == "ones" else torch.full((), 0.5, dtype=dtype).expand(shape)
    sliced = (*shape[:-1], 2 * shape[-1]) if kind == "sliced" and shape else shape
    drawn = torch.randint(-16, 17, sliced, generator=torch.Generator().manual_seed(0)).to(dtype) / 8
    if kind == "transposed" and shape:
        return drawn.permute(*range(len(shape))[::-1]).contiguous().permute(*range(len(shape))[::-1])
    return drawn[..., ::2] if sliced != shape else drawn


def with_grad(tensor: Tensor, wanted: bool) -> Tensor:
    """The same elements in the same memory layout, as a leaf of its own."""
    return tensor.detach().requires_grad_(wanted and tensor.is_floating_point())


def run(home: Any, call: Call) -> Outcome:
    """The call, with the class of that name in a module such as `torch.nn`, backward included."""
    wanted = iter(call.wanted or ())
    leaves: list[Tensor] = []

    def fresh(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return copy.deepcopy(value)
        leaves.append(with_grad(value, next(wanted, False)))
        return leaves[-1]

    inputs = [fresh(each) for each in call.inputs]
    options = {name: fresh(value) for name, value in call.options.items()}
    LAUNCHES.take()
    try:
        torch.default_generator.manual_seed(0)  # for losses with parameters; of all devices takes as long as a loss
        loss = _loss_of(home, call, options)
        value = loss(*inputs)
        value = getattr(value, "loss", value)  # some return more than their loss
        forward = LAUNCHES.take()
        parameters = loss.parameters() if isinstance(loss, nn.Module) else ()
        asked = [leaf for leaf in (*leaves, *parameters) if leaf.requires_grad]
        gradients: tuple[Tensor | None, ...] = ()
        if asked and value.requires_grad:
            upstream = upstream_of(call.upstream, value.shape, value.dtype)
            gradients = torch.autograd.grad(value, asked, upstream, allow_unused=True)
    except Exception as error:
        return Outcome(error=error)
    return Outcome(value, gradients, launches=(forward, LAUNCHES.take()))


def _loss_of(home: Any, call: Call, options: Mapping[str, Any]) -> Callable[..., Any]:
    if call.functional:
        return functools.partial(getattr(F if home is nn else autogen.functional, call.loss), **options)
    # Parameters are drawn in single precision: other numbers would be drawn in another.
    loss: nn.Module = getattr(home, call.loss)(**{name: value for name, value in options.items() if name != "dtype"})
    return loss.to(options["dtype"]) if "dtype" in options else loss


def differentiable(call: Call) -> Call:
    """The call, asking for the gradients that torch gives: all of them, or those of the wanted ones."""
    tensors = call.tensors()
    wanted = [False] * len(tensors)
    for position, tensor in enumerate(tensors):
        if tensor.is_floating_point() and (call.wanted is None or call.wanted[position]):
            wanted[position] = True
            if re.search("derivative|not differentiable", str(run(nn, replace(call, wanted=tuple(wanted))).error)):
                wanted[position] = False
    return replace(call, wanted=tuple(wanted))


def _is_chunked(call: Call) -> bool:
    """Whether torch computes a projected loss in chunks, written into one tensor (`mm.out`): that it does alone."""
    return call.options.get("options") is not None and call.options.get("reduction") == "none"


def _only_on_gpus(error: Exception | None) -> bool:
    """Whether torch has no kernel for a dtype on the CPU, where the interpreter runs ours as a GPU would."""
    return isinstance(error, NotImplementedError) and "not implemented for" in str(error)


def in_dtype_of(judge: Outcome, ours: Outcome) -> Outcome:
    """The judge's results, rounded to the dtypes of ours."""
    assert judge.value is not None and ours.value is not None
    gradients = [
        None if exact is None or own is None else exact.to(own.dtype)
        for exact, own in zip(judge.gradients, ours.gradients, strict=True)
    ]
    return Outcome(judge.value.to(ours.value.dtype), tuple(gradients))


def _sums(call: Call) -> int:
    """How many gradients are summed over dimensions along which their tensor was broadcast.

    Each may take a launch of its own, as it walks its elements in another order than the other gradients.
    """
    tensors = call.tensors()
    largest = max(tensor.numel() for tensor in tensors)
    wanted = (tensor for tensor, is_wanted in zip(tensors, call.wanted or (), strict=False) if is_wanted)
    return sum(tensor.numel() < largest for tensor in wanted)


def check(call: Call, *, launches: tuple[int, int] | None = (1, 1)) -> Outcome:
    """Compare our loss with torch's; returns what ours gave.

    Value and gradients have torch's shape and dtype, nan and infinities where torch has them (or where double
    precision has them), and an error like torch's own, by the judgement of torch in double precision. `launches` are
    the kernels launched forward and backward, None for any number.
    """
    if call.wanted is None:
        call = differentiable(call)
    theirs = run(nn, call)
    with policy("default" if _is_chunked(call) else "mandatory"):
        ours = run(autogen.losses, call)
    judge = run(nn, converted(call, torch.float64))
    more = None
    if HAS_MORE and torch.float64 in {tensor.dtype for tensor in call.tensors()}:
        more = in_more_digits(converted(call, torch.float64), judge)
    if _only_on_gpus(theirs.error) and ours.error is None:
        theirs = in_dtype_of(judge, ours)
    if "grad_input must be contiguous" in str(theirs.error):  # a defect of torch, of dimensions of size 1
        return ours
    floating = {tensor.dtype for tensor in call.tensors() if tensor.is_floating_point()}
    if (
        len(floating) > 1
        and ours.error is None
        and (theirs.error is not None or ours.value.dtype != theirs.value.dtype)
    ):
        return ours  # what eager refuses, or rounds, of several dtypes, torch's capture takes
    if theirs.error is not None:
        assert isinstance(ours.error, type(theirs.error)), f"{call}: torch raises {theirs.error!r}, we {ours.error!r}"
        assert ours.launches == (0, 0)
        return ours
    if ours.error is not None:
        raise AssertionError(f"{call} raised") from ours.error
    assert ours.value is not None and theirs.value is not None and judge.value is not None
    if launches is not None:
        forward, backward = launches
        most = backward + _sums(call) if theirs.gradients else 0
        assert ours.launches[0] == forward and min(backward, most) <= ours.launches[1] <= most, (
            f"{call}: {ours.launches} launches"
        )
    assert ours.value.requires_grad == theirs.value.requires_grad, f"{call}: requires_grad"
    assert len(ours.gradients) == len(theirs.gradients), f"{call}: gradients"
    exact = more or judge
    try:
        _compare_results(call, ours, theirs, exact, _errors_between(theirs, exact))
    except AssertionError:  # torch may have hit the truth by luck
        errors = _torch_errors(call, theirs, judge) if more is None else _errors_by_chance(call, theirs, more)
        _compare_results(call, ours, theirs, exact, errors)
    return ours


def in_more_digits(call: Call, judge: Outcome, seed: int | None = None) -> Outcome | None:
    """The judge's results, as they are in more digits; None if an operation is not known in these. See `Precise`."""
    if judge.value is None or not all(tensor.numel() for tensor in call.tensors()):
        return None
    with Precise(seed) as digits:
        found = run(nn, call)
    if found.error is not None:
        raise found.error
    if digits.unknown or found.value is None:
        return None

    def refined(rough: Tensor, tensor: Tensor) -> Tensor:
        fine = torch.from_numpy(digits.of(tensor).astype(float))
        # What overflows, and what becomes of nan, is as in torch.
        return torch.where(rough.isfinite() & fine.isfinite(), fine, rough.detach().double())

    gradients = [
        rough if rough is None or tensor is None else refined(rough, tensor)
        for rough, tensor in zip(judge.gradients, found.gradients, strict=True)
    ]
    return Outcome(refined(judge.value, found.value), tuple(gradients))


def _errors_by_chance(call: Call, theirs: Outcome, exact: Outcome) -> list[Tensor]:
    """How wrong torch may be at each place, by the roundings of its operations: the largest of a few runs."""
    worst = _errors_between(theirs, exact)
    for seed in range(5):
        rounded = in_more_digits(call, exact, seed)
        assert rounded is not None, "the operations are those of the judge"
        worst = [torch.maximum(most, error) for most, error in zip(worst, _errors_between(rounded, exact), strict=True)]
    return worst


def _compare_results(call: Call, ours: Outcome, theirs: Outcome, judge: Outcome, errors: list[Tensor]) -> None:
    """Compare value and gradients, given how wrong torch is at each place of them."""
    assert ours.value is not None and theirs.value is not None and judge.value is not None
    if {torch.float64, torch.float32} <= {tensor.dtype for tensor in call.tensors()}:
        # What is computed in single precision before it meets a double is as wrong as that; gradients are differences.
        single = torch.finfo(torch.float32).eps
        errors[0] = errors[0] + single / 16 * judge.value.abs().nan_to_num(0, 0, 0)
        errors[1:] = [
            error if exact is None or not exact.numel() else error + single * exact.abs().nan_to_num(0, 0, 0).max()
            for error, exact in zip(errors[1:], judge.gradients, strict=True)
        ]
    compare(f"{call}: value", ours.value, theirs.value, judge.value, errors.pop(0))
    wanted = [k for k, is_wanted in enumerate(call.wanted or ()) if is_wanted]
    for position, (own, their, exact) in enumerate(zip(ours.gradients, theirs.gradients, judge.gradients, strict=True)):
        what = f"{call}: gradient {position}"
        error = errors.pop(0)
        if own is None or their is None:
            # torch gives None or zeros where nothing depends on the tensor, we likewise but not always the same.
            rest = [each for each in (own, their) if each is not None]
            assert all(not each.any() for each in rest), f"{what}: only one of the two exists"
        else:
            assert exact is not None
            if call.loss.lower().startswith(("adaptive", "cosine", "linear", "triplet")) and exact.numel():
                # Shares of two unit vectors, or of many rows, may cancel; each is as wrong as its own size says.
                largest = exact.abs().nan_to_num(0, 0, 0).max().clamp(min=1 / exact.shape[0] if exact.dim() else 1)
                error = error + 4 * torch.finfo(own.dtype).eps * largest
            if call.loss.lower().startswith("cross") and wanted[position] == 1 and exact.numel():
                # Of probabilities: logarithms of a softmax, of which one near 0 is as wrong as the sum in it, near 1.
                error = error + torch.finfo(own.dtype).eps / own.shape[0]
            compare(what, own, their, exact, error)


def _torch_errors(call: Call, theirs: Outcome, judge: Outcome) -> list[Tensor]:
    """torch's own error at each place of the value and the gradients: the largest of a few runs near the call.

    One run may hit the truth by luck. Double precision has no judge; there it is the error of single precision, scaled,
    and more than that, as the judge's own error counts too.
    """
    assert theirs.value is not None
    worst = _errors_between(theirs, judge)
    generator = torch.Generator().manual_seed(0)
    for attempt in range(5):
        near = _nearby(call, generator) if attempt else call
        runs = [(near, 1.0)] if attempt else []
        if any(tensor.dtype == torch.float64 for tensor in call.tensors()):
            runs.append((converted(near, torch.float32), _IN_DOUBLE))
        for each, scale in runs:
            torchs, exact = run(nn, each), run(nn, converted(each, torch.float64))
            if torchs.value is None or exact.value is None:
                continue  # no kernel for the dtype, or the neighbour is out of bounds
            errors = _errors_between(torchs, exact)
            worst = [torch.maximum(most, error * scale) for most, error in zip(worst, errors, strict=True)]
    worst[0] = worst[0] + _rounding_of_terms(call, theirs.value.dtype)
    return worst


def _errors_between(theirs: Outcome, judge: Outcome) -> list[Tensor]:
    """How wrong the value and the gradients of one run are; 0 where there are none."""
    pairs = zip((theirs.value, *theirs.gradients), (judge.value, *judge.gradients), strict=True)
    return [
        torch.zeros((), dtype=torch.float64)
        if own is None or exact is None
        else (own.double() - exact).abs().nan_to_num(0, 0, 0)
        for own, exact in pairs
    ]


def _rounding_of_terms(call: Call, dtype: torch.dtype) -> float:
    """How far one rounding of each term, up or down by chance, moves a mean or a sum, in which terms may cancel."""
    reduction = call.options.get("reduction", "mean")
    terms = run(nn, replace(converted(call, torch.float64), options={**call.options, "reduction": "none"}, wanted=()))
    if reduction == "none" or terms.value is None or not terms.value.numel():
        return 0.0
    count = terms.value.numel()
    largest = terms.value.abs().nan_to_num(0, 0, 0).max().item()
    if call.loss == "KLDivLoss":  # whose terms are differences of a product and this, which may cancel, too
        probabilities = call.inputs[1].double().exp() if call.options.get("log_target") else call.inputs[1].double()
        largest = max(largest, torch.special.entr(probabilities).abs().nan_to_num(0, 0, 0).max().item())
    moved = torch.finfo(dtype).eps * largest * count**0.5
    return moved / count if reduction == "mean" else moved


def _nearby(call: Call, generator: torch.Generator) -> Call:
    """The call with its first input up to 1% elsewhere."""
    first, *rest = call.inputs
    steps = torch.rand(first.shape, generator=generator) / 50 - 0.01
    return replace(call, inputs=((first + steps * first.clamp(-1, 1)).to(first.dtype), *rest))


def converted(call: Call, dtype: torch.dtype) -> Call:
    """The call with its floating-point tensors in a dtype."""

    def convert(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return dtype
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    options = {name: convert(value) for name, value in call.options.items()}
    return replace(call, options=options, inputs=[convert(each) for each in call.inputs])


def compare(what: str, ours: Tensor, theirs: Tensor, judge: Tensor, torch_error: Tensor) -> None:
    """Check one result of ours against torch's, `judge` being the truth."""
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, (
        f"{what}: {ours.dtype} {tuple(ours.shape)}, torch {theirs.dtype} {tuple(theirs.shape)}"
    )
    limits = torch.finfo(ours.dtype)
    own, their, exact = (each.detach().double() for each in (ours, theirs, judge))
    # Too large for the dtype: infinite in it.
    exact = torch.where(exact.abs() >= limits.max * (1 + limits.eps / 4), exact.sign() * torch.inf, exact)
    # Where torch overflows on the way, nothing better is asked of ours.
    torch_error = torch.where(exact.isfinite() & ~their.isfinite(), torch.inf, torch_error)
    same = (own == their) | (own.isnan() & their.isnan()) | (own == exact) | (own.isnan() & exact.isnan())
    error = torch.where(same, 0, (own - exact).abs())
    ulp = torch.where(exact.isfinite(), exact.abs(), 0).clamp(min=limits.tiny) * limits.eps
    _demand(what, error, _OVERALL * (torch_error.max() + ulp.max()) if ulp.numel() else ulp, own, their, exact)
    _demand(what, error, _ANYWHERE * (torch_error + ulp), own, their, exact)


def _demand(what: str, error: Tensor, allowed: Tensor, own: Tensor, their: Tensor, exact: Tensor) -> None:
    bad = ~(error <= allowed)  # nan is bad
    if bad.any():
        where = tuple(bad.nonzero()[0].tolist())
        raise AssertionError(
            f"{what}: wrong at {int(bad.sum())} of {bad.numel()} places, first {where}: "
            f"{own[where].item()!r}, torch {their[where].item()!r}, exactly {exact[where].item()!r}, "
            f"allowed an error of {allowed.expand_as(bad)[where].item():.3g}"
        )
