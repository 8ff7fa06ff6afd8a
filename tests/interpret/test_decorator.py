"""`@autogen_loss` on classes, instances and functions; policies; what is logged. Launches are counted from outside."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen
import autogen.functional
import autogen.losses
from autogen import autogen_loss, explain, policy
from tests.interpret.agreement import draw
from tests.interpret.launches import Launches

X, T = torch.randn(6, 5), torch.randn(6, 5)


def plain(prediction: Tensor, target: Tensor, *, scale: float = 1.0) -> Tensor:
    """A loss of a user's own."""
    return (scale * (prediction - target) ** 2).mean()


class Scaled(nn.Module):
    """A loss with a number, a buffer and a parameter."""

    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("weight", torch.arange(1.0, 6.0))
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return (self.scale * self.weight * (prediction - target).abs() / self.temperature).mean()


Decorated = autogen_loss(type("Decorated", (Scaled,), {"__module__": __name__}))


def check(loss: Any, reference: Any, launches: Launches, expected: tuple[int, int] = (1, 1)) -> None:
    """One call, forward and backward: values, gradients, launches."""
    launches.take()
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    value = loss(x, T)
    forward = launches.take()
    value.backward()
    assert (forward, launches.take()) == expected
    other = reference(y, T)
    other.backward()
    torch.testing.assert_close(value, other)
    torch.testing.assert_close(x.grad, y.grad)


def test_a_function(launches: Launches) -> None:
    bare, called, with_options = autogen_loss(plain), autogen_loss()(plain), autogen_loss(policy="mandatory")(plain)
    for loss in (bare, called, with_options):
        check(loss, plain, launches)
        assert loss.__name__ == "plain" and loss.__doc__ == plain.__doc__ and loss.__wrapped__ is plain
        assert inspect.signature(loss) == inspect.signature(plain)
    torch.testing.assert_close(bare(X, target=T, scale=3.0), plain(X, T, scale=3.0))
    assert launches.take() == 1


def test_a_class(launches: Launches) -> None:
    loss, reference = Decorated(3.0), Scaled(3.0)
    check(loss, reference, launches)
    assert isinstance(loss, Scaled) and loss.state_dict().keys() == reference.state_dict().keys()
    torch.testing.assert_close(loss.temperature.grad, reference.temperature.grad)
    off = Decorated(3.0, use_autogen=False)
    check(off, reference, launches, (0, 0))


def test_a_subclass_of_a_decorated_class(launches: Launches) -> None:
    class Sub(Decorated):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            super().__init__(4.0)

    check(Sub(), Scaled(4.0), launches)


def test_an_instance(launches: Launches) -> None:
    module = Scaled(5.0)
    loss = autogen_loss(module)
    assert loss is module
    check(loss, Scaled(5.0), launches)
    for copied in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        check(copied, Scaled(5.0), launches)


def test_a_changed_attribute_is_noticed(launches: Launches) -> None:
    loss, reference = Decorated(), Scaled()
    for scale in (1.0, 2.0, 1.0):
        loss.scale = reference.scale = scale
        check(loss, reference, launches)
    loss.weight, reference.weight = torch.ones(5), torch.ones(5)
    check(loss, reference, launches)


@pytest.mark.parametrize("wrong", [3, "loss", int, None.__class__])
def test_what_is_no_loss(wrong: Any) -> None:
    with pytest.raises(TypeError, match="autogen_loss takes"):
        autogen_loss(wrong)


def test_policy_as_a_block(launches: Launches) -> None:
    loss = autogen_loss(plain)
    with policy("disabled"):
        check(loss, plain, launches, (0, 0))
        with policy("mandatory"):
            check(loss, plain, launches)
    check(loss, plain, launches)


def test_policy_as_an_argument_and_from_outside(monkeypatch: pytest.MonkeyPatch, launches: Launches) -> None:
    monkeypatch.setenv("AUTOGEN_POLICY", "disabled")
    autogen.set_policy(None)  # which reads it anew
    check(autogen_loss(plain), plain, launches, (0, 0))
    check(autogen_loss(plain, policy="default"), plain, launches)
    with policy("default"):
        check(autogen_loss(plain), plain, launches)
    with pytest.raises(ValueError, match="sometimes"):
        autogen_loss(plain, policy="sometimes")


def test_aggressive_takes_the_generator_where_it_can(launches: Launches) -> None:
    a, b, t = torch.randn(4, 7), torch.randn(4, 7), torch.tensor([1.0, -1.0, 1.0, -1.0])
    loss = autogen.losses.CosineEmbeddingLoss(margin=0.1)
    assert explain(loss, a, b, t).path == "handwritten"
    with policy("aggressive"):
        assert explain(loss, a, b, t).path == "generated"
        torch.testing.assert_close(loss(a, b, t), nn.CosineEmbeddingLoss(margin=0.1)(a, b, t))


def test_a_nested_call_is_part_of_the_outer_loss(launches: Launches) -> None:
    inner = autogen_loss(plain)

    def outer(prediction: Tensor, target: Tensor) -> Tensor:
        return inner(prediction, target) + inner(2 * prediction, target)

    check(autogen_loss(outer), lambda x, t: plain(x, t) + plain(2 * x, t), launches)


def test_functions_pickle_by_name() -> None:
    assert pickle.loads(pickle.dumps(autogen.functional.mse_loss)) is autogen.functional.mse_loss


@pytest.mark.parametrize("name", ["loss", "Loss"])
def test_what_has_been_called_pickles_by_value(name: str) -> None:
    """As joblib and ray send what is in `__main__` to other processes."""
    cloudpickle = pytest.importorskip("cloudpickle")
    scope = {"__name__": "__main__", "nn": nn, "autogen_loss": autogen_loss}
    exec(
        "@autogen_loss\n"
        "def loss(x, y, scale=2.0): return (x - y).abs().mean() * scale\n"
        "@autogen_loss\n"
        "class Loss(nn.Module):\n"
        "    def __init__(self): super().__init__()\n"
        "    def forward(self, x, y): return (x - y).abs().mean() * 2\n",
        scope,
    )
    found: Any = scope[name]
    for _ in range(3):
        loss = found() if name == "Loss" else found
        torch.testing.assert_close(loss(X, T), (X - T).abs().mean() * 2)
        assert explain(loss, X, T).path == "generated"
        found = pickle.loads(cloudpickle.dumps(found))


@pytest.mark.parametrize("function", [F.cosine_similarity, F.pairwise_distance, F.softplus], ids=lambda f: f.__name__)
def test_a_function_that_is_written_in_c(function: Any) -> None:
    loss = autogen_loss(function, policy="mandatory")
    inputs = [draw("real", 6, 5, seed=k) for k in range(1 if function is F.softplus else 2)]
    assert loss.__name__ == function.__name__
    torch.testing.assert_close(loss(*inputs), function(*inputs))
    if len(inputs) == 2:
        torch.testing.assert_close(loss(*inputs, eps=0.5), function(*inputs, eps=0.5))


def test_an_instance_whose_class_changes() -> None:
    """It has the `forward` of its class as that is now."""
    kind = type("Mean", (nn.Module,), {"forward": lambda self, x: x.mean()})
    loss, other = autogen_loss(kind()), type("Sum", (kind,), {"forward": lambda self, x: x.sum()})
    torch.testing.assert_close(loss(X), X.mean())
    kind.forward = lambda self, x: x.square().mean()
    for _ in range(3):
        torch.testing.assert_close(loss(X), X.square().mean())
    loss.__class__ = other
    for _ in range(3):
        torch.testing.assert_close(loss(X), X.sum())
    assert explain(loss, X).path == "generated"
