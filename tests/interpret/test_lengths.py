"""Losses of sequences of many lengths: every form equals the loop over a list, in one launch each way."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from autogen import autogen_loss, explain, ragged, trace_count
from tests.interpret import lengths
from tests.interpret.lengths import Batch
from tests.tiers import examples

FORMS: dict[str, Callable[..., Tensor]] = {
    "packed": lengths.packed,
    "reduced": lengths.reduced,
    "jagged": lengths.jagged,
    "padded": lengths.padded,
}
NAMES = ("giou", "focal", "entropy", "dice")
PAIRS = list(zip(NAMES, FORMS, strict=True))
KNOWN: dict[tuple[str, str], Any] = {}


def decorated(name: str, form: str) -> Any:
    """A loss of a form, the same in all tests, as each is captured again."""
    if (name, form) not in KNOWN:

        def loss(p: Any, t: Any, *offsets: Tensor) -> Tensor:
            return FORMS[form](name, p, t, *offsets)

        loss.__name__ = f"{name}_{form}"
        KNOWN[name, form] = autogen_loss(loss)
    return KNOWN[name, form]


def expected(name: str, batch: Batch) -> tuple[Tensor, Tensor]:
    """What the loop gives, and the gradient of all items."""
    p = [each.clone().requires_grad_() for each in batch.p]
    value = lengths.loop(name, p, batch.t)
    if not p or not value.requires_grad:
        return value.detach(), torch.zeros(sum(map(len, p)), 4, dtype=torch.float64)
    return value.detach(), torch.cat(torch.autograd.grad(value, p, materialize_grads=True, allow_unused=True))


def agree(name: str, form: str, sizes: Sequence[int], seed: int = 0) -> None:
    """Check that a form equals the loop, value and gradient."""
    batch = Batch.of(sizes, seed)
    leaf, arguments = batch.given(form)
    value = decorated(name, form)(*arguments)
    (gradient,) = torch.autograd.grad(value, leaf, materialize_grads=True, allow_unused=True)
    wanted, of_items = expected(name, batch)
    torch.testing.assert_close(value.detach(), wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(batch.of_items(gradient), of_items, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_every_form_equals_the_loop(name: str, form: str) -> None:
    for seed, sizes in enumerate(([3, 0, 5], [2, 1, 4, 1], [1, 1, 7])):
        agree(name, form, sizes, seed)


@pytest.mark.cases(5)
@pytest.mark.parametrize("sizes", ([], [0, 0, 0], [0], [1], [7]), ids=str)
@pytest.mark.parametrize(("name", "form"), PAIRS)
def test_batches_of_nothing_and_of_one(name: str, form: str, sizes: list[int]) -> None:
    agree(name, form, sizes)


@settings(max_examples=examples(12), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=2, max_size=12),
    pair=st.sampled_from(list(zip(NAMES, FORMS, strict=True))),
)
def test_any_lengths(sizes: list[int], pair: tuple[str, str]) -> None:
    agree(*pair, sizes)


@pytest.mark.parametrize("form", FORMS)
def test_a_thousand_images(form: str) -> None:
    drawn = random.Random(0)
    agree("giou", form, [int(abs(drawn.gauss(0, 3))) for _ in range(1024)])


@pytest.mark.parametrize("form", ["packed", "jagged"])
def test_points_have_their_nearest_in_the_same_sequence(form: str) -> None:
    for sizes in ([3, 1, 5], [4, 0, 2, 1]):
        agree("chamfer", form, sizes)


@pytest.mark.slow
def test_few_captures_hold_for_all_batches_in_one_launch_each_way() -> None:
    drawn = random.Random(1)
    for form in FORMS:
        loss = autogen_loss(lambda p, t, *offsets, form=form: FORMS[form]("giou", p, t, *offsets))
        for count in (1024, *(drawn.randint(1, 64) for _ in range(12))):
            sizes = [int(abs(drawn.gauss(0, 3))) + (k == 0) for k in range(count)]
            arguments = Batch.of(sizes).given(form, torch.float32)[1]
            loss(*arguments)
            report = explain(loss, *arguments)
            assert report.forward is not None and report.backward is not None, report.reason
            assert (report.path, report.forward.launches, report.backward.launches) == ("generated", 1, 1)
        assert trace_count(loss) <= 3, form


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many bytes kernels read, load by load, of what their masks ask for."""
    from triton.runtime.interpreter import InterpreterBuilder

    found: list[int] = []
    own = InterpreterBuilder.create_masked_load

    def load(self: Any, pointers: Any, mask: Any, *args: Any) -> Any:
        wanted = np.broadcast_to(mask.data, pointers.data.shape)
        found.append(len(np.unique(pointers.data[wanted])) * (pointers.get_element_ty().primitive_bitwidth // 8))
        return own(self, pointers, mask, *args)

    with monkeypatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_masked_load", load)
        yield found


@pytest.mark.parametrize("form", FORMS)
def test_no_more_is_read_than_the_items(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random.Random(2)
    sizes = [int(abs(drawn.gauss(0, 3))) for _ in range(256)]
    arguments = Batch.of([*sizes, 64]).given(form, torch.float32)[1]
    loss = autogen_loss(lambda p, t, *offsets: FORMS[form]("focal", p, t, *offsets))
    loss(*arguments)
    with counted(monkeypatch) as read:
        loss(*arguments)
    items = (sum(sizes) + 64) * 2 * 4  # one of the four values of each prediction and target
    numbers = 2 * (len(sizes) + 1) * 8  # where each sequence begins and ends
    assert items <= sum(read) <= 1.05 * (items + numbers), (sum(read), items, numbers)


class TestJagged:
    def test_the_gradient_is_that_of_the_values(self) -> None:
        values = torch.rand(6, 2, requires_grad=True)
        loss = autogen_loss(lambda p: p.square().sum())
        loss(ragged(values, [0, 2, 2, 6])).backward()
        torch.testing.assert_close(values.grad, 2 * values.detach())

    @pytest.mark.parametrize(
        "formula",
        [
            lambda p: (torch.softmax(p, 1) * p.detach()).values().sum(),
            lambda p: p.to_padded_tensor(0.0).square().sum(1).mean(),
            lambda p: p.amax(1).mean(),
        ],
        ids=["softmax", "padded", "amax"],
    )
    def test_what_torch_reduces_of_sequences(self, formula: Callable[[Any], Tensor]) -> None:
        found = []
        values = torch.randn(7, 3, dtype=torch.float64)
        loss = autogen_loss(formula)
        for run in (formula, loss):
            leaf = values.clone().requires_grad_()
            value = run(ragged(leaf, lengths=[3, 1, 2, 1]))
            found.append((value.detach(), *torch.autograd.grad(value, leaf)))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs)
        assert explain(loss, ragged(values, lengths=[3, 1, 2, 1])).path == "generated"

    def test_a_result_is_jagged(self) -> None:
        values = torch.randn(5, requires_grad=True)
        loss = autogen_loss(lambda p: p.exp())
        result = loss(ragged(values, [0, 2, 5]))
        assert explain(loss, ragged(values, [0, 2, 5])).path == "generated"
        assert result.is_nested and result.layout == torch.jagged
        result.values().sum().backward()
        torch.testing.assert_close(values.grad, values.detach().exp())

    def test_without_gradients(self) -> None:
        loss = autogen_loss(lambda p: p.values().mean())
        with torch.no_grad():
            for count in (4, 9, 2):
                values = torch.randn(count)
                torch.testing.assert_close(loss(ragged(values, [0, count])), values.mean())

    def test_nested_tensors_of_the_other_layout_are_refused(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            strided = torch.nested.nested_tensor([torch.rand(2), torch.rand(3)])
        loss = autogen_loss(lambda p: torch.nested.to_padded_tensor(p, 0.0).sum())
        assert "strided NestedTensor" in explain(loss, strided).reason


class TestSequences:
    """Other ways to write what is of sequences."""

    def agree(self, formula: Callable[..., Tensor], *given: Any, rtol: float = 1e-9) -> Any:
        found = []
        loss = autogen_loss(formula)
        for run in (formula, loss):
            values = torch.randn(sum(SIZES), 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            value = run(values.requires_grad_(), *given)
            weight = torch.linspace(1, 2, value.numel(), dtype=torch.float64).reshape(value.shape)
            found.append((value.detach(), *torch.autograd.grad((value * weight).sum(), values)))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=rtol, atol=1e-12)
        return explain(loss, values, *given)

    def test_cu_seqlens(self) -> None:
        def formula(x: Tensor, cu: Tensor) -> Tensor:
            own = torch.bucketize(torch.arange(x.shape[0]), cu[1:], right=True)
            found = torch.zeros(cu.shape[0] - 1, dtype=x.dtype).scatter_add(0, own, x.square().sum(1))
            return (found / (cu[1:] - cu[:-1]).clamp(min=1)).sum()

        assert self.agree(formula, OFFSETS.int()).path == "generated"

    def test_offsets_that_begin_in_the_middle_of_a_batch(self) -> None:
        def formula(x: Tensor, offsets: Tensor) -> Tensor:
            own = torch.repeat_interleave(torch.arange(offsets.shape[0] - 1), offsets.diff(), output_size=x.shape[0])
            return torch.zeros(offsets.shape[0] - 1, dtype=x.dtype).index_add(0, own, x[:, 0].exp())

        assert self.agree(formula, OFFSETS + 5).path == "generated"

    @pytest.mark.parametrize("reduce", ["amax", "amin", "sum", "mean"])
    @pytest.mark.parametrize("include_self", [True, False])
    def test_scatter_reduce(self, reduce: str, include_self: bool) -> None:
        def formula(x: Tensor, offsets: Tensor) -> Tensor:
            own = torch.repeat_interleave(torch.arange(offsets.shape[0] - 1), offsets.diff(), output_size=x.shape[0])
            zero = torch.zeros(offsets.shape[0] - 1, dtype=x.dtype)
            return zero.scatter_reduce(0, own, x[:, 0], reduce, include_self=include_self)

        assert self.agree(formula, OFFSETS).path == "generated"

    def test_a_softmax_of_each_sequence(self) -> None:
        def formula(x: Tensor, offsets: Tensor) -> Tensor:
            count = offsets.shape[0] - 1
            own = torch.repeat_interleave(torch.arange(count), offsets.diff(), output_size=x.shape[0])
            empty = torch.full((count,), -torch.inf, dtype=x.dtype)
            largest = empty.scatter_reduce(0, own, x[:, 0].detach(), "amax")
            shifted = x[:, 0] - largest[own]
            total = torch.zeros(count, dtype=x.dtype).index_add(0, own, shifted.exp())
            return -((shifted - total.log()[own]) * x[:, 1].detach()).sum()

        report = self.agree(formula, OFFSETS)
        assert (report.path, report.forward.launches, report.backward.launches) == ("generated", 1, 1)

    def test_deviations_from_the_mean_of_each_sequence(self) -> None:
        def formula(x: Tensor, offsets: Tensor) -> Tensor:
            count = offsets.shape[0] - 1
            own = torch.repeat_interleave(torch.arange(count), offsets.diff(), output_size=x.shape[0])
            mean = torch.zeros(count, dtype=x.dtype).index_add(0, own, x[:, 0]) / offsets.diff().clamp(min=1)
            return (x[:, 0] - mean[own]).square().sum()

        report = self.agree(formula, OFFSETS)
        assert (report.forward.launches, report.backward.launches) == (1, 1)

    @pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
    def test_segment_reduce(self, reduce: str) -> None:
        for initial in (None, 0.0) if reduce != "mean" else (0.0,):
            kept = OFFSETS if reduce == "sum" or initial is not None else FULL
            report = self.agree(lambda x, o, i=initial: torch.segment_reduce(x, reduce, offsets=o, initial=i), kept)
            assert report.path == "generated"

    def test_lengths_are_added_up_first(self) -> None:
        report = self.agree(lambda x, n: torch.segment_reduce(x, "sum", lengths=n), torch.tensor(SIZES))
        assert report.path == "generated"

    def test_items_that_no_offsets_count_have_no_gradient(self) -> None:
        report = self.agree(lambda x, o: torch.segment_reduce(x[:, 0], "sum", offsets=o), OFFSETS[:-2])
        assert report.path == "generated"


SIZES = [3, 0, 4, 1, 2]
OFFSETS = torch.tensor([0, *SIZES]).cumsum(0)
FULL = OFFSETS[[0, 1, 3, 4, 5]]  # without the empty one


class TestPadding:
    """NaN in padding, and what is not read of it."""

    def test_a_mask_selects(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mask = torch.rand(8, 33) < 0.1
        x, y = (torch.where(mask, torch.randn(8, 33), torch.nan) for _ in range(2))
        loss = autogen_loss(lambda x, y, mask: torch.where(mask, (x - y).square(), 0).sum())
        loss(x.requires_grad_(), y, mask).backward()
        assert x.grad is not None and x.grad.isfinite().all() and not x.grad[~mask].any()
        with counted(monkeypatch) as read:
            loss(x, y, mask)
        assert sum(read) == mask.numel() + 2 * 4 * int(mask.sum()) + 4  # and the last block, what a program has stored

    def test_long_rows_that_begin_anywhere_are_walked_to_their_ends(self) -> None:
        """What a walk has of a window only once its sums are taken apart."""

        def formula(x: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
            here = torch.arange(x.shape[1])[None] < lengths[:, None]
            parts = (
                torch.where(here, each, 0) * torch.where(here, each, -torch.inf).amax(1, keepdim=True)
                for each in (x, y)
            )
            return sum(parts, torch.zeros(())).sum(1)

        x, y = torch.zeros(2, 4, 20479)
        x[:, -4:], y[:, -3:] = 1, 2
        lengths = torch.tensor([20479, 20478, 20479, 5])
        torch.testing.assert_close(autogen_loss(formula)(x, y, lengths), formula(x, y, lengths))

    def test_a_mask_for_little_is_not_asked_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mask = torch.rand(8, 33) < 0.1
        loss = autogen_loss(lambda x, mask: torch.where(mask, x.square(), 0).sum())
        x = torch.randn(8, 33)
        loss(x, mask)
        with counted(monkeypatch) as read:
            loss(x, mask)
        assert sum(read) == 5 * mask.numel() + 4
