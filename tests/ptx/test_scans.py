"""Kernels with scans, compiled: nothing spills, accesses are wide, and what threads exchange is small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from autogen import autogen_loss
from bench.static import facts
from tests.ptx.versions import TRITON

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "along rows": lambda p, q: (p.softmax(-1).cumsum(-1) - q.cumsum(-1)).square().mean(),
    "down columns": lambda p, q: (p.cumsum(0) - q).square().mean(),
    "products": lambda p, q: ((1 - p).cumprod(-1) * p * q).sum(-1).square().mean(),
    "of exponentials": lambda p, q: ((p - p.logcumsumexp(-1)) * q).mean(),
}
SPILLED = {("of exponentials", (4096, 128)): 8} if TRITON == (3, 8) else {}
SHAPES = [(4096, 10), (4096, 128), (1024, 2048), (512, 4096)]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fits_on_chip(name: str, shape: tuple[int, int]) -> None:
    p, q = torch.rand(shape, requires_grad=True), torch.rand(shape)
    for direction in facts(autogen_loss(LOSSES[name]), (p, q)):
        assert direction.launches == 1 and direction.traffic < 1.01
        assert direction.width >= 8 and direction.spilled <= SPILLED.get((name, shape), 0)
        assert direction.shared <= 32768


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("shape", "launches"), [((32, 128), 1), ((128, 128), 2)])
def test_along_two_axes(shape: tuple[int, int], launches: int, dtype: torch.dtype) -> None:
    """Of what one program has, no more is exchanged than every device has room for."""
    loss = autogen_loss(lambda p: (p.cumsum(1).cumsum(0) * p).mean())
    forward, _ = facts(loss, (torch.rand(shape, dtype=dtype, requires_grad=True),))
    assert forward.launches == launches and forward.spilled == 0 and forward.shared <= 32768


@pytest.mark.parametrize("shape", [(3, 3, 12), (3, 12), (40, 130)], ids=str)
def test_what_is_compared_with_its_extreme_runs_once(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton may run a scan in two layouts, which add up in different orders: nothing would equal the extreme."""
    compiled: list[tuple[int, int]] = []

    def compiling(*args: Any, **options: Any) -> Any:
        made = compile_(*args, **options)
        compiled.append((made.asm["ttir"].count('"tt.scan"'), made.asm["ttgir"].count('"tt.scan"')))
        return made

    compile_ = triton.compile
    monkeypatch.setattr(triton, "compile", compiling)
    facts(autogen_loss(lambda x: x.cumsum(1).amin(1)), (torch.randn(shape, requires_grad=True),))
    assert (1, 1) in compiled and all(before == after for before, after in compiled)
