"""On a GPU: every loss against torch, and what only a device can show."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen.losses
from autogen import policy
from tests.gpu.device import DEVICE
from tests.interpret.samples import Samples
from tests.interpret.table import ROWS, Row


def on_gpu(value: Any) -> Any:
    return value.to(DEVICE) if isinstance(value, Tensor) else value


def call(row: Row, dtype: torch.dtype, reduction: str) -> tuple[dict[str, Any], list[Any]]:
    """The options and inputs of a row of the table, on the GPU, differentiable where that is possible."""
    samples = Samples(dtype)
    options = {name: on_gpu(value) for name, value in row.options(samples).items()} | {"reduction": reduction}
    inputs = [on_gpu(value) for value in row.inputs(samples)]
    return options, inputs


def value_and_gradient(loss: nn.Module, inputs: list[Any]) -> tuple[Tensor, Tensor]:
    """The loss and the gradient of its first input."""
    first = inputs[0].detach().clone().requires_grad_()
    value = loss(first, *inputs[1:])
    value.backward(torch.ones_like(value))
    assert first.grad is not None
    return value.detach(), first.grad


@pytest.mark.parametrize("reduction", ("mean", "sum", "none"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.loss)
def test_agrees_with_torch(row: Row, dtype: torch.dtype, reduction: str) -> None:
    options, inputs = call(row, dtype, reduction)
    with policy("mandatory"):
        ours = value_and_gradient(getattr(autogen.losses, row.loss)(**options), inputs)
        again = value_and_gradient(getattr(autogen.losses, row.loss)(**options), inputs)
    try:
        theirs = value_and_gradient(getattr(nn, row.loss)(**options), inputs)
    except NotImplementedError as error:
        assert DEVICE == "cpu"
        pytest.skip(str(error))
    for mine, repeated, expected in zip(ours, again, theirs, strict=True):
        assert torch.equal(mine.nan_to_num(), repeated.nan_to_num()), "two runs differ"
        tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 4e-2, "atol": 4e-2}
        torch.testing.assert_close(mine, expected, equal_nan=True, **tolerance)


def cross_entropy(rows: int, classes: int) -> tuple[nn.Module, list[Tensor]]:
    logits = torch.randn(rows, classes, device=DEVICE)
    return autogen.losses.CrossEntropyLoss(), [logits, torch.randint(0, classes, (rows,), device=DEVICE)]


@pytest.mark.parametrize(("rows", "classes"), ((3, 50257), (2, 128256), (4099, 10), (1, 7)))
def test_vocabularies(rows: int, classes: int) -> None:
    loss, inputs = cross_entropy(rows, classes)
    ours, theirs = value_and_gradient(loss, inputs), value_and_gradient(nn.CrossEntropyLoss(), inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.hardware
def test_no_host_synchronisation() -> None:
    loss, inputs = cross_entropy(64, 1000)
    value_and_gradient(loss, inputs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        value_and_gradient(loss, inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.hardware
def test_streams_do_not_share_a_counter() -> None:
    loss, inputs = cross_entropy(4096, 1000)
    expected = value_and_gradient(loss, inputs)[0]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    found = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(loss(*inputs))
    torch.cuda.synchronize()
    assert all(torch.equal(value, expected) for value in found)


@pytest.mark.hardware
def test_cuda_graph() -> None:
    loss, (logits, labels) = cross_entropy(512, 1000)
    loss(logits, labels)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = loss(logits, labels)
    for seed in range(3):
        torch.manual_seed(seed)
        logits.copy_(torch.randn_like(logits))
        graph.replay()
        torch.testing.assert_close(value, nn.functional.cross_entropy(logits, labels))


@pytest.mark.hardware
def test_launches() -> None:
    """Counted by the profiler: one kernel each way."""
    loss = autogen.losses.MSELoss()
    inputs = [torch.randn(4096, 33, device=DEVICE, requires_grad=True), torch.randn(4096, 33, device=DEVICE)]
    loss(*inputs).backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        loss(*inputs).backward()
        torch.cuda.synchronize()
    kernels = sorted(event.name for event in profile.events() if event.name.startswith("mse_loss"))
    assert kernels == ["mse_loss_backward", "mse_loss_forward"]


@pytest.mark.parametrize("offset", (0, 1, 4))
def test_calls_that_are_launched_directly(offset: int) -> None:
    """The third call and those after it, at every alignment of their tensors."""
    loss = autogen.losses.BCEWithLogitsLoss()
    for seed in range(6):
        torch.manual_seed(seed)
        logits, target = (torch.randn(1000, device=DEVICE)[offset:] for _ in range(2))
        ours = value_and_gradient(loss, [logits, target])
        theirs = value_and_gradient(nn.BCEWithLogitsLoss(), [logits, target])
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
