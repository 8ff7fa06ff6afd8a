"""Calls of losses with steps of torch, or with branches on values, that take a shortcut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import autogen.losses
from autogen import autogen_loss
from autogen.dispatch.planning import Planner
from autogen.runtime.launch import Launch
from tests.interpret.launches import Launches

X, Y = torch.linspace(-1, 1, 24).reshape(4, 6).sin(), torch.linspace(0, 2, 24).reshape(4, 6).cos()


def gradients(loss: Callable[..., Any], *inputs: Tensor, upstream: float = 0.5) -> list[Tensor]:
    """The value, and the gradients of those inputs that have some."""
    value = loss(*inputs)
    wanted = [each for each in inputs if each.requires_grad]
    return [value.detach(), *torch.autograd.grad(value, wanted, torch.full_like(value, upstream), allow_unused=True)]


def given(call: int = 0, rows: int = 4, *, wanted: tuple[bool, bool] = (True, True)) -> list[Tensor]:
    x, y = (each.repeat(rows // 4 + 1, 1)[:rows] * (1 + call / 8) for each in (X, Y))
    return [each.requires_grad_(needs) for each, needs in zip((x, y), wanted, strict=True)]


def sorted_apart(x: Tensor, y: Tensor) -> Tensor:
    return (x.sort(1).values - y.sort(1).values).abs().mean()


def added_up(x: Tensor, y: Tensor) -> Tensor:
    return (x.softmax(1).cumsum(1) - y.softmax(1).cumsum(1)).pow(2).sum(1).mean()


def of_products(x: Tensor, y: Tensor) -> Tensor:
    return (x.t() @ x - y.t() @ y).pow(2).mean()


def contrasted(x: Tensor, y: Tensor) -> Tensor:
    return autogen.losses.InfoNCELoss(use_autogen=False)(x, y)  # type: ignore[no-any-return]


LOSSES = [sorted_apart, added_up, of_products, contrasted]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("wanted", [(True, True), (False, True)])
def test_the_third_call_is_not_taken_apart(
    loss: Callable[..., Tensor], wanted: tuple[bool, bool], binds: list[str]
) -> None:
    ours = autogen_loss(loss)
    for call in range(5):
        inputs = given(call, wanted=wanted)
        torch.testing.assert_close(gradients(ours, *inputs), gradients(loss, *inputs))
    assert len(binds) == 2


@pytest.mark.parametrize("loss", [autogen.losses.InfoNCELoss, autogen.losses.SupConLoss])
def test_losses_of_ours(loss: Any, binds: list[str]) -> None:
    ours, theirs = loss(), loss(use_autogen=False)
    for call in range(5):
        x, y = given(call)
        other = y if loss is autogen.losses.InfoNCELoss else torch.tensor([0, 1, 0, call % 2])
        torch.testing.assert_close(gradients(ours, x, other), gradients(theirs, x, other))
    assert len(binds) == 2


def test_each_geometry_and_mode(binds: list[str]) -> None:
    ours = autogen_loss(of_products)
    for rows in (4, 4, 7, 2, 30, 4, 7):
        inputs = given(0, rows)
        torch.testing.assert_close(gradients(ours, *inputs), gradients(of_products, *inputs))
    assert len(binds) == 2
    turned = [each.detach().t().contiguous().t().requires_grad_() for each in given()]
    for _ in range(3):
        torch.testing.assert_close(gradients(ours, *turned), gradients(of_products, *turned))
    for _ in range(3):
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                value = ours(*given())
                assert not value.requires_grad and value.is_inference() is (mode is torch.inference_mode)
                torch.testing.assert_close(value, of_products(X, Y))
    assert torch.equal(ours(X, Y), ours(X, Y)) and not ours(X, Y).requires_grad


def test_the_step_runs_in_each_call(binds: list[str], launches: Launches) -> None:
    """What a prepared call launches is what it launched when it was taken apart."""
    ours, counts = autogen_loss(of_products), []
    for call in range(4):
        gradients(ours, *given(call))
        counts.append(launches.take())
    assert len(set(counts)) == 1 and counts[0] >= 2


@pytest.mark.parametrize("layout", ["dense", "expanded", "transposed", "negative"])
def test_upstream_gradients_of_every_layout(layout: str, binds: list[str]) -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y.t()).exp()

    ours = autogen_loss(loss)
    values = torch.linspace(-1, 1, 16).reshape(4, 4)
    upstream = {
        "dense": values,
        "expanded": torch.tensor(3.0).expand(4, 4),
        "transposed": values.t(),
        "negative": torch.complex(values, values).conj().imag,
    }[layout]
    for _ in range(4):
        x, y = given()
        found, expected = (torch.autograd.grad(each(x, y), (x, y), upstream) for each in (ours, loss))
        torch.testing.assert_close(found, expected)
    assert len(binds) == 2


def test_some_of_several_outputs_have_a_gradient(binds: list[str]) -> None:
    def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        product = x @ y.t()
        return product.logsumexp(1).mean(), product, product.detach().sort(1).indices

    ours = autogen_loss(loss)
    for _ in range(4):
        for k in (0, 1):
            x, y = given()
            found, expected = ours(x, y), loss(x, y)
            torch.testing.assert_close(found, expected)
            own, their = (torch.autograd.grad(each[k].sum(), (x, y)) for each in (found, expected))
            torch.testing.assert_close(own, their)
    assert len(binds) == 2


def test_a_result_that_a_step_has_made(binds: list[str]) -> None:
    def loss(x: Tensor) -> Tensor:
        return x.sort(1).values

    ours = autogen_loss(loss)
    for _ in range(4):
        x = given()[0]
        value = ours(x)
        assert value.data_ptr() != x.data_ptr()
        torch.testing.assert_close(gradients(ours, x), gradients(loss, x))


def test_backward_may_run_twice_and_after_another_call(binds: list[str]) -> None:
    ours = autogen_loss(contrasted)
    for call in range(4):
        x, y = given(call)
        value = ours(x, y)
        ours(*given(call + 1))
        first = torch.autograd.grad(value, (x, y), retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(value, (x, y)), first, rtol=0, atol=0)
        torch.testing.assert_close(list(first), gradients(contrasted, x, y, upstream=1.0)[1:])


def test_checkpoints_save_the_same_when_they_run_again(binds: list[str]) -> None:
    ours = autogen_loss(of_products)
    for call in range(4):
        inputs = given(call)
        found = gradients(lambda x, y: checkpoint(ours, x, y, use_reentrant=False), *inputs)
        torch.testing.assert_close(found, gradients(of_products, *inputs))


def test_second_derivatives(binds: list[str]) -> None:
    ours, found = autogen_loss(of_products), []
    for loss in (ours, of_products):
        for _ in range(4):
            x, y = given()
            (first,) = torch.autograd.grad(loss(x, y), x, create_graph=True)
            found.append(torch.autograd.grad(first.pow(2).sum(), x)[0])
    torch.testing.assert_close(found[:4], found[4:])


def test_draws_are_those_of_eager_also_when_they_are_made_again(binds: list[str]) -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return ((x - y) * torch.rand_like(x)).pow(3).sum()

    ours = autogen_loss(loss)
    for call in range(5):
        found = []
        for each in (ours, loss):
            torch.manual_seed(call)
            x, y = given(call)
            value = each(x, y)
            place = torch.get_rng_state()
            (first,) = torch.autograd.grad(value, x, create_graph=True)
            found.append([value, first, *torch.autograd.grad(first.sum(), x)])
            assert torch.equal(torch.get_rng_state(), place)
        torch.testing.assert_close(*found)
    assert len(binds) == 2
    assert len({ours(*given()).item() for _ in range(4)}) == 4


def test_autocast_casts_once(binds: list[str]) -> None:
    ours = autogen_loss(of_products)
    for call in range(8):
        x, y = given()
        with torch.autocast("cpu", torch.bfloat16, enabled=call % 4 != 3):
            own, their = ours(x, y), of_products(x, y)
            torch.testing.assert_close(own, their, rtol=2e-2, atol=2e-2)
            if call % 2:
                found, expected = torch.autograd.grad(own, (x, y)), torch.autograd.grad(their, (x, y))
        if not call % 2:
            found, expected = torch.autograd.grad(own, (x, y)), torch.autograd.grad(their, (x, y))
        torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2)


def test_autocast_to_another_dtype_is_another_call(binds: list[str]) -> None:
    ours = autogen_loss(lambda x, w: (x @ w).square())
    for dtype in (torch.bfloat16, torch.float16) * 4:
        with torch.autocast("cpu", dtype):
            assert ours(X, X.T).dtype == dtype
    assert len(binds) <= 4


def test_backward_inside_autocast_of_a_call_outside(binds: list[str]) -> None:
    ours = autogen_loss(of_products)
    for _ in range(4):
        x, y = given()
        value = ours(x, y)
        with torch.autocast("cpu", torch.bfloat16):
            found = torch.autograd.grad(value, (x, y))
        torch.testing.assert_close(list(found), gradients(of_products, x, y, upstream=1.0)[1:])


def test_floats_that_steps_of_torch_are_told(binds: list[str]) -> None:
    def loss(x: Tensor, y: Tensor, limit: float) -> Tensor:
        return (torch.histc(x.detach(), 4, -limit, limit)[0] * x).sum()

    def scaled(x: Tensor, y: Tensor, scale: float) -> Tensor:
        return (x * scale).sort(1).values.sub(y).pow(2).sum()

    for function in (loss, scaled):
        ours = autogen_loss(function)
        del binds[:]
        for scale in (0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.5, 0.51, 0.52):
            own, their = (gradients(lambda x, s=scale, f=f: f(x, Y, s), given()[0]) for f in (ours, function))
            torch.testing.assert_close(own, their)
        assert len(binds) < 8


def test_what_torch_reads_is_not_packed(binds: list[str]) -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return (x.exp() @ y.exp().t()).logsumexp(1).mean()

    ours = autogen_loss(loss)
    saved: list[list[Tensor]] = []
    for call in range(4):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved[-1].append(x) or x, lambda x: x):
            saved.append([])
            value = ours(*given(call))
        value.backward()
    kinds = {tuple((each.dtype, each.shape) for each in tensors) for tensors in saved}
    assert len(kinds) == 1, "a call and its repetition save the same"
    assert [each.dtype for each in saved[-1]].count(torch.uint8) == 1  # what kernels alone read of each row
    assert [each.shape for each in saved[-1] if each.dtype == torch.float32].count(X.shape) >= 3


def test_one_graph_for_all_calls(binds: list[str]) -> None:
    ours = autogen_loss(of_products, static_graph=True)
    for call in range(4):
        torch.testing.assert_close(gradients(ours, *given(call)), gradients(of_products, *given(call)))
    assert len(binds) == 2
    again = autogen_loss(of_products, retrace="every")
    del binds[:]
    for call in range(3):
        torch.testing.assert_close(gradients(again, *given(call)), gradients(of_products, *given(call)))
    assert len(binds) == 3


# Branches on values.


def checked(x: Tensor, variance: Tensor) -> Tensor:
    if (variance < 0).any():
        raise ValueError("a negative variance")
    return (x.pow(2) / (variance + 1) + (variance + 1).log()).mean()


def test_a_check_is_made_in_every_call(binds: list[str]) -> None:
    ours, good = autogen_loss(checked), Y.abs()
    for call in range(5):
        x = given(call)[0]
        torch.testing.assert_close(gradients(ours, x, good), gradients(checked, x, good))
    assert len(binds) == 2
    for _ in range(3):
        with pytest.raises(ValueError, match="a negative variance"):
            ours(X, -good)
        torch.testing.assert_close(ours(X, good), checked(X, good))


def test_both_branches_have_plans(binds: list[str]) -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return (x - y).abs().sum() if x.mean() > 0 else (x @ y.t()).sum()

    ours = autogen_loss(loss)
    for call in range(10):
        inputs = [each.detach() + (call % 3 - 1) for each in given(call)]
        inputs[0].requires_grad_()
        torch.testing.assert_close(gradients(ours, *inputs), gradients(loss, *inputs))
        if call == 3:
            del binds[:]
    assert not binds


def test_a_check_comes_before_what_relies_on_it(binds: list[str]) -> None:
    """The second value cannot be computed where the first check fails."""

    def loss(x: Tensor, places: Tensor) -> Tensor:
        if (places >= 4).any():
            return x.sum()
        if (x.detach()[places] > 5).any():
            return x.exp().sum()
        return x.pow(2).sum()

    ours = autogen_loss(loss)
    near, far = torch.tensor([0, 3]), torch.tensor([0, 9])
    for places, shift in [(near, 0), (near, 0), (near, 0), (far, 0), (near, 7), (far, 0), (near, 7), (near, 0)]:
        x = (given()[0].detach() + shift).requires_grad_()
        torch.testing.assert_close(gradients(ours, x, places), gradients(loss, x, places))


def test_checks_leave_no_graph_and_no_mode(binds: list[str]) -> None:
    def loss(x: Tensor) -> Tensor:
        if x.sigmoid().sum() < 0:
            raise ValueError
        return x.pow(2).sum()

    ours = autogen_loss(loss)
    saved: list[Tensor] = []
    for call in range(5):
        x = given(call)[0]
        del saved[:]
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
            value = ours(x)
        assert len(saved) == 1 and torch.is_grad_enabled()
        torch.testing.assert_close(torch.autograd.grad(value, x)[0], 2 * x)
    with torch.no_grad():
        ours(x), ours(x), ours(x)
        assert not torch.is_grad_enabled()


def test_checks_are_not_cast(binds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the loss has switched autocast off, as when it was traced."""
    others: list[Any] = []
    branch = Planner.branch
    monkeypatch.setattr(Planner, "branch", lambda *args: (others.append(args), branch(*args))[1])

    def loss(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return x.sum() * 2 if (x.detach() @ x.detach().t()).max() > 6.01 else x.sum()

    ours = autogen_loss(loss)
    for _ in range(5):
        x = torch.full((4, 6), 1 + 2**-9, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(gradients(ours, x)[1], torch.ones_like(x))
            assert torch.is_autocast_enabled("cpu")
    assert len(binds) == 2 and not others


def test_numbers_are_values_too(binds: list[str]) -> None:
    """Those below 2 are sizes of their own, like those of tensors; others are found ahead."""

    def loss(x: Tensor, first: Tensor) -> Tensor:
        return x[:, first.item() :].pow(2).sum()

    ours = autogen_loss(loss)
    for first in [1, 1, 1, 0, 0, 3, 1, 4, 0]:
        if first == 3:
            del binds[:]
        x, number = given()[0], torch.tensor(first)
        torch.testing.assert_close(gradients(ours, x, number), gradients(loss, x, number))
    assert len(binds) == 1


def test_floats_and_values_decide_together(binds: list[str]) -> None:
    def loss(x: Tensor, limit: float) -> Tensor:
        return x.abs().sum() * limit if (x.detach() > limit).any() else x.pow(2).sum() + limit

    ours = autogen_loss(loss)
    for call in range(12):
        limit = 0.1 * call
        own, their = (gradients(lambda x, f=f, s=limit: f(x, s), given()[0]) for f in (ours, loss))
        torch.testing.assert_close(own, their)


def test_probabilities_out_of_range_are_still_an_error(binds: list[str]) -> None:
    ours, x = autogen.losses.BCELoss(), torch.rand(4, 3)
    for _ in range(4):
        torch.testing.assert_close(ours(x, x), F.binary_cross_entropy(x, x))
    assert len(binds) == 2
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        ours(x + 1, x)
    torch.testing.assert_close(ours(x, x), F.binary_cross_entropy(x, x))


def test_losses_of_a_matrix_product(binds: list[str]) -> None:
    """Their checks of labels, the product and the parameters' gradients are all prepared."""
    if not hasattr(torch.nn, "LinearCrossEntropyLoss"):
        pytest.skip("this torch has no LinearCrossEntropyLoss")
    ours, theirs = autogen.losses.LinearCrossEntropyLoss(6, 5), torch.nn.LinearCrossEntropyLoss(6, 5)
    theirs.load_state_dict(ours.state_dict())
    for call in range(5):
        x, target = given(call)[0], torch.tensor([0, 4, call % 5, -100])
        found = []
        for loss in (ours, theirs):
            value = loss(x, target)
            found.append([value, *torch.autograd.grad(value, [x, *loss.parameters()])])
        torch.testing.assert_close(*found)
    assert len(binds) == 2
    with pytest.raises((IndexError, RuntimeError)):
        ours(X, torch.tensor([0, 5, 0, 0]))


def test_a_launch_is_prepared_once(binds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    init = Launch.__init__
    monkeypatch.setattr(Launch, "__init__", lambda self, *args: (made.append("launch"), init(self, *args))[1])
    ours = autogen_loss(contrasted)
    for call in range(4):
        if call == 3:
            del made[:]
        gradients(ours, *given(call))
    assert not made
