"""Train with Hugging Face's accelerate, gradient accumulation, and a custom loss on kernels.

TRITON_INTERPRET=1 python -m examples.accelerate_loop    # on a GPU without TRITON_INTERPRET
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autogen


def heteroscedastic(prediction: Tensor, target: Tensor) -> Tensor:
    """Negative log-likelihood of a normal distribution whose mean and log-variance are predicted."""
    mean, log_variance = prediction.chunk(2, dim=1)
    return (log_variance + (target - mean) ** 2 * torch.exp(-log_variance)).mean() / 2


def train(loss_of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Train for two epochs; returns the loss of each batch."""
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    inputs = torch.randn(256, 8)
    targets = inputs[:, :4].sin() + 0.1 * torch.randn(256, 4)
    model: nn.Module = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = DataLoader(TensorDataset(inputs, targets), batch_size=32)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    curve = []
    for _ in range(4):
        for given, target in batches:
            with accelerator.accumulate(model):
                loss = loss_of(model(given), target)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            curve.append(loss.item())
    return torch.tensor(curve)


def main() -> None:
    """Train with the loss as it is and decorated, and compare."""
    expected = train(heteroscedastic)
    with autogen.policy("mandatory"):  # a loss that cannot run on kernels is an error
        found = train(autogen.autogen_loss(heteroscedastic))
    print(f"torch: loss {expected[0]:.4f} at first, {expected[-1]:.4f} after {len(expected)} batches")
    print(f"on kernels: loss {found[0]:.4f} at first, {found[-1]:.4f} after {len(found)} batches")
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert found[-1] < found[0]


if __name__ == "__main__":
    main()
