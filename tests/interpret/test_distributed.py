"""Losses of several processes: a sharded vocabulary, collectives of the user's, DTensors, and what goes wrong there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tests.interpret import ranks as work
from tests.interpret.ranks import CALLS, IGNORED, calls_of, data

pytestmark = [
    pytest.mark.interpreted,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"),
]
LIMIT = 400.0  # seconds, for one group; it takes 20 on two free cores
pytestmark = pytest.mark.slow  # each world of processes imports torch in all of them

of_two = pytest.mark.parametrize("found", [2], indirect=True, ids=["2"])
of_four = pytest.mark.parametrize("found", [4], indirect=True, ids=["4"])


@pytest.fixture(scope="module", params=[2, 4])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """What each process of a group has found. They end with this one (torch asks the kernel for it), or before."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    group = torch.multiprocessing.start_processes(
        work.run, (request.param, folder), request.param, join=False, daemon=True, start_method="spawn"
    )
    try:
        deadline = time.monotonic() + LIMIT
        while not group.join(timeout=1):
            assert time.monotonic() < deadline, f"the processes take more than {LIMIT} s"
    finally:
        for process in group.processes:
            process.kill()
    yield [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(request.param)]


def reference(logits: Tensor, labels: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The loss of all classes in one process, in double precision, and its gradient."""
    options = dict(options)
    z, reduction = options.pop("z_loss", 0.0), options.pop("reduction", "mean")
    exact = logits.detach().double().requires_grad_()
    moved = exact.movedim(-1, 1) if exact.dim() == 3 else exact
    loss = F.cross_entropy(moved, labels, reduction="none", **options)
    counted = labels != IGNORED
    loss = loss + torch.where(counted, z * exact.logsumexp(-1) ** 2, 0)
    value = loss if reduction == "none" else loss.sum() / (counted.sum() if reduction == "mean" else 1)
    value.backward(torch.ones_like(value))
    assert exact.grad is not None
    return value.detach(), exact.grad


def test_a_sharded_vocabulary_is_the_whole_one(found: list[dict[str, Any]]) -> None:
    for name in calls_of(len(found)):
        logits, labels, sizes = data(name, len(found))
        value, gradient = reference(logits, labels, **CALLS[name][3])
        own = [each[name] for each in found]
        for each in own:
            assert each["value"].dtype == (torch.float64 if logits.dtype == torch.float64 else torch.float32)
            assert torch.equal(each["value"], own[0]["value"]), name  # to the bit, on all ranks
            torch.testing.assert_close(each["value"].double(), value, rtol=2e-6, atol=1e-6)
        assert [each["gradient"].shape[-1] for each in own] == list(sizes)
        parts = torch.cat([each["gradient"] for each in own], -1)
        precision = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 2**-8}[logits.dtype]
        torch.testing.assert_close(parts.double(), gradient, rtol=precision, atol=precision / 4)


def test_a_call_is_one_collective(found: list[dict[str, Any]]) -> None:
    for each in (rank[name] for rank in found for name in calls_of(len(found))):
        assert each["path"] == "partial" and not each["breaks"]
        assert each["reason"] == "torch runs all_gather_into_tensor between kernels"
        assert each["forward"] == (2, 1)
        assert each["backward"] == (1, 0)


@of_two
def test_collectives_of_users_are_steps(found: list[dict[str, Any]]) -> None:
    logits, labels, sizes = data("plain", len(found))
    value, gradient = reference(logits, labels.clamp(min=0))
    for own, part in zip((rank["by hand"] for rank in found), gradient.split(sizes, -1), strict=True):
        assert own["path"] == "partial" and not own["breaks"]
        assert own["reason"] == "torch runs all_reduce between kernels"
        torch.testing.assert_close(own["value"].double(), value, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(own["gradient"].double(), part * len(found), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(own["gradient"], own["eager"], rtol=1e-5, atol=1e-6)
        assert own["forward"] == (3, 3)
        assert own["backward"] == (2, 2)


@of_two
def test_a_sharded_head_in_chunks(found: list[dict[str, Any]]) -> None:
    """Each rank has the gradient of its classes, and its part of the hidden states'."""
    weight, hidden, labels = (each.double() if each.is_floating_point() else each for each in work.head_of(len(found)))
    value = F.cross_entropy(hidden @ weight.t(), labels)
    of_weight, of_hidden = torch.autograd.grad(value, (weight, hidden))
    heads = [rank["head"] for rank in found]
    for own, part in zip(heads, of_weight.split(4), strict=True):
        torch.testing.assert_close(own["value"].double(), value.detach(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(own["gradient"].double(), part, rtol=1e-5, atol=1e-6)
        assert own["chunks"][0].startswith("3 chunks of 4 rows") and own["forward"][1] == 1 and own["backward"][1] == 0
    torch.testing.assert_close(sum(own["hidden"] for own in heads).double(), of_hidden, rtol=1e-5, atol=1e-6)


def test_collectives_keep_their_order(found: list[dict[str, Any]]) -> None:
    """The first rank runs the loss in torch, the others on kernels."""
    inputs = [rank["ordered"]["input"].double() for rank in found]
    expected = max(x.exp().sum() for x in inputs) + sum(x[0].sum() + 2 * x.sum() for x in inputs)
    expected = expected + min(x.amax() for x in inputs)
    for rank in found:
        torch.testing.assert_close(rank["ordered"]["value"].double(), expected, rtol=1e-6, atol=1e-6)


@of_two
def test_what_is_wrong_is_said(found: list[dict[str, Any]]) -> None:
    count = len(found)
    for rank, own in enumerate(found):
        sizes = tuple(3 + k for k in range(count))
        assert own["differing"] == (
            f"ValueError: the ranks have {sizes} classes, which differ; pass sizes={sizes} if they are to"
        )
        assert own["sizes"] == f"ValueError: sizes are {(4,) * count}, but rank {rank} of {count} has 3 classes"
        label = f"target {3 * count} is out of bounds: all ranks together have {3 * count} classes"
        assert own["label"] == f"IndexError: {label}"
        outside = "ValueError: this process is not in the group that the loss is computed in"
        assert own["outside"] == (outside if rank else "")
        assert own["changed"].startswith(f"ValueError: rank {rank} has 5 classes, and had 3 when all ranks were asked")


@of_two
def test_who_is_left_alone_waits_no_longer_than_torch_does(found: list[dict[str, Any]]) -> None:
    first, *others = found
    assert first["left alone"].startswith("RuntimeError") and "imed out" in first["left alone"]
    assert 1 < float(first["after"]) < 20
    for own in others:
        assert own["left alone"] == "IndexError: target -1 is out of bounds: all ranks together have 6 classes"


@of_two
def test_loss_parallel_runs_on_the_shards(found: list[dict[str, Any]]) -> None:
    for own in (rank[name] for rank in found for name in ("parallel", "plain labels")):
        _is_cross_entropy(own)
        assert own["reason"] == "torch runs all_reduce between kernels"
        assert [str(each) for each in own["gradient placed"]] == ["S(1)"]
        assert own["forward"] == (4, 3)
        assert own["backward"] == (1, 0)


@of_two
def test_without_loss_parallel_logits_are_gathered(found: list[dict[str, Any]]) -> None:
    """By the loss that was captured inside of it before."""
    for own in (rank["gathered"] for rank in found):
        _is_cross_entropy(own)
        assert own["reason"] == "torch runs all_gather_into_tensor between kernels"
        assert [str(each) for each in own["gradient placed"]] == ["R"]
        assert own["forward"][1] == 1
        assert own["backward"] == (1, 0)


def _is_cross_entropy(own: dict[str, Any], reduction: str = "mean") -> None:
    logits = torch.randn(8, 13, generator=torch.Generator().manual_seed(1))
    value, gradient = reference(logits, torch.arange(8) % 13, reduction=reduction)
    assert own["path"] == "partial" and not own["breaks"]
    torch.testing.assert_close(own["value"].double(), value, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(own["gradient"].double(), gradient, rtol=2e-6, atol=1e-6)


@of_four
def test_a_grid_of_rows_and_classes(found: list[dict[str, Any]]) -> None:
    """A function, whose rows are sharded, too."""
    for own in (rank["grid"] for rank in found):
        _is_cross_entropy(own, "sum")
        assert own["forward"] == (4, 3)
        assert own["backward"] == (1, 0)


@of_two
def test_any_loss_of_dtensors_has_kernels(found: list[dict[str, Any]]) -> None:
    logits = torch.randn(8, 13, generator=torch.Generator().manual_seed(1)).double()
    for own in (rank["rows"] for rank in found):
        assert own["path"] == "generated"
        torch.testing.assert_close(own["value"].double(), (logits**2).mean(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(own["gradient"].double(), 2 * logits / logits.numel(), rtol=1e-6, atol=1e-6)
        assert own["forward"] == own["backward"] == (1, 0)


@of_two
def test_a_dtensor_that_is_changed_is_torchs(found: list[dict[str, Any]]) -> None:
    for own in found:
        assert own["changing"]["reason"] == "a DTensor is changed in place, or a view of one is returned"
