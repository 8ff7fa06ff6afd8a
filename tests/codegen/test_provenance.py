"""A kernel made from somebody's own loss speaks in that somebody's words."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from autogen import autogen_loss, explain
from tests.codegen.source import Source


@autogen_loss
class FocalLoss(nn.Module):
    def __init__(self, gamma: float = 1.5) -> None:
        super().__init__()
        self.gamma = gamma
        self.register_buffer("class_gain", torch.ones(10))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        log_probability = logits.log_softmax(dim=1)
        picked = log_probability.gather(1, labels.unsqueeze(1)).squeeze(1)
        # A remark that is not code.
        difficulty = (1 - picked.exp()) ** self.gamma  # how far off
        return -(difficulty * picked * self.class_gain[labels]).mean()


@autogen_loss
def charbonnier(prediction: Tensor, target: Tensor, eps: float = 1e-3) -> Tensor:
    error = prediction - target
    smooth = torch.sqrt(error * error + eps * eps)
    return smooth.mean()


@pytest.fixture(scope="module")
def focal() -> tuple[Source, Source]:
    report = explain(FocalLoss(), torch.randn(8, 10, requires_grad=True), torch.arange(8))
    assert report.forward is not None and report.backward is not None
    return Source(report.forward.source), Source(report.backward.source)


@pytest.fixture(scope="module")
def smooth() -> tuple[Source, Source]:
    report = explain(charbonnier, torch.randn(100, requires_grad=True), torch.randn(100))
    assert report.forward is not None and report.backward is not None
    return Source(report.forward.source), Source(report.backward.source)


def test_modules_and_kernels_are_named_after_the_loss(
    focal: tuple[Source, Source], smooth: tuple[Source, Source]
) -> None:
    assert [source.kernel.name for source in focal] == ["focal_loss_forward", "focal_loss_backward"]
    assert [source.kernel.name for source in smooth] == ["charbonnier_forward", "charbonnier_backward"]
    assert "from FocalLoss" in focal[0].text


def test_parameters_are_named_as_in_the_signature(focal: tuple[Source, Source], smooth: tuple[Source, Source]) -> None:
    assert smooth[0].pointers[:3] == ["prediction_ptr", "target_ptr", "loss_ptr"]
    assert "grad_prediction_ptr" in smooth[1].pointers
    assert {"logits_ptr", "labels_ptr", "class_gain_ptr"} <= set(focal[0].pointers)


def test_comments_are_the_users_lines(focal: tuple[Source, Source], smooth: tuple[Source, Source]) -> None:
    assert "error = prediction - target" in smooth[0].comments
    assert "smooth = torch.sqrt(error * error + eps * eps)" in smooth[0].comments
    forward = focal[0].comments
    assert "log_probability = logits.log_softmax(dim=1)" in forward
    assert "difficulty = (1 - picked.exp()) ** self.gamma" in forward
    assert not any("remark" in comment or "how far off" in comment for comment in forward)


def test_comments_of_backward_say_what_is_derived(smooth: tuple[Source, Source]) -> None:
    assert any(c.startswith("gradient of: smooth = torch.sqrt(") for c in smooth[1].comments)


def test_each_comment_stands_above_something(focal: tuple[Source, Source], smooth: tuple[Source, Source]) -> None:
    for source in (*focal, *smooth):
        lines = source.text.splitlines()
        for above, below in itertools.pairwise(lines):
            if above.strip().startswith("#"):
                indentation = len(above) - len(above.lstrip())
                assert below.strip() and len(below) - len(below.lstrip()) == indentation


def test_variables_keep_their_names(focal: tuple[Source, Source], smooth: tuple[Source, Source]) -> None:
    assert {"error", "smooth"} <= smooth[0].assigned
    assert "difficulty" in focal[0].assigned


def test_variables_keep_their_names_where_a_lowering_has_one_too(focal: tuple[Source, Source]) -> None:
    assert "picked" in focal[0].assigned


def test_a_name_that_python_or_the_kernel_needs_is_not_taken() -> None:
    def loss(tl: Tensor, program: Tensor) -> Tensor:
        mask = tl.exp() + program
        exp = mask * mask
        BLOCK = exp + exp.sqrt()
        return (BLOCK * BLOCK).mean()

    report = explain(autogen_loss(loss), torch.rand(10), torch.rand(10))
    assert report.forward is not None
    source = Source(report.forward.source)
    assert not {"tl", "exp", "BLOCK"} & source.assigned
    compile(source.text, "kernel", "exec")
