"""Losses of the rows of a matrix product, in chunks of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen
from autogen import autogen_loss, explain
from autogen.settings.options import Sums
from tests.interpret.agreement import agree, draw, labels

Loss = Callable[..., Tensor]

ROWS, WIDTH, CLASSES = 37, 8, 50


def mean(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x @ w.t(), y)


def per_row(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w), y, reduction="none")


def smoothed(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x @ w.t(), y, label_smoothing=0.1)


def with_z_loss(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    logits = x @ w.t()
    return F.cross_entropy(logits, y) + 1e-2 * logits.logsumexp(-1).square().mean()


def capped(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(3 * torch.tanh(x @ w.t() / 3), y, reduction="sum")


def entropy(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    log_prob = (x @ w.t()).log_softmax(-1)
    return -(log_prob.exp() * log_prob).sum(-1).mean()


def perplexity(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x @ w.t(), y).exp()


def hardest(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    row = F.cross_entropy(x @ w.t(), y, reduction="none")
    return (row.softmax(0) * row).sum()


def mined(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """Of the rows with the largest loss."""
    return F.cross_entropy(x @ w.t(), y, reduction="none").topk(5).values.mean()


def ranked(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """The rows with a large loss count more."""
    row = F.cross_entropy(x @ w.t(), y, reduction="none")
    return (row * row.detach().argsort().argsort()).mean()


def balanced(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """How evenly rows are spread over the classes."""
    share = (x @ w.t()).softmax(-1).mean(0)
    return (share * share).sum()


def accurate(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    logits = x @ w.t()
    right = (logits.argmax(-1) == y).sum()
    return F.cross_entropy(logits, y) * (1 + right.detach())


def margin(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return F.multi_margin_loss(x @ w.t(), y)


SIMPLE: dict[str, Loss] = {
    each.__name__: each
    for each in (
        mean, per_row, smoothed, with_z_loss, capped, entropy, perplexity, hardest, mined, ranked, balanced, accurate,
        margin,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", SIMPLE)
def test_losses(name: str) -> None:
    x, w, y = draw("real", ROWS, WIDTH), draw("real", CLASSES, WIDTH, seed=1), labels(CLASSES, ROWS)
    y[3] = -100 if SIMPLE[name] is not margin else 0
    agree(SIMPLE[name], x, w, y, launches=None, chunk=16)
    (text,) = chunks_of(autogen_loss(SIMPLE[name], chunk=16), x, w, y)
    assert text.startswith("3 chunks of 16 rows: ")


def test_bias() -> None:
    def loss(x: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, w, b), y)

    agree(loss, draw("real", ROWS, WIDTH), draw("real", CLASSES, WIDTH, seed=1), draw("real", CLASSES, seed=2),
          labels(CLASSES, ROWS), launches=None, chunk=16)  # fmt: skip


@pytest.mark.parametrize("slices", ["shifted", "padded", "packed"])
def test_tokens_of_sequences(slices: str) -> None:
    def loss(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        logits = x @ w.t()
        if slices == "padded":
            logits, y = logits, F.pad(y[:, 1:], (0, 1), value=-100)
        else:
            logits, y = logits[:, :-1], y[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())

    batch = 1 if slices == "packed" else 4
    agree(loss, draw("real", batch, 19, WIDTH), draw("real", CLASSES, WIDTH, seed=1), labels(CLASSES, batch, 19),
          launches=None, chunk=16)  # fmt: skip


def test_weights_of_classes_and_of_tokens() -> None:
    def loss(x: Tensor, w: Tensor, of_class: Tensor, of_token: Tensor, y: Tensor) -> Tensor:
        row = F.cross_entropy(x @ w.t(), y, of_class, reduction="none")
        return (row * of_token).sum() / of_token.sum()

    agree(loss, draw("real", ROWS, WIDTH), draw("real", CLASSES, WIDTH, seed=1), draw("positive", CLASSES).detach(),
          draw("positive", ROWS, seed=3), labels(CLASSES, ROWS), launches=None, chunk=16)  # fmt: skip


def test_soft_labels() -> None:
    def loss(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(x @ w.t(), target.softmax(-1))

    agree(loss, draw("real", ROWS, WIDTH), draw("real", CLASSES, WIDTH, seed=1), draw("real", ROWS, CLASSES, seed=2),
          launches=None, chunk=16)  # fmt: skip


def test_two_heads() -> None:
    def loss(x: Tensor, w: Tensor, teacher: Tensor, head: Tensor) -> Tensor:
        student = (x @ w.t() / 2).log_softmax(-1)
        return F.kl_div(student, (teacher @ head.t() / 2).log_softmax(-1), log_target=True, reduction="batchmean") * 4

    agree(loss, draw("real", ROWS, WIDTH), draw("real", CLASSES, WIDTH, seed=1), draw("real", ROWS, 5, seed=2),
          draw("real", CLASSES, 5, seed=3), launches=None, chunk=16)  # fmt: skip


def test_preferences() -> None:
    def loss(x: Tensor, w: Tensor, y: Tensor, reference: Tensor) -> Tensor:
        token = -F.cross_entropy((x @ w.t()).flatten(0, 1), y.flatten(), reduction="none").view_as(y)
        chosen, rejected = (token.sum(1) - reference).chunk(2)
        return -F.logsigmoid(0.1 * (chosen - rejected)).mean()

    agree(loss, draw("real", 6, 9, WIDTH), draw("real", CLASSES, WIDTH, seed=1), labels(CLASSES, 6, 9),
          draw("real", 6, seed=2).detach(), launches=None, chunk=16)  # fmt: skip


@pytest.mark.slow
def test_policies() -> None:
    def loss(x: Tensor, w: Tensor, y: Tensor, old: Tensor, advantage: Tensor, counts: Tensor) -> Tensor:
        new = -F.cross_entropy((x @ w.t()).flatten(0, 1), y.flatten(), reduction="none").view_as(y)
        ratio, advantage = (new - old).exp(), advantage[:, None]
        row = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        return (row * counts).sum() / counts.sum()

    old = -draw("positive", 6, 9, seed=4).detach()
    agree(loss, draw("real", 6, 9, WIDTH), draw("real", CLASSES, WIDTH, seed=1), labels(CLASSES, 6, 9), old,
          draw("real", 6, seed=2).detach(), (old > -1).float(), launches=None, chunk=16)  # fmt: skip


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few rows, without being asked for."""
    monkeypatch.setattr("autogen.scheduling.chunks.size.WORKSPACE", 2**12)
    monkeypatch.setattr("autogen.scheduling.chunks.size.LEAST_ROWS", 8)
    monkeypatch.setattr("autogen.scheduling.chunks.size._STEP", 4)


