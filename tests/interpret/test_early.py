"""`gradient="forward"`: forward stores the gradient for an upstream gradient of 1, and backward finds that out."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autogen.scheduling.launches.kernel
from autogen import autogen_loss, explain, losses
from bench.losses import clip, dice, pearson
from tests.interpret.agreement import draw, labels
from tests.interpret.launches import Launches

X, Y, P = draw("real", 6, 5), draw("real", 6, 5, seed=1).detach(), draw("unit", 6, 5).detach()
T = labels(5, 6)


class Tempered(nn.Module):
    """A loss with a parameter, whose gradient is a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(x / self.temperature, t, reduction="sum")


def per_image(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target, reduction="none").mean((1, 2)).mean()


# What can be computed in forward's one launch.
EARLY: dict[str, tuple[Any, tuple[Tensor, ...]]] = {
    "flat": (nn.BCEWithLogitsLoss(), (X, P)),
    "both inputs": (nn.SmoothL1Loss(), (X, draw("real", 6, 5, seed=1))),
    "tiles": (nn.BCEWithLogitsLoss(pos_weight=P[0]), (X, P)),
    "rows": (nn.CrossEntropyLoss(), (X, T)),
    "rows, summed": (nn.CrossEntropyLoss(reduction="sum", label_smoothing=0.1), (X, T)),
    "adjacent rows": (lambda x: x.logsumexp(0).mean(), (X,)),
    "pixels": (per_image, (draw("real", 2, 4, 3, 5), labels(4, 2, 3, 5))),
    "divergence": (nn.KLDivLoss(reduction="batchmean"), (X, P)),
    "a parameter": (Tempered(), (X, T)),
    "half precision": (nn.MSELoss(), (X.detach().half().requires_grad_(), Y.half())),
    "double precision": (nn.MSELoss(), (X.detach().double().requires_grad_(), Y.double())),
    "layout": (nn.MSELoss(), (draw("real", 5, 6).detach().t().requires_grad_(), Y)),
    "one element": (nn.MSELoss(), (draw("real", 1), draw("real", 1, seed=1).detach())),
    "no element": (nn.MSELoss(reduction="sum"), (torch.zeros(0, 3, requires_grad=True), torch.zeros(0, 3))),
    "one program": (dice(), (draw("real", 2, 4, 3, 5), labels(4, 2, 3, 5))),
    "one program, in turns": (pearson, (X, Y)),
}
# What cannot.
LATE: dict[str, tuple[Any, tuple[Tensor, ...], str]] = {
    "weighted": (nn.CrossEntropyLoss(weight=P[0]), (X, T), "total_weight"),
    "several numbers": (nn.MSELoss(reduction="none"), (X, Y), "not one number"),
    "several results": (lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y)), (X, Y), "not one number"),
    "a product": (clip, (X, Y), "torch runs"),
    "a gradient by torch": (lambda x: x[torch.arange(40) % 3].square().mean(), (X,), "torch runs"),
}


def leaves(loss: Any, given: Sequence[Tensor]) -> list[Tensor]:
    parameters = loss.parameters() if isinstance(loss, nn.Module) else []
    return [each for each in (*given, *parameters) if each.requires_grad]


def gradients(loss: Any, given: Sequence[Tensor], upstream: float = 1.0) -> list[Tensor]:
    value = loss(*given)
    return [value.detach(), *torch.autograd.grad(value, leaves(loss, given), torch.full_like(value, upstream))]


def pair(loss: Any, **options: Any) -> tuple[Any, Any]:
    return autogen_loss(copy.deepcopy(loss), gradient="forward", policy="mandatory", **options), loss


@pytest.mark.parametrize("upstream", [1.0, 0.5, 65536.0, 0.0])
@pytest.mark.parametrize("name", EARLY)
def test_as_in_torch(name: str, upstream: float, launches: Launches) -> None:
    loss, given = EARLY[name]
    ours, theirs = pair(loss)
    for _ in range(3):  # the third takes the short way
        found = gradients(ours, given, upstream)
        assert launches.take() == (1 if name == "no element" else 2)
        near = {"rtol": 1e-5, "atol": 1e-6 * upstream} if upstream > 1 else {}
        torch.testing.assert_close(found, gradients(theirs, given, upstream), **near)


@pytest.mark.parametrize("name", [name for name in EARLY if name != "no element"])
@pytest.mark.parametrize("calls", [1, 3])
def test_backward_has_nothing_to_do_for_an_upstream_of_1(name: str, calls: int) -> None:
    loss, given = EARLY[name]
    ours, _ = pair(loss)
    for _ in range(calls):
        value = ours(*given)
    node = value.grad_fn
    for each in node.early:
        each.fill_(7)
    found = torch.autograd.grad(value, leaves(ours, given), retain_graph=True)
    assert found and all((each == 7).all() for each in found)
    again = torch.autograd.grad(value, leaves(ours, given))
    torch.testing.assert_close([value.detach(), *again], gradients(loss, given))


@pytest.mark.parametrize("calls", [1, 3])
def test_every_backward_gives_tensors_of_its_own(calls: int) -> None:
    ours, theirs = pair(nn.CrossEntropyLoss())
    for _ in range(calls):
        value = ours(X, T)
    expected = theirs(X, T)
    for upstream in (1.0, 1.0, 3.0, 1.0):
        seed = torch.tensor(upstream)
        (own,) = torch.autograd.grad(value, X, seed, retain_graph=True)
        torch.testing.assert_close(own, torch.autograd.grad(expected, X, seed, retain_graph=True)[0])
        own.zero_()  # as an optimizer may


