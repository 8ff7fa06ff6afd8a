"""Hypothesis strategies: calls of every loss over shapes, layouts, dtypes, options, special values and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.interpret.compare import Call

Draw = Callable[[st.SearchStrategy[Any]], Any]
Shape = tuple[int, ...]

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# More than one block of a flat kernel; prime, odd, and with a tail.
LARGE = ((5003,), (71, 73), (3, 5, 337), (1, 4099))
SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 0)
UPSTREAMS = ("eighths", "ones", "expanded", "transposed", "sliced")

inf, nan = math.inf, math.nan
SPECIAL = {
    "real": (0.0, -0.0, inf, -inf, nan, 88.0, -88.0, 104.0, 1e4, -1e4, 1e-40, 1.0),
    "probability": (0.0, 1.0, 1e-12, 1e-40, 0.5),
    "positive": (0.0, 1.0, 1e-40, 1e4, inf, nan),
    # An infinite class weight is infinite times a log-probability of 0 where sums of log-softmax are split.
    "class_weight": (0.0, 1.0, 1e-40, 1e4, nan),
    "log_probability": (0.0, -inf, -104.0, -1e-8, nan),
    "sign": (1.0, -1.0),
    "variance": (1e-12, 1.0, 1e4, inf),
}


def shapes(rank: int = 5) -> st.SearchStrategy[Shape]:
    """Shapes of up to `rank` dimensions, now and then large ones, empty ones and scalars."""
    small = st.lists(st.sampled_from(SIZES), max_size=rank).map(tuple)
    return st.one_of(small, small, small, st.sampled_from(LARGE))


@st.composite
def smaller(draw: Draw, shape: Shape) -> Shape:
    """A shape that can be broadcast to `shape`; mostly itself."""
    if draw(st.integers(0, 3)):
        return shape
    kept = shape[draw(st.integers(0, len(shape))) :]
    return tuple(draw(st.sampled_from((size, 1))) for size in kept)


def _values(kind: str, shape: Shape, seed: int, scale: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    match kind:
        case "real":
            return (uniform - 0.5) * 6 * scale
        case "sign":
            return (uniform < 0.5) * 2.0 - 1.0
        case "log_probability":
            return (uniform * 0.98 + 0.01).log()
        case "positive" | "class_weight":
            return uniform * 5
    return uniform * 0.98 + 0.01


@st.composite
def tensors(draw: Draw, kind: str, shape: Shape, dtype: torch.dtype) -> Tensor:
    """A tensor of a kind in `SPECIAL`, in any memory layout."""
    scale = draw(st.sampled_from((1.0, 1.0, 30.0, 4000.0))) if kind == "real" else 1.0
    seed = draw(st.integers(0, 9999))
    values = _values(kind, shape, seed, scale)
    if values.numel() and draw(st.integers(0, 2)) == 0:
        for number in draw(st.lists(st.sampled_from(SPECIAL[kind]), max_size=3)):
            values.view(-1)[draw(st.integers(0, values.numel() - 1))] = number
    return draw(layouts(values.to(dtype)))


@st.composite
def layouts(draw: Draw, tensor: Tensor) -> Tensor:
    """The tensor in another memory layout; one that repeats elements changes them."""
    kind = draw(st.sampled_from(("dense", "dense", "permuted", "sliced", "offset", "expanded")))
    rank = tensor.dim()
    if rank == 0 or kind == "dense":
        return tensor
    if kind == "permuted":
        order = draw(st.permutations(range(rank)))
        return tensor.permute(order).contiguous().permute([order.index(dim) for dim in range(rank)])
    dim = draw(st.integers(0, rank - 1))
    if kind == "sliced":
        return (
            torch.cat([tensor, tensor], dim)
            .index_select(dim, _doubled(tensor.shape[dim]))
            .narrow(dim, 0, 2 * tensor.shape[dim])[(slice(None),) * dim + (slice(None, None, 2),)]
        )
    if kind == "offset":
        return torch.cat([tensor.narrow(dim, 0, min(1, tensor.shape[dim])), tensor], dim).narrow(
            dim, min(1, tensor.shape[dim]), tensor.shape[dim]
        )
    return tensor.narrow(dim, 0, min(1, tensor.shape[dim])).expand(tensor.shape)


def _doubled(size: int) -> Tensor:
    return torch.arange(size).repeat_interleave(2)


@st.composite
def dtypes(draw: Draw, base: torch.dtype) -> torch.dtype:
    """Mostly the base dtype, now and then another."""
    return base if draw(st.integers(0, 7)) else draw(st.sampled_from(DTYPES))


def _reductions(loss: str) -> st.SearchStrategy[str]:
    return st.sampled_from(("mean", "sum", "none", *(("batchmean",) if loss == "KLDivLoss" else ())))


# The kinds of the inputs of the losses whose inputs have one shape, and their options.
_number = st.sampled_from
_ELEMENTWISE: dict[str, tuple[tuple[str, ...], dict[str, st.SearchStrategy[Any]]]] = {
    "L1Loss": (("real", "real"), {}),
    "MSELoss": (("real", "real"), {}),
    "SmoothL1Loss": (("real", "real"), {"beta": _number((1.0, 0.5, 0.0, 1e-8, 1e4))}),
    "HuberLoss": (("real", "real"), {"delta": _number((1.0, 0.5, 1e-8, 1e4))}),
    "BCELoss": (("probability", "probability"), {}),
    "BCEWithLogitsLoss": (("real", "probability"), {}),
    "PoissonNLLLoss": (
        ("real", "positive"),
        {"log_input": st.booleans(), "full": st.booleans(), "eps": _number((1e-8, 0.5))},
    ),
    "GaussianNLLLoss": (("real", "real", "variance"), {"full": st.booleans(), "eps": _number((1e-6, 0.5))}),
    "HingeEmbeddingLoss": (("real", "sign"), {"margin": _number((1.0, 0.0, -1.0, 1e4))}),
    "SoftMarginLoss": (("real", "sign"), {}),
    "KLDivLoss": (("log_probability", "probability"), {"log_target": st.booleans()}),
    "MarginRankingLoss": (("real", "real", "sign"), {"margin": _number((0.0, 1.0, -1.0, 1e4))}),
    "MultiLabelSoftMarginLoss": (("real", "probability"), {}),
    "TripletMarginLoss": (
        ("real", "real", "real"),
        {
            "p": _number((2.0, 1.0, 3.0, 0.5, inf)),
            "swap": st.booleans(),
            "margin": _number((1.0, 0.1, 1e4)),
            "eps": _number((1e-6, 0.5)),
        },
    ),
    "TripletMarginWithDistanceLoss": (
        ("real", "real", "real"),
        {"swap": st.booleans(), "margin": _number((1.0, 0.1, 1e4))},
    ),
}
_WEIGHTS = {
    "BCELoss": ("weight",),
    "BCEWithLogitsLoss": ("weight", "pos_weight"),
    "MultiLabelSoftMarginLoss": ("weight",),
}
ELEMENTWISE = tuple(_ELEMENTWISE)


@st.composite
def elementwise_calls(draw: Draw, loss: str) -> Call:
    """A call of a loss whose inputs have one shape, or shapes that can be broadcast to it."""
    kinds, options = _ELEMENTWISE[loss]
    base = draw(st.sampled_from(DTYPES))
    shape = draw(shapes())
    given = {name: draw(strategy) for name, strategy in options.items()}
    given["reduction"] = draw(_reductions(loss))
    for name in _WEIGHTS.get(loss, ()):
        if draw(st.booleans()):
            given[name] = draw(tensors("positive", draw(smaller(shape)), draw(dtypes(base))))
    inputs = [draw(tensors(kinds[0], shape, base))]
    for kind in kinds[1:]:
        inputs.append(draw(tensors(kind, draw(smaller(shape)), draw(dtypes(base)))))
    if inputs[0].shape == inputs[1].shape and kinds[:2] == ("real", "real") and draw(st.integers(0, 4)) == 0:
        inputs[1] = inputs[0].to(inputs[1].dtype)  # nothing but ties
    return draw(_with_gradients(loss, given, inputs))


@st.composite
def class_calls(draw: Draw, loss: str) -> Call:
    """A call of a loss over classes."""
    base = draw(st.sampled_from(DTYPES))
    classes = draw(st.sampled_from((2, 3, 5, 7, 16, 1, 67, 1031)))
    spatial = () if loss == "MultiMarginLoss" else draw(st.lists(st.sampled_from((1, 2, 3, 5)), max_size=3))
    given: dict[str, Any] = {"reduction": draw(_reductions(loss))}
    batches = [3, 1, 5, 0, 17]
    if loss == "MultiMarginLoss" and given["reduction"] != "none":
        batches.remove(0)  # torch returns memory that nothing has written
    batch = draw(st.sampled_from(batches)) if spatial or draw(st.integers(0, 4)) else None
    shape = (classes,) if batch is None else (batch, classes, *spatial)
    outer = () if batch is None else (batch, *spatial)
    kind = "log_probability" if loss == "NLLLoss" else "real"
    if draw(st.booleans()):
        given["weight"] = draw(tensors("class_weight", (classes,), draw(dtypes(base))))
    if loss == "MultiMarginLoss":
        given |= {"p": draw(st.sampled_from((1, 2))), "margin": draw(st.sampled_from((1.0, 0.0, -1.0)))}
    else:
        given["ignore_index"] = draw(st.sampled_from((-100, 0, classes - 1, -1, classes)))
    if loss == "CrossEntropyLoss":
        given["label_smoothing"] = draw(st.sampled_from((0.0, 0.1, 1e-3, 1.0)))
    inputs = [draw(tensors(kind, shape, base))]
    if loss == "CrossEntropyLoss" and draw(st.integers(0, 2)) == 0:
        del given["ignore_index"]
        inputs.append(draw(tensors("probability", shape, draw(dtypes(base)))))
    else:
        inputs.append(draw(labels(classes, outer, given.get("ignore_index"))))
    return draw(_with_gradients(loss, given, inputs))


@st.composite
def labels(draw: Draw, classes: int, shape: Shape, ignored: int | None) -> Tensor:
    """Class indices; some of them ignored, or all."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    found = torch.randint(0, classes, shape, generator=generator)
    if ignored is not None:
        share = draw(st.sampled_from((0.0, 0.3, 1.0)))
        found = torch.where(torch.rand(shape, generator=generator) < share, ignored, found)
    return draw(layouts(found))


CLASSES = ("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss")


@st.composite
def _with_gradients(draw: Draw, loss: str, options: dict[str, Any], inputs: Sequence[Tensor]) -> Call:
    """The call, with a subset of its tensors to be differentiated and an upstream gradient."""
    call = Call(loss, options, tuple(inputs), upstream=draw(st.sampled_from(UPSTREAMS)))
    wanted = [draw(st.integers(0, 3)) > 0 for _ in call.tensors()]
    return Call(loss, options, call.inputs, tuple(wanted), call.upstream)