@pytest.mark.usefixtures("small")
def test_losses_of_torch() -> None:
    torch.manual_seed(0)
    adaptive = autogen.losses.AdaptiveLogSoftmaxWithLoss(WIDTH, CLASSES, [10, 25], head_bias=True)
    theirs = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, CLASSES, [10, 25], head_bias=True).double()
    theirs.load_state_dict(adaptive.state_dict())
    x, y = draw("real", 60, WIDTH), labels(CLASSES, 60)
    output, loss = adaptive(x, y)
    expected, expected_loss = theirs(x.double(), y)
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(loss, x)
    (expected_gradient,) = torch.autograd.grad(expected_loss, x)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)
    assert len(explain(adaptive, x, y).forward.chunks) == 2  # one cluster has few rows


def chunks_of(loss: Loss, *tensors: Tensor) -> tuple[str, ...]:
    """The chunks of forward, as `explain` tells them."""
    forward = explain(loss, *tensors).forward
    assert forward is not None
    return forward.chunks


@pytest.mark.parametrize("upstream", [1.0, 0.25, 65536.0])
@pytest.mark.parametrize("name", ["mean", "per_row"])
def test_again(name: str, upstream: float) -> None:
    """Of a graph that is retained, and without one."""
    x, w, y = draw("real", ROWS, WIDTH), draw("real", CLASSES, WIDTH, seed=1), labels(CLASSES, ROWS)
    loss, found = autogen_loss(SIMPLE[name], chunk=16), []
    for each in (loss, SIMPLE[name]):
        value = each(x, w, y)
        scale = torch.full_like(value, upstream)
        found += [*torch.autograd.grad(value, (x, w), scale, retain_graph=True)]
        found += [*torch.autograd.grad(value, (x, w), 3 * scale)]
    for own, their in zip(found[:4], found[4:], strict=True):
        torch.testing.assert_close(own, their, rtol=1e-4, atol=1e-5 * upstream)
    with torch.no_grad():
        torch.testing.assert_close(loss(x, w, y), SIMPLE[name](x, w, y))


def test_accumulation_leaves_what_is_kept_alone() -> None:
    """`grad` may be the tensor that forward has kept, and is added to."""
    x, w, y = draw("real", ROWS, WIDTH), draw("real", CLASSES, WIDTH, seed=1), labels(CLASSES, ROWS)
    loss = autogen_loss(mean, chunk=16)
    first = loss(x, w, y)
    first.backward(retain_graph=True)
    once = w.grad.clone()
    (2 * loss(x, w, y)).backward()
    first.backward()
    torch.testing.assert_close(w.grad, 4 * once)


