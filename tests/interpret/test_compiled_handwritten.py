"""Losses with handwritten kernels inside graphs of `torch.compile`: as ops that launch these, whatever batch comes."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import autogen
import autogen.losses
from autogen import functional
from autogen.dynamo import opaque
from autogen.losses.handwritten import multilabel_margin
from autogen.runtime import handwritten_prepared
from tests.interpret.compiled import LOWERING, agree, compiled, labels, outcome, plain, x
from tests.interpret.launches import Launches

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_dynamo")]


def signs(n: int) -> Tensor:
    return labels(2, n) * 2 - 1


CALLS: dict[str, tuple[Callable[[], Any], Callable[[int], tuple[Any, ...]]]] = {
    "InfoNCE": (lambda: autogen.losses.InfoNCELoss(0.2), lambda n: (x(n, 20), x(n, 20, seed=1))),
    "negatives": (autogen.losses.InfoNCELoss, lambda n: (x(n, 20), x(n, 20, seed=1), x(3, 20, seed=2))),
    "no reduction": (lambda: autogen.losses.InfoNCELoss(reduction="none"), lambda n: (x(n, 20), x(n, 20, seed=1))),
    "SupCon": (autogen.losses.SupConLoss, lambda n: (x(n, 20), labels(3, n))),
    "views": (lambda: autogen.losses.SupConLoss(reduction="sum"), lambda n: (x(n, 2, 20), labels(3, n))),
    "cosines": (lambda: autogen.losses.CosineEmbeddingLoss(0.2), lambda n: (x(n, 20), x(n, 20, seed=1), signs(n))),
    "long rows": (autogen.losses.CosineEmbeddingLoss, lambda n: (x(n, 2500), x(n, 2500, seed=1), signs(n))),
    "margins": (autogen.losses.MultiLabelMarginLoss, lambda n: (x(n, 6), labels(7, n, 6) - 1)),
    "a function": (lambda: functional.multilabel_margin_loss, lambda n: (x(n, 6), labels(7, n, 6) - 1)),
}


WITH_INDUCTOR = ("InfoNCE", "views", "long rows", "margins")


@pytest.mark.parametrize(
    "name, backend", [*itertools.product(CALLS, LOWERING), *itertools.product(WITH_INDUCTOR, ["inductor"])]
)
def test_values_and_launches(name: str, backend: str, launches: Launches) -> None:
    make, inputs = CALLS[name]
    ours = make()
    agree(launches, compiled(ours, backend), plain(ours), *inputs(7))
    assert {each.rpartition(".")[0] for each in launches.take_modules()} <= {"autogen.losses.handwritten"}


def test_arguments_by_name(launches: Launches) -> None:
    def loss(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return functional.cosine_embedding_loss(target=c, input2=b * 2, input1=a, reduction="sum", margin=0.1)

    agree(launches, compiled(loss), plain(loss), x(7, 20), x(7, 20, seed=1), signs(7))


@pytest.mark.parametrize("run", [lambda loss: loss, compiled], ids=["outside", "in a graph"])
def test_a_target_that_asks_for_a_gradient(run: Callable[..., Any], launches: Launches) -> None:
    """It has none, on kernels as in torch."""
    target = signs(7).float().requires_grad_()
    inputs = x(7, 20), x(7, 20, seed=1), target
    value = run(autogen.losses.CosineEmbeddingLoss())(*inputs)
    gradients = torch.autograd.grad(value, inputs, allow_unused=True)
    assert launches.take() == 2
    expected = torch.autograd.grad(F.cosine_embedding_loss(*inputs), inputs, allow_unused=True)
    assert expected[2] is None or not expected[2].any()
    torch.testing.assert_close(gradients[:2], expected[:2])
    assert gradients[2] is None or not gradients[2].any()


@pytest.mark.parametrize("name, dynamic", [*itertools.product(CALLS, [None]), ("negatives", True), ("long rows", True)])
def test_batches_of_any_size(name: str, dynamic: bool | None, launches: Launches) -> None:
    """One graph for all, once the size has changed, or from the beginning."""
    make, inputs = CALLS[name]
    ours, counter = make(), CompileCounterWithBackend("aot_eager")
    run = torch.compile(ours, backend=counter, fullgraph=True, dynamic=dynamic)
    compiled_graphs = []
    for n in (7, 9, 8):
        agree(launches, run, plain(ours), *inputs(n))
        compiled_graphs.append(counter.frame_count)
    assert compiled_graphs[1:] == [compiled_graphs[0] + (dynamic is None)] * 2


@pytest.mark.parametrize("dynamic", [None, True])
def test_other_sizes_that_change(dynamic: bool | None, launches: Launches) -> None:
    """Tiles follow from them, so each is another graph; once they keep changing, torch computes the loss, of any."""
    ours = autogen.losses.InfoNCELoss()
    run = compiled(ours, dynamic=dynamic)
    for k, d in enumerate((20, 24, 28, 32)):
        agree(launches, run, plain(ours), x(7, d), x(7, d, seed=1), expected=2 if k < 2 else 0)


@pytest.mark.parametrize(("dim", "expected"), [(0, 2), (1, 0)])
def test_a_size_that_is_marked_as_dynamic(dim: int, expected: int, launches: Launches) -> None:
    """It may not be made a number, on which kernels depend for all sizes but the first."""
    ours = autogen.losses.InfoNCELoss()
    run = compiled(ours)
    for n in (8, 12):
        inputs = x(n, n + 3), x(n, n + 3, seed=1)
        for each in inputs:
            torch._dynamo.mark_dynamic(each, dim)
        agree(launches, run, plain(ours), *inputs, expected=expected)


def test_embeddings_that_kernels_are_not_made_for(launches: Launches) -> None:
    ours = autogen.losses.InfoNCELoss()
    agree(launches, compiled(ours), plain(ours), x(7, 300), x(7, 300, seed=1), expected=0)
    both = x(7, 20)
    agree(launches, compiled(lambda a: ours(a, a)), plain(lambda a: ours(a, a)), both, expected=0)


def test_an_option_that_changes(launches: Launches, caplog: pytest.LogCaptureFixture) -> None:
    """Its third value is in torch, as any number that keeps changing."""
    caplog.set_level(logging.INFO, "autogen")
    ours = autogen.losses.InfoNCELoss()
    run = compiled(ours)
    for k, ours.temperature in enumerate((0.07, 0.5, 0.3)):
        agree(launches, run, plain(ours), x(7, 20), x(7, 20, seed=1), expected=2 if k < 2 else 0)
    assert caplog.text.count("it reads a number that keeps changing") == 1
    ours.temperature, ours.reduction = 0.07, "sum"
    torch.compiler.reset()
    agree(launches, compiled(ours), plain(ours), x(7, 20), x(7, 20, seed=1))


def test_methods_of_its_own(launches: Launches) -> None:
    """Such a module is another loss."""

    class Weighted(autogen.losses.InfoNCELoss):
        def reduce(self, loss: Tensor, counted: Tensor | None = None) -> Tensor:
            return 3 * loss.sum()

    for ours in (Weighted(), autogen.losses.InfoNCELoss()):
        if type(ours) is not Weighted:
            ours.reduce = lambda loss: loss.max()  # type: ignore[method-assign]
        torch.compiler.reset()
        agree(launches, compiled(ours), plain(ours), x(7, 20), x(7, 20, seed=1), expected=0)


def token_of(loss: Any, *inputs: Any) -> str:
    """What a graph calls the loss."""
    before = set(opaque._registered)
    torch.compiler.reset()
    outcome(compiled(loss), *inputs)
    (token,) = set(opaque._registered) - before
    return token


def test_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the same kernels and options, whichever process."""
    inputs = x(7, 20), x(7, 20, seed=1)
    found = []
    for temperature in (0.07, 0.07, 0.08):
        monkeypatch.setattr(opaque, "_registered", {})
        found.append(token_of(autogen.losses.InfoNCELoss(temperature), *inputs))
    assert found[0] == found[1] != found[2]
    monkeypatch.setattr(opaque, "_registered", {})
    assert found[0] != token_of(autogen.losses.InfoNCELoss(), inputs[0], inputs[1].detach())


