"""What `autogen_loss`, `explain` and `trace_count` refuse, and that they leave it as it was."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen
import autogen.losses
from autogen import autogen_loss, explain, trace_count
from autogen.aot import kernels_of

X, T = torch.rand(6, 5), torch.rand(6, 5)


def raw(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction - target).abs().mean()


@pytest.mark.parametrize("ask", [explain, kernels_of])
@pytest.mark.parametrize("cls", [nn.L1Loss, autogen.losses.L1Loss, autogen.losses.AdaptiveLogSoftmaxWithLoss, int])
def test_a_class_is_not_explained(ask: Any, cls: type) -> None:
    before = dict(vars(cls))
    with pytest.raises(TypeError, match=f"pass an instance of {cls.__name__}"):
        ask(cls, X, T)
    assert dict(vars(cls)) == before


@pytest.mark.parametrize("ask", [explain, kernels_of])
def test_an_instance_is_left_as_it_is(ask: Any) -> None:
    module = nn.L1Loss()
    before = dict(vars(module))
    ask(module, X, T)
    assert vars(module) == before and not hasattr(nn.L1Loss, "use_autogen")


@pytest.mark.parametrize("wrong", [None, 3, torch.rand(2), property(raw)])
def test_what_is_no_loss(wrong: Any) -> None:
    for decorate in (autogen_loss, autogen_loss(policy="default"), lambda loss: autogen_loss(loss, policy="default")):
        with pytest.raises(TypeError, match=f"not {type(wrong).__name__}"):
            decorate(wrong)


class OnlyCalled(nn.Module):
    """As timm's `JsdCrossEntropy`: without a `forward`."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        return raw(x, t) * self.scale


def test_a_class_that_has_only_a_call() -> None:
    cls = autogen_loss(type("Loss", (OnlyCalled,), {}))
    loss, plain = cls(2.0), cls(2.0, use_autogen=False)
    for each in (loss, plain):
        torch.testing.assert_close(each(X, T), raw(X, T) * 2)
    assert trace_count(cls) == 1 and explain(loss, X, T).path == "generated" and explain(plain, X, T).path == "eager"


def test_an_instance_that_has_only_a_call() -> None:
    loss = autogen_loss(OnlyCalled(2.0))
    assert isinstance(loss, OnlyCalled) and type(loss).__name__ == "OnlyCalled"
    for each in (loss, copy.deepcopy(loss), pickle.loads(pickle.dumps(loss)), autogen_loss(loss, policy="mandatory")):
        torch.testing.assert_close(each(X, T), raw(X, T) * 2)
        assert trace_count(each) == 1 and explain(each, X, T).path == "generated"
    assert type(OnlyCalled()) is OnlyCalled and explain(OnlyCalled(), X, T).path == "generated"


@pytest.mark.parametrize(
    "method", [staticmethod(raw), classmethod(lambda cls, x, t: raw(x, t))], ids=["static", "class"]
)
def test_a_forward_without_self(method: Any) -> None:
    cls = type("Loss", (nn.Module,), {"forward": method})
    with pytest.raises(TypeError, match="the forward of Loss takes no `self`; decorate an instance"):
        autogen_loss(cls)
    loss = autogen_loss(cls())
    torch.testing.assert_close(loss(X, T), raw(X, T))
    assert trace_count(loss) == 1


def test_a_scripted_function() -> None:
    scripted = torch.jit.script(raw)
    for ask in (autogen_loss, lambda loss: explain(loss, X, T)):
        with pytest.raises(TypeError, match=r"before torch\.jit\.script"):
            ask(scripted)
    torch.testing.assert_close(torch.jit.script(autogen_loss(raw))(X, T), raw(X, T))


@autogen_loss
def of_names(x: Tensor, t: Tensor) -> Tensor:
    return F.mse_loss(x, t)


def test_what_torchscript_reads_names_what_the_loss_does() -> None:
    for loss in (of_names, autogen.losses.MSELoss()):
        torch.testing.assert_close(torch.jit.script(loss)(X, T), F.mse_loss(X, T))


@pytest.mark.parametrize(
    ("option", "value"), [("static_graph", "yes"), ("static_graph", None), ("handwritten", True), ("tune", "fast")]
)
def test_options_of_another_type(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=repr(value)):
        autogen_loss(**{option: value})


def test_the_traces_of_a_class() -> None:
    cls = autogen_loss(type("Loss", (nn.L1Loss,), {}))
    assert trace_count(cls) == 0
    explain(cls(), X, T)
    assert trace_count(cls) == trace_count(cls()) == 1
    for wrong in (nn.L1Loss, nn.L1Loss(), int, raw):
        with pytest.raises(TypeError, match="is not decorated"):
            trace_count(wrong)


CALLS = """
from torch import Tensor, nn
from autogen import autogen_loss

huber: nn.HuberLoss = autogen_loss(nn.HuberLoss(), policy="mandatory")
plain: nn.HuberLoss = autogen_loss(nn.HuberLoss())

@autogen_loss(policy="mandatory", tune=True)
def loss(x: Tensor, t: Tensor) -> Tensor:
    return (x - t).abs().mean()

value: Tensor = autogen_loss(loss, static_graph=True)(huber(loss, loss), plain(loss, loss))
"""


@pytest.mark.slow
def test_calls_are_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "calls.py").write_text(CALLS)
    # With no options of its own, so that what mypy keeps of this package serves all that run it.
    checker = [sys.executable, "-m", "mypy", str(tmp_path / "calls.py")]
    run = subprocess.run(checker, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert run.returncode == 0, run.stdout
