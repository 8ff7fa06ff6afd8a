"""What kernels and their arguments are called."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autogen.aot import kernels_of
from autogen.compiler import kernel_name


@pytest.mark.parametrize(
    ("loss", "kernel"),
    [
        ("BCEWithLogitsLoss", "bce_with_logits_loss"),
        ("SmoothL1Loss", "smooth_l1_loss"),
        ("GIoULoss", "giou_loss"),
        ("IoU", "iou"),
        ("MyBCELoss", "my_bce_loss"),
        ("MyLoss", "my_loss"),
        ("SimPOLoss", "sim_po_loss"),
    ],
)
def test_kernels_are_called_after_the_loss(loss: str, kernel: str) -> None:
    assert kernel_name(loss) == kernel


def test_a_number_is_described_as_a_reader_would_write_it() -> None:
    loss, x = nn.CrossEntropyLoss(label_smoothing=0.1), torch.randn(64, 48, requires_grad=True)
    for each in kernels_of(loss, x, torch.rand(64, 48)):
        assert "    number: (0.1 / C)\n" in each.text and "sym_float" not in each.text
