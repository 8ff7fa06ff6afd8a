"""CTCLoss, whose kernels are written by hand, against torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import autogen.losses
from autogen import policy
from autogen.losses.handwritten import make_ctc
from tests.interpret.compare import Call, check
from tests.interpret.launches import Launches
from tests.interpret.strategies import DTYPES, UPSTREAMS, Draw, layouts
from tests.tiers import examples

REDUCTIONS = ("none", "mean", "sum")
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
inf, nan = math.inf, math.nan


def log_probs(steps: int, batch: int, classes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(steps, batch, classes, generator=generator, dtype=torch.float64).log_softmax(-1).to(dtype)


def call(*inputs: Any, upstream: str = "eighths", **options: Any) -> Call:
    return Call("CTCLoss", options, inputs, wanted=(True,), upstream=upstream)


def ragged(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, list[int], list[int]]:
    """Repeated labels, an empty target, a target as long as its input allows, inputs shorter than there are steps."""
    targets = torch.tensor([[1, 1, 2, 1], [3, 1, 2, 0], [2, 9, -1, 9], [9, 9, 9, 9]])
    return log_probs(7, 4, 4, dtype), targets, [7, 3, 6, 7], [4, 3, 1, 0]


def concatenated(targets: Tensor, lengths: Sequence[int]) -> Tensor:
    return torch.cat([row[:length] for row, length in zip(targets, lengths, strict=True)])


def arguments_of(*inputs: Any, **options: Any) -> dict[str, Any]:
    names = ("log_probs", "targets", "input_lengths", "target_lengths")
    return (
        dict(zip(names, inputs, strict=True))
        | {"blank": 0, "is_autocast": False, "reduction": "mean", "zero_infinity": False}
        | options
    )


def refusal_of(arguments: dict[str, Any], needs_gradient: Sequence[str] = ("log_probs",)) -> str | None:
    refusal = make_ctc().refuse(arguments, needs_gradient)
    if refusal is not None or make_ctc().reads(arguments) is None:
        return refusal
    found = make_ctc().read(arguments)
    return found if isinstance(found, str) else None


def with_what_is_read(arguments: dict[str, Any]) -> dict[str, Any]:
    names = make_ctc().reads(arguments)
    if names is None:
        return arguments
    read = make_ctc().read(arguments)
    assert not isinstance(read, str)
    return {**arguments, **read.sizes, **dict(zip(names, read.tensors, strict=True))}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_as_torch(reduction: str, zero_infinity: bool, dtype: torch.dtype) -> None:
    probs, targets, *lengths = ragged(dtype)
    options = {"reduction": reduction, "zero_infinity": zero_infinity}
    check(call(probs, targets, *map(torch.tensor, lengths), **options))
    check(call(probs, concatenated(targets, lengths[1]), *lengths, **options))


# One position; several programs for the other classes; more than one warp; a batch that is no power of two.
@pytest.mark.parametrize(
    ("steps", "batch", "classes", "labels"), [(1, 1, 1, 0), (3, 2, 300, 2), (40, 1, 3, 35), (2, 5, 2, 1)]
)
def test_sizes(steps: int, batch: int, classes: int, labels: int) -> None:
    targets = torch.arange(batch * labels).view(batch, labels) % max(classes - 1, 1)
    given = (log_probs(steps, batch, classes), targets, [steps] * batch, [labels] * batch)
    for reduction in REDUCTIONS:
        check(call(*given, blank=classes - 1, reduction=reduction))


@pytest.mark.parametrize("blank", range(4))
def test_blank(blank: int) -> None:
    probs, targets, *lengths = ragged()
    is_used = torch.arange(4) < torch.tensor(lengths[1])[:, None]
    others = torch.where(targets == blank, (blank + 1) % 4, targets).where(is_used, -1)
    check(call(probs, others, *lengths, blank=blank, reduction="none"))


@pytest.mark.parametrize("labels", [[1] * 9, [1, 2] * 6, [1, 1, 2, 2, 3, 1, 3, 1, 2], [1, 2, 3, 4, 5, 6, 7, 8]])
def test_repeated_labels(labels: list[int]) -> None:
    """Chains of equal labels of any length, whose shares are added up in rounds."""
    for dtype in (torch.float32, torch.float64):
        check(call(log_probs(20, 1, 9, dtype), torch.tensor([labels]), [20], [len(labels)]))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_without_a_batch(reduction: str) -> None:
    probs = log_probs(6, 1, 5)[:, 0]
    lengths = torch.tensor(5), torch.tensor(2)
    for each in ((5,), (2,)), lengths, [length.view(1) for length in lengths]:
        check(call(probs, torch.tensor([3, 1]), *each, reduction=reduction))
        check(call(probs, torch.tensor([[3, 1, 4]]), *each, reduction=reduction))


@pytest.mark.parametrize(("of_targets", "of_lengths"), list(zip(INTEGERS, reversed(INTEGERS), strict=True)))
def test_dtypes_of_integers(of_targets: torch.dtype, of_lengths: torch.dtype) -> None:
    probs, targets, *lengths = ragged()
    check(call(probs, targets.abs().to(of_targets), *(torch.tensor(each, dtype=of_lengths) for each in lengths)))


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_layouts(order: tuple[int, ...], upstream: str) -> None:
    probs, targets, *lengths = ragged()
    permuted = probs.permute(order).contiguous().permute([order.index(dim) for dim in range(3)])
    transposed = targets.t().contiguous().t()
    every_other = [torch.tensor(each).repeat_interleave(2)[::2] for each in lengths]
    check(call(permuted, transposed, *every_other, reduction="none", upstream=upstream))


@pytest.mark.parametrize("dim", range(3))
def test_expanded_log_probs(dim: int) -> None:
    """A gradient for every element, of those too that share memory."""
    probs, targets, *lengths = ragged()
    check(call(probs.narrow(dim, 1, 1).expand(probs.shape), targets, *lengths))


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("shift", [0.0, 20.0, -60.0])
def test_input_that_is_not_normalised(scale: float, shift: float) -> None:
    """The gradient is torch's all the same: with respect to normalised logarithms."""
    _, targets, *lengths = ragged()
    for dtype in (torch.float32, torch.float64):
        check(call((log_probs(7, 4, 4, dtype, seed=1) + 1) * scale + shift, targets, *lengths, reduction="none"))


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_impossible_targets(reduction: str, zero_infinity: bool) -> None:
    """Too few steps, none at all, and not one too few."""
    targets = torch.tensor([[1, 1], [1, 2], [1, 1], [1, 1], [1, 1]])
    options = {"reduction": reduction, "zero_infinity": zero_infinity}
    check(call(log_probs(3, 5, 3), targets, [2, 1, 3, 0, 0], [2, 2, 2, 2, 0], **options))


