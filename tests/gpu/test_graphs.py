"""On a GPU: steps of torch between kernels, small losses in one program, handwritten kernels, losses beyond torch.

torch in double precision on the CPU is the judge.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen
import autogen.losses
from autogen import autogen_loss, explain
from bench.losses import chamfer, clip, dice, discrepancy, earth_movers, lovasz, pearson, radiance, ranked
from examples import beyond
from tests.gpu.device import DEVICE

Loss = Callable[..., Tensor]


def moved(loss: Any, tensors: tuple[Any, ...], **to: Any) -> tuple[Any, list[Any]]:
    """A copy of a loss and of its tensors, elsewhere or in another dtype; integers keep theirs."""
    loss = copy.deepcopy(loss).to(**to) if isinstance(loss, nn.Module) else loss
    of_integers = {name: value for name, value in to.items() if name != "dtype"}
    found = []
    for each in tensors:
        if isinstance(each, Tensor):
            asked = each.requires_grad
            each = each.detach().to(**(to if each.is_floating_point() else of_integers)).requires_grad_(asked)
        found.append(each)
    return loss, found


def outcome(loss: Loss, tensors: list[Any]) -> list[Tensor]:
    """The value, and the gradients of tensors and parameters."""
    value = loss(*tensors)
    wanted = [each for each in tensors if isinstance(each, Tensor) and each.requires_grad]
    wanted += list(loss.parameters()) if isinstance(loss, nn.Module) else []
    upstream = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype, device=value.device).reshape(value.shape)
    return [value.detach(), *torch.autograd.grad(value, wanted, upstream)]


def agree(loss: Loss, *tensors: Any, tolerance: float = 1e-4) -> None:
    """Our loss in single precision on the device, beside torch's in double precision on the CPU."""
    ours, inputs = moved(loss, tensors, device=DEVICE)
    if not isinstance(loss, nn.Module) or not hasattr(loss, "use_autogen"):
        ours = autogen_loss(ours)
    assert explain(ours, *inputs).path != "eager"
    with autogen.policy("mandatory"):
        found = outcome(ours, inputs)
        again = outcome(ours, inputs)
    judge, exact = moved(loss, tensors, dtype=torch.float64)
    with autogen.policy("disabled"):
        expected = outcome(judge, exact)
    for own, repeated, true in zip(found, again, expected, strict=True):
        assert torch.equal(own, repeated), "two runs differ"
        scale = true.abs().max().item() if true.numel() else 1.0
        torch.testing.assert_close(own.cpu().double(), true, rtol=tolerance, atol=tolerance * scale)


def x(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def labels(classes: int, *shape: int) -> Tensor:
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(5))


# Steps of torch between kernels.


def blurred(image: Tensor) -> Tensor:
    return F.conv2d(image.exp(), image.new_full((1, 1, 3, 3), 1 / 9)).pow(2).mean()


