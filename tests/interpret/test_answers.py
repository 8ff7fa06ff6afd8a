"""Losses that ask how torch is set: as torch after every change of that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.backends.cudnn as convolutions
import torch.distributed as dist
import torch.distributions as D
from torch import Tensor, nn
from torch import get_num_threads as threads_by_another_name
from torch.distributions import Normal

from autogen import autogen_loss, explain, policy, trace_count
from autogen.calls.answers import QUESTIONS
from tests.unit.pipeline import binding_of

MATMUL = torch.backends.cuda.matmul


@contextlib.contextmanager
def called(change: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    change(value)
    try:
        yield
    finally:
        change(before)


def assigned(owner: Any, name: str) -> Any:
    before = getattr(owner, name)

    def assign(value: Any) -> None:
        with torch.backends.__allow_nonbracketed_mutation():  # torch's own tests forbid it
            setattr(owner, name, value)

    return called(assign, not before, before)


def deterministic() -> Any:
    return called(torch.use_deterministic_algorithms, True, False)


def more_threads() -> Any:
    return called(torch.set_num_threads, 2, 1)


def checks() -> Any:
    before = D.Distribution._validate_args  # `torch.compile` turns it off
    return called(D.Distribution.set_default_validate_args, not before, before)


def is_deterministic() -> float:  # what a loss calls is looked into as well
    return 2.0 if torch.are_deterministic_algorithms_enabled() else 1.0


# How a loss asks, and how the answer changes.
CHANGES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[], Any]]] = {
    "deterministic": (lambda a: (a * is_deterministic()).sum(), deterministic),
    "debug mode": (lambda a: (a * torch.get_deterministic_debug_mode()).sum(), deterministic),
    "a name put into a string": (
        lambda a: (a * getattr(torch, "are_deterministic_algorithms_enabled")()).sum(),  # noqa: B009
        deterministic,
    ),
    "precision of products": (
        lambda a: (a * len(torch.get_float32_matmul_precision())).sum(),
        lambda: called(torch.set_float32_matmul_precision, "high", "highest"),
    ),
    "threads": (lambda a: (a * torch.get_num_threads()).sum(), more_threads),
    "threads by another name": (lambda a: (a * threads_by_another_name()).sum(), more_threads),
    "anomalies": (lambda a: (a * torch.is_anomaly_enabled()).sum(), lambda: torch.autograd.set_detect_anomaly(True)),
    "warnings": (
        lambda a: (a * torch.is_warn_always_enabled()).sum(),
        lambda: called(torch.set_warn_always, True, False),
    ),
    "flag of a backend": (
        lambda a: (a * torch.backends.mkldnn.enabled).sum(),
        lambda: assigned(torch.backends.mkldnn, "enabled"),
    ),
    "flag of a backend that has a name": (
        lambda a: (a * convolutions.deterministic).sum(),
        lambda: assigned(convolutions, "deterministic"),
    ),
    "flag of an object": (
        lambda a: (a * MATMUL.allow_fp16_reduced_precision_reduction).sum(),
        lambda: assigned(MATMUL, "allow_fp16_reduced_precision_reduction"),
    ),
    "checks of distributions": (lambda a: (a * D.Distribution._validate_args).sum(), checks),
    "checks of distributions, by another name": (lambda a: (a * Normal(0.0, 1.0)._validate_args).sum(), checks),
    "checks of distributions, of torch": (
        lambda a: (a * torch.distributions.Normal(0.0, 1.0)._validate_args).sum(),
        checks,
    ),
    "errors of NumPy": (lambda a: (a * len(np.geterr()["divide"])).sum(), lambda: np.errstate(divide="ignore")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_answer_that_changes_is_another_trace(name: str) -> None:
    loss, changed = CHANGES[name]
    decorated, a = autogen_loss(loss), torch.arange(1.0, 4.0, requires_grad=True)
    for _ in range(3):  # the short way, too
        assert decorated(a) == loss(a)
    assert explain(decorated, a).path == "generated"
    before = loss(a)
    with changed():
        assert loss(a) != before
        for _ in range(3):
            assert decorated(a) == loss(a)
    assert decorated(a) == before
    assert trace_count(decorated) == 2


def test_a_module_of_torchs_with_a_name_that_is_replaced_asks_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(D, "Laplace", lambda mean, scale: mean)

    def loss(a: Tensor) -> Tensor:
        return (a * D.Normal(0.0, 1.0)._validate_args + D.Laplace(a, 1.0)).sum()

    decorated, a = autogen_loss(loss), torch.arange(1.0, 4.0)
    assert decorated(a) == loss(a)
    with checks():
        assert decorated(a) == loss(a)


def test_a_group_of_processes_that_is_made_later(tmp_path: Path) -> None:
    def world(a: Tensor) -> Tensor:
        return (a * (10.0 * dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1.0)).sum()

    decorated, a = autogen_loss(world, policy="mandatory"), torch.ones(3, requires_grad=True)
    for _ in range(3):
        assert decorated(a) == 3
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        assert [decorated(a).item() for _ in range(3)] == [30.0] * 3
    finally:
        dist.destroy_process_group()
    assert decorated(a) == 3
    assert trace_count(decorated) == 2


@pytest.mark.parametrize(
    ("loss", "mode", "reason"),
    [
        (lambda a: (a * (2.0 if torch.is_inference_mode_enabled() else 1.0)).sum(), torch.inference_mode, "where that"),
        (lambda a: (a * (2.0 if torch.is_grad_enabled() else 1.0)).sum(), torch.enable_grad, "every operation"),
    ],
    ids=["inference, which a trace does not have", "gradients"],
)
def test_modes(loss: Callable[[Tensor], Tensor], mode: Callable[[], Any], reason: str) -> None:
    decorated, a = autogen_loss(loss), torch.ones(3)
    with torch.no_grad():
        assert [decorated(a).item() for _ in range(3)] == [3.0] * 3
        assert explain(decorated, a).path == "generated"
        with mode():
            assert [decorated(a).item() for _ in range(3)] == [6.0] * 3
            assert reason in explain(decorated, a).reason
        assert decorated(a) == 3


@pytest.mark.parametrize(
    "loss",
    [
        lambda a: (a * (2.0 if a.is_leaf else 1.0)).sum(),
        lambda a: (a * (2.0 if a.grad is not None else 1.0)).sum(),
        lambda a: (a * (1.0 + a._version)).sum(),
        lambda a: (a * (2.0 if a.grad_fn is not None else 1.0)).sum(),
        lambda a: (a * (2.0 if a._is_view() else 1.0)).sum(),
        lambda a: (a * (2.0 if a._base is None else 1.0)).sum(),
        lambda a: (a * (2.0 if a.data_ptr() == a.detach().data_ptr() else 1.0)).sum(),
    ],
    ids=["leaf", "gradient", "version", "graph", "view", "base", "address"],
)
def test_what_no_stand_in_for_a_tensor_knows_is_left_to_torch(loss: Callable[[Tensor], Tensor]) -> None:
    decorated, a = autogen_loss(loss), torch.ones(3, requires_grad=True)
    changed, result = a.detach().clone().requires_grad_(), (a * 1)
    with torch.no_grad():
        changed.mul_(1)
    changed.grad = torch.ones(3)
    for each in (a, a, a, changed, result):
        assert decorated(each) == loss(each)
    assert "of an input" in explain(decorated, a).reason


def test_a_parameter_is_one_wherever_the_loss_runs() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(3.0))

        def forward(self, a: Tensor) -> Tensor:
            return (a * self.scale).square().sum() * (2.0 if isinstance(self.scale, nn.Parameter) else 1.0)

    ours, theirs, a = autogen_loss(Scaled()), Scaled(), torch.ones(3)
    with policy("mandatory"):
        for _ in range(4):
            values = [loss(a) for loss in (ours, theirs)]
            gradients = [
                torch.autograd.grad(value, loss.scale, create_graph=True)[0]
                for value, loss in zip(values, (ours, theirs), strict=True)
            ]
            assert values[0] == values[1] and gradients[0] == gradients[1]


def test_a_loss_that_asks_nothing_is_not_slowed_down() -> None:
    assert not binding_of(lambda a: torch.exp(a).sum() * len(a), torch.ones(3)).state.answers.known()


def test_each_question_has_an_answer_that_can_be_kept() -> None:
    for ask in QUESTIONS.values():
        assert hash(ask()) == hash(ask())


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_first_call_while_anomalies_are_looked_for() -> None:
    """Of the tensors that stand for others in a trace, nobody can tell whether they are nan."""
    ours, x = autogen_loss(nn.MSELoss()), torch.ones(3, requires_grad=True)
    with torch.autograd.detect_anomaly(), policy("mandatory"):
        assert ours(x, torch.zeros(3)) == 1
    assert explain(ours, x, torch.zeros(3)).path == "generated"
