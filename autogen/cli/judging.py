"""Compare kernels and eager on the same call, both with eager in double precision."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autogen import policy
from autogen.cli.targets import Target
from autogen.compat import pytree
from autogen.decorator import call_of
from autogen.dispatch.parts import PARTS

TIMES, ULPS = 2, 2  # torch's error, and of the largest number: what ours may be
DRAWS = 5  # of inputs, of which one may show a smaller error of torch's than it makes elsewhere
_IN_DOUBLE = 8 * 2.0**-29  # how torch's error in single precision tells the one in double, which has no judge

Results = dict[str, torch.Tensor | None]


@dataclass(frozen=True)
class Verdict:
    """How wrong one result is: the largest error of ours and of torch's, and what ours may be.

    Attributes:
        what: "value", or "gradient of" an input or parameter.
        fault: what is wrong beside numbers, such as another shape; empty if nothing is.
    """

    what: str
    ours: float
    torch: float
    allowed: float
    fault: str = ""

    @property
    def holds(self) -> bool:
        """Whether ours is no more wrong than allowed."""
        return not self.fault and self.ours <= self.allowed


def judge(target: Target, device: str, seed: int = 0) -> list[Verdict]:
    """The verdicts on the value and on every gradient of a call.

    Ours may be wrong by twice torch's largest error, in a few draws of such inputs, and two ulp of the largest number.
    """
    args, named = target.arguments(device, seed)
    exact = _results(_in(target.loss, torch.float64), *_converted(args, named, torch.float64), eager)
    theirs, own = _results(target.loss, args, named, eager), _results(target.loss, args, named, ours)
    errors = {what: 0.0 for what in exact}
    for k in range(DRAWS):
        for what, error in _errors_of_torch(target, *target.arguments(device, seed + k)).items():
            errors[what] = max(errors[what], error)
    return [_verdict(what, own[what], theirs[what], exact[what], errors[what]) for what in exact]


def eager(loss: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A call of a loss in torch, whatever the loss's own policy."""
    dispatcher, given = call_of(loss, tuple(args))
    return in_torch(lambda: dispatcher.function(*given, **kwargs))


def in_torch(call: Callable[[], Any]) -> Any:
    """A call in which decorated functions run in torch as well."""
    with policy("disabled"):
        return call()


def ours(loss: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A call of a loss on its kernels."""
    return calling_ours(loss, args, kwargs)()


def calling_ours(loss: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    """Calls of a loss on its kernels, decorated or not; all but the first find what was captured."""
    if hasattr(loss, PARTS) or not getattr(loss, "use_autogen", True):
        return lambda: loss(*args, **kwargs)
    dispatcher, given = call_of(loss, tuple(args))
    return lambda: dispatcher(given, kwargs)


def _errors_of_torch(target: Target, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, float]:
    """torch's largest errors in one draw, by result."""
    exact = _results(_in(target.loss, torch.float64), *_converted(args, named, torch.float64), eager)
    theirs = _results(target.loss, args, named, eager)
    single: Results = {}
    if any(each is not None and each.dtype == torch.float64 for each in theirs.values()):
        single = _results(_in(target.loss, torch.float32), *_converted(args, named, torch.float32), eager)
    return {
        what: _largest_error(theirs[what], exact[what])
        if single.get(what) is None
        else _IN_DOUBLE * _largest_error(single[what], exact[what])
        for what in exact
    }


def _results(
    loss: Any,
    args: Sequence[Any],
    named: Mapping[str, Any],
    run: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any],
) -> Results:
    """The value and the gradients of one run, by name; of several values, each."""
    args = [_leaf(each) for each in args]
    named = {name: _leaf(each) for name, each in named.items()}
    torch.manual_seed(0)
    values = [each for each in pytree.tree_leaves(run(loss, args, named)) if isinstance(each, torch.Tensor)]
    leaves = {f"input {k + 1}": each for k, each in enumerate(args)} | dict(named)
    if isinstance(loss, torch.nn.Module):
        leaves |= dict(loss.named_parameters())
    wanted = {name: each for name, each in leaves.items() if isinstance(each, torch.Tensor) and each.requires_grad}
    asking = [each for each in values if each.requires_grad]
    gradients: Sequence[torch.Tensor | None] = [None] * len(wanted)
    if asking and wanted:
        upstream = [_upstream(each) for each in asking]
        gradients = torch.autograd.grad(asking, list(wanted.values()), upstream, allow_unused=True)
    titles = ["value"] if len(values) == 1 else [f"value {k + 1}" for k in range(len(values))]
    of_inputs = {f"gradient of {name}": each for name, each in zip(wanted, gradients, strict=True)}
    return {**dict(zip(titles, (each.detach() for each in values), strict=True)), **of_inputs}


def _leaf(value: Any) -> Any:
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def _upstream(value: torch.Tensor) -> torch.Tensor:
    """An upstream gradient of multiples of 1/8, which every dtype holds; 1 for a number."""
    if not value.dim():
        return torch.ones_like(value)
    drawn = torch.randint(-16, 17, value.shape, generator=torch.Generator().manual_seed(0))
    return (drawn / 8).to(value.dtype).to(value.device)


def _in(loss: Any, dtype: torch.dtype) -> Any:
    """A copy of a module in another dtype; a function as it is."""
    return copy.deepcopy(loss).to(dtype) if isinstance(loss, torch.nn.Module) else loss


def _converted(
    args: Sequence[Any], named: Mapping[str, Any], dtype: torch.dtype
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def convert(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return value.detach().to(dtype).requires_grad_(value.requires_grad)

    return tuple(map(convert, args)), {name: convert(value) for name, value in named.items()}


def _largest_error(found: torch.Tensor | None, exact: torch.Tensor | None) -> float:
    """The largest error; what is not finite in either counts as right if both are the same, and else is infinite."""
    if found is None or exact is None or not exact.numel():
        return 0.0
    found, exact = found.double(), exact.double()
    same = (found == exact) | (found.isnan() & exact.isnan())
    return float((found - exact).abs().masked_fill(same, 0).nan_to_num(torch.inf, torch.inf).max())


def _verdict(
    what: str,
    own: torch.Tensor | None,
    theirs: torch.Tensor | None,
    exact: torch.Tensor | None,
    torch_error: float,
) -> Verdict:
    if own is None or theirs is None or exact is None:  # no gradient, for which zeros are as good
        missing = [each for each in (own, theirs) if each is not None and each.any()]
        return Verdict(what, 0.0, 0.0, 0.0, "only one of the two has it" if missing else "")
    if (own.shape, own.dtype) != (theirs.shape, theirs.dtype):
        kinds = [f"{str(each.dtype)[6:]} {tuple(each.shape)}" for each in (own, theirs)]
        return Verdict(what, 0.0, 0.0, 0.0, f"it is {kinds[0]}, torch's {kinds[1]}")
    if not own.is_floating_point():
        return Verdict(what, _largest_error(own, theirs), 0.0, 0.0)
    limits = torch.finfo(own.dtype)
    # What is too large for the dtype is infinite in it.
    exact = torch.where(exact.abs() >= limits.max * (1 + limits.eps / 4), exact.sign() * torch.inf, exact)
    finite = exact.abs().nan_to_num(0, 0, 0)
    ulp = max(float(finite.max()), limits.tiny) * limits.eps if exact.numel() else 0.0
    return Verdict(what, _largest_error(own, exact), _largest_error(theirs, exact), TIMES * torch_error + ULPS * ulp)
