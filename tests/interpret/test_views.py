"""Tensors taken apart, put together and indexed, places of extremes, variances: as torch has them, in kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss, explain
from tests.interpret.agreement import agree, draw, labels

Loss = Callable[..., Tensor]
ROWS = (6, 10)
SQUARE = (5, 5)


def of(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [draw("real", *shape, seed=seed) for seed, shape in enumerate(shapes)]


def check_all(losses: dict[str, tuple[Loss, list[Tensor]]], name: str) -> None:
    loss, tensors = losses[name]
    agree(loss, *tensors)


def product(first: Tensor, *rest: Tensor) -> Tensor:
    """A result that depends on every piece."""
    for each in rest:
        first = first * each.exp()
    return first


APART: dict[str, tuple[Loss, list[Tensor]]] = {
    "chunk": (lambda x: product(*x.chunk(2, -1)), of(ROWS)),
    "split": (lambda x: product(*x.split(5, 1)), of(ROWS)),
    "split unevenly": (lambda x: x.split(4, 1)[2].exp(), of(ROWS)),
    "split with sizes": (lambda x: product(*x.split([3, 3, 4], 1)[:2]), of(ROWS)),
    "tensor_split": (lambda x: product(*x.tensor_split(2, -1)), of(ROWS)),
    "tensor_split at": (lambda x: x.tensor_split((2, 5), -1)[1].exp(), of(ROWS)),
    "unbind": (lambda x: product(*x.unbind(-1)), of((6, 4))),
    "unbind, mean": (lambda x: product(*x.unbind(-1)).mean(), of((6, 4))),
    "narrow": (lambda x: x.narrow(1, 2, 5).exp(), of(ROWS)),
    "select": (lambda x: x[:, 3].exp() * x[:, -1], of(ROWS)),
    "select a row": (lambda x: x[-2].exp(), of(ROWS)),
    "slice": (lambda x: x[1:, 2:8:2].exp(), of(ROWS)),
    "differences": (lambda x: (x[:, 1:] - x[:, :-1]).abs().mean(), of(ROWS)),
    "differences of rows": (lambda x: (x[1:] - x[:-1]).pow(2).mean(), of(ROWS)),
    "diagonal": (lambda x: x.diagonal(1).exp(), of((5, 6))),
    "diagonal below": (lambda x: x.diagonal(-2, 1, 2).exp(), of((3, 5, 6))),
    "diagonal by einsum": (lambda x: torch.einsum("bii->b", x).exp(), of((3, 4, 4))),
    "trace": (lambda x: torch.trace(x * x), of(SQUARE)),
    "flip": (lambda x: x.flip(1) * x, of(ROWS)),
    "flip both": (lambda x: x.flip((0, 1)).exp(), of(ROWS)),
    "flip what is repeated": (lambda x: x.repeat_interleave(2, 1).flip(1).exp(), of(ROWS)),
    "flip some of what is repeated": (lambda x: x.repeat_interleave(3, 0)[1:-2].flip(0).exp(), of(ROWS)),
    "some of what is flipped": (lambda x: x.repeat_interleave(4, 1).flip(1)[:, ::2].exp(), of(ROWS)),
    "flip a row of all": (lambda x: x.repeat_interleave(2, 0).reshape(-1).flip(0).exp(), of(ROWS)),
    "roll": (lambda x: x.roll(2, 1) * x, of(ROWS)),
    "rot90": (lambda x: x.rot90().exp(), of(ROWS)),
    "tril": (lambda x: x.tril().exp(), of((5, 6))),
    "triu": (lambda x: x.triu(1).pow(2).mean(), of((5, 6))),
    "movedim": (lambda x: x.movedim(0, -1).exp(), of((3, 4, 5))),
}
TOGETHER: dict[str, tuple[Loss, list[Tensor]]] = {
    "cat, one piece": (lambda x: torch.cat([x, x.exp()], 1), of(ROWS)),
    "stack": (lambda x, y: torch.stack([x, y.exp()], 0), of(ROWS, ROWS)),
    "stack last": (lambda x, y: torch.stack([x, y.exp()], -1), of(ROWS, ROWS)),
    "stack, sum": (lambda x, y: torch.stack([x, y.exp(), x * y], -1).sum(-1).mean(), of(ROWS, ROWS)),
    "stack, maximum": (lambda x, y: torch.stack([x, y.exp()], -1).amax(-1).mean(), of(ROWS, ROWS)),
    "stack, softmax": (lambda x, y: torch.stack([x, y], -1).softmax(-1)[..., 0].mean(), of(ROWS, ROWS)),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0), value=0.5).exp(), of(ROWS)),
    "pad and take off": (lambda x: (F.pad(x, (1, 0))[:, :-1] - x).abs().mean(), of(ROWS)),
    "repeat": (lambda x: x.repeat(2, 3).exp(), of(ROWS)),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, 1).exp(), of(ROWS)),
    "diag_embed": (lambda x: torch.diag_embed(x.exp(), 1), of((3, 5))),
    "diag": (lambda x: torch.diag(x).exp(), of((5,))),
    "eye": (lambda x: (x - torch.eye(5, 6)).pow(2).mean(), of((5, 6))),
    "without the diagonal": (lambda x: x.masked_fill(torch.eye(5, dtype=torch.bool), 0).exp().mean(), of(SQUARE)),
    "linspace": (lambda x: x * torch.linspace(0, 1, 10), of(ROWS)),
    "select_scatter": (lambda x, y: x.select_scatter(y, 1, 2).exp().mean(), of(ROWS, (6,))[:1] + of(ROWS, (6,))[1:]),
    "quantiles": (
        lambda x, y: torch.stack([torch.max(q * (y - x[:, i]), (q - 1) * (y - x[:, i]))
                                  for i, q in enumerate((0.1, 0.5, 0.9))], 1).sum(1).mean(),
        of((6, 3), (6,)),
    ),
    "area of boxes": (lambda a, b: (torch.min(a[:, 2:], b[:, 2:]) - torch.max(a[:, :2], b[:, :2])).clamp(0).prod(1),
                      of((6, 4), (6, 4))),
    "cumsum of a few": (lambda x: x[:, :3].cumsum(1) * x[:, :3], of(ROWS)),
    "one_hot": (lambda x, t: (x.sigmoid() - F.one_hot(t, 10)).pow(2).mean(), [*of(ROWS), labels(10, 6)]),
}  # fmt: skip
INDEXED: dict[str, tuple[Loss, list[Tensor]]] = {
    "by a row's label": (lambda x, t: x[torch.arange(6), t].exp().mean(), [*of(ROWS), labels(10, 6)]),
    "gather": (lambda x, t: x.gather(1, t[:, None]).squeeze(1).exp(), [*of(ROWS), labels(10, 6)]),
    "take_along_dim": (lambda x: x.take_along_dim(x.argmax(1, keepdim=True), 1).exp(), of(ROWS)),
    "in steps": (lambda x: x[:, torch.arange(1, 9, 3)].exp(), of(ROWS)),
    "scatter a number": (lambda x, t: x.scatter(1, t[:, None], 2.0).exp(), [*of(ROWS), labels(10, 6)]),
    "scatter a column": (lambda x, t: x.scatter(1, t[:, None], x[:, :1]).exp(), [*of(ROWS), labels(10, 6)]),
    "scatter_add": (lambda x, t: x.scatter_add(1, t[:, None], x[:, :1]).exp(), [*of(ROWS), labels(10, 6)]),
    "index_put": (lambda x, t: x.index_put((torch.arange(6), t), x[:1, 0]).exp(), [*of(ROWS), labels(10, 6)]),
    "an index given twice": (lambda x: x[:5][torch.arange(5), torch.arange(5)].exp(), of(ROWS)),
    "index_put, added": (
        lambda x, t: x.index_put((torch.arange(6), t), x[:, 0], accumulate=True).exp(), [*of(ROWS), labels(10, 6)]
    ),
    "index_fill": (lambda x, t: x.index_fill(1, t, 0.0).exp(), [*of(ROWS), labels(10, 1)]),
    "index_copy": (lambda x, t: x.index_copy(1, t, x[:, :1] * 2).exp(), [*of(ROWS), labels(10, 1)]),
    "written by a mask": (lambda x: (x * 1).index_put((x > 0,), x.detach()[:1, 0]).exp(), of(ROWS)),
}  # fmt: skip
READ_ONLY: dict[str, tuple[Loss, list[Tensor]]] = {
    "several, broadcast": (lambda x, t, u: x[t[:, None], u].double(), [*of(ROWS), labels(6, 3), labels(10, 4)]),
    "apart": (lambda x, t, u: x[t, :, u] * 2, [*of((4, 5, 6)), labels(4, 3), labels(6, 3)]),
    "in the middle": (lambda x, t: x[:, t] * 2, [*of((4, 5, 6)), labels(5, 3)]),
    "from the end": (lambda x, t: x[t - 6] * 2, [*of(ROWS), labels(6, 4)]),
}
REDUCED: dict[str, tuple[Loss, list[Tensor]]] = {
    "max over a dimension": (lambda x: x.max(1).values.exp(), of(ROWS)),
    "min over rows": (lambda x: x.min(0)[0].exp().mean(), of(ROWS)),
    "max and its place": (lambda x: (lambda found: found.values * found.indices)(x.max(1)), of(ROWS)),
    "argmax": (lambda x: x.sum(1) * x.argmax(1), of(ROWS)),
    "argmin of all": (lambda x: x.sum() * x.argmin(), of(ROWS)),
    "aminmax": (lambda x: (lambda found: found.max - found.min)(x.aminmax(dim=1)), of(ROWS)),
    "max of all": (lambda x: x.max() * 2, of(ROWS)),
    "accuracy": (lambda x, t: F.cross_entropy(x, t) * (x.argmax(1) == t).float().mean(), [*of(ROWS), labels(10, 6)]),
    "var": (lambda x: x.var(1), of(ROWS)),
    "var, biased": (lambda x: x.var(1, unbiased=False), of(ROWS)),
    "var, corrected by 2": (lambda x: x.var((0, 1), correction=2), of(ROWS)),
    "std": (lambda x: x.std(1, keepdim=True) * x, of(ROWS)),
    "std of all": (lambda x: x.std(), of(ROWS)),
    "var_mean": (lambda x: (lambda v, m: v * m)(*torch.var_mean(x, 1)), of(ROWS)),
    "std_mean": (lambda x: (lambda v, m: v * m)(*torch.std_mean(x, 1)), of(ROWS)),
    "standardised": (lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5), of(ROWS)),
    "standardised over rows": (lambda x: ((x - x.mean(0)) / (x.std(0) + 1e-5)).pow(3).mean(), of(ROWS)),
    "layer_norm": (lambda x: F.layer_norm(x, (10,)), of(ROWS)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), of((6, 4))),
    "count_nonzero": (lambda x: x.sum(1) / ((x > 0).count_nonzero(1) + 1), of(ROWS)),
    "nansum": (lambda x: x.nansum(1) + x.nanmean(1), of(ROWS)),
    "norms": (lambda x: x.norm(1, dim=1) + x.norm(dim=1) + x.norm(torch.inf, dim=1) + x.norm(3, dim=1), of(ROWS)),
    "number: var": (lambda x: x.sum().var(0, correction=0, keepdim=True) + x.sum(), of(ROWS)),
    "number: std": (lambda x: x.sum().std(-1, unbiased=False) + x.sum(), of(ROWS)),
    "number: var_mean": (lambda x: torch.var_mean(x.sum(), -1, correction=0)[1].exp(), of(ROWS)),
    "number: sums": (lambda x: x.sum().logsumexp(-1) + x.sum().norm(dim=0) + x.sum().softmax(-1), of(ROWS)),
    "number: extremes": (lambda x: x.sum().amax(-1) * x.sum().max(0)[0] + x.sum().argmin(-1), of(ROWS)),
    "number: scans": (lambda x: x.sum().cumsum(-1) * x.sum().cumprod(0), of(ROWS)),
    "ties": (lambda x: x.relu().round().amax(1) + x.round().amin(1), of(ROWS)),
}


@pytest.mark.parametrize("name", APART)
def test_taken_apart(name: str) -> None:
    check_all(APART, name)


@pytest.mark.parametrize("name", TOGETHER)
def test_put_together(name: str) -> None:
    check_all(TOGETHER, name)


@pytest.mark.parametrize("name", INDEXED)
def test_indexed(name: str) -> None:
    check_all(INDEXED, name)


@pytest.mark.parametrize("name", READ_ONLY)
def test_read_at_indices(name: str) -> None:
    loss, tensors = READ_ONLY[name]
    agree(loss, *(t.detach() for t in tensors), launches=None)


@pytest.mark.parametrize("name", REDUCED)
def test_reduced(name: str) -> None:
    if name == "aminmax" and torch.__version__ < "2.12":
        pytest.skip("torch has its derivative since 2.12")
    check_all(REDUCED, name)


JOINED: dict[str, tuple[Loss, list[Tensor]]] = {
    "rows": (lambda x, y: torch.cat([x, y.exp()], 0), of(ROWS, (4, 10))),
    "columns": (lambda x, y: torch.cat([x, y.exp()], 1), of(ROWS, (6, 3))),
    "mean": (lambda x, y: torch.cat([x, y.exp()], 1).pow(2).mean(), of(ROWS, ROWS)),
    "select": (lambda x, y: torch.cat([x, y.exp()], 1)[:, 11] ** 2, of(ROWS, ROWS)),
    "slice": (lambda x, y: torch.cat([x, y.exp()], 1)[:, 10:].pow(2).mean(), of(ROWS, ROWS)),
    "logsumexp": (lambda x, y: torch.logsumexp(torch.cat([x, y], 0), 0).mean(), of(ROWS, ROWS)),
    "vstack": (lambda x, y: torch.vstack([x, y]) * 2, of(ROWS, ROWS)),
    "column_stack": (lambda x, y: torch.column_stack([x, y]) * 2, of((6,), (6,))),
    "contrastive": (
        lambda x, y: F.cross_entropy(torch.cat([x, y], 1), torch.zeros(6, dtype=torch.long)),
        of((6, 1), ROWS),
    ),
    "slice_scatter": (lambda x, y: x.slice_scatter(y, 1, 2, 5).exp(), of(ROWS, (6, 3))),
    "diagonal_scatter": (lambda x, y: x.diagonal_scatter(y).exp(), of(SQUARE, (5,))),
}


@pytest.mark.parametrize("name", JOINED)
def test_gradients_of_several_shapes(name: str) -> None:
    loss, tensors = JOINED[name]
    agree(loss, *tensors, launches=None)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: x.max(1).indices,
        lambda x: x.min(1).indices,
        lambda x: x.argmin(1),
        lambda x: x.argmax(),
        lambda x: x[1:].argmin(),
    ],
    ids=["max", "min", "argmin", "argmax of all", "argmin of some"],
)
def test_the_place_of_a_nan_and_of_the_first_of_equals(loss: Loss) -> None:
    rows = [[1.0, torch.nan, 3.0, torch.nan], [2.0, 5.0, 5.0, 1.0], [-torch.inf] * 4, [1.0, 1.0, 1.0, 1.0]]
    agree(loss, torch.tensor(rows), launches=None)


def test_the_gradient_of_an_extreme_goes_to_the_first_of_equals() -> None:
    agree(lambda x: x.max(1).values, torch.tensor([[1.0, 3.0, 3.0], [torch.nan, 2.0, torch.nan]]).requires_grad_())


def test_a_piece_of_a_join_reads_no_other() -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y], 1)[:, x.shape[1] :].exp().sum()

    x, y = of(ROWS, ROWS)
    report = explain(autogen_loss(loss), x.detach(), y)
    assert report.forward is not None
    assert "tl.load(y_ptr" in report.forward.source and "tl.load(x_ptr" not in report.forward.source


def test_the_gradient_of_shifted_rows_needs_no_division() -> None:
    def loss(x: Tensor) -> Tensor:
        return x[:, :-1].reshape(-1, 7).softmax(-1)[:, 0].sum()

    x = draw("real", 2, 5, 7)
    agree(loss, x)
    report = explain(autogen_loss(loss), x)
    assert report.backward is not None and "divide" not in report.backward.source


@pytest.mark.slow
def test_shifted_labels() -> None:
    def chosen(x: Tensor, t: Tensor) -> Tensor:
        return -x.log_softmax(-1)[:, :-1].reshape(-1, x.shape[-1]).gather(1, t[:, 1:].reshape(-1, 1)).mean()

    def named(logits: Tensor, tokens: Tensor) -> Tensor:  # torch orders the factors of a size by names
        return chosen(logits, tokens)

    for each in (lambda x, t: F.cross_entropy(x[:, :-1].reshape(-1, 7), t[:, 1:].reshape(-1)), chosen, named):
        agree(each, draw("real", 2, 5, 7), labels(7, 2, 5))


def test_a_short_histogram_is_a_sum() -> None:
    def loss(x: Tensor, t: Tensor) -> Tensor:
        return torch.zeros(4, 10, dtype=x.dtype).index_add(0, t, x).exp()

    agree(loss, *of(ROWS), labels(4, 6), launches=None)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, t: x[t],
        lambda x, t: torch.zeros(40, 10, dtype=x.dtype).index_add(0, t, x),
        lambda x, t: x.gather(1, (x.detach() > 0).long()),
    ],
    ids=["rows read twice", "histogram", "many places per row"],
)
def test_a_histogram_is_torchs(loss: Loss) -> None:
    def total(x: Tensor, t: Tensor) -> Tensor:
        return loss(x, t).exp().sum()

    agree(total, *of(ROWS), labels(4, 6), launches=None)
    report = explain(total, *of(ROWS), labels(4, 6))
    assert report.path == "partial" and report.forward is not None and report.backward is not None
    steps = (*report.forward.torch_steps, *report.backward.torch_steps)
    assert {step.partition(",")[0] for step in steps} <= {"index_put", "index_add", "scatter_add"}


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns"), [(900, 7), (4, 5003)])
def test_a_slice_of_rows_has_the_statistics_that_forward_kept(rows: int, columns: int) -> None:
    """The loss of a language model's next tokens: backward computes nothing per row again."""

    def next_token(logits: Tensor, tokens: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    logits, tokens = draw("real", 3, rows, columns), labels(columns, 3, rows)
    report = explain(autogen_loss(next_token), logits, tokens)
    assert report.backward is not None
    assert "max_over" not in report.backward.source and "tl.sum" not in report.backward.source
    agree(next_token, logits, tokens)

    with torch.no_grad():
        logits[:, -1] = float("nan")  # which no part of the loss reads
    (own,), (their,) = (
        torch.autograd.grad(loss(logits, tokens), [logits]) for loss in (autogen_loss(next_token), next_token)
    )
    assert own[:, -1].count_nonzero() == 0
    torch.testing.assert_close(own, their)


def test_a_slice_of_rows_beside_all_of_them() -> None:
    """What is needed beyond the slice, too, is not read from what was kept of it."""

    def loss(x: Tensor) -> Tensor:
        return x[:, :-1].log_softmax(2)[..., 0].sum() + x.softmax(2).square().sum()

    agree(loss, draw("real", 3, 40, 170), launches=None)


@pytest.mark.parametrize(
    "loss",
    [
        lambda a: F.cosine_similarity(a + 2, a.flip(0), dim=0),
        lambda a: a.index_select(0, torch.tensor([0])).sum() * a,
        lambda a: (a * 2).unfold(0, 1, 1).sum() * a,
    ],
)
def test_numbers_have_one_dimension_to_turn(loss: Loss) -> None:
    agree(loss, draw("real"), launches=None)


@pytest.mark.parametrize(
    "loss",
    [
        lambda a: (a * 2).index_select(0, torch.tensor(2)).sum() * a.exp(),
        lambda a: (a * 2).index_add(0, torch.tensor(1), a[:1].exp()),
        lambda a: (a * 2).gather(0, torch.tensor(1)),
        lambda a: (a * 2).scatter(0, torch.tensor(1), 0.5),
        lambda a: (a * 2).gather(0, torch.zeros(2, 0, dtype=torch.int64)).sum() + a,
        lambda a: (a * 2).sum().gather(0, torch.tensor([0])) * a,
    ],
)
def test_one_place_without_a_dimension(loss: Loss) -> None:
    agree(loss, draw("real", 4), launches=None)


def _log_probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    """As preference losses have them: of a concatenated batch, whose first half is preferred."""
    labels = labels[:, 1:].clone()
    is_counted = labels != -100
    labels[labels == -100] = 0
    picked = logits[:, :-1].log_softmax(-1).gather(2, labels.unsqueeze(2)).squeeze(2)
    sums = (picked * is_counted).sum(-1)
    preferred, other = sums[: len(sums) // 2], sums[len(sums) // 2 :]
    return -F.logsigmoid(0.1 * (preferred - other)).mean()


def _clipped(x: Tensor) -> Tensor:
    clipped = x.clone()
    clipped[x > 1] = 0.5
    return clipped


def _damped(x: Tensor) -> Tensor:
    damped = x * 2
    damped[x > 0] = damped[x > 0].exp() / (1 + damped[x > 0].abs().sum())
    return damped


@pytest.mark.parametrize("written", [_clipped, _damped], ids=["one value", "one each"])
@pytest.mark.parametrize(
    "loss",
    [
        lambda y: (y[1:] - y[:-1]).abs().mean(),
        lambda y: F.cross_entropy(y, torch.arange(len(y)) % y.shape[1]),
        lambda y: y.gather(1, torch.arange(len(y)).unsqueeze(1) % y.shape[1]).square().mean(),
        lambda y: (y.flip(0) * torch.cat([y, y])[: len(y)]).mean(),
        lambda y: (y.roll(1, 0) * y).mean(),
        lambda y: F.pad(y, (1, 2, 0, 1), value=0.25).logsumexp(1).mean(),
        lambda y: (y.repeat(1, 2) - y.repeat_interleave(2, 1)).square().mean(),
    ],
    ids=["slices", "cross_entropy", "gather", "flip", "roll", "pad", "repeat"],
)
@pytest.mark.parametrize("shape", [(6, 7), (6, 1)], ids=str)
def test_what_is_written_by_a_mask_is_read_anywhere(shape: tuple[int, int], loss: Loss, written: Loss) -> None:
    agree(lambda x: loss(written(x)), draw("real", *shape))


def _shares(x: Tensor, dim: int) -> Tensor:
    shares = x * 2
    shares[x > 0] = (x / (1 + x.abs().sum(dim, keepdim=True)))[x > 0].exp()
    return shares


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(6, 7), (7, 7)], ids=str)
@pytest.mark.parametrize(
    ("loss", "forward"),
    [
        (lambda y: (y[1:] - y[:-1]).square().mean(), 1),
        (lambda y: F.pad(y, (1, 2, 0, 1), value=0.25).logsumexp(1).mean(), 2),
        (lambda y: y.t()[:5].square().mean(), 1),
        (lambda y: y.diagonal().square().sum(), 2),
    ],
    ids=["slices", "pad", "columns", "diagonal"],
)
def test_sums_of_rows_that_are_written_by_a_mask(loss: Loss, forward: int, shape: tuple[int, int], dim: int) -> None:
    """They run over an axis of their own, wherever they are read."""
    agree(lambda x: loss(_shares(x, dim)), draw("real", *shape), launches=(forward, 1))


