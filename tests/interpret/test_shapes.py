"""Pads, resized images and patches of sizes that differ from call to call: one trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss, explain, trace_count

Change = Callable[[Tensor, Tensor], Tensor]

CHANGES: dict[str, tuple[int, Change]] = {
    "padded": (2, lambda x, y: F.pad(x, (1, 2), value=0.5)),
    "padded by a size": (2, lambda x, y: F.pad(x, (0, 0, len(y), 1))),
    "padded up to": (2, lambda x, y: F.pad(x, (0, 16 - x.shape[1]))),
    "padded and cut": (2, lambda x, y: F.pad(x, (-1, 2, 1, -2))),
    "padded across memory": (2, lambda x, y: F.pad(x.t(), (1, 2)).t()),
    "differences": (4, lambda x, y: F.pad(x, (0, 1)).diff(dim=-1)),
    "doubled, 1d": (3, lambda x, y: F.interpolate(x, scale_factor=2)),
    "halved, 1d": (3, lambda x, y: F.interpolate(x, scale_factor=0.5, mode="linear")),
    "to a size, 1d": (3, lambda x, y: F.interpolate(x, size=y.shape[-1] + 3, mode="linear", align_corners=True)),
    "doubled": (4, lambda x, y: F.interpolate(x, scale_factor=2.0, mode="nearest")),
    "by two factors": (4, lambda x, y: F.interpolate(x, scale_factor=(1.7, 0.6), mode="bilinear")),
    "by a factor that keeps small sizes": (4, lambda x, y: F.interpolate(x, scale_factor=1.1, mode="bilinear")),
    "to the size of another": (4, lambda x, y: F.interpolate(x[..., :3], size=y.shape[2:], mode="bicubic")),
    "aligned": (4, lambda x, y: F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=True)),
    "doubled, 3d": (5, lambda x, y: F.interpolate(x, scale_factor=2)),
    "spectra": (2, lambda x, y: torch.fft.rfft(x).abs()),
    "spectra and back": (2, lambda x, y: torch.fft.irfft(torch.fft.fft(x)[:, :4] * y[:, :4], n=x.shape[1])),
    "complex numbers": (2, lambda x, y: (torch.complex(x, y) * torch.polar(y.exp(), x)).abs()),
    "patches": (4, lambda x, y: F.unfold(x, 3)),
    "patches apart": (4, lambda x, y: F.unfold(x, (2, 3), dilation=2, padding=(2, 1), stride=(1, 2))),
    "patches put back": (4, lambda x, y: F.fold(F.unfold(x, 2), x.shape[2:], 2)),
}


def given(dims: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (5 + seed, 6 + seed) if dims == 2 else (2, 3, *(5 + seed + k % 2 for k in range(dims - 2)))
    return torch.randn(shape, generator=generator).requires_grad_(), torch.randn(shape, generator=generator)


@pytest.mark.parametrize("name", CHANGES)
def test_one_trace_for_all_sizes(name: str) -> None:
    dims, change = CHANGES[name]

    def theirs(x: Tensor, y: Tensor) -> Tensor:
        changed = change(x * y, y)
        return (changed * changed.cumsum(-1)).mean()

    ours = autogen_loss(theirs)
    for seed in range(5):
        x, y = given(dims, seed)
        found, wanted = ours(x, y), theirs(x.double(), y.double())
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
        (gradient,), (expected,) = (torch.autograd.grad(each, x) for each in (found, wanted))
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5)
    assert trace_count(ours) <= 2 and explain(ours, x, y).path != "eager"


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "two sizes": lambda x: F.interpolate(x, size=(4, 4), scale_factor=2),
    "no size": lambda x: F.interpolate(x),
    "another mode": lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
    "aligned neighbours": lambda x: F.interpolate(x, scale_factor=2, align_corners=True),
    "too many factors": lambda x: F.interpolate(x, scale_factor=(2, 2, 2)),
    "nothing left": lambda x: F.interpolate(x, scale_factor=0.01),
    "patches of more than there is": lambda x: F.unfold(x, 30),
    "less than a patch": lambda x: F.fold(x.flatten(1)[:, None, :1], (2, 2), 2),
    "half a pad": lambda x: F.pad(x, (1, 2, 3)),
    "pads of more dimensions": lambda x: F.pad(x, (1,) * 10),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses(name: str) -> None:
    def theirs(x: Tensor) -> Tensor:
        return REFUSED[name](x).mean()

    ours = autogen_loss(theirs)
    for seed in range(3):
        x, _ = given(4, seed)
        with pytest.raises((RuntimeError, ValueError, NotImplementedError)) as error:
            theirs(x)
        with pytest.raises(type(error.value)):
            ours(x)


def test_channels_last(dims: int = 4) -> None:
    def theirs(x: Tensor) -> Tensor:
        return F.interpolate(F.pad(x, (1, 1)), scale_factor=2, mode="bilinear")

    ours = autogen_loss(theirs)
    for seed in range(3):
        x, _ = given(dims, seed)
        x = x.detach().to(memory_format=torch.channels_last)
        torch.testing.assert_close(ours(x), theirs(x))
        assert ours(x).stride() == theirs(x).stride()


def test_channels_last_of_one_pixel() -> None:
    ours = autogen_loss(lambda x: F.pad(x, (1, 1, 2, 0)))
    for channels in (2, 3, 4):
        x = torch.randn(2, channels, 1, 1).to(memory_format=torch.channels_last)
        assert ours(x).stride() == F.pad(x, (1, 1, 2, 0)).stride()
