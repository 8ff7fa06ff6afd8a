"""What torch refuses, and its fake tensors or formulas do not, is torch's error, in first calls and in later ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss
from tests.interpret.launches import Launches

AT = torch.tensor([1, 0])
LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], list[tuple[int, ...]]]] = {
    "cross entropy of images": (lambda x, y: F.cross_entropy(x, y.long()), (2, 5, 4), [(2, 4, 4), (2, 5, 3)]),
    "likelihood of images": (lambda x, y: F.nll_loss(x, y.long(), reduction="sum"), (2, 5, 4), [(2, 4, 4), (2, 5, 3)]),
    "a slice": (lambda x, y: torch.slice_scatter(x, y, 1, 1, 3).sum(), (2, 2, 5, 4), [(2, 1, 5, 4), (2, 2, 5, 3)]),
    "a row": (lambda x, y: torch.select_scatter(x, y, 1, 1).sum(), (2, 5, 4), [(2, 4, 4), (1, 5, 4)]),
    "a diagonal": (lambda x, y: torch.diagonal_scatter(x, y, dim1=1, dim2=2).sum(), (2, 4, 3), [(2, 4, 2)]),
    "indices": (lambda x, y: x.index_put((AT,), y).sum(), (2, 3, 5, 4), [(2, 3, 5, 3), (3, 3, 5, 4)]),
    "apart": (lambda x, y: _apart(x.clone(), y).sum(), (2, 3, 4), [(2, 3, 3), (3, 3, 4), (2, 1, 3, 4)]),
    "in place": (lambda x, y: _set(x.clone(), y).sum(), (2, 5, 4), [(3, 5, 4), (2, 5, 3)]),
    "a product": (lambda x, y: torch.addmm(y, x[0, 0, :1], x[0, 0, :4, :4]).sum(), (1, 4), [(2, 4), (1, 1, 4)]),
    "of a vector": (lambda x, y: torch.addmv(y, x[0, 0], x[0, 0, 0]).sum(), (5,), [(1, 5)]),
    "compared": (lambda x, y: x[:, :1].clone().eq_(y).sum(), (5, 4), [(2, 3, 5, 4), (5, 1, 5, 4), (1, 2, 1, 5, 4)]),
    "clamped": (lambda x, y: x[:, :1].clone().clamp_(-y, y).sum(), (1, 4), [(2, 3, 5, 4)]),
    "divided": (lambda x, y: x[..., :1].clone().remainder_(y).sum(), (5, 1), [(4,), (3, 5, 4)]),
    "bits": (lambda x, y: x[..., :1].long().bitwise_and_(y.long()).sum(), (5, 1), [(4,), (3, 5, 4)]),
    "masks": (lambda x, y: x[x[:, 0, 0, 0] < 9, y.cumsum(0) < 3].sum(), (3,), [(2,), (5,)]),
    "of several": (lambda x, y: torch.baddbmm(y, x[0], x[0].mT).sum(), (3, 5, 5), [(1, 3, 5, 5)]),
}  # fmt: skip


def _set(x: Tensor, y: Tensor) -> Tensor:
    x[:, 1] = 0
    x[AT, 2] = y
    return x


def _apart(x: Tensor, y: Tensor) -> Tensor:
    x[AT[:1], :, AT] = y
    return x


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_torch_raises(name: str, is_warm: bool, launches: Launches) -> None:
    loss, right, wrong = LOSSES[name]
    ours = autogen_loss(loss)
    x = torch.randn(2, 3, 5, 4)
    for _ in range(3 * is_warm):
        torch.testing.assert_close(ours(x, torch.ones(right)), loss(x, torch.ones(right)), rtol=1e-4, atol=1e-4)
    assert launches.take() >= 3 * is_warm
    for shape in wrong:
        with pytest.raises((RuntimeError, IndexError)) as expected:
            loss(x, torch.ones(shape))
        with pytest.raises(expected.type) as raised:
            ours(x, torch.ones(shape))
        assert str(raised.value) == str(expected.value)
        assert launches.take() == 0


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[1:].add_(x[:-1]),
        lambda x: x[1:].lerp_(x[:-1], 0.3),
        lambda x: x[1:].addcmul_(x[:-1], x[:-1]),
    ],
)
def test_a_write_that_reads_its_memory_elsewhere(write: Callable[[Tensor], Tensor], launches: Launches) -> None:
    ours = autogen_loss(lambda x: write(x.clone()).sum())
    for _ in range(3):
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            ours(torch.rand(5, 4))
    assert launches.take() == 0


def test_a_dimension_of_a_softmax_that_is_none(launches: Launches) -> None:
    def loss(x: Tensor, dim: int) -> Tensor:
        return F.softmax(x, dim).square().sum()

    ours, x = autogen_loss(loss), torch.randn(3, 4)
    for dim in (1, 0, -1, 2, -2, -3, 1, 5):
        if -x.dim() <= dim < x.dim():
            torch.testing.assert_close(ours(x, dim), loss(x, dim))
            assert launches.take()
        else:
            with pytest.raises(IndexError, match=f"but got {dim}"):
                ours(x, dim)
            assert not launches.take()
    torch.testing.assert_close(ours(x[0, 0], -1), torch.tensor(1.0))