def test_labels_that_are_replaced_by_a_mask() -> None:
    targets = labels(7, 6, 5)
    targets[:, -2:] = -100
    agree(_log_probabilities, draw("real", 6, 5, 7), targets)


@pytest.mark.parametrize("place", [0, 3, -2])
@pytest.mark.parametrize("loss", [lambda a, i: a.narrow(1, i, 2), lambda a, i: a.select(1, i.item())])
def test_places_that_a_tensor_tells(loss: Loss, place: int) -> None:
    """Which may count from the end."""
    a, i = draw("real", 3, 5), torch.tensor(place)
    torch.testing.assert_close(autogen_loss(lambda a, i: loss(a, i).exp() * 2)(a, i), loss(a, i).exp() * 2)


@pytest.mark.parametrize(
    "loss",
    [
        lambda m, n: m.index_put((n[:, 0],), n[0], accumulate=True),
        lambda m, n: m.clone().index_put_((n,), n[:1, 0], accumulate=True),
        lambda m, n: m.index_add(0, torch.tensor([0, 2]), n[:2]),
    ],
)
def test_flags_that_are_added(loss: Loss, recwarn: pytest.WarningsRecorder) -> None:
    m, n = draw("real", 4, 4).detach() > 0, draw("real", 4, 4, seed=1).detach() > 0
    m[0] = n[:, 0] = True
    assert torch.equal(autogen_loss(lambda m, n: loss(m, n))(m, n), loss(m, n))
    assert not [each for each in recwarn if "autogen failed" in str(each.message)]


