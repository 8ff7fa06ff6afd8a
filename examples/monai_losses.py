"""Run MONAI's DiceCELoss on kernels, with one of its networks.

    TRITON_INTERPRET=1 python -m examples.monai_losses    # on a GPU without TRITON_INTERPRET

The loss is two losses, a softmax and a one-hot encoding. MONAI reads the axes that it sums over out of a tensor, where
torch's capture ends and begins anew, so a few kernels come of it and not one each way. docs/packages.md has what
becomes of each of MONAI's losses.
"""

from __future__ import annotations

import torch
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from torch import Tensor, nn

import autogen


def discs(device: torch.device) -> tuple[Tensor, Tensor]:
    """Noisy images (4, 1, 16, 16) of discs, and where these are (4, 1, 16, 16)."""
    y, x = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    centers, radii = torch.randint(4, 12, (4, 2, 1, 1)), torch.randint(2, 5, (4, 1, 1))
    inside = ((y - centers[:, 0]) ** 2 + (x - centers[:, 1]) ** 2 < radii**2).unsqueeze(1)
    return (inside + 0.3 * torch.randn(inside.shape)).to(device), inside.long().to(device)


def train(loss: nn.Module, device: torch.device) -> Tensor:
    """Train a small U-Net; returns the loss of each step."""
    torch.manual_seed(0)
    images, labels = discs(device)
    model = UNet(2, in_channels=1, out_channels=2, channels=(4, 8), strides=(2,)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    curve = []
    for _ in range(8):
        value = loss(model(images), labels)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        curve.append(value.detach())
    return torch.stack(curve).cpu()


def main() -> None:
    """Train with MONAI's loss as it is and decorated, and compare."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    expected = train(DiceCELoss(softmax=True, to_onehot_y=True), device)
    loss = autogen.autogen_loss(DiceCELoss(softmax=True, to_onehot_y=True))
    found = train(loss, device)
    report = autogen.explain(loss, torch.randn(4, 2, 16, 16, device=device, requires_grad=True), discs(device)[1])
    assert report.path == "generated"
    print(f"{report.loss}: {report.path}, and torch's capture ends {len(report.breaks)} times")
    print(f"MONAI: loss {expected[0]:.3f} at first, {expected[-1]:.3f} after {len(expected)} steps")
    print(f"on kernels: loss {found[0]:.3f} at first, {found[-1]:.3f} after {len(found)} steps")
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert found[-1] < found[0]


if __name__ == "__main__":
    main()
