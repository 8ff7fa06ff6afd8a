"""What torch computes before the kernels: tensors whose sizes only values know, and numbers that the code branches on.

Every loss is called with masks that choose nothing, one, two, some and all, in turn; it agrees with torch each time,
and is compiled anew only where the code goes another way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autogen import ValueBranchError, autogen_loss, explain, policy
from autogen.tracing.domain.kept import Kept
from tests.interpret.agreement import draw
from tests.interpret.launches import Launches

ROWS, COLUMNS = 9, 4
CHOSEN = (5, 0, 1, 2, ROWS, 7, 3, 0, 4, 1, 6)
TARGET = draw("real", ROWS, COLUMNS, seed=7).detach()


def rows(chosen: int, seed: int) -> Tensor:
    """A mask of rows that chooses so many."""
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))
    return order < chosen


def deviation(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].std(0, correction=0).sum()


def expanded_twice(x: Tensor, mask: Tensor) -> Tensor:
    """The mask is made as large as what it chooses from, once for each: the sizes are symbols of their own."""
    return F.l1_loss(x.masked_select(mask[:, None]), TARGET.masked_select(mask[:, None]), reduction="sum")


def columns_logsumexp(x: Tensor, mask: Tensor) -> Tensor:
    return x.t()[:, mask].logsumexp(1).exp().sum()


def ranked(x: Tensor, mask: Tensor) -> Tensor:
    chosen = x[mask].sum(1)
    return chosen.sort().values.cumsum(0).sum() + x.pow(2).mean()


def reshaped(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_select(mask[:, None]).view(-1, COLUMNS).softmax(1).pow(2).sum()


def indexed_again(x: Tensor, mask: Tensor) -> Tensor:
    chosen = x[mask]
    return chosen[torch.arange(chosen.shape[0]) // 2].exp().sum()


def written(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = x[mask].softmax(0)
    return (y * x).sum()


def added(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] += x[mask].cumsum(0)
    return (y * x).sum()


def places(x: Tensor, mask: Tensor) -> Tensor:
    found = mask.nonzero().squeeze(1)
    if len(found) == 0:
        return x.sum() * 0
    return x[found].exp().mean() + found.numel()


def two_masks(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask, mask[:COLUMNS]].sum() if mask[:COLUMNS].sum() == mask.sum() else x[mask].logsumexp(0).exp().sum()


def mask_and_index(x: Tensor, mask: Tensor) -> Tensor:
    return (x[mask, 1] * x[:, 2][mask]).exp().sum()


def pairs(x: Tensor, mask: Tensor) -> Tensor:
    """Contrastive: pairs of one kind and of the other, each of which may be none."""
    distance = (x[:, None] - x[None]).pow(2).sum(2).add(1e-6).sqrt()
    same = mask[:, None] == mask[None]
    same.fill_diagonal_(False)
    near, far = torch.where(same), torch.where(~same)
    loss = x.sum() * 0
    if len(near[0]) > 0:
        loss = loss + distance[near].mean()
    if len(far[0]) > 0:
        loss = loss + (1 - distance[far[0], far[1]]).relu().sum() / far[0].shape[0]
    return loss


def hardest(x: Tensor, mask: Tensor) -> Tensor:
    """Mining by the values themselves."""
    scores = x @ x.t()
    with torch.no_grad():
        anchors, others = torch.nonzero(scores > 0.5, as_tuple=True)
    losses = scores[anchors, others].exp()
    kept = losses[losses > losses.detach().mean()]
    return kept.mean() if kept.numel() > 1 else losses.sum()


def easiest(x: Tensor, mask: Tensor) -> Tensor:
    """Mining by rank."""
    losses = x.exp().sum(1)
    ranked, order = losses.detach()[mask].sort()
    if ranked.numel() == 0:
        return x.sum() * 0
    limit = ranked[min(2, ranked.numel() - 1)]
    return losses[mask][order][ranked <= max(limit, 4.0)].mean()


def classes(x: Tensor, mask: Tensor) -> Tensor:
    label = mask.long() + mask.cumsum(0) // 2
    found, own, counts = label.unique(return_inverse=True, return_counts=True)
    centres = x.new_zeros(found.shape[0], x.shape[1]).index_add(0, own, x) / counts[:, None]
    return (x - centres[own]).pow(2).mean() + centres.abs().sum()


def balanced(x: Tensor, mask: Tensor) -> Tensor:
    label = mask.cumsum(0)
    weight = 1 / label.bincount(minlength=2).clamp(min=1).to(x.dtype)
    return (x.logsumexp(1) * weight[label]).sum()


def counted(x: Tensor, mask: Tensor) -> Tensor:
    count = mask.sum().item()
    if count == 0:
        return x.pow(2).sum()
    return (x[:, 0] * mask).exp().sum() / count + torch.ones(count).sum()


def thresholded(x: Tensor, mask: Tensor) -> Tensor:
    level = (x[:, 0] * mask).sum().item()
    if level > 0:
        return (x * level).exp().mean()
    return x.pow(2).sum() / max(-level, 0.5)


def padded(x: Tensor, mask: Tensor) -> Tensor:
    longest = int(mask.sum(0).clamp(min=1))
    return x[:longest].exp().mean()


@dataclass
class Case:
    """A loss, and how often it is compiled at most."""

    loss: Callable[[Tensor, Tensor], Tensor]
    traces: int
    path: str = "partial"


CASES = [
    Case(deviation, 3, "generated"),
    Case(expanded_twice, 1, "generated"),
    Case(columns_logsumexp, 3),
    Case(ranked, 3),
    Case(reshaped, 4),
    Case(indexed_again, 4),
    Case(written, 3),
    Case(added, 3),
    Case(places, 3),
    Case(two_masks, 5),
    Case(mask_and_index, 3, "generated"),
    Case(pairs, 5),
    Case(hardest, 4),
    Case(easiest, 8),
    Case(classes, 3),
    Case(balanced, 1),
    Case(counted, 3, "generated"),
    Case(thresholded, 5, "generated"),
    Case(padded, ROWS, "generated"),
]


def with_the_first_changed(x: Tensor) -> Tensor:
    y = x * 1
    y[0] = x[1] * 5
    return y.pow(2)


# By name: what an element gives depends on which of the chosen ones it is.
ORDERED: dict[str, Callable[[Tensor], Tensor]] = {
    "arange": lambda c: c * torch.arange(c.shape[0])[:, None],
    "the first": lambda c: c[0].exp(),
    "the last": lambda c: c[-1].exp(),
    "a slice": lambda c: c[1:].exp() - c[:-1],
    "every other": lambda c: c[::2].exp(),
    "backwards": lambda c: c * c.flip(0),
    "rolled": lambda c: c * c.roll(1, 0),
    "joined": lambda c: torch.cat([c, c[:1]]) * torch.cat([c[:1] * 2, c]),
    "padded": lambda c: F.pad(c, (0, 0, 1, 0))[:-1] * c,
    "written": with_the_first_changed,
    "unbound": lambda c: c.t().unbind(0)[1].exp() * c[:, 0],
    "columns of rows": lambda c: c.reshape(COLUMNS, -1).softmax(0).pow(2),
    "triangle": lambda c: (c @ c.t()).tril(),
    "one matrix": lambda c: c * torch.eye(c.shape[0])[:, :1],
    "differences": lambda c: c.diff(dim=0).abs(),
    "the place of the largest": lambda c: c * c.argmax(0),
    "pairs": lambda c: (c[:, None] - c[None]).triu(1).abs().sum(),
}


def outcome(loss: Any, x: Tensor, *args: Any) -> list[Tensor]:
    x = x.detach().clone().requires_grad_()
    value = loss(x, *args)
    return [value.detach(), *torch.autograd.grad(value, x)]


def agree(ours: Any, theirs: Any, x: Tensor, *args: Any) -> None:
    for own, their in zip(outcome(ours, x, *args), outcome(theirs, x, *args), strict=True):
        near = {"rtol": 1e-12, "atol": 1e-12} if x.dtype == torch.float64 else {"rtol": 2e-6, "atol": 2e-6}
        torch.testing.assert_close(own, their, equal_nan=True, **near)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.loss.__name__)
def test_sizes_that_values_decide(case: Case, compiled: list[str], launches: Launches) -> None:
    ours = autogen_loss(case.loss)
    for seed, chosen in enumerate(CHOSEN):
        agree(ours, case.loss, draw("real", ROWS, COLUMNS, seed=seed), rows(chosen, seed))
    assert len(compiled) <= case.traces
    report = explain(ours, draw("real", ROWS, COLUMNS), rows(5, 0))
    assert report.path == case.path, report.reason
    launches.take()


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.loss is not thresholded], ids=lambda c: c.loss.__name__
)
def test_in_double_precision_and_without_a_gradient(case: Case, compiled: list[str]) -> None:
    ours = autogen_loss(case.loss)
    for seed, chosen in enumerate(CHOSEN[:5]):
        x, mask = draw("real", ROWS, COLUMNS, seed=seed).double(), rows(chosen, seed)
        agree(ours, case.loss, x, mask)
        with torch.no_grad():
            torch.testing.assert_close(ours(x, mask), case.loss(x, mask), equal_nan=True)


@pytest.mark.parametrize("name", ORDERED)
def test_the_order_of_what_a_mask_chooses(name: str) -> None:
    def loss(x: Tensor, mask: Tensor) -> Tensor:
        return ORDERED[name](x[mask]).sum() + x.mean()

    ours = autogen_loss(loss)
    for seed, chosen in enumerate((5, 3, ROWS, 2)):
        agree(ours, loss, draw("real", ROWS, COLUMNS, seed=seed), rows(chosen, seed))


def test_batches_of_other_sizes_share_a_trace(compiled: list[str]) -> None:
    ours = autogen_loss(places)
    for seed, size in enumerate((9, 12, 30, 5)):
        agree(ours, places, draw("real", size, COLUMNS, seed=seed), torch.arange(size) % 3 == 0)
    assert len(compiled) == 1


def test_the_steps_are_reported() -> None:
    report = explain(autogen_loss(places), draw("real", ROWS, COLUMNS), rows(5, 0))
    assert report.forward is not None and report.backward is not None
    step, *_ = report.forward.torch_steps
    assert step.startswith("nonzero, at ") and "found = mask.nonzero()" in step
    assert report.reason == "torch runs nonzero, cumsum, sub before kernels"


def test_a_second_derivative() -> None:
    x, mask = draw("real", ROWS, COLUMNS), rows(5, 0)

    def curvature(loss: Any) -> Tensor:
        (first,) = torch.autograd.grad(loss(x, mask), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), x)[0]

    torch.testing.assert_close(curvature(autogen_loss(places)), curvature(places))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast(dtype: torch.dtype, compiled: list[str]) -> None:
    ours = autogen_loss(hardest)
    x, mask = draw("real", ROWS, COLUMNS) * 0.3, rows(5, 0)
    with torch.autocast("cpu", dtype):
        for own, their in zip(outcome(ours, x, mask), outcome(hardest, x, mask), strict=True):
            torch.testing.assert_close(own, their, rtol=0.02, atol=0.02)


def test_values_for_as_many_places_as_a_mask_chooses(compiled: list[str]) -> None:
    """Their number is known, and not that of the mask's places: each place takes the next value."""

    def loss(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        y = x * 2
        y[mask] = values
        return (y * x).sum()

    ours = autogen_loss(loss)
    for chosen in (3, 1, ROWS, 0, 5):
        values = draw("real", chosen, COLUMNS, seed=3).detach()
        agree(ours, loss, draw("real", ROWS, COLUMNS), rows(chosen, chosen), values)
    with pytest.raises((RuntimeError, IndexError)):
        ours(draw("real", ROWS, COLUMNS), rows(4, 0), draw("real", ROWS, COLUMNS))


# By name: what is chosen beside a tensor of as many rows, or as a constant has.
BESIDE: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "a weight": lambda x, mask, values: (x[mask] * values).sum(),
    "of repeated rows": lambda x, mask, values: (x[:1].expand_as(x)[mask] * values).sum(),
    "a target": lambda x, mask, values: (x[mask] - values).pow(2).mean(),
    "a constant": lambda x, mask, values: (x[mask] * torch.arange(5.0)[:, None]).sum(),
    "another mask": lambda x, mask, values: (x[mask] * x.exp()[mask.flip(0)]).sum(),
}


