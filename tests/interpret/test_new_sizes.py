"""Calls of sizes that come once: they run by what holds for all sizes, and nothing is kept of them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen.losses
from autogen import CompileError, autogen_loss, policy
from autogen.decorator import dispatcher_of
from autogen.runtime import hostcode
from autogen.runtime.prepared import Prepared
from autogen.runtime.unprepared import Unprepared
from tests.interpret.samples import Samples

SIZES = [(3, 5), (4, 6), (2, 9), (7, 5), (40, 30), (3, 1024), (300, 7), (5, 48), (16, 16), (33, 2)]


class Ways:
    """Which way forward and backward have taken: how often at once, by Triton, and how often they were prepared."""

    def __init__(self) -> None:
        self.direct = self.by_triton = self.prepared = 0


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ways]:
    found, run, prepare = Ways(), hostcode.run_once, Prepared.__init__

    def run_once(*args: Any) -> Any:
        returned = run(*args)
        if returned is None:
            found.by_triton += 1
        else:
            found.direct += 1
        return returned

    def prepared(*args: Any, **kwargs: Any) -> None:
        found.prepared += 1
        prepare(*args, **kwargs)

    monkeypatch.setattr(hostcode, "run_once", run_once)
    monkeypatch.setattr(Prepared, "__init__", prepared)
    with policy("mandatory"):
        yield found


def gradients(loss: Any, *inputs: Any, upstream: float = 0.5) -> list[Tensor]:
    """The value, and the gradients of the inputs that have one."""
    inputs = tuple(each.clone().requires_grad_(each.is_floating_point()) for each in inputs)
    value = loss(*inputs)
    wanted = [each for each in inputs if each.requires_grad]
    return [value, *torch.autograd.grad(value, wanted, torch.full_like(value, upstream), allow_unused=True)]


def boxes(s: Samples, n: int, _: int) -> tuple[Tensor, ...]:
    corners = [s.probability(n, 2) for _ in range(4)]
    return torch.cat([corners[0], corners[0] + corners[1]], 1), torch.cat([corners[2], corners[2] + corners[3]], 1)


def generalized_iou(x: Tensor, y: Tensor) -> Tensor:
    return autogen.losses.GIoULoss(use_autogen=False)(x, y)


def exponential(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).exp().mean()


# Torch's loss, the options of ours, and inputs of some sizes.
LOSSES: dict[str, tuple[Any, dict[str, Any], Callable[..., tuple[Tensor, ...]]]] = {
    "total": (nn.BCEWithLogitsLoss(), {}, lambda s, n, c: (s.real(n, c), s.probability(n, c))),
    "elementwise": (nn.SmoothL1Loss(reduction="none"), {}, lambda s, n, c: (s.real(n, c), s.real(n, c))),
    "rows": (nn.CrossEntropyLoss(label_smoothing=0.1), {}, lambda s, n, c: (s.real(n, c), s.label(c, n))),
    "probabilities": (nn.CrossEntropyLoss(reduction="none"), {}, lambda s, n, c: (s.real(n, c), s.probability(n, c))),
    "planes": (nn.CrossEntropyLoss(), {}, lambda s, n, c: (s.real(2, c, n), s.label(c, 2, n))),
    "distances": (nn.TripletMarginLoss(), {}, lambda s, n, c: (s.real(n, c), s.real(n, c), s.real(n, c))),
    "boxes": (generalized_iou, {}, boxes),
    "broadcast": (exponential, {}, lambda s, n, c: (s.real(n, c), s.real(c))),
    "early": (nn.CrossEntropyLoss(), {"gradient": "forward"}, lambda s, n, c: (s.real(n, c), s.label(c, n))),
}


def without_checks(loss: Any) -> None:
    """Drop the checks of values, which are made on the CPU alone."""
    found = dispatcher_of(loss)
    assert found is not None
    for compiled in found[0].compilations.every():
        compiled.trace.domain.ahead.clear()


@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients(name: str, ways: Ways) -> None:
    """What Triton has compiled is launched directly, and nothing is prepared for it."""
    theirs, options, inputs = LOSSES[name]
    ours, samples = autogen_loss(copy.deepcopy(theirs), **options), Samples()

    def compare(n: int, c: int, upstream: float = 0.5) -> None:
        given = inputs(samples, n, c)
        found = [gradients(loss, *given, upstream=upstream) for loss in (ours, theirs)]
        torch.testing.assert_close(*found)

    compare(3, 5)
    without_checks(ours)
    for n, c in SIZES:
        compare(n, c, 1.0 if n == c else 0.5)
    assert ways.prepared <= ways.by_triton + 1
    compare(33, 30)
    prepared, direct = ways.prepared, ways.direct
    for n in range(35, 49, 2):
        compare(n, 30)
    assert (ways.prepared - prepared, ways.direct - direct) == (0, 2 * 7)


@pytest.mark.parametrize("name", LOSSES)
def test_one_trace_for_all_sizes(name: str, compiled: list[str]) -> None:
    theirs, options, inputs = LOSSES[name]
    ours, samples = autogen_loss(copy.deepcopy(theirs), **options), Samples()
    for n in range(5, 11):
        gradients(ours, *inputs(samples, n, n + 30))
    assert len(compiled) == 1


def test_what_comes_again_is_prepared(ways: Ways) -> None:
    ours, samples = autogen_loss(copy.deepcopy(nn.MSELoss())), Samples()
    for n in (5, 5, 5, 7, 9, 11, 11, 7, 7, 11):
        x, y = samples.real(n, 3), samples.real(n, 3)
        torch.testing.assert_close(gradients(ours, x, y), gradients(nn.MSELoss(), x, y))
    # After two calls that were taken apart: 5, as the first of all, and 7 and 11 when they come for the second time.
    assert (ways.prepared, ways.direct, ways.by_triton) == (3, 2 * 3, 0)


def test_upstream_gradients_of_all_layouts(ways: Ways) -> None:
    """Dense, expanded, strided, with the other sign, and zeros without memory."""
    ours, theirs, samples = autogen_loss(nn.MSELoss(reduction="none")), nn.MSELoss(reduction="none"), Samples()
    layouts: list[Callable[[Tensor], Tensor]] = [
        lambda g: g,
        lambda g: g[:1, :1].expand(g.shape),
        lambda g: g.t().contiguous().t(),
        lambda g: torch._neg_view(g),
        lambda g: torch._neg_view(g.t().contiguous().t()),
        lambda g: torch._efficientzerotensor(g.shape),
        lambda g: g[:, :1].expand(g.shape),
    ]
    sizes = iter(range(5, 1000))
    for layout in (*layouts, *layouts, *layouts):
        n = next(sizes)
        x, y, upstream = samples.real(n, 6), samples.real(n, 6), layout(samples.real(n, 6))
        found = []
        for loss in (ours, theirs):
            given = x.clone().requires_grad_(), y.clone().requires_grad_()
            found.append([*torch.autograd.grad(loss(*given), given, upstream)])
        torch.testing.assert_close(*found)
    assert ways.direct > 20


def test_some_outputs_have_an_upstream_gradient(ways: Ways) -> None:
    def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (x * y).sum(), (x - y).square().mean(1), (x > y).float().mean()

    ours, samples = autogen_loss(loss), Samples()
    for n, used in enumerate(("a", "b", "ab", "a", "b", "ab", "ba", "c", "abc"), 6):
        x, y = samples.real(n, 4), samples.real(n, 4)
        found = []
        for each in (ours, loss):
            given = x.clone().requires_grad_(), y.clone().requires_grad_()
            outputs = dict(zip("abc", each(*given), strict=True))
            total = sum((outputs[name] * 2).sum() for name in used)
            assert isinstance(total, Tensor)
            found.append([total, *(torch.autograd.grad(total, given) if total.requires_grad else ())])
        torch.testing.assert_close(*found)
    assert ways.prepared <= ways.by_triton + 1


def test_tensors_of_every_alignment(ways: Ways) -> None:
    ours, samples = autogen_loss(copy.deepcopy(nn.BCEWithLogitsLoss())), Samples()
    for n in range(6, 46):
        memory = samples.real(2, 400)
        x, y = (each[n % k : n % k + 7 * n].view(n, 7) for each, k in zip(memory, (3, 4), strict=True))
        found = []
        for loss in (ours, nn.BCEWithLogitsLoss()):
            given = x.detach().requires_grad_()  # in the same memory
            value = loss(given, y)
            found.append([value, *torch.autograd.grad(value, given)])
        torch.testing.assert_close(*found)
    assert ways.direct > 60


def test_floats_that_vary(ways: Ways) -> None:
    def loss(x: Tensor, y: Tensor, scale: float) -> Tensor:
        return (x * scale - y).abs().sum()

    ours, samples = autogen_loss(loss), Samples()
    for n in range(5, 20):
        x, y = samples.real(n, 3), samples.real(n, 3)
        found = [gradients(functools.partial(each, scale=1 / n), x, y) for each in (ours, loss)]
        torch.testing.assert_close(*found)
    assert ways.direct > 15 and ways.prepared <= ways.by_triton + 1


def test_several_times_backward(ways: Ways) -> None:
    """Also where forward has the gradient, which the first time takes."""
    ours, theirs, samples = autogen_loss(nn.CrossEntropyLoss(), gradient="forward"), nn.CrossEntropyLoss(), Samples()
    gradients(ours, samples.real(4, 5), samples.label(5, 4))
    without_checks(ours)
    for n in range(5, 12):
        x, y = samples.real(n, 5), samples.label(5, n)
        found = []
        for loss in (ours, theirs):
            given = x.clone().requires_grad_()
            value = loss(given, y)
            found.append([torch.autograd.grad(value * k, given, retain_graph=True)[0] for k in (1.0, 3.0, 1.0)])
        torch.testing.assert_close(*found)
    assert ways.direct > 15


def test_as_much_is_saved_as_in_any_other_call(ways: Ways) -> None:
    """So that a checkpoint may repeat the first of some sizes, as the second."""
    ours, samples = autogen_loss(nn.CrossEntropyLoss()), Samples()
    ours(samples.real(4, 5), samples.probability(4, 5))
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        for n in (6, 6, 7, 7, 7):
            ours(samples.real(n, 5).requires_grad_(), samples.probability(n, 5)).backward()
    assert ways.direct == 2  # the first 7
    assert len(saved) == 3 * 5 and saved[:3] == saved[3:6] and saved[6:9] == saved[9:12] == saved[12:]


def test_errors_of_backward_are_torchs_to_work_around(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs, samples = autogen_loss(nn.MSELoss()), nn.MSELoss(), Samples()
    for n in (4, 4, 5):
        gradients(ours, samples.real(n, 5), samples.real(n, 5))

    def fail(*args: Any) -> Any:
        raise CompileError("backward", cause=ValueError("too large"))

    monkeypatch.setattr(Unprepared, "backward", fail)
    x, y = samples.real(6, 5), samples.real(6, 5)
    with policy("default"):
        torch.testing.assert_close(gradients(ours, x, y), gradients(theirs, x, y))


def test_without_gradients(ways: Ways) -> None:
    ours, samples = autogen_loss(nn.MSELoss()), Samples()
    for n in range(4, 12):
        x, y = samples.real(n, 5), samples.real(n, 5)
        with torch.no_grad():
            torch.testing.assert_close(ours(x, y), F.mse_loss(x, y))
        with torch.inference_mode():
            assert ours(x, y).is_inference()
    assert ways.direct == 6  # all but the first two, and the second of each size
