"""InfoNCELoss and SupConLoss on their kernels, written by hand, against their formulas in double precision."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import autogen.losses
from autogen import autogen_loss, explain, policy
from autogen.losses import handwritten
from autogen.losses.handwritten import contrastive, contrastive_path
from autogen.losses.handwritten.contrastive_tiles import halves
from autogen.runtime.scratch import COUNTERS
from tests.interpret.launches import Launches
from tests.interpret.samples import Samples
from tests.interpret.strategies import Draw, layouts
from tests.tiers import examples

REDUCTIONS = ("none", "mean", "sum")
HALVES = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, *HALVES)
KINDS = ("in the batch", "negatives", "labels", "views")
# Of the greatest number of a result: half precision rounds it, and gradients of bfloat16 have factors that are rounded.
BOUNDS = {torch.float32: 3e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def drawn(kind: str, n: int, d: int, dtype: torch.dtype = torch.float32, *, m: int = 5, seed: int = 0) -> list[Tensor]:
    samples = Samples(dtype, seed)
    match kind:
        case "in the batch":
            return [samples.real(n, d), samples.real(n, d)]
        case "negatives":
            return [samples.real(n, d), samples.real(n, d), samples.real(m, d)]
        case "labels":
            return [samples.real(n, d), samples.label(3, n)]
    return [samples.real(n, 2, d), samples.label(3, n)]


def loss_of(kind: str, **options: Any) -> torch.nn.Module:
    """A loss whose calls run on tiles whatever their size is, or on torch."""
    loss = getattr(autogen.losses, "InfoNCELoss" if kind in KINDS[:2] else "SupConLoss")(**options)
    if "use_autogen" in options:
        return loss  # type: ignore[no-any-return]
    make = handwritten.make_info_nce if kind in KINDS[:2] else handwritten.make_sup_con
    return autogen_loss(loss, reads="arguments", handwritten=partial(make, always=True))  # type: ignore[no-any-return]


def asking(inputs: list[Tensor], wanted: tuple[bool, ...] = (True, True, True)) -> list[Tensor]:
    """Inputs of which the `wanted` ask for a gradient, if they can have one."""
    return [
        each.detach().requires_grad_(each.is_floating_point() and needs)
        for each, needs in zip(inputs, wanted, strict=False)
    ]


def results(loss: torch.nn.Module, inputs: list[Tensor], upstream: Tensor | None = None) -> list[Tensor]:
    value = loss(*inputs)
    if upstream is None:
        upstream = torch.linspace(0.5, 1.5, value.numel(), dtype=torch.float64).view(value.shape)
    wanted = [each for each in inputs if each.requires_grad]
    return [value.detach(), *torch.autograd.grad(value, wanted, upstream.to(value.dtype))]


def check(
    kind: str, inputs: list[Tensor], *, upstream: Tensor | None = None, error_of_terms: float = 5e-7, **options: Any
) -> None:
    """A call runs on the kernels, one each way, and gives what the formula gives in double precision."""
    with policy("mandatory"):
        loss = loss_of(kind, **options)
        assert explain(loss, *inputs).path == "handwritten"
        ours = results(loss, inputs, upstream)
    doubles = [each.double().detach().requires_grad_(each.requires_grad) for each in inputs]
    doubles = [d if i.is_floating_point() else i for i, d in zip(inputs, doubles, strict=True)]
    exact = results(loss_of(kind, **options, use_autogen=False), doubles, upstream)
    first = next(each for each in inputs if each.is_floating_point())
    shortest = min(each.detach().norm(dim=-1).min().item() for each in doubles if each.is_floating_point()) + 1e-12
    assert {each.dtype for each in ours} == {first.dtype}
    for name, got, expected in zip(("loss", "first", "second", "third"), ours, exact, strict=False):
        torch.testing.assert_close(got.isnan(), expected.isnan(), msg=name)
        # A loss is the difference of two logits, a derivative by one that of two numbers up to 1, with their errors.
        of_logits = 1 / loss.temperature
        least = of_logits if name == "loss" else (1 + of_logits) * of_logits / shortest
        bound = BOUNDS[first.dtype] * expected.nan_to_num(0).abs().max().item()
        bound += error_of_terms * least + torch.finfo(first.dtype).smallest_normal
        error = (got.double() - expected).nan_to_num(0).abs().max().item()
        assert error <= bound, f"{name}: off by {error:.1e}, with a bound of {bound:.1e}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kind", KINDS)
# One; fewer than a tile, and more; whole tiles; the longest embeddings that all dtypes have.
@pytest.mark.parametrize(("n", "d"), [(1, 3), (7, 5), (70, 67), (64, 128)])
def test_sizes(n: int, d: int, kind: str, reduction: str, dtype: torch.dtype) -> None:
    check(kind, asking(drawn(kind, n, d, dtype, m=33)), reduction=reduction)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_tiles_of_many(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """As large as they are where there are more programs than multiprocessors."""
    monkeypatch.setattr(contrastive_path, "_PROGRAMS", 1)
    for n, d in ((130, 80), (161, 67)):
        check(kind, asking(drawn(kind, n, d, dtype, m=140)))


@pytest.mark.parametrize(
    ("kind", "reduction"), [*((kind, "mean") for kind in KINDS), ("in the batch", "none"), ("labels", "sum")]
)
def test_columns_of_several_programs(kind: str, reduction: str) -> None:
    inputs = asking(drawn(kind, 20 if kind == "negatives" else 100 if kind == "views" else 200, 20, m=330))
    for _ in range(2):  # counters are 0 again
        check(kind, inputs, reduction=reduction)


@pytest.mark.parametrize("tiles", [1, 2, 3, 5, 8, 64, 1000])
@pytest.mark.parametrize("blocks", [1, 7, 100, 128, 384, 5000])
def test_no_part_of_the_columns_is_empty(blocks: int, tiles: int) -> None:
    for num_warps in (4, 8):
        parts = contrastive_path.parts_of_columns(blocks, tiles, num_warps)
        assert parts == 1 or blocks * parts * num_warps <= contrastive_path._PROGRAMS * contrastive_path._WARPS
        assert blocks < COUNTERS or parts == 1
        assert (parts - 1) * -(-tiles // parts) < tiles and (parts == 1 or 2 * parts <= tiles)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["in the batch", "labels"])
def test_sums_over_many(kind: str) -> None:
    """No sum is as long as there are others: tensor cores round towards zero, and errors would grow with it."""
    inputs = asking(drawn(kind, 512, 16))
    exact = [each.detach().double().requires_grad_() if each.is_floating_point() else each for each in inputs]
    expected = results(loss_of(kind, use_autogen=False), exact)
    for ours, other in zip(results(loss_of(kind), inputs), expected, strict=True):
        assert (ours.double() - other).abs().max() <= 1.5e-6 * other.abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_long_embeddings(dtype: torch.dtype) -> None:
    for kind in KINDS:
        check(kind, asking(drawn(kind, 35, 255, dtype)))


@pytest.mark.parametrize("wanted", [w for w in itertools.product((True, False), repeat=3) if any(w)])
def test_wanted_gradients(wanted: tuple[bool, ...]) -> None:
    for kind in KINDS[:2]:
        inputs = asking(drawn(kind, 9, 20), wanted)
        if any(each.requires_grad for each in inputs):
            check(kind, inputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("upstream", ["expanded", "strided"])
def test_upstream_gradients(upstream: str, kind: str) -> None:
    inputs = asking(drawn(kind, 20, 8))
    count = inputs[0].shape[:-1].numel()
    given = torch.tensor(0.25).expand(count) if upstream == "expanded" else torch.linspace(-1, 1, 2 * count)[::2]
    check(kind, inputs, upstream=given, reduction="none")


@pytest.mark.parametrize("kind", KINDS[:3])
def test_layouts(kind: str) -> None:
    """Embeddings are read where they are, and gradients written where those are."""
    for seed in range(3):
        plain = drawn(kind, 20, 17, seed=seed)
        turned = [each.t().contiguous().t() if each.dim() == 2 else each for each in plain]
        apart = [torch.cat([each, each], -1)[..., ::2] for each in plain]
        moved = [torch.cat([each.flatten()[:1], each.flatten()])[1:].view(each.shape) for each in plain]
        for inputs in (turned, apart, moved):
            check(kind, asking(inputs))
    check("in the batch", asking([plain[0][:1].expand(20, 17), plain[0]]))


@settings(max_examples=examples(40))
@given(st.data())
def test_any_call(data: st.DataObject) -> None:
    draw: Draw = data.draw
    kind, dtype = draw(st.sampled_from(KINDS)), draw(st.sampled_from(DTYPES))
    n, d, m = draw(st.integers(1, 90)), draw(st.integers(2, 70)), draw(st.integers(1, 70))
    inputs = drawn(kind, n, d, dtype, m=m, seed=draw(st.integers(0, 999)))
    if kind != "views":
        inputs = [draw(layouts(each)) for each in inputs]
    temperature = draw(st.sampled_from((0.01, 0.07, 0.5, 1.0, 30.0)))
    # Derivatives by logits are rounded to bfloat16 before they are added up, and may cancel.
    error = 4e-3 if dtype == torch.bfloat16 else 5e-7
    reduction = draw(st.sampled_from(REDUCTIONS))
    check(kind, asking(inputs), temperature=temperature, reduction=reduction, error_of_terms=error)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_size_of_all_pairs(kind: str, launches: Launches) -> None:
    """What is kept for backward are an embedding, and for rows two, and four numbers for each."""
    loss, inputs = loss_of(kind), asking(drawn(kind, 100, 8, m=100))
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes) or t, lambda t: t):
        value = loss(*inputs)
    of_padded = 3 * 128 * (2 * 2 * 16 + 4)  # halves of 16 dimensions, and an inv_norm
    assert sum(kept) <= sum(each.nbytes for each in inputs) + of_padded + 4 * (2 + 16) * 200 + 64
    launches.take()
    value.backward(retain_graph=True)
    first = inputs[0].grad.clone()
    value.backward()
    assert launches.take() == 2
    torch.testing.assert_close(inputs[0].grad, 2 * first, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_many_temperatures_are_one_kernel(kind: str) -> None:
    """As where it is annealed: it is a number that the kernel is given."""
    for temperature in (0.05, 0.1, 1.0):
        arguments = dict(zip(("query", "positive", "negatives") if "n" in kind[:2] else ("input", "target"),
                             drawn(kind, 8, 4), strict=False))  # fmt: skip
        made = contrastive.InfoNCE() if "query" in arguments else contrastive.SupCon()
        launch = made.forward(
            {
                "negatives": None,
                **arguments,
                "temperature": temperature,
                "reduction": "mean",
                "is_autocast": False,
                "wanted": (),
                "capability": None,
            }
        )
        assert "scale" not in launch.launches[-1].constants


@pytest.mark.parametrize("kind", KINDS)
def test_logits_far_below_0(kind: str) -> None:
    """Of one dimension, whose cosines are 1 and -1: what is beyond the last column is greater than all of a row."""
    loss, inputs = loss_of(kind, temperature=0.01, reduction="none"), asking(drawn(kind, 1, 1, m=1))
    inputs[0].data = (
        inputs[0].data.abs() * torch.tensor([1.0, -1.0])[: inputs[0].shape[1] if kind == "views" else 1, None]
    )
    ours = results(loss, inputs)
    for each in ours[1:]:
        assert each.abs().max() <= 1e-4, "directions of one dimension do not turn"


def test_a_pair_without_others_has_no_loss() -> None:
    """To the bit: its softmax is 1."""
    for seed in range(20):
        for each in results(loss_of("in the batch"), asking(drawn("in the batch", 1, 5, seed=seed))):
            assert torch.equal(each, torch.zeros_like(each))


def test_embeddings_of_no_length() -> None:
    """They are as torch has them: divided by the least length that counts."""
    for kind in KINDS[:3]:
        inputs = drawn(kind, 6, 8)
        inputs[0][2] = 0
        inputs[0][3] *= 1e-14
        check(kind, asking(inputs))


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("kind", ["in the batch", "labels"])
def test_no_numbers(kind: str, number: float) -> None:
    """A row whose logits are no numbers has others of its label all the same."""
    inputs = drawn(kind, 6, 8)
    inputs[0][2, 1] = number
    ours, theirs = (loss_of(kind, reduction="none", use_autogen=is_ours) for is_ours in (True, False))
    expected = theirs(*inputs).isnan()
    assert expected.any()
    torch.testing.assert_close(ours(*inputs).isnan(), expected)


@pytest.mark.parametrize("labels", [torch.bool, torch.uint8, torch.int32, torch.float32])
def test_dtype_of_labels(labels: torch.dtype) -> None:
    x, label = drawn("labels", 20, 8)
    check("labels", [*asking([x]), (label > 0).to(labels)])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_label_twice(reduction: str) -> None:
    (x,) = asking(drawn("labels", 20, 8)[:1])
    check("labels", [x, torch.arange(20)], reduction=reduction)


@pytest.mark.slow
def test_what_has_no_kernel(launches: Launches) -> None:
    """Such calls are generated around torch's products, and give the same."""
    narrow, wide = torch.randn(6, 20), torch.randn(6, 257)
    x, label = drawn("views", 6, 8)
    apart = x.transpose(0, 1).contiguous().transpose(0, 1)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("InfoNCELoss", (wide, torch.randn(6, 257))),
        ("InfoNCELoss", (wide.half(), torch.randn(6, 257).half())),
        ("InfoNCELoss", (narrow.double(), torch.randn(6, 20).double())),
        ("SupConLoss", (apart, label)),
    ]
    for name, tensors in calls:
        loss = getattr(autogen.losses, name)()
        inputs = asking(list(tensors))
        assert explain(loss, *inputs).path == "partial"
        launches.take()
        ours = results(loss, inputs)
        assert launches.take() == 4
        theirs = results(getattr(autogen.losses, name)(use_autogen=False), inputs)
        torch.testing.assert_close(ours, theirs, rtol=1e-2 if inputs[0].dtype.itemsize == 2 else 1e-5, atol=1e-4)
    with policy("aggressive"):
        assert explain(autogen.losses.InfoNCELoss(), *asking(drawn("in the batch", 6, 8))).path == "partial"