@pytest.mark.parametrize("name", BESIDE)
def test_as_many_values_as_a_mask_chooses(name: str, launches: Launches) -> None:
    """The two have one size; but only one is walked with the places that the mask leaves out."""
    loss = BESIDE[name]
    ours = autogen_loss(loss)
    for seed, chosen in enumerate((5, 3, 1, ROWS, 0, 5) if name != "a constant" else (5, 5)):
        x, mask, values = draw("real", ROWS, COLUMNS, seed=seed), rows(chosen, seed), draw("real", chosen, COLUMNS)
        agree(ours, loss, x, mask, values.detach())
        with torch.no_grad():
            torch.testing.assert_close(ours(x, mask, values), loss(x, mask, values), equal_nan=True)
        launches.take()
    if name not in ("a constant", "another mask"):
        with pytest.raises(RuntimeError, match="must match the size"):
            ours(x, rows(4, 0), draw("real", ROWS, COLUMNS))


def test_a_number_that_torch_is_told_to_check() -> None:
    def loss(x: Tensor) -> Tensor:
        torch._check(x.sum().item() > 0, lambda: "not positive")
        return x.pow(2).mean()

    ours = autogen_loss(loss)
    agree(ours, loss, draw("real", ROWS, COLUMNS).abs())
    with pytest.raises(RuntimeError, match="not positive"):
        ours(-draw("real", ROWS, COLUMNS).abs())