@pytest.mark.parametrize("frozen", ["x", "w"])
def test_what_is_frozen_takes_no_product(frozen: str) -> None:
    x, w, y = draw("real", ROWS, WIDTH), draw("real", CLASSES, WIDTH, seed=1), labels(CLASSES, ROWS)
    (x if frozen == "x" else w).requires_grad_(False)
    agree(mean, x, w, y, launches=None, chunk=16)
    assert chunks_of(autogen_loss(mean, chunk=16), x, w, y)[0].endswith("and 2 products")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["mean", "per_row", "smoothed"])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    """The gradient of the weights is added up in single precision."""
    x, w = draw("real", 200, 32, dtype=dtype), draw("real", CLASSES, 32, dtype=dtype, seed=1)
    agree(SIMPLE[name], x, w, labels(CLASSES, 200), launches=None, as_torch=2, chunk=16)


@pytest.mark.parametrize("sums", ["float32", "weight"])
def test_memory_of_sums(sums: Sums) -> None:
    """In the precision of the weight, they are its gradient already."""
    x, w = (draw("real", n, 32, dtype=torch.bfloat16) for n in (64, 500))
    y = labels(500, 64)
    loss = autogen_loss(mean, chunk=16, sums=sums)
    torch.autograd.grad(loss(x, w, y), w)
    with torch.profiler.profile(profile_memory=True) as profile:
        (gradient,) = torch.autograd.grad(loss(x, w, y), w)
    sizes = [event.cpu_memory_usage for event in profile.events()]
    assert (max(sizes) >= 2 * w.nbytes) == (sums == "float32")
    (expected,) = torch.autograd.grad(mean(x, w, y), w)
    torch.testing.assert_close(gradient, expected, rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 16, 17, 100])
