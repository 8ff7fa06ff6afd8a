"""Train a LightningModule whose loss runs on kernels.

    TRITON_INTERPRET=1 python -m examples.lightning_module    # on a GPU without TRITON_INTERPRET

Nothing but the loss differs from any other LightningModule: `autogen.losses` has the names of `torch.nn`.
"""

from __future__ import annotations

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autogen


class Classifier(lightning.LightningModule):
    """A small network, and the curve of its loss."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
        self.loss = loss
        self.curve: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """The loss of a batch."""
        inputs, labels = batch
        loss: Tensor = self.loss(self.network(inputs), labels)
        self.curve.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, for all parameters."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def train(loss: nn.Module) -> Tensor:
    """Train for three epochs; returns the loss of each step."""
    lightning.seed_everything(0, verbose=False)
    inputs, labels = torch.randn(256, 16), torch.randint(5, (256,))
    module = Classifier(loss)
    trainer = lightning.Trainer(
        max_epochs=3,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(TensorDataset(inputs, labels), batch_size=32))
    return torch.tensor(module.curve)


def main() -> None:
    """Train with torch's loss and with ours, and compare."""
    expected = train(nn.CrossEntropyLoss(label_smoothing=0.1))
    with autogen.policy("mandatory"):  # a loss that cannot run on kernels is an error
        found = train(autogen.losses.CrossEntropyLoss(label_smoothing=0.1))
    print(f"torch: loss {expected[0]:.4f} at first, {expected[-1]:.4f} after {len(expected)} steps")
    print(f"on kernels: loss {found[0]:.4f} at first, {found[-1]:.4f} after {len(found)} steps")
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert found[-1] < found[0]


if __name__ == "__main__":
    main()
