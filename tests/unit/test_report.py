"""`explain`: what it says follows from the plan, and it runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import BaseTorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import autogen
from autogen import autogen_loss, explain, losses
from autogen.report import Report

pytestmark = pytest.mark.skipif("not __import__('autogen.runtime.availability').runtime.availability.has_interpreter()")

N, C = 1000, 10
PARTIAL = 2 * 4  # a partial result is written by one block and read by the last


def pair(*shape: int) -> tuple[Tensor, Tensor]:
    return torch.rand(shape, requires_grad=True), torch.rand(shape)


def logits(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, columns, requires_grad=True), torch.zeros(rows, dtype=torch.long)


class TestBytes:
    """Figures that follow from the tensors' sizes alone; what is a few bytes per block or row is allowed for."""

    def test_of_an_elementwise_loss(self) -> None:
        report = explain(losses.BCEWithLogitsLoss(), *pair(N))
        assert report.forward is not None and report.backward is not None
        assert report.forward.bytes_moved == 8 * N + 4 + PARTIAL  # input, target; the loss; one block's part
        assert report.backward.bytes_moved == 12 * N + 4  # input, target, gradient; the upstream gradient

    @pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 8), (torch.bfloat16, 2)])
    def test_follow_the_dtype(self, dtype: torch.dtype, size: int) -> None:
        x, t = pair(N)
        report = explain(losses.MSELoss(reduction="none"), x.to(dtype), t.to(dtype))
        assert report.forward is not None
        assert report.forward.bytes_moved == report.forward.bytes_minimum == 3 * size * N

    def test_count_partial_results_of_every_block(self) -> None:
        small, large = (explain(losses.L1Loss(), *pair(n)).forward for n in (1024, 64 * 1024))
        assert small is not None and large is not None
        blocks = (large.bytes_moved - 8 * 64 * 1024 - 4) // PARTIAL
        assert blocks > 1 and large.bytes_moved == 8 * 64 * 1024 + 4 + blocks * PARTIAL

    def test_count_a_broadcast_tensor_once(self) -> None:
        report = explain(losses.BCELoss(weight=torch.ones(C), reduction="none"), *pair(N, C))
        assert report.forward is not None
        assert report.forward.bytes_moved == 4 * (3 * N * C + C)

    @pytest.mark.parametrize(("rows", "columns"), [(4, 10), (200, 60_000)], ids=["resident", "looped"])
    def test_of_cross_entropy_read_the_logits_once_each_way(self, rows: int, columns: int) -> None:
        report = explain(losses.CrossEntropyLoss(), *logits(rows, columns))
        assert report.forward is not None and report.backward is not None
        matrix = 4 * rows * columns
        assert matrix < report.forward.bytes_moved < matrix + 100 * rows
        assert 2 * matrix < report.backward.bytes_moved < 2 * matrix + 100 * rows

    def test_few_long_rows_read_the_logits_once(self) -> None:
        report = explain(losses.CrossEntropyLoss(), *logits(4, 60_000))
        assert report.forward is not None
        assert 4 * 4 * 60_000 < report.forward.bytes_moved < 1.01 * 4 * 4 * 60_000

    def test_count_each_walk_over_long_rows(self) -> None:
        x = torch.randn(2, 60_000)
        report = explain(autogen_loss(lambda x: (x - x.mean(1, keepdim=True)).abs().sum(1)), x)
        assert report.forward is not None
        assert 2 * x.nbytes < report.forward.bytes_moved < 2 * x.nbytes + 100
        assert x.nbytes < report.forward.bytes_minimum < x.nbytes + 100

    def test_count_what_every_program_walks_again(self) -> None:
        x, y = torch.randn(128 * 300), torch.randn(100)
        report = explain(autogen_loss(lambda x, y: x + y.sum()), x, y)
        assert report.forward is not None
        assert report.forward.launches == 1
        assert report.forward.bytes_moved == 2 * x.nbytes + 300 * y.nbytes  # 128 rows per program

    def test_count_what_every_program_of_a_part_walks_again(self) -> None:
        x, y, z = torch.randn(128 * 300), torch.randn(100), torch.randn(128 * 200)
        report = explain(autogen_loss(lambda x, y, z: (x + y.sum(), z * y.amax())), x, y, z)
        assert report.forward is not None
        assert report.forward.launches == 1 and "_part_2(" in report.forward.source
        assert report.forward.bytes_moved == 2 * (x.nbytes + z.nbytes) + (300 + 200) * y.nbytes

    @pytest.mark.parametrize("is_expanded", [False, True])
    def test_of_a_handwritten_loss(self, is_expanded: bool) -> None:
        """Inputs, targets, the loss, and a part of each block; of long rows, three numbers each that backward needs."""
        x, y = pair(N, 64)
        sign = torch.ones(1).expand(N) if is_expanded else torch.ones(N)
        report = explain(losses.CosineEmbeddingLoss(), x, y, sign)
        assert report.forward is not None and report.backward is not None
        necessary = 2 * x.nbytes + 4 * (1 if is_expanded else N) + 4
        blocks = -(-N // 32)  # of 2048 elements
        assert report.forward.bytes_minimum == necessary
        assert report.forward.bytes_moved == necessary + blocks * PARTIAL
        assert report.backward.bytes_minimum == report.backward.bytes_moved == necessary + x.nbytes
        long = explain(losses.CosineEmbeddingLoss(), *pair(N, 4096), sign).backward
        assert long is not None and long.bytes_moved == long.bytes_minimum + 3 * 4 * N

    def test_are_never_below_the_minimum(self) -> None:
        for report in (
            explain(losses.TripletMarginLoss(), *(torch.randn(8, 16, requires_grad=True) for _ in range(3))),
            explain(losses.NLLLoss(weight=torch.rand(C)), *logits(N, C)),
            explain(losses.CrossEntropyLoss(label_smoothing=0.1), *logits(N, C)),
        ):
            for direction in (report.forward, report.backward):
                assert direction is not None and direction.bytes_moved >= direction.bytes_minimum > 0


class TestFields:
    def test_of_a_generated_loss(self) -> None:
        report = explain(losses.BCELoss(), *pair(N))
        assert (report.loss, report.path) == ("BCELoss", "generated")
        assert report.forward is not None and report.backward is not None
        assert report.forward.launches == report.backward.launches == 1
        assert report.forward.kernels == ("bce_loss_forward",)
        assert report.backward.kernels == ("bce_loss_backward",)
        for direction in (report.forward, report.backward):
            ast.parse(direction.source)
            assert f"def {direction.kernels[0]}(" in direction.source

    def test_launches_are_those_of_the_plan(self) -> None:
        report = explain(autogen_loss(lambda x: (x.sum(0), x.sum(1))), torch.rand(300, 400))
        assert report.forward is not None
        assert report.forward.launches == len(report.forward.kernels) == 2
        assert all(f"def {name}(" in report.forward.source for name in report.forward.kernels)

    def test_backward_is_none_where_nothing_asks_for_a_gradient(self) -> None:
        x, t = pair(N)
        assert explain(losses.MSELoss(), x.detach(), t).backward is None
        with torch.no_grad():
            assert explain(losses.MSELoss(), x, t).backward is None

    def test_of_a_loss_that_is_not_decorated(self) -> None:
        plain = nn.MSELoss()
        assert explain(plain, *pair(N)).path == "generated"
        assert "forward" not in vars(plain), "explaining a loss leaves it as it is"
        assert explain(lambda x, t: (x - t).abs().mean(), *pair(N)).path == "generated"


class TestReasons:
    """Why a loss runs in torch, in one sentence."""

    def test_a_disabled_policy(self) -> None:
        with autogen.policy("disabled"):
            assert self.reason(losses.MSELoss(), *pair(N)) == "the policy is disabled"
        assert self.reason(autogen_loss(nn.MSELoss(), policy="disabled"), *pair(N)) == "the policy is disabled"

    def test_the_flag(self) -> None:
        assert "use_autogen=False" in self.reason(losses.MSELoss(use_autogen=False), *pair(N))

    def test_an_unknown_op_with_its_line(self) -> None:
        def loss(x: Tensor) -> Tensor:
            return torch.cummax(x, 0).values

        reason = self.reason(autogen_loss(loss), torch.rand(N))
        assert "cummax" in reason and __file__ in reason and "return torch.cummax(x, 0).values" in reason

    def test_a_step_of_torch_by_the_name_of_its_op(self) -> None:
        """Also an op of a user's own, or one of those that torch's formulas are made of."""

        @torch.library.custom_op("autogen_tests::mirrored", mutates_args=())
        def mirrored(x: Tensor) -> Tensor:
            return x.flip(0)

        mirrored.register_fake(torch.empty_like)
        report = explain(autogen_loss(lambda x, y: (mirrored(x) * torch.nextafter(x, y)).sum()), *torch.rand(2, 5))
        assert report.reason == "torch runs mirrored, nextafter between kernels"

    def test_a_tensor_that_no_kernel_reads(self) -> None:
        assert "complex" in self.reason(autogen_loss(lambda x: x.abs().sum()), torch.rand(N, dtype=torch.complex64))

    @pytest.mark.parametrize(
        "mode", [forward_ad.dual_level, BaseTorchFunctionMode, lambda: FlopCounterMode(display=False)]
    )
    def test_a_call_that_torch_transforms(self, mode: Callable[[], AbstractContextManager[Any]]) -> None:
        with mode():
            assert "transforms, traces or watches" in self.reason(losses.MSELoss(), *torch.rand(2, N))

    @staticmethod
    def reason(loss: Any, *args: Tensor) -> str:
        report = explain(loss, *args)
        assert report.path == "eager" and report.forward is report.backward is None
        return report.reason


def test_arguments_that_do_not_fit_raise() -> None:
    with pytest.raises(TypeError):
        explain(losses.MSELoss(), torch.rand(3))


def test_nothing_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    from autogen.runtime import build

    monkeypatch.setattr(build, "load_function", None)
    assert explain(losses.MSELoss(), *pair(N)).path == "generated"


def test_the_text_is_for_a_person() -> None:
    text = str(explain(losses.BCEWithLogitsLoss(), *pair(N)))
    head = text.splitlines()[:6]
    assert head[0] == "BCEWithLogitsLoss: generated"
    assert head[2].strip().startswith("forward: 1 launch (bce_with_logits_loss_forward), 8,012 bytes moved, 1.00 times")
    assert head[4].strip().startswith("backward: 1 launch (bce_with_logits_loss_backward), 12,004 bytes moved, 1.00")
    assert head[3] == head[5] == "    BLOCK 1024, 4 warps (default)"
    assert text.count("@triton.jit") == 2
    eager = str(Report("Loss", "eager", "the policy is disabled"))
    assert eager.splitlines() == ["Loss: eager", "  because the policy is disabled"]
