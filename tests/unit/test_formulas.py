"""The formulas that stand in for torch's functions while a loss is traced."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss, explain, trace_count
from autogen.tracing.formulas import corrections, cross_entropy, padding
from autogen.tracing.formulas import functions as formulas
from tests.unit.pipeline import check, floats


def with_gradients(function: Any, *inputs: Tensor, **options: Any) -> list[Tensor]:
    leaves = [each.detach().requires_grad_() for each in inputs]
    value = function(*leaves, **options)
    return [value, *torch.autograd.grad(value.sum(), leaves)]


@pytest.mark.parametrize("shape", [(4, 5), (4,), (4, 1)])
@pytest.mark.parametrize(("full", "reduction"), list(itertools.product((False, True), ("mean", "sum", "none"))))
def test_gaussian_nll_without_its_check(shape: tuple[int, ...], full: bool, reduction: str) -> None:
    x, t, var = torch.randn(4, 5).double(), torch.randn(4, 5).double(), torch.rand(shape).double()
    var[0] = 0.0
    options = {"full": full, "eps": 1e-3, "reduction": reduction}
    theirs = with_gradients(F.gaussian_nll_loss, x, t, var, **options)
    ours = with_gradients(formulas._unchecked_gaussian_nll_loss, x, t, var, **options)
    torch.testing.assert_close(ours, theirs)


def test_a_negative_variance_makes_nan() -> None:
    var = torch.tensor([1.0, -1.0, float("nan")])
    loss = formulas._unchecked_gaussian_nll_loss(torch.zeros(3), torch.zeros(3), var, False, 1e-6, "none")
    assert loss.isnan().tolist() == [False, True, True]


@pytest.mark.parametrize("shape", [(5,), (4, 2), (1, 1)])
def test_a_variance_of_another_shape_raises_as_in_torch(shape: tuple[int, ...]) -> None:
    x, var = torch.randn(4, 5), torch.rand(shape)
    for function in (F.gaussian_nll_loss, formulas._unchecked_gaussian_nll_loss):
        with pytest.raises(ValueError, match="var is of incorrect size"):
            function(x, x, var, False, 1e-6, "mean")


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_multi_margin(p: int, reduction: str) -> None:
    x, t, weight = torch.randn(6, 4).double(), torch.tensor([0, 3, 1, 1, 2, 0]), torch.rand(4).double()
    options = {"p": p, "margin": 0.7, "weight": weight, "reduction": reduction}
    theirs = with_gradients(lambda x: F.multi_margin_loss(x, t, **options), x)
    ours = with_gradients(lambda x: formulas.multi_margin_loss(x, t, **options), x)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore:reduction='elementwise_mean'")
def test_multi_margin_by_the_old_name_of_its_mean() -> None:
    x, t = torch.randn(6, 4), torch.tensor([0, 3, 1, 1, 2, 0])
    expected = F.multi_margin_loss(x, t, reduction="elementwise_mean")
    torch.testing.assert_close(formulas.multi_margin_loss(x, t, reduction="elementwise_mean"), expected)


def test_multi_margin_counts_no_nan() -> None:
    x, t = torch.tensor([[float("nan"), 1.0, 2.0]]), torch.tensor([1])
    torch.testing.assert_close(formulas.multi_margin_loss(x, t), F.multi_margin_loss(x, t), equal_nan=True)


@pytest.mark.parametrize("shape", [(6, 4), (4,), (2, 4, 3)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_of_probabilities(
    shape: tuple[int, ...], weighted: bool, smoothing: float, reduction: str
) -> None:
    x, t = torch.randn(shape).double(), torch.rand(shape).double()
    weight = torch.rand(4).double() if weighted else None
    options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
    theirs = with_gradients(lambda x, t: F.cross_entropy(x, t, **options), x, t)
    ours = with_gradients(
        lambda x, t: cross_entropy._cross_entropy_of_probabilities(x, t, weight, reduction, smoothing), x, t
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_cross_entropy_of_probabilities_under_autocast(dtype: torch.dtype, autocast: bool) -> None:
    x, t, weight = torch.randn(4, 50).to(dtype), torch.rand(4, 50).to(dtype), torch.rand(50).to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        theirs = F.cross_entropy(x, t, weight, label_smoothing=0.1)
        ours = cross_entropy._cross_entropy_of_probabilities(x, t, weight, "mean", 0.1)
    torch.testing.assert_close(ours, theirs)


def test_cross_entropy_where_torch_knows_no_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is wrong with a call is torch's to say."""
    monkeypatch.setattr(cross_entropy, "_ASKS_FOR_SIZES", True)
    x, t, weight = torch.randn(3, 4), torch.rand(3, 4), torch.rand(4)
    wrong: list[dict[str, Any]] = [{"ignore_index": 0}, {"weight": torch.ones(1)}, {"label_smoothing": 2.0}]
    for options in (*wrong, {"reduction": "Mean"}):
        with pytest.raises((RuntimeError, ValueError)) as theirs:
            F.cross_entropy(x, t, **options)
        with pytest.raises((RuntimeError, ValueError)) as ours:
            cross_entropy.cross_entropy(x, t, **options)
        assert str(ours.value) == str(theirs.value)
    labels = torch.tensor([0, 3, 1])
    torch.testing.assert_close(cross_entropy.cross_entropy(x, labels), F.cross_entropy(x, labels))
    expected = F.cross_entropy(x, t, weight, label_smoothing=0.1), F.cross_entropy(x[0], t[0], size_average=False)
    monkeypatch.delattr(cross_entropy, "_cross_entropy")
    found = (
        cross_entropy.cross_entropy(x, t, weight, label_smoothing=0.1),
        cross_entropy.cross_entropy(x[0], t[0], size_average=False),
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("pad", [(1, 2), (-1, 1), (-1, -1, 2, -1)], ids=str)
def test_padding_that_takes_away_logs_nothing(pad: tuple[int, ...], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    check(lambda x: F.pad(x.exp(), pad, value=2.0), floats(4, 5))
    assert not caplog.records


def test_padding_that_takes_away_too_much_raises_as_in_torch() -> None:
    x = floats(4, 2)
    with pytest.raises(RuntimeError) as theirs:
        F.pad(x, (-2, -1))
    with pytest.raises(RuntimeError) as ours:
        autogen_loss(lambda x: F.pad(x, (-2, -1)))(x)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("shape", [(4, 5), (1, 5), (5,), (3, 2)])
def test_covariances(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).double()
    for ours, theirs in ((formulas._cov, torch.cov), (formulas._corrcoef, torch.corrcoef)):
        torch.testing.assert_close(with_gradients(ours, x), with_gradients(theirs, x))
    torch.testing.assert_close(formulas._cov(x, correction=0), torch.cov(x, correction=0))


@pytest.mark.parametrize("repeats", [(1, 3), (2, 1), (2, 3, 2), (0, 2)], ids=str)
def test_copies_lie_in_memory_as_those_of_torch(repeats: tuple[int, ...]) -> None:
    for x in (torch.randn(4, 1), torch.randn(3, 5).t()):
        ours, theirs = corrections._repeat(x, repeats), x.repeat(repeats)
        assert ours.equal(theirs) and ours.stride() == theirs.stride()


def test_copies_are_viewed_in_any_size() -> None:
    loss = autogen_loss(lambda x: (x.view(-1, 1).repeat(1, 3).view(-1) - x.repeat(3)).square().sum())
    for rows in (4, 7, 5):
        assert explain(loss, floats(rows)).path == "generated"
    assert trace_count(loss) == 1
    check(lambda x: (x[:, None].repeat(1, 3).view(-1) * x.repeat(3)).exp(), floats(4))


@pytest.mark.parametrize("pad", [(1, 2), (2, 0, 1, 3), (0, 0, 2, 1), (1, 2, 0, 1, 2, 3)], ids=str)
def test_what_is_mirrored_is_folded_back(pad: tuple[int, ...]) -> None:
    x = torch.randn(2, 4, 5, 6, 7)[(slice(None),) + (0,) * (3 - len(pad) // 2)].double()
    grad, op = F.pad(x, pad, mode="reflect").cos(), f"reflection_pad{len(pad) // 2}d_backward"
    expected = getattr(torch.ops.aten, op)(grad, x, pad)
    torch.testing.assert_close(padding.reflection_pad_backward(grad, x, pad), expected)


def test_images_of_any_size_are_mirrored() -> None:
    loss = autogen_loss(lambda x: F.pad(x, (2, 1, 1, 0), mode="reflect").exp().sum())
    for rows in (4, 7, 5):
        report = explain(loss, floats(2, 2, rows, 5))
        assert report.path == "generated" and report.backward is not None and report.backward.launches == 1
    assert trace_count(loss) == 1


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 2), (7, 2), (1, 4), (3, 3, 3)], ids=str)
@pytest.mark.parametrize("wrap", [False, True])
def test_diagonals_that_are_filled(shape: tuple[int, ...], wrap: bool) -> None:
    x = torch.randn(shape).double()
    theirs = with_gradients(lambda x: x.mul(2).fill_diagonal_(0.5, wrap), x)
    torch.testing.assert_close(with_gradients(lambda x: formulas._fill_diagonal(x.mul(2), 0.5, wrap), x), theirs)


def test_a_diagonal_is_filled_in_matrices_of_any_size() -> None:
    loss = autogen_loss(lambda x: (x[:, None] - x[None]).exp().sum(2).fill_diagonal_(0).sum())
    for rows in (4, 7, 5):
        assert explain(loss, floats(rows, 3)).path == "generated"
    assert trace_count(loss) == 1


def test_arguments_have_the_names_that_they_have_in_torch() -> None:
    def loss(x: Tensor) -> Tensor:
        picked = torch.masked_select(input=x, mask=x > 0)
        return picked.sum() + torch.pow(input=x.abs(), exponent=2.5).sum() + x.__rpow__(other=2.0).sum()

    check(loss, floats(3, 4))


def test_what_torch_refuses_or_warns_of_stays_its_own() -> None:
    with pytest.raises(RuntimeError, match="larger than 1"):
        formulas._fill_diagonal(torch.randn(3), 0.0)
    with pytest.raises(RuntimeError, match="two or fewer dimensions"):
        formulas._cov(torch.randn(2, 3, 4))
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert formulas._cov(torch.randn(3, 1)).isnan().all()


def test_the_checks_of_distributions_leave_no_errors_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def loss(x: Tensor) -> Tensor:
        return -torch.distributions.Normal(x, x.exp()).log_prob(x * 2).mean()

    with caplog.at_level(logging.WARNING):
        check(loss, floats(3, 4))
    assert not caplog.records