@pytest.mark.parametrize("shape", [(2, 5), (2, 1), (2,)])
def test_rows_to_add_are_not_broadcast(shape: tuple[int, ...]) -> None:
    rows = torch.ones(shape)
    with pytest.raises((RuntimeError, IndexError)) as theirs:
        torch.ones(3, 4).index_add(0, torch.tensor([0, 1]), rows)
    with pytest.raises((RuntimeError, IndexError)) as ours:
        autogen_loss(lambda a, i, b: a.index_add(0, i, b))(torch.ones(3, 4), torch.tensor([0, 1]), rows)
    assert str(ours.value) == str(theirs.value)


def _weights(x: Tensor, pieces: Callable[[Tensor], tuple[Tensor, ...]]) -> Tensor:
    """A table without a gradient that is written piece by piece, and then as a whole."""
    table = x.detach().clone()
    for k, piece in enumerate(pieces(table)):
        piece.copy_(piece.abs() + k)
        table *= 0.5
    return table


@pytest.mark.parametrize(
    "pieces",
    [
        lambda table: tuple(table),
        lambda table: table.unbind(-1),
        lambda table: table.split(4, 1),
        lambda table: table.split([3, 1, 6], -1),
        lambda table: table.t().chunk(3),
        lambda table: table[1:].tensor_split(3, 1)[::-1],
        lambda table: [half for row in table[:4:2] for half in row.chunk(2)],
    ],
    ids=["rows", "columns", "split", "split with sizes", "chunks", "tensor_split", "halves of rows"],
)
def test_pieces_that_are_written(pieces: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    agree(lambda x: (_weights(x, pieces) * x).mean(), *of(ROWS))


def test_a_piece_shows_what_was_written_to_all_and_to_others() -> None:
    def loss(x: Tensor) -> Tensor:
        table = x.detach().clone()
        first, second = table.split(5, 1)
        table += 1
        second.copy_(first)
        first.mul_(2)
        return (first * second * x[:, :5]).mean()

    agree(loss, *of(ROWS))


def test_one_number_as_a_row_is_its_own_extreme() -> None:
    """So that what is left of the row does not depend on the place in it."""

    def loss(row: Tensor) -> Tensor:
        at_first = torch.where(torch.arange(len(row)) == 0, row.amax(), row)
        return at_first.amax() + at_first.mean()

    agree(loss, torch.tensor([1.5]).expand(5), launches=(1, 0))


def test_negative_views() -> None:
    """Their memory has the values with the other sign."""
    agree(lambda x: torch.view_as_complex(x).conj().imag.exp().sum(), *of((6, 2)), launches=None)
    agree(lambda x: (torch.fft.rfft(x).conj().imag * x[:, :6]).sum(), *of(ROWS), launches=None)
    agree(lambda x: torch._neg_view(x * 2).exp().sum(), *of(ROWS))


@pytest.mark.parametrize("dim", [0, -1])
def test_a_dimension_that_is_not_of_one_is_not_squeezed(dim: int) -> None:
    agree(lambda x: (x * 2).squeeze_(dim).exp().sum(), *of(ROWS))