def test_gradients_are_accumulated() -> None:
    x = X.detach().clone().requires_grad_()
    ours, theirs = pair(nn.MSELoss())
    for _ in range(4):
        (ours(x, Y) * 0.5).backward()
        ours(x, Y).backward()
    own, x.grad = x.grad, None
    for _ in range(4):
        (theirs(x, Y) * 0.5).backward()
        theirs(x, Y).backward()
    torch.testing.assert_close(own, x.grad)


@pytest.mark.parametrize("ignored", [0, 1, 3, 6])
def test_labels_that_do_not_count(ignored: int) -> None:
    target = T.clone()
    target[:ignored] = -100
    ours, theirs = pair(nn.CrossEntropyLoss())
    for upstream in (1.0, 2.0):
        for _ in range(3):
            found, wanted = gradients(ours, (X, target), upstream), gradients(theirs, (X, target), upstream)
            torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("name", LATE)
def test_what_cannot_be_computed_in_forward_is_in_backward(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", 1)  # where all is at hand
    loss, given, reason = LATE[name]
    ours, theirs = pair(loss)
    report = explain(ours, *given)
    assert "its gradient waits for backward: " in report.reason and reason in report.reason

    def total(*args: Tensor, loss: Any) -> Tensor:
        return sum(each.sum() for each in torch.utils._pytree.tree_leaves(loss(*args)))

    for _ in range(3):
        found, wanted = (torch.autograd.grad(total(*given, loss=each), X)[0] for each in (ours, theirs))
        torch.testing.assert_close(found, wanted)


def test_sizes_that_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Totals of several results wait for the last block, and gradients for them."""
    monkeypatch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", 4)
    loss, given = EARLY["one program"]
    ours, theirs = pair(loss)
    assert "waits for backward" in explain(ours, *given).reason
    torch.testing.assert_close(gradients(ours, given), gradients(theirs, given))


def test_explain_shows_both_kernels() -> None:
    report = explain(pair(nn.BCEWithLogitsLoss())[0], X, P)
    assert report.reason == "every operation of the loss has a kernel"
    assert report.forward is not None and "tl.store(grad_input_ptr" in report.forward.source
    assert report.backward is not None and "if tl.load(grad_loss_ptr) == 1:\n        return" in report.backward.source


def test_nothing_is_stored_that_nobody_asks_for() -> None:
    ours, _ = pair(nn.BCEWithLogitsLoss())
    with torch.no_grad():
        report = explain(ours, X, P)
    assert report.forward is not None and "grad_input" not in report.forward.source


def test_inputs_stay_as_they_are() -> None:
    x, y = X.detach().clone().requires_grad_(), draw("real", 6, 5, seed=1)
    gradients(pair(nn.MSELoss())[0], (x, y))
    assert x.equal(X) and y.equal(Y)


def test_second_derivatives() -> None:
    found = []
    for loss in pair(nn.BCEWithLogitsLoss()):
        (first,) = torch.autograd.grad(loss(X, P), X, create_graph=True)
        found.append([first, torch.autograd.grad(first.pow(2).sum(), X)[0]])
    torch.testing.assert_close(*found)


def test_under_a_checkpoint() -> None:
    ours, theirs = pair(nn.CrossEntropyLoss())
    for _ in range(3):
        value = checkpoint(ours, X.tanh(), T, use_reentrant=False)
        torch.testing.assert_close(torch.autograd.grad(value, X)[0], torch.autograd.grad(theirs(X.tanh(), T), X)[0])


def test_the_gradient_can_become_that_of_a_leaf_without_a_copy() -> None:
    x = X.detach().clone().requires_grad_()
    ours, _ = pair(nn.MSELoss())
    for _ in range(3):
        x.grad = None
        value = ours(x, Y)
        place = value.grad_fn.early[0].data_ptr()
        value.backward()
        assert x.grad is not None and x.grad.data_ptr() == place


@pytest.mark.parametrize("move", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))])
def test_copies_keep_the_option(move: Callable[[Any], Any]) -> None:
    ours = move(autogen_loss(losses.MSELoss(), gradient="forward"))
    value = ours(X, Y)
    assert len(value.grad_fn.early) == 1


def test_functions_and_classes_take_the_option() -> None:
    @autogen_loss(gradient="forward")
    def function(x: Tensor) -> Tensor:
        return x.exp().mean()

    @autogen_loss(gradient="forward")
    class Loss(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.exp().mean()

    late = autogen_loss(function)
    assert len(function(X).grad_fn.early) == len(Loss()(X).grad_fn.early) == 1
    assert not hasattr(late(X).grad_fn, "early")


def test_another_value_of_the_option() -> None:
    with pytest.raises(ValueError, match='in "backward" or in "forward", not in \'both\''):
        autogen_loss(nn.MSELoss(), gradient="both")  # type: ignore[call-overload]


def test_an_instance_keeps_the_handwritten_kernels_of_its_class() -> None:
    ours = autogen_loss(losses.CosineEmbeddingLoss(), gradient="forward")
    assert explain(ours, X, Y, torch.ones(6)).path == "handwritten"
