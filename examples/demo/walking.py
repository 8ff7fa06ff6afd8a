"""Run one loss of the demo on kernels, count, compare with torch in double precision, and explain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autogen import DirectionReport, Report, explain
from examples.demo.cases import Case
from examples.demo.counting import counted_launches

# A value and the gradients of everything that asks for one.
Results = list[torch.Tensor]


@dataclass(frozen=True)
class Errors:
    """The largest error of the value and of any gradient, each as a share of the largest number in the right answer."""

    value: float
    gradient: float


@dataclass(frozen=True)
class Row:
    """What the walk found out about one case; times are microseconds forward and backward, on a GPU only."""

    case: Case
    report: Report
    launches: tuple[int, int]
    errors: Errors
    torch_errors: Errors
    time: float | None = None
    torch_time: float | None = None

    @property
    def traffic(self) -> tuple[float, float]:
        """Bytes moved over the minimum, forward and backward."""
        return _ratio(self.report.forward), _ratio(self.report.backward)

    @property
    def sources(self) -> list[tuple[str, str]]:
        """The kernels, each as "forward" or "backward" and its source."""
        directions = (("forward", self.report.forward), ("backward", self.report.backward))
        return [(name, each.source) for name, each in directions if each]


def _ratio(direction: DirectionReport | None) -> float:
    return direction.bytes_moved / direction.bytes_minimum if direction else math.nan


def examine(case: Case, device: torch.device) -> Row:
    """Everything the table says about a case."""
    options, arguments = case.draw(device)
    generated, reference = case.generated(options), case.reference(options)
    run = _steps(generated, arguments)
    run()  # the first run builds the kernels, and fills the counter of the last block with zeros
    with counted_launches(device) as forward:
        value = generated(*arguments)
    upstream = _upstream(value)
    with counted_launches(device) as backward:
        gradients = torch.autograd.grad(value, _asking(arguments), upstream)
    exact = _exact(case, options, arguments, upstream)
    value_of_torch = reference(*arguments)
    results_of_torch = [value_of_torch, *torch.autograd.grad(value_of_torch, _asking(arguments), upstream)]
    on_gpu = device.type == "cuda"
    return Row(
        case,
        explain(generated, *arguments),
        (forward.count, backward.count),
        _errors([value, *gradients], exact),
        _errors(results_of_torch, exact),
        _microseconds(run) if on_gpu else None,
        _microseconds(_steps(reference, arguments)) if on_gpu else None,
    )


def _asking(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor.requires_grad]


def _upstream(value: torch.Tensor) -> torch.Tensor:
    """A gradient of what is computed from the loss: random, so that no kernel gets away with taking it for 1."""
    generator = torch.Generator().manual_seed(1)
    return (0.5 + torch.rand(value.shape, generator=generator)).to(value)


def _steps(loss: nn.Module, arguments: Sequence[torch.Tensor]) -> Callable[[], object]:
    """A function that runs the loss forward and backward."""
    upstream = _upstream(loss(*arguments).detach())
    return lambda: torch.autograd.grad(loss(*arguments), _asking(arguments), upstream)


def _exact(case: Case, options: dict[str, Any], arguments: Sequence[torch.Tensor], upstream: torch.Tensor) -> Results:
    """Value and gradients by torch in double precision."""
    doubled = [each.detach().double() if each.is_floating_point() else each for each in arguments]
    for tensor, original in zip(doubled, arguments, strict=True):
        tensor.requires_grad_(original.requires_grad)
    options = {name: value.double() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    value = case.reference(options)(*doubled)
    return [value, *torch.autograd.grad(value, _asking(doubled), upstream.double())]


def _errors(results: Results, exact: Results) -> Errors:
    shares = [
        ((result.double() - right).abs().max() / right.abs().max()).item()
        for result, right in zip(results, exact, strict=True)
    ]
    return Errors(shares[0], max(shares[1:]))


def _microseconds(run: Callable[[], object]) -> float:
    import triton

    return 1000 * triton.testing.do_bench(run, return_mode="median")
