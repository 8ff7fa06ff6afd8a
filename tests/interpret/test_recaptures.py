"""Functions whose sizes torch's capture takes as they are, and state that counts: a capture serves all shapes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autogen import autogen_loss, explain, trace_count

SHAPES = ((2, 3, 5, 6), (4, 3, 7, 9))


def spectra(x: Tensor, y: Tensor) -> Tensor:
    window = torch.hann_window(16, dtype=x.dtype, device=x.device)
    one, two = (torch.stft(each.flatten(1), 16, 4, window=window, return_complex=True).abs() for each in (x, y))
    return F.l1_loss((one + 1e-3).log(), (two + 1e-3).log())


def focal_frequencies(x: Tensor, y: Tensor) -> Tensor:
    difference = torch.view_as_real(torch.fft.fft2(x, norm="ortho") - torch.fft.fft2(y, norm="ortho"))
    distance = difference.pow(2).sum(-1)
    weight = distance.detach().sqrt()
    return (weight / weight.amax((-2, -1), keepdim=True) * distance).mean()


def frequencies(x: Tensor, y: Tensor) -> Tensor:
    rows = torch.fft.fftfreq(x.shape[-2], dtype=x.dtype, device=x.device)
    columns = torch.fft.rfftfreq(x.shape[-1], d=0.5, dtype=x.dtype, device=x.device)
    return (torch.fft.rfft2(x - y).abs() * (rows[:, None] ** 2 + columns**2)).mean()


def slopes(x: Tensor, y: Tensor) -> Tensor:
    (down,) = torch.gradient(x - y, spacing=(0.5,), dim=(2,), edge_order=2)
    (right,) = torch.gradient(x, dim=-1)
    return (down * right).mean()


def products(x: Tensor, y: Tensor) -> Tensor:
    return torch.kron(x[0, 0], y[0]).cos().mean()


def ramps(x: Tensor, y: Tensor) -> Tensor:
    where = {"dtype": x.dtype, "device": x.device}
    ramp = torch.linspace(-1, 3, x.shape[-1], **where)[None] + torch.logspace(0, 1, x.shape[-2], 2.0, **where)[:, None]
    return ((x - y) * ramp).pow(2).mean()


def in_order(x: Tensor, y: Tensor) -> Tensor:
    order = y.argsort(-1)
    places = y.argmax(1, keepdim=True)
    return torch.take_along_dim(x, order, -1).cumsum(-1).mean() + torch.take_along_dim(x, places, 1).pow(2).sum()


def turned(x: Tensor, y: Tensor) -> Tensor:
    theta = torch.tensor([[0.9, -0.2, 0.1], [0.3, 0.8, 0.0]], dtype=x.dtype, device=x.device)
    grid = F.affine_grid(theta.expand(x.shape[0], 2, 3), x.shape, align_corners=False)
    volume = F.affine_grid(y[:, :, :3, :4].mean(1), [x.shape[0], 1, *x.shape[-3:]], align_corners=True)
    return F.mse_loss(F.grid_sample(x, grid, align_corners=False), y) + volume[..., 1].pow(2).mean()


def coarser(x: Tensor, y: Tensor) -> Tensor:
    def half(each: Tensor) -> Tensor:
        return F.interpolate(each, scale_factor=0.5, mode="bicubic", antialias=True)

    size, options = (x.shape[-2] // 2, x.shape[-1] // 3), {"mode": "bilinear", "antialias": True}
    return F.l1_loss(half(x), half(y)) + F.interpolate(x, size, **options).pow(2).mean()


LOSSES = (
    *(pytest.param(loss, marks=pytest.mark.slow) for loss in (spectra, slopes, turned)),
    *(focal_frequencies, frequencies, products, ramps, in_order, coarser),
)


@pytest.mark.parametrize("loss", LOSSES)
def test_one_capture_serves_all_shapes(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    ours = autogen_loss(loss)
    for shape in SHAPES:
        own, x = (torch.rand(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
        y = torch.rand(shape, dtype=torch.float64)
        with torch.no_grad():
            own.copy_(x)
        found, expected = ours(own, y), loss(x, y)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        found.backward()
        expected.backward()
        torch.testing.assert_close(own.grad, x.grad, rtol=1e-11, atol=1e-12)
    assert trace_count(ours) == 1
    assert explain(ours, own, y).path in ("generated", "partial")


@pytest.mark.parametrize(
    "given",
    [
        lambda x: torch.linspace(0, 10, x.shape[-1], dtype=torch.int64),  # which rounds
        lambda x: torch.linspace(x.mean(), 1, x.shape[-1], dtype=x.dtype),  # of a tensor
        lambda x: torch.linspace(0, 1, x.shape[-1] - 1, dtype=x.dtype),  # of one number
        lambda x: torch.gradient(x, spacing=(torch.arange(x.shape[-1]) ** 2,), dim=-1)[0],
    ],
)
def test_what_has_no_formula_is_torchs(given: Callable[[Tensor], Tensor]) -> None:
    def loss(x: Tensor) -> Tensor:
        return given(x).pow(2).sum() + x.sum()

    for size in (2, 7):
        x = torch.rand(3, size, dtype=torch.float64)
        torch.testing.assert_close(autogen_loss(loss)(x), loss(x), rtol=1e-13, atol=0)


def test_what_torch_refuses_is_refused() -> None:
    @autogen_loss
    def loss(x: Tensor, order: int) -> Tensor:
        return torch.gradient(x, dim=-1, edge_order=order)[0].sum()

    with pytest.raises(RuntimeError, match="edge_order"):
        loss(torch.rand(4, 5), 3)
    with pytest.raises(RuntimeError, match="at least edge_order\\+1"):
        loss(torch.rand(4, 2), 2)


class Queue(nn.Module):
    """Negatives of earlier steps in a ring."""

    def __init__(self, size: int = 24) -> None:
        super().__init__()
        self.register_buffer("queue", torch.linspace(-1, 1, 8 * size).sin().reshape(8, size).double())
        self.size, self.pointer, self.steps = size, 0, 0

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        count = key.shape[0]
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ self.queue.clone().detach()], 1)
        loss = F.cross_entropy(logits, torch.zeros(count, dtype=torch.long)) * min(1.0, self.steps / 4)
        places = (torch.arange(count) + self.pointer) % self.size
        with torch.no_grad():
            self.queue[:, places] = key.T
        self.pointer, self.steps = (self.pointer + count) % self.size, self.steps + 1
        return loss


def test_a_ring_with_a_pointer_of_pythons() -> None:
    plain, ours = Queue(), autogen_loss(Queue())
    for count in (4, 4, 7, 5, 4, 6, 4):
        query, key = torch.rand(count, 8, dtype=torch.float64), torch.rand(count, 8, dtype=torch.float64)
        torch.testing.assert_close(ours(query, key), plain(query, key), rtol=1e-12, atol=1e-12)
        assert ours.pointer == plain.pointer and ours.steps == plain.steps
        assert torch.equal(ours.queue, plain.queue)
    assert trace_count(ours) <= 3
