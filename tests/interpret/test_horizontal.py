"""Horizontal fusion: what reduces tensors of different sizes is one launch each way, of several parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import autogen.scheduling.launches.kernel
import autogen.tiling.tiler
from autogen import autogen_loss, explain, losses
from tests.interpret.agreement import draw
from tests.interpret.launches import Launches
from tests.tiers import examples

Loss = Callable[..., Any]


def x(*shape: int, seed: int = 0) -> Tensor:
    return draw("real", *shape, seed=seed)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing fitted into one program."""
    monkeypatch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", 0)


def outcome(loss: Loss, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The values of a loss, and the gradients of their weighted sum."""
    values = loss(*inputs)
    values = [values] if isinstance(values, Tensor) else list(values)
    seeds = [torch.linspace(0.5, 1, v.numel(), dtype=v.dtype).reshape(v.shape) for v in values]
    return [*values, *torch.autograd.grad(values, [t for t in inputs if t.requires_grad], seeds)]


def agree(loss: Loss, inputs: Sequence[Tensor]) -> Loss:
    """Compare with torch in double precision; returns the decorated loss."""
    ours = autogen_loss(loss, policy="mandatory")
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
    for own, their in zip(outcome(ours, inputs), outcome(loss, exact), strict=True):
        scale = max(1.0, float(their.detach().abs().max()))
        torch.testing.assert_close(own.double(), their, rtol=2e-5, atol=2e-6 * scale)
    return ours


def terms(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return a.exp().mean() + 0.5 * b.logsumexp(1).sum() - (c.softmax(0) * c).sum()


def rows(a: Tensor, b: Tensor) -> Tensor:
    return (a.abs().sum(1) - (-b.square().sum(1))).mean() + (3 - b.amax(1)).sum()


def results(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return a.sigmoid(), b.exp().sum(1), a.mean() * b.mean()


def shared(a: Tensor, b: Tensor) -> Tensor:
    return (a.mean(0) * b).abs().sum() + F.mse_loss(a, a.detach() + 1)


CASES: dict[str, tuple[Loss, tuple[Tensor, ...], tuple[int, int]]] = {
    "flat, whole rows, rows apart": (terms, (x(40, 30), x(5, 33), x(9, 20)), (3, 3)),
    "sums of rows": (rows, (x(6, 7), x(6, 300)), (2, 2)),
    "negative sums of rows": (
        lambda a, b: (-a.abs().sum(1) - b.square().sum(1)).mean(), (x(6, 7), x(6, 300)), (2, 2)
    ),
    "results and sums": (results, (x(30, 50), x(7, 9)), (2, 2)),
    "of several programs": (lambda a, b: a.abs().sum() + b.square().mean(), (x(3, 2500), x(2100)), (2, 2)),
    "rows that begin anywhere": (
        lambda a, b: a.logsumexp(1).mean() * b.logsumexp(1).sum(), (x(5, 65), x(70, 33)), (2, 2)
    ),
    "a tensor in two": (shared, (x(6, 5), x(6, 5)[0].detach().requires_grad_()), (0, 2)),
}  # fmt: skip


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("resident", [autogen.tiling.tiler.MAX_RESIDENT, 16])
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, resident: int, launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autogen.tiling.tiler, "MAX_RESIDENT", resident)
    loss, inputs, parts = CASES[name]
    ours = agree(loss, inputs)
    launches.take()
    values = ours(*inputs)
    assert launches.take() == 1
    torch.autograd.grad(values, inputs[0], [torch.ones_like(v) for v in values] if isinstance(values, tuple) else None)
    assert launches.take() == 1
    report = explain(ours, *inputs)
    assert report.forward is not None and report.backward is not None
    sources = report.forward.source, report.backward.source
    assert tuple(len(re.findall(r"^def \w+_part_\d+\(", text, re.MULTILINE)) for text in sources) == parts


class Margins(nn.Module):
    """Of two tensors, with a number."""

    def __init__(self) -> None:
        super().__init__()
        self.margin = 0.1

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (a - self.margin).clamp(min=0).sum() + (b.logsumexp(1) * self.margin).sum()


@pytest.mark.usefixtures("large")
def test_sizes_and_numbers_that_change() -> None:
    plain, ours = Margins(), autogen_loss(Margins(), policy="mandatory")
    shapes = [((6, 5), (7, 3)), ((60, 50), (7, 1300)), ((1, 5), (70, 1)), ((0, 5), (7, 3)), ((6, 5), (0, 3))]
    for k, (one, other) in enumerate([*shapes, *shapes]):
        plain.margin = ours.margin = 0.1 * k
        inputs = x(*one), x(*other, seed=k)
        exact = [t.detach().double().requires_grad_() for t in inputs]
        found = [each.double() for each in outcome(ours, inputs)]
        torch.testing.assert_close(found, outcome(plain, exact), rtol=1e-5, atol=1e-5)


def test_what_is_small_is_a_part_too(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than the work of one block that others would have to wait for."""
    monkeypatch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", 64)
    inputs = [x(*shape, seed=k) for k, shape in enumerate([(5, 4), (30, 20), (3, 7), (40, 9)])]
    ours = agree(lambda *tensors: sum(t.logsumexp(1).mean() + t.square().sum() for t in tensors), inputs)
    launches.take()
    ours(*inputs).backward()
    assert launches.take() == 2


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    "name", ["programs_1", "programs", "n_elements_2", "BLOCK_1", "loss_forward_part_1", "partial"]
)
def test_names_that_the_kernel_gives(name: str, tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    text = f"def loss(a, b):\n    {name} = a.exp().sum()\n    other = b.abs().sum()\n    return {name} * other"
    file = tmp_path / "losses.py"
    file.write_text(text)
    exec(compile(text, str(file), "exec"), scope)  # so that its lines are found
    agree(scope["loss"], (x(6, 5), x(7)))


@pytest.mark.usefixtures("large")
def test_more_terms_than_a_launch_has_parts(launches: Launches) -> None:
    inputs = [x(4, k + 2, seed=k) for k in range(11)]
    ours = agree(lambda *tensors: sum(t.abs().mean() for t in tensors), inputs)
    launches.take()
    ours(*inputs)
    assert launches.take() == 2


@pytest.mark.usefixtures("large")
def test_sums_that_nearly_cancel(launches: Launches) -> None:
    """Where a loss is a mean of small differences, so is ours to the last digits."""

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return (a.amax(1) - b.amax(1)).mean()

    a = 1e4 + torch.rand(3000, 3)
    a, b = a.requires_grad_(), torch.cat([a, a[:, :2]], 1).sub(0.001 * torch.rand(3000, 1))
    ours = autogen_loss(loss, policy="mandatory")
    launches.take()
    value = ours(a, b)
    assert launches.take() == 1
    exact = loss(a.double(), b.double())
    assert abs(value.item() - exact.item()) < 1e-6 * abs(exact.item())


@pytest.mark.usefixtures("large")
def test_of_the_library(launches: Launches) -> None:
    inputs = x(9, 20), x(9, 20, seed=1).detach(), x(9, 3, seed=2), x(9, 3, seed=3)
    for reduction in ("mean", "sum"):
        loss, plain = losses.VAELoss(reduction=reduction), losses.VAELoss(reduction=reduction, use_autogen=False)
        exact = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
        launches.take()
        found = outcome(loss, inputs)
        assert launches.take() == 2
        torch.testing.assert_close([each.double() for each in found], outcome(plain, exact), rtol=2e-6, atol=1e-6)


@pytest.mark.usefixtures("large")
def test_gradients_in_forward(launches: Launches) -> None:
    inputs = x(9, 20), x(7, 3)
    ours = autogen_loss(lambda a, b: a.exp().mean() + b.square().sum(), gradient="forward", policy="mandatory")
    launches.take()
    value = ours(*inputs)
    assert launches.take() == 1 and "grad_b_ptr" in explain(ours, *inputs).forward.source  # type: ignore[union-attr]
    for scale in (1.0, 3.0):
        found = torch.autograd.grad(value * scale, inputs, retain_graph=True)
        torch.testing.assert_close(found[0], scale * inputs[0].exp() / 180)
        torch.testing.assert_close(found[1], scale * 2 * inputs[1])


@pytest.mark.usefixtures("large")
def test_inside_a_compiled_graph(launches: Launches) -> None:
    ours = autogen_loss(lambda a, b: a.exp().mean() + b.square().sum(), policy="mandatory")
    compiled = torch.compile(lambda a, b: ours(a * 2, b), backend="aot_eager", fullgraph=True)
    inputs = x(9, 20), x(7, 3)
    launches.take()
    value = compiled(*inputs)
    found = torch.autograd.grad(value, inputs)
    assert launches.take() == 2
    torch.testing.assert_close(found, (2 * (2 * inputs[0]).exp() / 180, 2 * inputs[1]))


TERMS = (
    "{}.exp().mean()", "{}.square().sum()", "{}.logsumexp(1).mean()", "{}.softmax(0).square().sum()",
    "{}.abs().amax(1).sum()", "({0} * {0}.detach().mean(1, True)).sum()", "({0} - {1}.sum()).tanh().mean()",
)  # fmt: skip


@pytest.mark.usefixtures("large")
@settings(max_examples=examples(15))
@given(
    st.lists(st.tuples(st.sampled_from([1, 3, 8, 33]), st.sampled_from([2, 5, 17, 64, 130])), min_size=2, max_size=4),
    st.data(),
)
def test_any_terms(shapes: list[tuple[int, int]], data: Any) -> None:
    names = [f"t{k}" for k in range(len(shapes))]
    parts = []
    for k in range(data.draw(st.integers(len(names), 6))):
        first = names[k % len(names)]
        text = data.draw(st.sampled_from(TERMS)).format(first, data.draw(st.sampled_from(names)))
        parts.append(f"{data.draw(st.sampled_from(['', '-', '0.5 * ']))}{text}")
    scope: dict[str, Any] = {}
    exec(f"def loss({', '.join(names)}):\n    return {' + '.join(parts)}", scope)
    agree(scope["loss"], [x(*shape, seed=k) for k, shape in enumerate(shapes)])
