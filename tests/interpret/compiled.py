"""What the tests of compiled graphs share: losses in graphs, beside torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autogen import policy
from tests.interpret.launches import Launches

UNTRACED = {"GaussianNLLLoss"}  # torch's, too: it takes a number into Python
LOWERING = ["eager", "aot_eager"]


def x(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def labels(classes: int, *shape: int) -> Tensor:
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(5))


def compiled(loss: Callable[..., Any], backend: str = "aot_eager", **options: Any) -> Callable[..., Any]:
    return torch.compile(loss, backend=backend, fullgraph=True, **options)


def outcome(loss: Callable[..., Tensor], *inputs: Any) -> list[Tensor]:
    """The value, and the gradients of all inputs that ask for one."""
    value = loss(*inputs)
    wanted = [each for each in inputs if isinstance(each, Tensor) and each.requires_grad]
    return [value.detach(), *torch.autograd.grad(value.sum(), wanted)]


def agree(launches: Launches, ours: Any, theirs: Any, *inputs: Any, expected: int = 2) -> None:
    """Equal values and gradients, in so many launches."""
    wanted = outcome(theirs, *inputs)
    launches.take()
    found = outcome(ours, *inputs)
    assert launches.take() == expected
    torch.testing.assert_close(found, wanted)


def plain(loss: Any) -> Callable[..., Any]:
    """The loss in torch alone."""

    def run(*args: Any) -> Any:
        with policy("disabled"):
            return loss(*args)

    return run
