"""Run losses of kornia on kernels: a function and a module, decorated.

    TRITON_INTERPRET=1 python -m examples.kornia_losses    # on a GPU without TRITON_INTERPRET

docs/packages.md has what becomes of each of kornia's losses.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from kornia.losses import FocalLoss, charbonnier_loss
from torch import Tensor, nn

import autogen


def train(loss_of: Callable[[Tensor, Tensor], Tensor], channels: int, target: Tensor) -> Tensor:
    """Train a small network on noise and `target`; returns the loss of each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, channels, 3, padding=1))
    model = model.to(target.device)
    images = torch.randn(4, 3, 16, 16, device=target.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    curve = []
    for _ in range(12):
        value = loss_of(model(images), target)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        curve.append(value.detach())
    return torch.stack(curve).cpu()


def robust(prediction: Tensor, target: Tensor) -> Tensor:
    """Kornia's function in one of our own: what it calls is captured with it."""
    return charbonnier_loss(prediction, target, reduction="mean")


def main() -> None:
    """Train with each loss as it is and decorated, and compare."""
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    picture, labels = torch.randn(4, 3, 16, 16, device=device), torch.randint(5, (4, 16, 16), device=device)
    for loss, channels, target in ((FocalLoss(alpha=0.5, reduction="mean"), 5, labels), (robust, 3, picture)):
        expected = train(loss, channels, target)
        decorated = autogen.autogen_loss(loss)
        with autogen.policy("mandatory"):  # a loss that cannot run on kernels is an error
            found = train(decorated, channels, target)
        logits = torch.randn(4, channels, 16, 16, device=device, requires_grad=True)
        report = autogen.explain(decorated, logits, target)
        assert report.path == "generated" and report.forward and report.backward
        print(
            f"{report.loss}: {report.path}, {report.forward.launches} + {report.backward.launches} launches,", end=" "
        )
        print(f"loss {found[0]:.4f} at first, {found[-1]:.4f} after {len(found)} steps, as in torch")
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
        assert found[-1] < found[0]


if __name__ == "__main__":
    main()