class Projected(nn.Module):
    """A layer inside a loss, and two terms that share it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(48, 100)

    def forward(self, a: Tensor, target: Tensor) -> Tensor:
        logits = self.layer(a.tanh())
        return F.cross_entropy(logits, target) + 0.1 * logits.logsumexp(1).pow(2).mean()


def scores(a: Tensor) -> Tensor:
    return (a.exp().cumsum(1).log() - a).mean()


PARTIAL: dict[str, tuple[Loss, tuple[Any, ...]]] = {
    "a product": (clip, (x(96, 64), x(96, 64, seed=1))),
    "a large product": (clip, (x(700, 64), x(700, 64, seed=1))),
    "a layer": (Projected(), (x(300, 48), labels(100, 300))),
    "sorted": (lambda a, b: (a.sort(1).values - b.sort(1).values).abs().mean(), (x(40, 500), x(40, 500, seed=1))),
    "Lovasz": (lovasz, (x(5000), x(5000, seed=1).detach().sign())),
    "a convolution": (blurred, (x(2, 1, 60, 60),)),
    "a long scan": (scores, (x(3, 20_000),)),
}


@pytest.mark.parametrize("name", PARTIAL)
def test_steps_of_torch(name: str) -> None:
    loss, tensors = PARTIAL[name]
    inputs = moved(loss, tensors, device=DEVICE)[1]
    assert explain(autogen_loss(moved(loss, (), device=DEVICE)[0]), *inputs).path == "partial"
    agree(loss, *tensors, tolerance=1e-3)  # torch may take the tensor cores' short way for products


def dropped(a: Tensor, weight: Tensor) -> Tensor:
    return (F.dropout(a.sigmoid(), 0.5) @ weight + torch.rand(64, 8, device=a.device)).pow(2).sum()


def test_random_draws_are_eagers() -> None:
    _, (a, weight) = moved(dropped, (x(64, 32), x(32, 8, seed=1)), device=DEVICE)
    results = []
    for function in (autogen_loss(dropped, policy="mandatory"), dropped):
        torch.manual_seed(3)
        results.append([*outcome(function, [a, weight]), torch.rand(4, device=DEVICE)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.hardware
def test_random_draws_in_a_cuda_graph() -> None:
    """Others in each replay, and the same forward and backward."""
    loss = autogen_loss(lambda a: F.dropout(a.exp(), 0.5).sum(), policy="mandatory")
    (a,) = moved(loss, (x(64, 32),), device=DEVICE)[1]
    for _ in range(3):
        outcome(loss, [a])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value, gradient = outcome(loss, [a])
    values = set()
    for _ in range(3):
        graph.replay()
        torch.testing.assert_close(value, 2 * gradient.sum())  # of an upstream gradient of 0.5
        values.add(value.item())
    assert len(values) == 3


@pytest.mark.hardware
def test_steps_of_torch_do_not_synchronise() -> None:
    loss, (a, b) = moved(autogen_loss(clip), (x(700, 64), x(700, 64, seed=1)), device=DEVICE)
    outcome(loss, [a, b])
    torch.cuda.set_sync_debug_mode("error")
    try:
        outcome(loss, [a, b])
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.hardware
def test_steps_of_torch_on_several_streams() -> None:
    loss = autogen_loss(clip, policy="mandatory")
    pairs = [moved(loss, (x(300, 64, seed=k), x(300, 64, seed=k + 9)), device=DEVICE)[1] for k in range(4)]
    expected = [outcome(loss, pair) for pair in pairs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in pairs]
    for _ in range(10):
        found = []
        for stream, pair in zip(streams, pairs, strict=True):
            with torch.cuda.stream(stream):
                found.append(outcome(loss, pair))
        torch.cuda.synchronize()
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


# Everything in one program, and the same structures when they are large.


def conditions(a: Tensor, b: Tensor) -> Tensor:
    whole = (a.sum() > 0) & (b.sum() > 0)
    return torch.where(whole, a.softmax(1).softmax(0), b).where(~whole | (b > 0), 2).mean()


def wide_integers(a: Tensor) -> Tensor:
    place = torch.arange(a.shape[0], device=a.device)
    return (a * (place * place * a.shape[0])).mean() + place.where(a > 0, a.shape[0]).amin()


NESTED: dict[str, tuple[Loss, tuple[Any, ...]]] = {
    "a scan": (scores, (x(30, 200),)),
    "a scan of many rows": (earth_movers, (x(3000, 10), x(3000, 10, seed=1))),
    "scans of products": (radiance, (x(300, 64), x(300, 64, seed=1))),
    "scans down columns": (lambda a: (a.cumsum(0) - a.logcumsumexp(0)).tanh().mean(), (x(50, 70),)),
    "a scan and its largest": (lambda a: a.cumsum(0).amax(0).mean(), (x(40, 70),)),
    "dice": (dice(), (x(2, 4, 16, 16), labels(4, 2, 16, 16))),
    "a large dice": (dice(), (x(2, 5, 200, 200), labels(5, 2, 200, 200))),
    "two softmaxes": (lambda a: (a.softmax(0) * a.softmax(1)).sum(), (x(60, 70),)),
    "two large softmaxes": (lambda a: (a.softmax(0) * a.softmax(1)).sum(), (x(500, 700),)),
    "a value of the whole loss": (pearson, (x(4000), x(4000, seed=1))),
    "a value of the whole large loss": (pearson, (x(40_000), x(40_000, seed=1))),
    "conditions": (conditions, (x(30, 40), x(30, 40, seed=1))),
    "large conditions": (conditions, (x(300, 400), x(300, 400, seed=1))),
    "what a mask chooses": (lambda a, m: a[m].pow(2).mean(), (x(64, 300), x(64, 300, seed=1).detach() > 0)),
    "the nearest of points": (chamfer, (x(4, 1000, 3), x(4, 900, 3, seed=1))),
    "kernels of pairs": (discrepancy, (x(2000, 3), x(1900, 3, seed=1))),
    "ranks": (ranked, (x(16, 500), x(16, 500, seed=1).detach())),
    "integers of 64 bits": (wide_integers, (x(70_000),)),
}


@pytest.mark.parametrize("name", NESTED)
def test_nested_reductions(name: str) -> None:
    loss, tensors = NESTED[name]
    agree(loss, *tensors)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_casts_to_half_precision_round(half: torch.dtype) -> None:
    def loss(a: Tensor) -> Tensor:
        return a.to(half).float() * 3

    (a,) = moved(loss, (x(5000),), device=DEVICE)[1]
    torch.testing.assert_close(autogen_loss(loss, policy="mandatory")(a), loss(a), rtol=0, atol=0)


# Handwritten kernels, and losses beyond torch.


def ctc_inputs(time: int, batch: int, classes: int, length: int) -> tuple[Any, ...]:
    targets = labels(classes - 1, batch, length) + 1
    return x(time, batch, classes), targets, torch.full((batch,), time), torch.full((batch,), length)


class CTCOfLogits(nn.Module):
    """CTC of a log-softmax that is torch's."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.ctc = autogen.losses.CTCLoss(**options)
        self.use_autogen = True

    def forward(self, logits: Tensor, *rest: Tensor) -> Tensor:
        return self.ctc(logits.log_softmax(2), *rest)