def test_on_amd_torch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert explain(autogen.losses.InfoNCELoss(), *asking(drawn("in the batch", 6, 8))).path == "partial"
    target = torch.tensor([1, 0])
    assert explain(autogen.losses.MultiLabelMarginLoss(), torch.randn(2), target).path == "handwritten"


def test_second_derivatives() -> None:
    inputs = [each.requires_grad_() for each in drawn("in the batch", 5, 4, torch.float32)]
    ours, theirs = (loss_of("in the batch", use_autogen=is_ours) for is_ours in (True, False))
    found = []
    for loss in (ours, theirs):
        (first,) = torch.autograd.grad(loss(*inputs), inputs[0], create_graph=True)
        found.append(torch.autograd.grad(first.pow(2).sum(), inputs))
    torch.testing.assert_close(*found)


def test_autocast() -> None:
    inputs = asking(drawn("in the batch", 9, 8))
    with torch.autocast("cpu", torch.bfloat16):
        ours = results(loss_of("in the batch"), inputs)
        theirs = results(loss_of("in the batch", use_autogen=False), inputs)
    assert [each.dtype for each in ours] == [each.dtype for each in theirs]
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_how_tensor_cores_multiply(dtype: torch.dtype) -> None:
    def is_exact(**autocast: bool) -> bool:
        x = torch.randn(4, 4, dtype=dtype)
        arguments = {"query": x, "positive": x, "negatives": None, "temperature": 0.1, "reduction": "mean", **autocast}
        return (
            contrastive.InfoNCE()
            .forward({**arguments, "wanted": (), "capability": None})
            .launches[-1]
            .arguments["rest_ptr"]
            is not None
        )

    assert is_exact(is_autocast=False) == (dtype == torch.float32)
    assert not is_exact(is_autocast=True)


