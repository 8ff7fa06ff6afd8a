"""Ops whose formula in torch takes what the op refuses, gives another dtype, or divides by 0."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from autogen import autogen_loss, policy


@pytest.mark.parametrize("widths", [(1, 1), (2, 0), (3, 1), (0, 3)])
def test_no_more_is_mirrored_than_there_is(widths: tuple[int, int]) -> None:
    loss = autogen_loss(lambda x: functional.pad(x[None], widths, mode="reflect"))
    for columns in (5, 4, 3, 2, 1):
        x = torch.randn(2, columns)
        try:
            expected = functional.pad(x[None], widths, mode="reflect")
        except RuntimeError:
            with pytest.raises(RuntimeError, match="Padding size should be less"):
                loss(x)
        else:
            torch.testing.assert_close(loss(x), expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_buckets_of_no_boundaries(dtype: torch.dtype) -> None:
    loss = autogen_loss(lambda x, y: torch.bucketize(x, y, out_int32=dtype == torch.int32), policy="mandatory")
    for count in (3, 0, 5):
        x, boundaries = torch.randn(2, 4), torch.linspace(-1, 1, count)
        torch.testing.assert_close(loss(x, boundaries), torch.bucketize(x, boundaries).to(dtype))


@pytest.mark.parametrize("correction", [0, 1, 2, 5])
@pytest.mark.parametrize("of", [torch.var, torch.std, torch.var_mean, torch.std_mean])
def test_variances_without_a_degree_of_freedom(of: Callable[..., Tensor], correction: int) -> None:

    def spread(x: Tensor) -> Tensor:
        found = of(x, 0, correction=correction)
        return ((found if isinstance(found, Tensor) else found[0] + found[1]) * x[0]).sum()

    loss = autogen_loss(spread)
    for rows in (7, 5, 2, 6, 1, 2, 3):
        found = []
        for each in (loss, spread):
            x = torch.linspace(-1, 2, 2 * rows).reshape(rows, 2).requires_grad_()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch's, that there is none
                value = each(x)
                found.append((value.detach(), *torch.autograd.grad(value, x)))
        torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize(
    ("mode", "rank"), [("nearest", 1), ("nearest", 2), ("nearest", 3), ("linear", 1), ("bilinear", 2), ("trilinear", 3)]
)
def test_a_dimension_that_keeps_its_size_is_copied(mode: str, rank: int) -> None:
    def resized(x: Tensor, factor: float) -> Tensor:
        return functional.interpolate(x, scale_factor=factor, mode=mode)

    loss = autogen_loss(resized)
    for factor, size in ((1.2, 4), (1.2, 6), (1.3, 3), (2.0, 4), (0.7, 4)):
        x = torch.randn(2, 3, *range(size, size + rank), requires_grad=True)
        found = []
        for each in (loss, resized):
            value = each(x, factor)
            found.append((value.detach(), *torch.autograd.grad(value.square().sum(), x)))
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_bytes_that_are_resized(mode: str) -> None:
    def resized(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=1.7, mode=mode).float().mean((0, 2, 3))

    loss = autogen_loss(resized)
    for rows in (7, 9):
        x = torch.randint(0, 256, (2, 3, rows, 8), dtype=torch.uint8)
        torch.testing.assert_close(loss(x), resized(x))


@pytest.mark.parametrize("order", [1, 5])
def test_a_derivative_of_digamma_in_place(order: int) -> None:
    x = torch.tensor([0.5, 2.0, 7.0])
    loss = autogen_loss(lambda x: x.clone().polygamma_(order).sum(), policy="mandatory")
    torch.testing.assert_close(loss(x), torch.polygamma(order, x).sum())


def test_what_is_asserted_of_values() -> None:
    def plain(x: Tensor) -> Tensor:
        torch._assert_async((x > 0).all(), "x is positive")
        torch._assert_async(x.sum() > 0)
        return x.log().sum()

    loss = autogen_loss(plain)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(4), torch.ones(3), -torch.ones(3)):
        if x.sum() > 0:
            with policy("mandatory"):
                torch.testing.assert_close(loss(x), plain(x))
        else:
            with pytest.raises(RuntimeError, match="x is positive"):
                loss(x)


SINGULAR = torch.tensor([[1.0, 2.0], [2.0, 1.0]]).expand(3, 2, 2) * torch.tensor([1.0, 0.0, 1.0])[:, None, None]
FACTORISATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "cholesky": torch.linalg.cholesky,
    "inv": torch.linalg.inv,
    "solve": lambda a: torch.linalg.solve(a, torch.ones(2)),
    "lu_factor": lambda a: torch.linalg.lu_factor(a)[0],
}


@pytest.mark.parametrize("case", FACTORISATIONS)
def test_matrices_that_cannot_be_factorised(case: str) -> None:
    """An error, as in torch, and not what its factorisation leaves in memory; a loss may catch it."""

    def plain(a: Tensor) -> Tensor:
        return FACTORISATIONS[case](a * 2.0).square().sum()

    def lenient(a: Tensor) -> Tensor:
        try:
            return plain(a)
        except RuntimeError:
            return a.abs().sum()

    def result_of(loss: Callable[[Tensor], Tensor], matrices: Tensor) -> tuple[Tensor, Tensor]:
        x = matrices.clone().requires_grad_()
        value = loss(x)
        return value.detach(), torch.autograd.grad(value, x)[0]

    ours, caught = autogen_loss(plain), autogen_loss(lenient)
    regular = torch.eye(2).repeat(3, 1, 1) + 0.1
    for matrices in (regular, SINGULAR, regular[:2], regular, SINGULAR, SINGULAR):
        torch.testing.assert_close(result_of(caught, matrices), result_of(lenient, matrices))
        if matrices is not SINGULAR:
            torch.testing.assert_close(result_of(ours, matrices), result_of(plain, matrices))
            continue
        with pytest.raises(RuntimeError) as expected:
            plain(matrices)
        with pytest.raises(expected.type):
            ours(matrices)
    with policy("mandatory"):
        torch.testing.assert_close(result_of(ours, regular), result_of(plain, regular))