def classes_of(batch: int, classes: int) -> Tensor:
    """Some classes of each row, then -1."""
    order = torch.rand(batch, classes, generator=torch.Generator().manual_seed(2)).argsort(1)
    return order.where(torch.arange(classes) < 3, -1)


HANDWRITTEN: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
    **{
        f"MultiLabelMargin {reduction} {shape}": (
            autogen.losses.MultiLabelMarginLoss(reduction=reduction),
            (x(*shape), classes_of(*shape)),
        )
        for reduction in ("mean", "none")
        for shape in ((40, 17), (7, 3000))
    },
    **{
        f"CosineEmbedding {reduction} {shape}": (
            autogen.losses.CosineEmbeddingLoss(0.2, reduction=reduction),
            (x(*shape), x(*shape, seed=1), x(shape[0], seed=2).detach().sign()),
        )
        for reduction in ("mean", "none")
        for shape in ((40, 17), (1000, 64), (5, 20_000))
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HANDWRITTEN)
def test_handwritten(name: str) -> None:
    loss, tensors = HANDWRITTEN[name]
    on_device, inputs = moved(loss, tensors, device=DEVICE)
    assert explain(on_device, *inputs).path == "handwritten"
    agree(loss, *tensors)


@pytest.mark.parametrize("shape", [(20, 3, 8, 5), (300, 8, 60, 40)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ctc(reduction: str, shape: tuple[int, int, int, int]) -> None:
    loss, (logits, *rest) = CTCOfLogits(reduction=reduction), ctc_inputs(*shape)
    on_device, inputs = moved(loss, (logits.detach().log_softmax(2), *rest), device=DEVICE)
    assert explain(on_device.ctc, *inputs).path == "handwritten"
    ours, inputs = moved(loss, (logits, *rest), device=DEVICE)
    judge, exact = moved(loss, (logits, *rest), dtype=torch.float64)
    with autogen.policy("mandatory"):
        found = outcome(ours, inputs)
    with autogen.policy("disabled"):
        expected = outcome(judge, exact)
    for own, true in zip(found, expected, strict=True):
        torch.testing.assert_close(own.cpu().double(), true, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("are_joined", [False, True])
@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_ctc_of_lengths_on_the_host(kind: Callable[[list[int]], Any], are_joined: bool) -> None:
    """Others in every call, on the short way from the third on; the second time, they are prepared."""
    ours, judge = autogen.losses.CTCLoss(), nn.CTCLoss()
    logits, targets, *_ = ctc_inputs(30, 3, 12, 9)
    for call in range(9):
        lengths, counts = [30 - call, 28, 25 + call % 3], [9, 8 - call % 4, 1]
        exact = logits.detach().double().requires_grad_()
        given = logits.detach().to(DEVICE).requires_grad_()
        chosen = torch.cat([row[:n] for row, n in zip(targets, counts, strict=True)]) if are_joined else targets
        with autogen.policy("mandatory"):
            value = ours(given.log_softmax(2), chosen.to(DEVICE), kind(lengths), kind(counts))
        expected = judge(exact.log_softmax(2), chosen, kind(lengths), kind(counts))
        torch.testing.assert_close(value.cpu().double(), expected, rtol=1e-4, atol=1e-4)
        gradients = [
            torch.autograd.grad(each, of)[0].cpu().double() for each, of in ((value, given), (expected, exact))
        ]
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


def beyond_torch() -> Iterator[Any]:
    for size in (beyond.SMALL, beyond.ODD):
        for loss, tensors in beyond.calls(size):
            yield pytest.param(loss, tensors, id=f"{type(loss).__name__}-{size[0]}")


@pytest.mark.parametrize(("loss", "tensors"), list(beyond_torch()))
def test_beyond_torch(loss: nn.Module, tensors: tuple[Tensor, ...]) -> None:
    agree(loss, *tensors, tolerance=2e-3)


# Sizes that 32 bits do not hold.


def room(gibibytes: int) -> bool:
    return torch.cuda.is_available() and torch.cuda.mem_get_info()[0] > gibibytes * 2**30


def in_parts(loss: Loss, rows: int, *tensors: Tensor) -> Tensor:
    """The mean of a loss over rows, by torch, a few at a time, in double precision."""
    parts = zip(*(each.split(rows) for each in tensors), strict=True)
    sums = [loss(*(each.double() for each in part)) * part[0].shape[0] for part in parts]
    return torch.stack(sums).double().sum() / tensors[0].shape[0]


def flat(a: Tensor) -> Tensor:
    return (a - 0.5).abs().mean()


def of_rows(a: Tensor) -> Tensor:
    return a.float().softmax(1).pow(2).mean()


@pytest.mark.parametrize("loss", [flat, of_rows])
def test_more_elements_than_32_bits_count(loss: Loss) -> None:
    if not room(20):
        pytest.skip("needs 20 GiB of memory")
    a = torch.randn(2**16 + 8, 2**15 + 24, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
    assert a.numel() > 2**31
    value = autogen_loss(loss, policy="mandatory")(a)
    with torch.no_grad():
        expected = in_parts(loss, 512, a)
    torch.testing.assert_close(value.double(), expected, rtol=2e-2, atol=0)
    (gradient,) = torch.autograd.grad(value, a)
    last = a[-4:].detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(last) * 4 / a.shape[0], last)
    torch.testing.assert_close(gradient[-4:].double(), wanted, rtol=2e-2, atol=1e-2 * wanted.abs().max().item())
