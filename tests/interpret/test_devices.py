"""Tensors on another device than the inputs': copies for a log are there, and no kernel reads or returns another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from autogen import autogen_loss, explain

Loss = Callable[[Tensor], Any]

COPIED: dict[str, Loss] = {
    "a log": lambda x: (x.square().mean(), {"l1": x.abs().mean().detach().to("meta")}),
    "of a dtype": lambda x: (x.square().mean(), x.exp().sum(0).detach().to("meta", torch.float64)),
    "an input": lambda x: (x.square().mean(), x.detach().to("meta")),
    "without a gradient": lambda x: (x.detach() * 2).sum().to("meta"),
}
IN_TORCH: dict[str, Loss] = {
    "differentiated": lambda x: x.sum().to("meta"),
    "computed there": lambda x: (x.sum(), x.detach().to("meta").sum() * 2),
    "a constant": lambda x: (x.sum(), torch.zeros(3, device="meta")),
    "beside a constant": lambda x: (x.sum(), x.sum().detach() * torch.ones((), device="meta")),
}
IN_KERNELS: dict[str, Loss] = {
    "a constant that is asked": lambda x: x.sum() * torch.ones(3, device="meta").numel(),
    "a copy where it is": lambda x: (x.sum(), x.mean().detach().to("cpu", copy=True)),
}


@pytest.mark.parametrize("case", [*COPIED, *IN_TORCH, *IN_KERNELS])
def test_results_are_where_torch_has_them(case: str) -> None:
    loss = {**COPIED, **IN_TORCH, **IN_KERNELS}[case]
    ours = autogen_loss(loss)
    for rows in (3, 3, 4, 5):
        x = torch.randn(rows, 2, requires_grad=True)
        found, expected = (pytree.tree_leaves(each(x)) for each in (ours, loss))
        for own, theirs in zip(found, expected, strict=True):
            assert (own.device, own.dtype, own.shape) == (theirs.device, theirs.dtype, theirs.shape)
            assert own.requires_grad == theirs.requires_grad
            if own.device == x.device:
                torch.testing.assert_close(own, theirs)


@pytest.mark.parametrize("case", [*COPIED, *IN_TORCH, *IN_KERNELS])
def test_paths(case: str) -> None:
    x = torch.randn(3, 2, requires_grad=case != "without a gradient")
    path = explain(autogen_loss({**COPIED, **IN_TORCH, **IN_KERNELS}[case]), x).path
    assert path == ("eager" if case in IN_TORCH else "generated")


def test_steps_of_torch_elsewhere_are_refused() -> None:
    """Kernels could not read what these return, moved or not."""
    loss = autogen_loss(lambda x: x.sum() * torch.randn(3, device="meta").to("cpu").sum())
    report = explain(loss, torch.randn(3, 2))
    assert report.path == "eager"
    assert "on the device meta" in report.reason