@pytest.mark.parametrize("value", [nan, -inf, -900.0])
@pytest.mark.parametrize("place", list(itertools.product((0, 2, 4), range(3))))
def test_special_values(place: tuple[int, int], value: float) -> None:
    """nan and probabilities of 0 spread as far as in torch, which depends on what alignments can be there."""
    step, label = place
    probs = log_probs(5, 2, 3)
    probs[step, 0, label] = value
    for zero_infinity in (False, True):
        given = (probs, torch.tensor([[1, 2], [2, 1]]), [5, 5], [2, 2])
        check(call(*given, reduction="none", zero_infinity=zero_infinity))


def test_long_input() -> None:
    """As accurate as torch where the loss is large."""
    targets = torch.arange(12).view(1, 12) % 5 + 1
    for dtype in (torch.float32, torch.float64):
        check(call(log_probs(100, 1, 6, dtype) * 3, targets, [99], [12], reduction="none"))


def test_autocast() -> None:
    """The result is in single precision, the gradient in the dtype of its input."""
    with torch.autocast("cpu", torch.bfloat16):
        for dtype in DTYPES:
            check(call(*ragged(dtype)))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradcheck(reduction: str) -> None:
    targets, lengths = torch.tensor([[1, 1], [2, 1]]), ([4, 3], [2, 1])
    logits = torch.randn(4, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = autogen.losses.CTCLoss(reduction=reduction)
    with policy("mandatory"):
        assert torch.autograd.gradcheck(lambda x: loss(x.log_softmax(-1), targets, *lengths), logits)


def test_the_same_every_time(launches: Launches) -> None:
    """One launch forward, one backward, the same bits; twice backward from one forward, too."""
    probs, targets, *lengths = ragged()
    probs.requires_grad_()
    results = []
    for _ in range(2):
        with policy("mandatory"):
            loss = autogen.losses.CTCLoss()(probs, targets, *lengths)
        assert launches.take() == 1
        for _ in range(2):
            results.append(torch.autograd.grad(loss, probs, retain_graph=True)[0])
            assert launches.take() == 1
    assert all(torch.equal(each, results[0]) for each in results)


def test_without_gradient(launches: Launches) -> None:
    with policy("mandatory"):
        value = autogen.losses.CTCLoss()(*ragged())
    assert not value.requires_grad and launches.take() == 1


def test_lengths_changed_after_forward() -> None:
    """Backward is of the call that was made."""
    gradients = []
    for home in (nn, autogen.losses):
        probs, targets, inputs, labels = ragged()
        loss = home.CTCLoss(reduction="sum")(probs.requires_grad_(), targets, inputs, labels)
        inputs[0], labels[0] = 5, 2
        gradients.append(torch.autograd.grad(loss, probs)[0])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("one_after_the_other", [False, True])
def test_plans_on_the_meta_device(one_after_the_other: bool, reduction: str) -> None:
    probs, targets, *lengths = ragged()
    targets = concatenated(targets, lengths[1]) if one_after_the_other else targets
    tensors = [each.to("meta") for each in (probs, targets, *map(torch.tensor, lengths))]
    for each in lengths, tensors[2:]:
        arguments = arguments_of(*tensors[:2], *each, reduction=reduction)
        assert refusal_of(arguments) is None
        arguments = with_what_is_read(arguments)
        forward = make_ctc().forward(arguments)
        backward = make_ctc().backward(arguments, forward.saved, torch.empty_like(forward.output), ("log_probs",))
        assert forward.output.shape == ((4,) if reduction == "none" else ())
        assert backward.gradients["log_probs"].shape == probs.shape
        for launch in (*forward.launches, *backward.launches):
            assert set(launch.arguments) == set(launch.kernel.arg_names) and launch.bytes_moved > 0
        assert len(forward.launches) == len(backward.launches) == 1


def test_lengths_out_of_range_of_a_gpu() -> None:
    """What nobody checks, as lengths stay on the GPU: kernels stay within bounds, the loss is nan."""
    probs, targets, *lengths = ragged()
    launch = make_ctc().forward(with_what_is_read(arguments_of(probs, targets, *lengths, reduction="none"))).launches[0]
    wrong = torch.tensor([8, 3, -1, 2**40]), torch.tensor([2, 5, 1, 0])
    changed = dict(zip(("input_lengths_ptr", "target_lengths_ptr"), wrong, strict=True))
    replace(launch, arguments={**launch.arguments, **changed})(torch.device("cpu"))
    assert launch.arguments["loss_ptr"].isnan().all()


def test_labels_out_of_range_of_a_gpu() -> None:
    """Labels that are no classes have probability 0, and get no gradient."""
    probs, targets, *lengths = ragged()
    arguments = with_what_is_read(arguments_of(probs, targets, *lengths, reduction="none"))
    forward = make_ctc().forward(arguments)
    wrong = torch.tensor([[1, 4, 2, 1], [3, 1, 2, 0], [-1, 9, 9, 9], [9, 9, 9, 9]])
    backward = make_ctc().backward({**arguments, "targets": wrong}, forward.saved, torch.ones(4), ("log_probs",))
    for launch in (*forward.launches, *backward.launches):
        replace(launch, arguments={**launch.arguments, "targets_ptr": wrong})(probs.device)
    assert forward.output.isinf().tolist() == [True, False, True, False]
    gradient = backward.gradients["log_probs"]
    assert gradient[:, 0].isnan().all() and not gradient[:, 1].isnan().any() and not gradient[:, 3].isnan().any()
    assert gradient[:6, 2].isnan().all() and not gradient[6:, 2].any()


_PROBS, _TARGETS, _INPUTS, _LABELS = ragged()
REFUSED = {
    "no batch": (_PROBS[:, :0], _TARGETS[:0], torch.ones(0, dtype=torch.int64), torch.ones(0, dtype=torch.int64)),
    "no steps": (_PROBS[:0], _TARGETS, [0] * 4, [0] * 4),
    "integers for log_probs": (_PROBS.long(), _TARGETS, _INPUTS, _LABELS),
    "four dimensions": (_PROBS[None], _TARGETS, _INPUTS, _LABELS),
    "targets of three dimensions": (_PROBS, _TARGETS[None], _INPUTS, _LABELS),
    "targets for another batch": (_PROBS, _TARGETS[:3], _INPUTS, _LABELS),
    "targets one after the other, too many": (_PROBS, torch.ones(9, dtype=torch.int64), _INPUTS, _LABELS),
    "input length too large": (_PROBS, _TARGETS, [8, 3, 6, 7], _LABELS),
    "input length negative": (_PROBS, _TARGETS, [-1, 3, 6, 7], _LABELS),
    "target length too large": (_PROBS, _TARGETS, _INPUTS, [5, 3, 1, 0]),
    "target length negative": (_PROBS, _TARGETS, _INPUTS, [-1, 3, 1, 0]),
    "lengths for another batch": (_PROBS, _TARGETS, _INPUTS[:3], _LABELS),
    "lengths of two kinds": (_PROBS, _TARGETS, _INPUTS, torch.tensor(_LABELS)),
    "lengths that are bare numbers": (_PROBS[:, 0], _TARGETS[0], 7, 4),
    "lengths that are not whole": (_PROBS, _TARGETS, torch.tensor(_INPUTS).float(), torch.tensor(_LABELS)),
}


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
def test_errors_are_those_of_torch(given: tuple[Any, ...]) -> None:
    assert refusal_of(arguments_of(*given), ()) is not None
    with pytest.raises(Exception) as theirs:
        nn.CTCLoss()(*given)
    with pytest.raises(theirs.type) as ours:
        autogen.losses.CTCLoss()(*given)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("options", [{"blank": -1}, {"blank": 4}, {"reduction": "all"}, {"zero_infinity": 1}])
def test_unknown_options(options: dict[str, Any]) -> None:
    assert refusal_of(arguments_of(*ragged(), **options), ()) is not None
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        autogen.losses.CTCLoss(**options)(*ragged())


def test_left_to_torch() -> None:
    """What torch does something for, but not these kernels."""
    probs, targets, *lengths = ragged()
    blank_in_target = targets.clone()
    blank_in_target[0, 1] = 0
    large = torch.ones(1, 4096, dtype=torch.int64)
    for inputs in (
        (probs, targets.double(), *lengths),
        (probs, blank_in_target, *lengths),
        (probs[:, :1], large, [7], [4096]),
    ):
        assert refusal_of(arguments_of(*inputs)) is not None
        assert torch.equal(autogen.losses.CTCLoss()(*inputs), nn.CTCLoss()(*inputs))
    assert refusal_of(arguments_of(probs[:, :1], large, [7], [4095])) is None
    assert refusal_of(arguments_of(*ragged()), ("log_probs", "targets")) is not None


@st.composite
def calls(draw: Draw) -> Call:
    dtype = draw(st.sampled_from(DTYPES))
    steps, batch, classes = (draw(st.integers(1, most)) for most in (9, 3, 6))
    most_labels = draw(st.integers(0, 6)) if classes > 1 else 0
    batched = draw(st.integers(0, 4)) > 0
    batch = batch if batched else 1
    inputs = [draw(st.integers(0 if draw(st.integers(0, 5)) == 0 else steps // 2, steps)) for _ in range(batch)]
    lengths = [draw(st.integers(0, most_labels)) for _ in range(batch)]
    blank = draw(st.integers(0, classes - 1))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    labels = torch.randint(0, max(classes - 1, 1), (batch, most_labels), generator=generator)
    targets = labels + (labels >= blank)
    if draw(st.booleans()):
        targets = concatenated(targets, lengths)
    values = torch.randn(steps, batch, classes, generator=generator, dtype=torch.float64)
    # In double precision, torch's own error is not known: that of a large exponent is many ulp.
    scales = (1.0,) if dtype == torch.float64 else (1.0, 30.0)
    values = values.log_softmax(-1) if draw(st.booleans()) else values * draw(st.sampled_from(scales))
    for value in draw(st.lists(st.sampled_from((-inf, nan, -104.0)), max_size=2)) if draw(st.booleans()) else ():
        values.view(-1)[draw(st.integers(0, values.numel() - 1))] = value
    probs = draw(layouts(values.to(dtype) if batched else values[:, 0].to(dtype)))
    targets = targets.to(draw(st.sampled_from(INTEGERS)))
    if targets.dim() == 2:  # of concatenated ones that have gaps, torch takes others: see below
        targets = draw(layouts(targets))
    as_tensors = draw(st.booleans())
    given = [torch.tensor(each) if as_tensors else tuple(each) for each in (inputs, lengths)]
    options = {
        "blank": blank,
        "reduction": draw(st.sampled_from(REDUCTIONS)),
        "zero_infinity": draw(st.booleans()),
    }
    return call(probs, targets, *given, upstream=draw(st.sampled_from(UPSTREAMS)), **options)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(call=calls())
def test_random_calls(call: Call) -> None:
    check(call)


def test_concatenated_targets_with_gaps() -> None:
    """torch 2.13 takes the labels of the second sequence from where they would be without gaps."""
    probs, targets = torch.randn(5, 3, 6).log_softmax(-1).requires_grad_(), torch.tensor([1, 2, 3, 4, 5, 1])
    with_gaps = torch.stack([targets, targets.roll(1)], 1)[:, 0]
    expected = nn.CTCLoss()(probs, targets, (5, 4, 5), (2, 1, 3))
    found = autogen.losses.CTCLoss()(probs, with_gaps, (5, 4, 5), (2, 1, 3))
    torch.testing.assert_close(found, expected)
    (gradient,), (exact,) = (torch.autograd.grad(loss, probs) for loss in (found, expected))
    torch.testing.assert_close(gradient, exact)