@pytest.mark.slow
@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.usefixtures("fresh_dynamo")
def test_backward_multiplies_as_forward_did(monkeypatch: pytest.MonkeyPatch, *, is_compiled: bool) -> None:
    """Also outside of the autocast that forward ran in."""
    made: list[bool] = []
    common = contrastive.Contrastive._common

    def counted(self: Any, *args: Any) -> Any:
        found = common(self, *args)
        made.append(found["rest_ptr"] is not None)
        return found

    monkeypatch.setattr(contrastive.Contrastive, "_common", counted)
    ours = loss_of("in the batch")
    run = torch.compile(ours, backend="aot_eager", fullgraph=True) if is_compiled else ours
    for is_autocast in (True, False, True, False):
        for n in (6, 6, 6, 9):
            with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
                loss = run(*asking(drawn("in the batch", n, 4, torch.float32)))
            loss.backward()
        assert set(made) <= {not is_autocast}
        made.clear()


@triton.jit
def _store_halves(x_ptr: Any, high_ptr: Any, rest_ptr: Any, BLOCK: tl.constexpr) -> None:
    place = tl.arange(0, BLOCK)
    high, rest = halves(tl.load(x_ptr + place))
    tl.store(high_ptr + place, high)
    tl.store(rest_ptr + place, rest)


