"""On a real GPU: losses that have tensors on the CPU, too, as torch allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from autogen import autogen_loss

pytestmark = pytest.mark.hardware

LOSSES: dict[str, Callable[[Tensor], Any]] = {
    "a log": lambda x: (x.square().mean(), {"l1": x.abs().mean().detach().cpu()}),
    "a number": lambda x: (x.square().mean(), x.abs().mean().item()),
    "a mask": lambda x: x[~torch.eye(len(x), dtype=torch.bool)].view(len(x), -1).logsumexp(1).sum(),
    "a mask that is kept": lambda x: x[~torch.eye(len(x), dtype=torch.bool, device=x.device)].view(len(x), -1).sum(1),
    "a range": lambda x: x[torch.arange(len(x) // 2)].exp().sum() + x[:, torch.tensor([0, 2])].sum(),
    "a scalar": lambda x: (x * torch.tensor(2.0)).sum() + torch.tensor(1.0),
    "a draw": lambda x: (x + torch.randn(4, 4).to(x.device)).square().sum(),
    "a result": lambda x: (x.sum(), torch.zeros(3), x.detach().cpu().sum()),
    "differentiated": lambda x: x.exp().sum().cpu(),
}


@pytest.mark.parametrize("case", LOSSES)
def test_as_torch(case: str) -> None:
    """On more than one stream, where something is kept from call to call."""
    loss = LOSSES[case]
    ours = autogen_loss(loss)
    stream = torch.cuda.Stream()
    for call in range(4):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream if call == 2 else torch.cuda.current_stream()):
            x = torch.arange(16.0).reshape(4, 4).cuda().div(8).requires_grad_()
            found = []
            for each in (ours, loss):
                torch.manual_seed(call)
                leaves = pytree.tree_leaves(each(x))
                found.append([*leaves, torch.autograd.grad(leaves[0].sum(), x)[0]])
            torch.cuda.synchronize()
            for own, theirs in zip(*found, strict=True):
                assert getattr(own, "device", None) == getattr(theirs, "device", None)
                torch.testing.assert_close(own, theirs)