@pytest.mark.parametrize("name", ["InfoNCE", "long rows", "margins"])
def test_opcheck(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, inputs = CALLS[name]
    given = list(inputs(16))  # between what is kept for backward there are no gaps, which could hold anything
    monkeypatch.setattr(opaque, "_registered", {})
    token = token_of(make(), *given)
    results = torch.ops.autogen.forward(given, token)
    torch.library.opcheck(torch.ops.autogen.forward.default, (given, token))
    detached = [[each.detach() for each in some] for some in (given, results[1:], [torch.ones_like(results[0])])]
    torch.library.opcheck(torch.ops.autogen.backward.default, (*detached, token))


def test_autocast() -> None:
    """The dtype that torch gives the loss, in the graph and in what runs it."""
    halves = [each.detach().bfloat16().requires_grad_() for each in (x(7, 20), x(7, 20, seed=1))]
    ours = autogen.losses.CosineEmbeddingLoss()
    run = compiled(ours, "inductor")
    for is_enabled in (True, False, True):
        with torch.autocast("cpu", enabled=is_enabled):
            found, expected = outcome(run, *halves, signs(7)), outcome(ours, *halves, signs(7))
        assert found[0].dtype == (torch.float32 if is_enabled else torch.bfloat16)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_labels_that_are_no_classes() -> None:
    """torch says so, on the CPU."""
    run = compiled(autogen.losses.MultiLabelMarginLoss())
    agreed = run(x(4, 6), labels(7, 4, 6) - 1)
    torch.testing.assert_close(agreed, F.multilabel_margin_loss(x(4, 6), labels(7, 4, 6) - 1))
    with pytest.raises(RuntimeError, match="out of range"):
        run(x(4, 6), labels(7, 4, 6) + 5)


def test_values_that_nothing_looks_at(monkeypatch: pytest.MonkeyPatch, launches: Launches) -> None:
    """As on a GPU."""
    monkeypatch.setattr(multilabel_margin.MultiLabelMargin, "checks_values", False)
    ours = autogen.losses.MultiLabelMarginLoss(reduction="sum")
    agree(launches, compiled(ours), plain(ours), x(4, 6), labels(7, 4, 6) - 1)


def test_what_torch_has_no_graph_of(launches: Launches) -> None:
    """It is called between two graphs."""
    ours = autogen.losses.CTCLoss()
    inputs = x(9, 2, 5), labels(4, 2, 3) + 1, torch.tensor([9, 8]), torch.tensor([3, 2])

    def run(scores: Tensor, *others: Tensor) -> Tensor:
        return ours(scores.log_softmax(-1), *others)

    # Code that has to be one graph takes in torch's formula, and fails as that does; this decides for no other code.
    with pytest.raises((torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError)):
        compiled(lambda *given: run(*given))(*inputs)
    agree(launches, torch.compile(run, backend="aot_eager"), plain(run), *inputs)


def test_policies(launches: Launches) -> None:
    """Mandatory takes the kernels; aggressive prefers generated ones, of which InfoNCE has more than fit in a graph."""
    ours = autogen.losses.InfoNCELoss()
    inputs = x(7, 20), x(7, 20, seed=1)
    for policy, expected in (("mandatory", 2), ("aggressive", 0)):
        torch.compiler.reset()
        with autogen.policy(policy):
            run = compiled(ours)
            run(*inputs)
            launches.take()
            assert len(outcome(run, *inputs)) == 3
        assert launches.take() == expected


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_kernel_that_triton_refuses(
    direction: str, monkeypatch: pytest.MonkeyPatch, launches: Launches, caplog: pytest.LogCaptureFixture
) -> None:
    """torch's formula takes over."""

    def refuse(*args: Any) -> Any:
        raise autogen.CompileError("info_nce_loss", cause=ValueError("no registers"))

    class Refusing(handwritten_prepared.PreparedHandwritten):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            setattr(self, direction, refuse)

    monkeypatch.setattr(opaque, "PreparedHandwritten", Refusing)
    monkeypatch.setattr(opaque, "_registered", {})
    ours = autogen.losses.InfoNCELoss(0.11)
    run = compiled(ours)
    for expected in (int(direction == "backward"), 0):
        agree(launches, run, plain(ours), x(7, 20), x(7, 20, seed=1), expected=expected)
    assert caplog.text.count("InfoNCE runs in torch") == 1