def test_halves_of_single_precision() -> None:
    """All that a number has, but for what is below all halves."""
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 2.0 ** torch.linspace(-30, 12, 4096)
    high, rest = (torch.empty_like(x, dtype=torch.float16) for _ in range(2))
    _store_halves[(1,)](x, high, rest, BLOCK=4096)
    lost = (high.double() + rest.double() - x).abs()
    assert (lost <= (2.0**-23 * x.abs()).clamp(min=2.0**-25)).all()


def test_a_method_of_a_subclass_counts(launches: Launches) -> None:
    class Doubled(autogen.losses.InfoNCELoss):
        def reduce(self, loss: Tensor, counted: Tensor | None = None) -> Tensor:
            return 2 * super().reduce(loss, counted)

    class Renamed(autogen.losses.InfoNCELoss):
        def extra_repr(self) -> str:
            return "renamed"

    inputs = asking(drawn("in the batch", 6, 8))
    plain = autogen.losses.InfoNCELoss()
    for _ in range(3):
        torch.testing.assert_close(Doubled()(*inputs), 2 * plain(*inputs))
    assert explain(Doubled(), *inputs).path == "partial" and explain(Renamed(), *inputs).path == "handwritten"
    plain.reduce = lambda loss: loss.sum()  # type: ignore[method-assign, assignment]
    torch.testing.assert_close(plain(*inputs), autogen.losses.InfoNCELoss(reduction="sum")(*inputs))


def test_embeddings_that_are_told_apart() -> None:
    """The loss is what the others leave of a softmax that is nearly 1."""
    x, labels = torch.eye(16).repeat_interleave(2, 0), torch.arange(16).repeat_interleave(2)
    loss = autogen.losses.SupConLoss(0.07)
    exact = autogen.losses.SupConLoss(0.07, use_autogen=False)(x.double(), labels)
    torch.testing.assert_close(loss(x, labels).double(), exact, rtol=2e-4, atol=0)  # eager: 1.6e-3