def test_rows(rows: int) -> None:
    loss = autogen_loss(mean, chunk=16)
    w = draw("real", CLASSES, WIDTH, seed=1)
    for count in (37, rows):
        x, y = draw("real", count, WIDTH), labels(CLASSES, count)
        found = torch.autograd.grad(loss(x, w, y), (x, w))
        for own, their in zip(found, torch.autograd.grad(mean(x, w, y), (x, w)), strict=True):
            torch.testing.assert_close(own, their, rtol=1e-4, atol=1e-6)
    texts = chunks_of(loss, x, w, y)
    assert [text.split()[0] for text in texts] == ([str(-(-rows // 16))] if rows > 1 else [])


def test_no_row_and_none_that_counts() -> None:
    w, loss = draw("real", CLASSES, WIDTH, seed=1), autogen_loss(mean, chunk=16)
    for x, y in ((draw("real", 0, WIDTH), labels(CLASSES, 0)), (draw("real", 40, WIDTH), torch.full((40,), -100))):
        value = loss(x, w, y)
        assert value.isnan()
        for own, their in zip(
            torch.autograd.grad(value, (x, w)), torch.autograd.grad(mean(x, w, y), (x, w)), strict=True
        ):
            torch.testing.assert_close(own, their, equal_nan=True)


def test_results_that_nothing_arrives_for() -> None:
    def loss(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = x @ w.t()
        return F.cross_entropy(logits, y), logits.logsumexp(-1).square().mean()

    y = labels(CLASSES, ROWS)
    for which in range(2):
        x, w = draw("real", ROWS, WIDTH), draw("real", CLASSES, WIDTH, seed=1)
        found = torch.autograd.grad(autogen_loss(loss, chunk=16)(x, w, y)[which], (x, w))
        for own, their in zip(found, torch.autograd.grad(loss(x, w, y)[which], (x, w)), strict=True):
            torch.testing.assert_close(own, their, rtol=1e-4, atol=1e-5)


def test_inside_of_compiled_functions() -> None:
    loss = autogen_loss(mean, chunk=16)
    x, w, y = draw("real", ROWS, WIDTH), draw("real", CLASSES, WIDTH, seed=1), labels(CLASSES, ROWS)

    @torch.compile(backend="aot_eager")
    def step(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return 2 * loss(x * 1.0, w, y)

    value = step(x, w, y)
    found = [*torch.autograd.grad(value, (x, w), retain_graph=True), *torch.autograd.grad(value, (x, w))]
    expected = torch.autograd.grad(2 * mean(x, w, y), (x, w))
    for own, their in zip(found, (*expected, *expected), strict=True):
        torch.testing.assert_close(own, their, rtol=1e-4, atol=1e-6)


def test_second_derivatives() -> None:
    x, w, y = draw("real", ROWS, WIDTH), draw("real", CLASSES, WIDTH, seed=1), labels(CLASSES, ROWS)
    found = []
    for loss in (autogen_loss(mean, chunk=16), mean):
        (gradient,) = torch.autograd.grad(loss(x, w, y), x, create_graph=True)
        found += torch.autograd.grad(gradient.square().sum(), (x, w))
    for own, their in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(own, their)


@pytest.mark.slow
def test_no_tensor_is_as_large_as_the_logits() -> None:
    rows, classes = 256, 512
    x, w, y = draw("real", rows, WIDTH), draw("real", classes, WIDTH, seed=1), labels(classes, rows)
    loss, largest = autogen_loss(with_z_loss, chunk=32), {}
    for name, each in (("ours", loss), ("eager", with_z_loss)):
        torch.autograd.grad(each(x, w, y), (x, w))  # what is captured, too
        with torch.profiler.profile(profile_memory=True) as profile:
            torch.autograd.grad(each(x, w, y), (x, w))
        largest[name] = max(event.cpu_memory_usage for event in profile.events())
    assert largest["eager"] >= 4 * rows * classes and largest["ours"] <= 4 * 32 * classes


def test_what_mixes_rows_is_told() -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        logits = x @ w.t()
        return (logits - logits.mean(0)).logsumexp(-1).sum()

    def logits(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        made = x @ w.t()
        return made, made.logsumexp(-1).sum()

    x, w = draw("real", ROWS, WIDTH), draw("real", CLASSES, WIDTH, seed=1)
    report = explain(autogen_loss(loss, chunk=16), x, w)
    assert "a sum over rows is a part of the loss of each row" in report.reason and "logits.mean(0)" in report.reason
    assert "elements of made are needed when all rows are done" in explain(autogen_loss(logits, chunk=16), x, w).reason
    agree(loss, x, w, launches=None, chunk=16)


@pytest.mark.parametrize("chunk", [0, -1, 2.0, True])
def test_chunks_of_no_row(chunk: Any) -> None:
    with pytest.raises(ValueError, match="chunk is a number of rows, at least 1"):
        autogen_loss(mean, chunk=chunk)


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        autogen_loss(mean, chunk=16)(draw("real", ROWS, WIDTH), draw("real", CLASSES, WIDTH + 1), labels(CLASSES, ROWS))


def test_networks() -> None:
    """What comes before the last product exists as a whole."""

    def loss(x: Tensor, first: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(F.gelu(x @ first) @ w.t(), y)

    tensors = draw("real", ROWS, 6), draw("real", 6, WIDTH, seed=2), draw("real", CLASSES, WIDTH, seed=1)
    agree(loss, *tensors, labels(CLASSES, ROWS), launches=None, chunk=16)
    (text,) = chunks_of(autogen_loss(loss, chunk=16), *tensors, labels(CLASSES, ROWS))
    assert text.endswith("and 3 products")


def test_weights_that_lie_otherwise() -> None:
    """Of shape (width, classes), as a part of a larger one, and with features that lie by columns."""

    def loss(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x.t() @ w[:, 2:], y)

    agree(loss, draw("real", WIDTH, ROWS), draw("real", WIDTH, CLASSES + 2, seed=1), labels(CLASSES, ROWS),
          launches=None, chunk=16)  # fmt: skip


def test_autocast() -> None:
    def loss(x: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(F.linear(x, w, b), y)

    tensors = draw("real", 4, 19, 32), draw("real", CLASSES, 32, seed=1), draw("real", CLASSES, seed=2)

    def flat(x: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
        return loss(x.flatten(0, 1), w, b, y)

    found = []
    for each in (autogen_loss(flat, chunk=16), flat):
        value = each(*tensors, labels(CLASSES, 76))
        found.append([value, *torch.autograd.grad(value, tensors)])
    for own, their in zip(*found, strict=True):
        assert own.dtype == their.dtype == torch.float32
        torch.testing.assert_close(own, their, rtol=2e-2, atol=2e-3)
    (text,) = chunks_of(autogen_loss(flat, chunk=16), *tensors, labels(CLASSES, 76))
    assert text.startswith("5 chunks of 16 rows")


@pytest.mark.parametrize("counts", [(10, 40), (40, 10)], ids=str)
def test_kernels_for_few_rows_and_for_many(counts: tuple[int, int]) -> None:
    """Some are in chunks, whose gradients forward keeps: each call backward gives what its own forward has kept."""
    loss, w = autogen_loss(mean, chunk=16), draw("real", CLASSES, WIDTH, seed=1)
    for rows in counts:
        x, y = draw("real", rows, WIDTH), labels(CLASSES, rows)
        value, expected = loss(x, w, y), torch.autograd.grad(mean(x, w, y), (x, w), torch.tensor(2.0))
        for _ in range(3):
            found = torch.autograd.grad(value, (x, w), torch.tensor(2.0), retain_graph=True)
            for own, their in zip(found, expected, strict=True):
                torch.testing.assert_close(own, their, rtol=1e-4, atol=1e-6)


def test_names_that_begin_with_an_underscore() -> None:
    def loss(_x: Tensor, _w: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(_x @ _w.t(), y)

    agree(loss, draw("real", ROWS, WIDTH), draw("real", CLASSES, WIDTH, seed=1), labels(CLASSES, ROWS),
          launches=None, chunk=16)  # fmt: skip
