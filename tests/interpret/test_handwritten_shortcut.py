"""Calls of handwritten losses that are planned once for all calls of their geometry."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autogen.functional
import autogen.losses
from autogen import policy
from autogen.losses.handwritten.cosine_embedding import CosineEmbedding
from autogen.losses.handwritten.ctc import CTC
from autogen.losses.handwritten.multilabel_margin import MultiLabelMargin
from tests.interpret.launches import Launches
from tests.interpret.samples import Samples

LABELS = torch.tensor([[3, 0, -1, 1, 1, 1], [0, -1, 2, 2, 2, 2], [-1, 0, 0, 0, 0, 0], [5, 4, 3, 2, 1, 0]])
SIGNS = torch.tensor([1, -1, -1, 1])


def gradients(loss: Any, *inputs: Any, upstream: Tensor | None = None) -> list[Tensor]:
    value = loss(*inputs)
    wanted = [each for each in inputs if isinstance(each, Tensor) and each.requires_grad]
    given = torch.full_like(value, 0.5) if upstream is None else upstream
    return [value, *torch.autograd.grad(value, wanted, given)]


def pairs(rows: int = 4, cols: int = 6, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    samples = Samples(dtype)
    return samples.real(rows, cols).detach().requires_grad_(), samples.real(rows, cols).detach().requires_grad_()


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of tensors are not looked at, as on a GPU."""
    monkeypatch.setattr(MultiLabelMargin, "checks_values", False)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_cosine_is_taken_apart_twice(
    wanted: tuple[bool, bool], reduction: str, binds: list[str], launches: Launches
) -> None:
    ours = autogen.losses.CosineEmbeddingLoss(margin=0.1, reduction=reduction)
    theirs = nn.CosineEmbeddingLoss(margin=0.1, reduction=reduction)
    for call in range(5):
        inputs = [each.detach().requires_grad_(needs) for each, needs in zip(pairs(), wanted, strict=True)]
        inputs[0].data += call
        torch.testing.assert_close(gradients(ours, *inputs, SIGNS), gradients(theirs, *inputs, SIGNS))
    assert len(binds) == 2
    assert launches.take() == 10


@pytest.mark.parametrize("name", ["CosineEmbeddingLoss", "MultiLabelMarginLoss"])
@pytest.mark.parametrize("needs", [True, False])
def test_what_else_a_module_keeps_has_no_part_in_its_loss(name: str, needs: bool, launches: Launches) -> None:
    """A parameter that it does not use, a buffer that is changed before backward, and what a hook has put there."""

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], result: Tensor) -> None:
        module.kept = [*inputs, result]

    found: list[list[Any]] = []
    for loss in (getattr(autogen.losses, name)(), getattr(nn, name)()):
        loss.extra = nn.Parameter(torch.ones(2))
        loss.register_buffer("steps", torch.zeros(()))
        loss.register_forward_hook(keep)
        found.append([])
        for call in range(5):
            x, y = (each * (call + 1) for each in pairs())
            x, y = x.detach().requires_grad_(needs), y.detach()
            value = loss(x * 2, LABELS) if name == "MultiLabelMarginLoss" else loss(x * 2, y, SIGNS)
            loss.steps += 1
            if needs:
                value.backward()
            found[-1] += [value.detach(), value.requires_grad, x.grad, loss.extra.grad]
    torch.testing.assert_close(*found)
    assert launches.take() == 5 * (1 + needs)


def test_sizes_that_keep_changing(binds: list[str], launches: Launches) -> None:
    """Nothing is taken apart for them, whether they come once or again, nor where other inputs ask for gradients."""
    ours, theirs = autogen.losses.CosineEmbeddingLoss(), nn.CosineEmbeddingLoss()
    calls = [(4, True), (4, True), (3, True), (5, True), (5, False), (3, True), (3, True), (4, True), (6, False)]
    for rows, needs in calls:
        x, y = pairs(rows)
        signs = torch.tensor([1, -1, -1, 1, 1, -1])[:rows]
        inputs = x, y.detach().requires_grad_(needs), signs
        torch.testing.assert_close(gradients(ours, *inputs), gradients(theirs, *inputs))
    assert len(binds) == 2
    assert launches.take() == 2 * len(calls)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("flags", [{"size_average": False}, {"reduce": False}, {"size_average": True, "reduce": True}])