def test_what_is_found_is_a_tensor_of_its_own(compiled: list[str]) -> None:
    def loss(x: Tensor, mask: Tensor) -> Tensor:
        first, second = mask.nonzero().squeeze(1), mask.nonzero().squeeze(1)
        first += 1
        first %= x.shape[0]
        kept = mask.clone()
        again = kept.nonzero()
        kept[0] = ~kept[0]
        return (x[first] * x[second]).exp().sum() + (x[:, 0] * kept).sum() + x[again[:, 0], 1].sum()

    ours = autogen_loss(loss)
    for chosen in (5, 2, 0, 1, 4):
        agree(ours, loss, draw("real", ROWS, COLUMNS), rows(chosen, chosen))


class Miner(nn.Module):
    """A loss that keeps numbers of its own beside tensors, and returns some."""

    def __init__(self) -> None:
        super().__init__()
        self.margin = 0.3
        self.register_buffer("weights", torch.rand(ROWS, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Any]:
        hard = (self.weights > self.margin) & mask
        found = hard.nonzero()[:, 0]
        loss = (x[found] * self.weights[found][:, None]).exp().sum()
        return {"loss": loss, "hard": found.shape[0], "share": found.shape[0] / x.shape[0]}


def test_sizes_in_the_result_and_a_margin_that_changes(compiled: list[str]) -> None:
    ours, theirs = autogen_loss(Miner()), Miner()
    for seed, chosen in enumerate(CHOSEN):
        ours.margin = theirs.margin = 0.1 + 0.05 * seed
        x, mask = draw("real", ROWS, COLUMNS, seed=seed), rows(chosen, seed)
        own, their = ours(x, mask), theirs(x, mask)
        torch.testing.assert_close(own.pop("loss"), their.pop("loss"))
        assert own == their and list(map(type, own.values())) == list(map(type, their.values()))
    assert len(compiled) <= 8


def drawn(x: Tensor) -> Tensor:
    return x[torch.rand(x.shape[0]).argsort()[: x.shape[0] // 2]][torch.rand(x.shape[0] // 2).gt(0.5)].exp().std()


def of_a_gradient(x: Tensor) -> Tensor:
    y = x.detach().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(y.exp().sum(), y)
    return x[slope[:, 0].gt(1).nonzero()[:, 0]].exp().sum()


def as_a_float(x: Tensor) -> Tensor:
    return x * math.hypot(x.detach().abs().max(), 0.0)


def row_by_row(x: Tensor) -> Tensor:
    """Each row has a size of its own: any pattern of them would be another trace."""
    rows = [row[row > row.detach().mean()].exp().prod() for row in torch.cat([x, x + 1, x * 2]).unbind(0)]
    return torch.stack(rows).sum()


@pytest.mark.parametrize("loss", [drawn, as_a_float, row_by_row], ids=lambda loss: loss.__name__)
def test_what_cannot_be_known_before_is_left_to_torch(loss: Callable[[Tensor], Tensor], launches: Launches) -> None:
    ours, x = autogen_loss(loss), draw("real", ROWS, COLUMNS)
    for seed in range(3):
        torch.manual_seed(seed)
        expected, state = loss(x), torch.get_rng_state()
        torch.manual_seed(seed)
        torch.testing.assert_close(ours(x), expected)
        assert torch.equal(torch.get_rng_state(), state)
    assert launches.take() == 0
    with policy("mandatory"), pytest.raises(ValueBranchError):
        ours(x)


def test_a_gradient_inside_the_loss_may_decide(compiled: list[str]) -> None:
    ours = autogen_loss(of_a_gradient)
    for seed in range(4):
        agree(ours, of_a_gradient, draw("real", ROWS, COLUMNS, seed=seed))


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 0.0])
@pytest.mark.parametrize("order", [(0, 1, 0), (1, 0, 1)])
def test_numbers_that_are_not_finite(odd: float, order: Sequence[int], compiled: list[str]) -> None:
    def loss(x: Tensor, level: Tensor) -> Tensor:
        number = level.item()
        return (x * number).sum() if number < 2 else F.relu(x).sum() / number

    ours = autogen_loss(loss)
    for which in (*order, 0, 1, 1):
        agree(ours, loss, draw("real", ROWS, COLUMNS), torch.tensor((1.5, odd)[which]))
    assert len(compiled) <= 3


def test_a_length_is_a_symbol_and_python_has_its_own_back(compiled: list[str]) -> None:
    def loss(x: Tensor) -> Tensor:
        return x.exp().sum() / len(x) + torch.zeros(len(x)).sum()

    ours = autogen_loss(loss)
    for size in (5, 6, 7):
        agree(ours, loss, draw("real", size, COLUMNS))
    assert len(compiled) == 1
    assert len.__module__ == "builtins" and type(len(torch.zeros(3))) is int


def others(x: Tensor) -> Tensor:
    """Of each row, all elements but one, as a contrastive loss has them; the code branches on their number, too."""
    mask = ~torch.eye(len(x), dtype=torch.bool)
    if mask.sum() > 25:
        x = x * 2
    return x[mask].view(len(x), -1).logsumexp(1).mean() - x[mask].mean()


def test_what_sizes_decide_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[Any] = []
    put = Kept.put
    monkeypatch.setattr(Kept, "put", lambda kept, values, *sizes: computed.append(sizes) or put(kept, values, *sizes))
    ours = autogen_loss(others, policy="mandatory")
    for size in (4, 4, 5, 4, 5, 6, 7, 6, 4):
        x = torch.randn(size, size, requires_grad=True)
        found = [(value.detach(), *torch.autograd.grad(value, x)) for value in (ours(x), others(x))]
        torch.testing.assert_close(*found)
    assert {size for sizes in computed for size in sizes} == {4, 5, 6, 7}
    before = len(computed)
    for size in (4, 5, 6, 7):
        ours(torch.randn(size, size, requires_grad=True))
    assert len(computed) == before


def test_what_sizes_decide_may_be_written_to() -> None:
    """By the caller, to whom it is returned."""
    loss = autogen_loss(lambda x: (x.sum(), (~torch.eye(len(x), dtype=torch.bool)).nonzero()))
    for _ in range(4):
        _, places = loss(torch.ones(3, 3))
        torch.testing.assert_close(places, (~torch.eye(3, dtype=torch.bool)).nonzero())
        places.zero_()


def test_what_else_decides_is_computed_in_each_call() -> None:
    loss = autogen_loss(lambda x, w: x[(torch.arange(len(x)) * w) > 2.0].logsumexp(0).sum(), policy="default")
    for w in (1.0, 0.9, 0.6, 2.0, 0.75, 1.0):
        x = torch.randn(5, 2)
        torch.testing.assert_close(loss(x, w), x[(torch.arange(5) * w) > 2.0].logsumexp(0).sum())
