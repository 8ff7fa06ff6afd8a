"""`python -m examples.walk`: print what each stage of the compiler makes of one loss, for `docs/architecture.md`."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import torch

import autogen

ROOT = Path(__file__).parent.parent


def masked_mse(input: torch.Tensor, target: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    error = (input - target) ** 2
    return (error * valid).sum() / valid.sum()


def walk() -> str:
    """The loss, the stages up to the launch of forward, its kernel, and what the launches compute, as Markdown."""
    from autogen.report.stages import stages

    torch.manual_seed(0)
    input, target = torch.randn(32, 1000, requires_grad=True), torch.randn(32, 1000)
    given = input, target, torch.rand(32, 1000) < 0.8
    loss = autogen.autogen_loss(masked_mse)
    report = autogen.explain(loss, *given)
    value, exact = loss(*given), masked_mse(input.double(), *given[1:])
    (gradient,), (expected,) = torch.autograd.grad(value, input), torch.autograd.grad(exact, input)
    assert report.path == "generated" and report.backward is not None
    printed = stages(loss, given, {}).replace(f"{ROOT}/", "")
    blocks = [
        f"```python\n{inspect.getsource(masked_mse).rstrip()}\n```",
        f"```text\n{printed.partition('-- kernel masked_mse_backward')[0].rstrip()}\n```",
        f"```py\n{report.forward.source.rstrip()}\n```",
        f"Launches: {report.forward.launches} forward, {report.backward.launches} backward. The loss is "
        f"{value.item():.5g}, as torch's in double precision is {exact.item():.5g}; the largest difference of a "
        f"gradient is {(gradient - expected).abs().max().item():.0e}, the largest gradient {expected.abs().max():.0e}.",
    ]
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    print(walk(), end="")
