"""A loss that runs in torch although it could have kernels says so: once, at the user's line, and nothing else does."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from autogen import FallbackWarning, autogen_loss, explain, losses
from autogen.errors import CompileError


def heard(call: Callable[[], Any]) -> list[warnings.WarningMessage]:
    """The warnings of a call, whatever has been said before."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return caught


def singular(x: Tensor) -> Tensor:
    return torch.linalg.det(x)


def test_a_loss_without_any_kernel_warns_once() -> None:
    loss = autogen_loss(singular)
    x = torch.eye(3)
    explain(loss, x)  # which says so by itself
    (warning,) = heard(lambda: loss(x))
    assert warning.category is FallbackWarning and warning.filename == __file__
    assert str(warning.message).startswith("singular runs in torch: no kernel can be generated for")
    assert "return torch.linalg.det(x)" in str(warning.message)
    assert heard(lambda: [loss(x), loss(torch.eye(4)), loss(torch.eye(5, dtype=torch.float64))]) == []


def test_a_loss_that_torch_cannot_capture_warns() -> None:
    loss = autogen_loss(torch.sparse.sum)
    x = torch.eye(3).to_sparse()
    (warning,) = heard(lambda: [loss(x) for _ in range(5)])
    assert "does not support sparse" in str(warning.message)


def test_nothing_is_said_where_kernels_run_or_cannot() -> None:
    x, y = torch.rand(4, 3, requires_grad=True), torch.rand(4, 3)

    @autogen_loss
    def partly(x: Tensor) -> Tensor:
        return torch.linalg.det(x.square())

    @autogen_loss
    def wrong(x: Tensor) -> Tensor:
        return x + torch.ones(7)

    assert heard(lambda: losses.BCELoss()(x, y).backward()) == []
    assert heard(lambda: losses.BCELoss(use_autogen=False)(x, y)) == []
    assert heard(lambda: partly(torch.eye(3))) == []
    assert heard(lambda: autogen_loss(torch.abs)(torch.ones(3, dtype=torch.complex64))) == []  # which no kernel reads
    for _ in range(4):
        with pytest.raises(RuntimeError, match="size of tensor"):
            wrong(y)


def test_an_error_if_the_user_wants_one() -> None:
    loss = autogen_loss(lambda x: torch.linalg.det(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        with pytest.raises(FallbackWarning, match="linalg_det"):
            loss(torch.eye(3))
    assert loss(torch.eye(3)) == 1


def test_kernels_that_do_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, sizes: Any) -> Any:
        raise CompileError("a_kernel", cause=ValueError("too many registers"))

    loss = autogen_loss(lambda x: x.square().sum())
    with monkeypatch.context() as patch:
        patch.setattr("autogen.runtime.segments.KernelSegment._variant", fail)
        (warning,) = heard(lambda: loss(torch.ones(3)))
    assert "too many registers" in str(warning.message)
    assert heard(lambda: loss(torch.ones(3))) == []


def test_it_can_be_pickled() -> None:
    warning = FallbackWarning("a_loss", "it is complicated", further=True)
    same = pickle.loads(pickle.dumps(warning))
    assert str(same) == str(warning)
    assert str(same).startswith("a_loss runs in torch for all other kinds of calls: it is complicated\n")
