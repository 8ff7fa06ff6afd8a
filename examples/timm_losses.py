"""Run losses of timm on kernels, and train one of its models with one.

    TRITON_INTERPRET=1 python -m examples.timm_losses    # on a GPU without TRITON_INTERPRET

`autogen_loss` takes any instance as it is: nothing in timm is changed. docs/packages.md has what becomes of each of its
losses.
"""

from __future__ import annotations

import timm
import timm.loss
import torch
from torch import Tensor, nn

import autogen

CLASSES = 8


def train(loss: nn.Module, device: torch.device) -> Tensor:
    """Train a small vision transformer to find several things in an image; returns the loss of each step."""
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=CLASSES, img_size=32).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images = torch.randn(16, 3, 32, 32, device=device)
    is_there = (torch.rand(16, CLASSES, device=device) < 0.25).float()
    curve = []
    for _ in range(12):
        value = loss(model(images), is_there)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        curve.append(value.detach())
    return torch.stack(curve).cpu()


def main() -> None:
    """Look at two losses, train with one as it is and decorated, and compare."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    logits = torch.randn(64, CLASSES, device=device, requires_grad=True)
    labels = torch.arange(64, device=device) % CLASSES
    for loss, target in (
        (timm.loss.LabelSmoothingCrossEntropy(0.1), labels),
        (timm.loss.AsymmetricLossMultiLabel(), nn.functional.one_hot(labels, CLASSES).float()),
    ):
        report = autogen.explain(autogen.autogen_loss(loss), logits, target)
        assert report.path == "generated" and report.forward and report.backward
        print(f"{report.loss}: {report.path}, {report.forward.launches} + {report.backward.launches} launches")
    expected = train(timm.loss.AsymmetricLossMultiLabel(), device)
    with autogen.policy("mandatory"):  # a loss that cannot run on kernels is an error
        found = train(autogen.autogen_loss(timm.loss.AsymmetricLossMultiLabel()), device)
    print(f"timm: loss {expected[0]:.3f} at first, {expected[-1]:.3f} after {len(expected)} steps")
    print(f"on kernels: loss {found[0]:.3f} at first, {found[-1]:.3f} after {len(found)} steps")
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)
    assert found[-1] < found[0]


if __name__ == "__main__":
    main()