def test_flags_in_place_of_a_reduction_are_warned_of(flags: dict[str, bool]) -> None:
    x, y = pairs()
    with pytest.warns(UserWarning, match="size_average and reduce args will be deprecated"):
        autogen.functional.multilabel_margin_loss(x, LABELS, **flags)
    with pytest.warns(UserWarning, match="size_average and reduce args will be deprecated"):
        autogen.functional.cosine_embedding_loss(x, y, SIGNS, **flags)


@pytest.mark.usefixtures("unchecked")
def test_another_geometry_that_is_refused_is_torchs(binds: list[str], launches: Launches) -> None:
    ours, theirs = autogen.losses.MultiLabelMarginLoss(), nn.MultiLabelMarginLoss()
    for classes in (6, 6, 7, 8193):
        x = torch.randn(1, classes, requires_grad=True)
        labels = torch.full((1, classes), -1)
        with policy("default"):
            torch.testing.assert_close(gradients(ours, x, labels), gradients(theirs, x, labels))
    assert len(binds) == 3
    assert launches.take() == 6
    with pytest.raises(RuntimeError, match="inconsistent target size"):
        ours(torch.randn(1, 5), torch.full((1, 6), -1))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_margin_is_taken_apart_twice(reduction: str, binds: list[str]) -> None:
    ours = autogen.losses.MultiLabelMarginLoss(reduction=reduction)
    theirs = nn.MultiLabelMarginLoss(reduction=reduction)
    for call in range(5):
        x = (pairs()[0].detach() * (1 + call)).requires_grad_()
        torch.testing.assert_close(gradients(ours, x, LABELS), gradients(theirs, x, LABELS))
    assert len(binds) == 2


def test_values_that_torch_checks_are_looked_at_in_every_call(binds: list[str]) -> None:
    ours, theirs = autogen.losses.MultiLabelMarginLoss(), nn.MultiLabelMarginLoss()
    for call in range(4):
        x = (pairs()[0].detach() * (1 + call)).requires_grad_()
        torch.testing.assert_close(gradients(ours, x, LABELS), gradients(theirs, x, LABELS))
    assert len(binds) == 2
    with pytest.raises(RuntimeError, match="is out of range"):
        ours(x, LABELS + 6)


TARGETS = torch.tensor([[1, 2, 3], [4, 4, 4], [3, 3, 1]])


