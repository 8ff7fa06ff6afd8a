"""What people see of kernels in their own tools, and what they may set: rows D1 and D21 of the features."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

from autogen import losses


def ranges(loss: torch.nn.Module, *args: torch.Tensor) -> list[str]:
    """The ranges of autogen's that torch's profiler finds in a call, and in its gradient."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        loss(*args).backward()
    return sorted(event.name for event in profiler.events() if event.name.startswith("autogen::"))


def test_d1_profiler_ranges() -> None:
    x, y = torch.rand(4, 3, requires_grad=True), torch.rand(4, 3)
    bce, cosine = losses.BCELoss(), losses.CosineEmbeddingLoss()
    for _ in range(2):  # captured, and on the fast path
        assert ranges(bce, x, y) == ["autogen::BCELoss.backward", "autogen::BCELoss.forward"]
    for _ in range(3):  # handwritten kernels: planned as they run, prepared, and on the fast path
        assert ranges(cosine, x, y, torch.ones(4)) == [
            "autogen::CosineEmbeddingLoss.backward",
            "autogen::CosineEmbeddingLoss.forward",
        ]
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        bce(x, y)
    assert "autogen::BCELoss.forward" in {event.name for event in profiler.events()}


def test_d1_gradients_have_the_name_of_the_loss() -> None:
    x, y = torch.rand(4, 3, requires_grad=True), torch.rand(4, 3)
    assert losses.BCELoss()(x, y).grad_fn.name() == "BCELossBackward"
    assert losses.CosineEmbeddingLoss()(x, y, torch.ones(4)).grad_fn.name() == "CosineEmbeddingLossBackward"

    class Weighted(losses.MSELoss):
        pass

    assert repr(Weighted()(x, y)).endswith("grad_fn=<WeightedBackward>)")
