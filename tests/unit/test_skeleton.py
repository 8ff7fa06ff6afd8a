"""Skeletons of kernels: losses of one pattern have the same, and it reads, reduces and stores what the kernel does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autogen import ir
from autogen.runtime.launch import Launcher
from autogen.scheduling.launches.running import Running
from autogen.tiling.tiler import Tiler
from autogen.tuning.skeleton import Skeleton
from tests.unit.pipeline import Loss
from tests.unit.test_tiling import LOSSES, tiled
from tests.unit.tuned import LABELS, T, X, dice, images, launcher_of, skeleton_of, text_of
from tests.unit.verify import verify


class TestSkeletons:
    @pytest.mark.slow
    def test_losses_of_one_pattern_have_the_same_to_the_byte(self) -> None:
        calls: list[Loss] = [
            nn.MSELoss(),
            nn.HuberLoss(),
            nn.SmoothL1Loss(beta=0.3),
            lambda x, t: (x - 2 * t).abs().mean(),
        ]
        for backward in (False, True):
            found = {skeleton_of(loss, X, T, backward=backward).pattern for loss in calls}
            assert len(found) == 1
        sizes = launcher_of(calls[0], X, T)[1]
        assert len({text_of(skeleton_of(loss, X, T), sizes) for loss in calls[:3]}) == 1

    def test_names_do_not_matter(self) -> None:
        def one(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return (first * second).mean()

        def other(b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
            return (b + a).sum()

        assert skeleton_of(one, X, T).pattern == skeleton_of(other, X, T).pattern

    def test_classes_of_arithmetic_are_told_apart_by_one_function(self) -> None:
        plain, exponential = (skeleton_of(loss, X, T) for loss in (nn.SmoothL1Loss(), nn.BCEWithLogitsLoss()))
        heavy = skeleton_of(lambda x, t: torch.lgamma(x * t).mean(), X, T)
        ops = [{n.op for n in ir.topological(each.kernel.computed)} for each in (plain, exponential, heavy)]
        assert ops[0] == {"load", "add", "reduce"}
        assert (ops[1] - ops[0], ops[2] - ops[0]) == ({"exp"}, {"lgamma"})

    @pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss()])
    def test_results_in_half_precision_are_a_class(self, loss: nn.Module) -> None:
        x = X.detach().bfloat16().requires_grad_()
        target = LABELS if isinstance(loss, nn.CrossEntropyLoss) else T.bfloat16()
        ops = {node.op for node in ir.topological(skeleton_of(loss, x, target).kernel.computed)}
        assert "exp_half" in ops and "exp" not in ops

    @pytest.mark.parametrize("other", [X.detach().double(), X.detach().t().contiguous().t(), X.detach()[:, :1]])
    def test_dtypes_strides_and_broadcasting_matter(self, other: torch.Tensor) -> None:
        def loss(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return ((x - t) ** 2).mean()

        assert skeleton_of(loss, X, other).pattern != skeleton_of(loss, X, T).pattern

    def test_reductions_matter(self) -> None:
        losses: list[Loss] = [lambda x: x.sum(), lambda x: x.amax(), lambda x: x.sum(1), lambda x: (x.sum(), x.amin())]
        losses += [lambda x: (x.sum(), (x * x).sum()), lambda x: x.exp()]
        assert len({skeleton_of(loss, X.detach()).pattern for loss in losses}) == len(losses)

    @pytest.mark.parametrize(
        "loss",
        [
            nn.CrossEntropyLoss(),
            nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.rand(40)),
            lambda x, t: x.softmax(1).mean(),
            lambda x, t: ((x - x.mean(1, keepdim=True)) ** 2).sum(1).sqrt(),
            lambda x, t: (x - x.amax(1, keepdim=True)).abs().sum(1),
            lambda x, t: x.argmax(1) + (x.log_softmax(1) * x.softmax(1)).sum(1),
        ],
    )
    @pytest.mark.parametrize("backward", [False, True])
    def test_rows_are_walked_as_often(self, loss: Loss, backward: bool) -> None:
        launcher, _ = launcher_of(loss, X, LABELS, backward=backward)

        def form(running: Running) -> tuple[int, int, bool]:
            return len(running.scales), len(running.lower), running.restarts is not None

        walks = [
            [
                [(node.attrs[0], form(each.running.get(node, Running()))) for node in each.reductions]
                for each in kernel.passes
            ]
            for kernel in (launcher.kernel, Skeleton.of(launcher.kernel).kernel)
        ]
        assert [sorted(each) for each in walks[0]] == [sorted(each) for each in walks[1]]

    @pytest.mark.parametrize("backward", [False, True])
    def test_a_scan_stays_one(self, backward: bool) -> None:
        """Of whatever it is, in the order in which it runs: what threads exchange is most of its time."""
        launcher, _ = launcher_of(lambda x, t: x.sigmoid().flip(1).cumsum(1).exp().mean(), X, T, backward=backward)
        scans = [
            [node.attrs[::2] for node in ir.topological(kernel.computed) if node.op == "scan"]
            for kernel in (launcher.kernel, Skeleton.of(launcher.kernel).kernel)
        ]
        assert scans[0] and scans[0] == scans[1]

    def test_the_graph_keeps_the_rules(self) -> None:
        for name in LOSSES:
            skeleton = Skeleton.of(tiled(name).kernel)
            verify(skeleton.kernel.computed)
            assert len(skeleton.kernel.loads()) == len(tiled(name).kernel.loads())
            ours = Tiler(skeleton.kernel, Launcher(skeleton.kernel, skeleton.provenance)._space)
            for n, c in [(3, 4), (3000, 1000), (4, 100_000)]:
                sizes = {**tiled(name).sizes, "N": n, "C": c}
                assert ours.tiling(skeleton.sizes(sizes)) == tiled(name).tiling(n, c)

    def test_what_the_last_block_does_is_a_skeleton_too(self) -> None:
        launcher, sizes = launcher_of(dice, *images(4, 5, 64, 64))
        skeleton = Skeleton.of(launcher.kernel)
        assert launcher.kernel.last_block and skeleton.kernel.last_block
        assert {n.op for n in ir.topological(skeleton.kernel.last_block.kernel.computed)} <= {"load", "add", "reduce"}
        assert "0.125" not in text_of(skeleton, sizes)