def probabilities(seed: int, steps: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(steps, 3, 5, generator=generator).log_softmax(2).requires_grad_()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_ctc_of_lengths_on_its_device(reduction: str, binds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CTC, "checks_values", False)  # as if the CPU were a GPU
    ours, theirs = autogen.losses.CTCLoss(reduction=reduction), nn.CTCLoss(reduction=reduction)
    lengths, labels = torch.tensor([7, 8, 6]), torch.tensor([3, 1, 2])
    for call in range(4):
        given = probabilities(call), TARGETS, lengths - call % 2, labels
        torch.testing.assert_close(gradients(ours, *given), gradients(theirs, *given))
    assert len(binds) == 2


@pytest.mark.parametrize(
    ("kind", "is_gpu", "are_joined"),
    [(list, False, False), (list, True, True), (tuple, False, True), (torch.tensor, False, False)],
)
def test_ctc_of_lengths_on_the_host(
    kind: Any,
    is_gpu: bool,
    are_joined: bool,
    binds: list[str],
    launches: Launches,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lengths may be others in every call; each call is of its own."""
    if is_gpu:
        monkeypatch.setattr(CTC, "checks_values", False)
    reduction = "none" if are_joined else "mean"
    ours, theirs = autogen.losses.CTCLoss(reduction=reduction), nn.CTCLoss(reduction=reduction)
    lengths = [([7, 8, 6], [3, 1, 2]), ([8, 8, 8], [2, 2, 2]), ([5, 6, 7], [1, 2, 0]), ([6, 6, 6], [1, 1, 0])]
    for call, (steps, labels) in enumerate([*lengths, *reversed(lengths)]):
        taken = [row[:length] for row, length in zip(TARGETS, labels, strict=True)]
        targets = torch.cat(taken) if are_joined else TARGETS
        x = probabilities(call, 8 + call // 4)
        given = x, targets, kind(steps), kind(labels)
        torch.testing.assert_close(gradients(ours, *given), gradients(theirs, *given))
    assert len(binds) == 2
    assert launches.take() == 16


def test_ctc_of_targets_that_lie_in_other_ways(binds: list[str], launches: Launches) -> None:
    """What is read of a call is decided by its own geometry."""
    ours, theirs = autogen.losses.CTCLoss(reduction="sum"), nn.CTCLoss(reduction="sum")
    labels = [3, 1, 2]
    joined = torch.cat([row[:length] for row, length in zip(TARGETS, labels, strict=True)])
    strided = TARGETS.t().contiguous().t()
    ways = [TARGETS, TARGETS, joined, strided, TARGETS.int(), joined.int(), F.pad(TARGETS, (0, 2))[:, :3], strided]
    for call, targets in enumerate([*ways, *reversed(ways)]):
        given = probabilities(call), targets, [7, 8, 6], labels
        torch.testing.assert_close(gradients(ours, *given), gradients(theirs, *given))
    assert len(binds) == 2
    assert launches.take() == 32


def test_lists_of_lengths_that_are_changed_or_wrong(binds: list[str]) -> None:
    ours, theirs = autogen.losses.CTCLoss(), nn.CTCLoss()
    steps, labels = [7, 8, 6], [3, 1, 2]
    for _ in range(3):
        ours(probabilities(0), TARGETS, steps, labels)
    del binds[:]
    x = probabilities(1)
    value = ours(x, TARGETS, steps, labels)
    expected = gradients(theirs, x, TARGETS, list(steps), list(labels))
    steps[:], labels[:] = [1, 1, 1], [0, 0, 0]
    torch.testing.assert_close(torch.autograd.grad(value, x)[0] * 0.5, expected[1])
    value = ours(x, TARGETS, same := [3, 3, 3], same)  # one list twice
    torch.testing.assert_close(value, theirs(x, TARGETS, [3, 3, 3], [3, 3, 3]))
    torch.testing.assert_close(
        ours(x, TARGETS, target_lengths=same, input_lengths=(4, 4, 4)), theirs(x, TARGETS, [4, 4, 4], same)
    )
    binds.clear()
    for wrong in ([9, 8, 6], [3, 1, 2]), ([7, 8, 6], [4, 1, 2]), ([7, 8], [3, 1, 2]), ([7.0, 8, 6], [3, 1, 2]):
        with pytest.raises(Exception) as refused:
            theirs(x, TARGETS, *wrong)
        with pytest.raises(refused.type) as own:
            ours(x, TARGETS, *wrong)
        assert str(own.value) == str(refused.value)


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_lengths_that_were_one_object_when_they_were_learned(kind: Any) -> None:
    ours, theirs, same = autogen.losses.CTCLoss(), nn.CTCLoss(), kind([1, 1, 1])
    for _ in range(3):
        ours(target_lengths=same, input_lengths=same, targets=TARGETS, log_probs=probabilities(0))
    found = []
    for loss in (ours, theirs):
        x = probabilities(1)
        value = loss(target_lengths=kind([3, 1, 2]), input_lengths=kind([6, 7, 8]), targets=TARGETS, log_probs=x.exp())
        found.append((value.detach(), *torch.autograd.grad(value, x, create_graph=True)))
    torch.testing.assert_close(*found)


def test_second_derivatives_of_ctc_with_lists() -> None:
    """Torch's formula, for the lists of the call."""
    ours, theirs = autogen.losses.CTCLoss(), nn.CTCLoss()
    for call in range(4):
        found = []
        for loss in (ours, theirs):
            x, steps, labels = (
                probabilities(call).detach().double().requires_grad_(),
                [7 - call, 8, 6],
                [3, 1, call % 3],
            )
            value = loss(x.square(), TARGETS, steps, labels)
            steps[1] = labels[1] = 0
            found.append(torch.autograd.grad(value, x, create_graph=True)[0])
        torch.testing.assert_close(*found)


def test_what_ctc_reads() -> None:
    loss, on = CTC(), {"device": "meta"}
    given: dict[str, Any] = {
        "log_probs": torch.empty(8, 3, 5, **on),
        "targets": torch.empty(3, 2, dtype=torch.int64, **on),
        "input_lengths": torch.empty(3, dtype=torch.int64, **on),
        "target_lengths": torch.empty(3, dtype=torch.int64, **on),
    }
    assert loss.reads(given) is None
    one_after_the_other = torch.empty(6, dtype=torch.int64, **on)
    for name, other in (
        ("input_lengths", [8, 8, 8]),
        ("target_lengths", torch.tensor([2, 2, 2])),
        ("targets", one_after_the_other),
        ("targets", torch.empty(2, 3, dtype=torch.int64, **on).t()),
    ):
        assert loss.reads({**given, name: other}) is not None


def test_each_geometry_has_a_plan(binds: list[str]) -> None:
    ours, theirs = autogen.losses.CosineEmbeddingLoss(), nn.CosineEmbeddingLoss()
    for rows, cols in [(4, 6)] * 3 + [(4, 9), (4, 70)] * 3:
        x, y = pairs(rows, cols)
        for first in (x, x.detach().t().contiguous().t().requires_grad_(), x.detach()):
            torch.testing.assert_close(gradients(ours, first, y, SIGNS), gradients(theirs, first, y, SIGNS))
        with torch.no_grad():
            torch.testing.assert_close(ours(x, y, SIGNS), theirs(x, y, SIGNS))
    signs = SIGNS == 1  # read as bytes
    for _ in range(3):
        torch.testing.assert_close(gradients(ours, x, y, signs), gradients(theirs, x, y, signs))
    del binds[:]
    ours(x, y, signs), ours(*pairs(4, 9), SIGNS)
    assert not binds


def test_layouts_of_upstream(binds: list[str]) -> None:
    ours, theirs = (of(reduction="none") for of in (autogen.losses.CosineEmbeddingLoss, nn.CosineEmbeddingLoss))
    upstream = torch.arange(8.0)
    negative = torch.complex(torch.zeros(4), torch.arange(4.0)).conj().imag
    for each in [upstream[:4], upstream[::2], torch.ones(()).expand(4), negative] * 3:
        own, their = (gradients(loss, *pairs(), SIGNS, upstream=each) for loss in (ours, theirs))
        torch.testing.assert_close(own, their)
    assert len(binds) == 2


def test_negative_upstream_gradients_before_there_is_a_plan() -> None:
    ours, theirs = (of(reduction="none") for of in (autogen.losses.CosineEmbeddingLoss, nn.CosineEmbeddingLoss))
    negative = torch.complex(torch.zeros(4), torch.arange(4.0)).conj().imag
    own, their = (gradients(loss, *pairs(), SIGNS, upstream=negative) for loss in (ours, theirs))
    torch.testing.assert_close(own, their)


def test_a_changed_margin_is_seen(binds: list[str]) -> None:
    ours, theirs = autogen.losses.CosineEmbeddingLoss(), nn.CosineEmbeddingLoss()
    for margin in (0.1, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.3, 0.1):
        ours.margin = theirs.margin = margin
        torch.testing.assert_close(gradients(ours, *pairs(), SIGNS), gradients(theirs, *pairs(), SIGNS))


def test_autocast(binds: list[str]) -> None:
    ours, theirs = autogen.losses.CosineEmbeddingLoss(), nn.CosineEmbeddingLoss()
    x, y = pairs(dtype=torch.bfloat16)
    for enabled in (True, True, True, False, False, False, True):
        with torch.autocast("cpu", enabled=enabled):
            own, their = (gradients(loss, x, y, SIGNS) for loss in (ours, theirs))
        torch.testing.assert_close(own, their, rtol=2e-2, atol=2e-2)
    del binds[:]
    torch.set_autocast_enabled("cuda", True)  # another device's
    try:
        for _ in range(4):
            assert ours(*pairs(3, dtype=torch.bfloat16), SIGNS[:3]).dtype == torch.bfloat16
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert len(binds) == 2  # until a plan is kept


@pytest.mark.interpreted  # a compiled kernel does not say which module it is from
def test_a_generated_kernel_is_asked_for(launches: Launches) -> None:
    ours = autogen.losses.CosineEmbeddingLoss()
    for chosen in ("default", "aggressive", "default"):
        with policy(chosen):
            for _ in range(3):
                ours(*pairs(), SIGNS)
        are_handwritten = [module == CosineEmbedding.__module__ for module in launches.take_modules()]
        assert are_handwritten == [chosen == "default"] * 3


def test_second_derivatives(binds: list[str]) -> None:
    found = []
    for loss in (autogen.losses.CosineEmbeddingLoss(), nn.CosineEmbeddingLoss()):
        for _ in range(4):
            x, y = pairs()
            (first,) = torch.autograd.grad(loss(x, y, SIGNS), x, create_graph=True)
            found.append(torch.autograd.grad(first.pow(2).sum(), x)[0])
    torch.testing.assert_close(found[:4], found[4:])


def _checkpointed(loss: Any) -> Any:
    return lambda *inputs: checkpoint(loss, *inputs, use_reentrant=False)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_checkpoints_of_cosine_save_the_same_when_they_run_again(before: int, binds: list[str]) -> None:
    """Whether forward takes the long way or the short one, and whether its sizes come again."""
    ours, theirs = autogen.losses.CosineEmbeddingLoss(), nn.CosineEmbeddingLoss()
    for _ in range(before):
        gradients(ours, *pairs(), SIGNS)
    for rows in (4, 4, 3, 2, 2, 4, 1, 3):
        inputs = *pairs(rows), SIGNS[:rows]
        torch.testing.assert_close(gradients(_checkpointed(ours), *inputs), gradients(theirs, *inputs))
    assert len(binds) == 2


@pytest.mark.parametrize(("kind", "are_joined", "before"), [(list, True, 0), (torch.tensor, False, 1), (list, True, 2)])
def test_checkpoints_of_ctc_save_the_same_when_they_run_again(
    kind: Any, are_joined: bool, before: int, binds: list[str]
) -> None:
    ours, theirs = autogen.losses.CTCLoss(), nn.CTCLoss()
    for call, rows in enumerate((3,) * before + (3, 2, 2, 1, 3, 1)):
        labels = [3, 1, 2][:rows]
        taken = [row[:length] for row, length in zip(TARGETS, labels, strict=False)]
        x = probabilities(call)[:, :rows].detach().requires_grad_()
        given = x, torch.cat(taken) if are_joined else TARGETS[:rows], kind([7, 8, 6][:rows]), kind(labels)
        run = ours if call < before else _checkpointed(ours)
        torch.testing.assert_close(gradients(run, *given), gradients(theirs, *given))
    assert len(binds) == 2


def test_what_has_no_kernel_is_generated_and_taken_apart_twice(binds: list[str], launches: Launches) -> None:
    """Calls between them that have a kernel take the short way as well, but for the first of each geometry."""
    ours, theirs = autogen.losses.InfoNCELoss(), autogen.losses.InfoNCELoss(use_autogen=False)
    for call in range(4):
        for cols, count in ((300, 4), (20, 2)):
            x, y = pairs(4, cols)
            x.data += call
            torch.testing.assert_close(gradients(ours, x, y), gradients(theirs, x, y))
            assert launches.take() == count
    assert len(binds) <= 4
    with policy("aggressive"):
        gradients(ours, *pairs(4, 20))
    assert launches.take() == 4
    gradients(ours, *pairs(4, 20))
    assert launches.take() == 2


@pytest.mark.parametrize("cols", [20, 300])  # with a kernel, and without
def test_attributes_that_change_between_calls(cols: int) -> None:
    ours = autogen.losses.InfoNCELoss()
    calls = [(0.07, "mean")] * 3 + [(0.5, "mean")] * 2 + [(0.2, "sum"), (0.07, "mean"), (1.0, "sum"), (1.0, "mean")]
    for rows, (temperature, reduction) in enumerate(calls, 4):
        ours.temperature, ours.reduction = temperature, reduction
        theirs = autogen.losses.InfoNCELoss(temperature, reduction, use_autogen=False)
        x, y = pairs(rows // 3 * 2, cols)
        torch.testing.assert_close(gradients(ours, x, y), gradients(theirs, x, y), rtol=1e-4, atol=1e-5)
