"""torch's own module tests of these losses, through ours: every input case of `module_db`, value and gradients.

The terminal summary shows on which path the cases ran.
"""

from __future__ import annotations

import collections
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db

import autogen.losses
from autogen import explain
from tests.interpret.beyond import BEYOND
from tests.interpret.compare import Call, check
from tests.interpret.covering import covering

DTYPES = (torch.float32, torch.float64)
PROJECTED = ("AdaptiveLogSoftmaxWithLoss", "LinearCrossEntropyLoss")
HANDWRITTEN = ("CTCLoss", "CosineEmbeddingLoss", "MultiLabelMarginLoss")
# torch has no cases for these.
WITHOUT_CASES = {"AdaptiveLogSoftmaxWithLoss", "NLLLoss2d", "TripletMarginLoss", "TripletMarginWithDistanceLoss"}
INFOS = [info for info in module_db if info.module_cls.__name__ in autogen.losses.__all__]


def calls(info: ModuleInfo, dtype: torch.dtype) -> list[Call]:
    """The cases of a class."""
    torch.manual_seed(0)
    cases = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=True)
    return [_call(info, case) for case in cases]


def _call(info: ModuleInfo, case: ModuleInput) -> Call:
    def named(function: Any, given: Any) -> dict[str, Any]:
        return inspect.signature(function).bind(*given.args, **given.kwargs).arguments

    options = named(info.module_cls, case.constructor_input)
    forward: Callable[..., Any] = info.module_cls.forward
    inputs = named(forward.__get__(object()), case.forward_input)
    given = tuple(inputs.values())
    call = Call(info.module_cls.__name__, options, two_sequences(*given) if info.module_cls is nn.CTCLoss else given)
    return Call(call.loss, options, call.inputs, tuple(tensor.requires_grad for tensor in call.tensors()))


def two_sequences(probs: Tensor, targets: Tensor, *lengths: Any) -> tuple[Any, ...]:
    """Of the three in a case of CTC, each of which takes a second."""
    if probs.dim() < 3:
        return probs, targets, *lengths
    inputs, labels = (each[:2] for each in lengths)
    return probs[:, :2], targets[: 2 if targets.dim() == 2 else int(sum(labels))], inputs, labels


MANY = ("CTCLoss", "CrossEntropyLoss", "LinearCrossEntropyLoss", "NLLLoss")  # whose cases take minutes
# The long ones have tests in double precision in files of their own.
ONCE = (*PROJECTED, "CTCLoss")
BOTH = [
    (info, dtype) for info in INFOS for dtype in DTYPES if dtype == DTYPES[0] or info.module_cls.__name__ not in ONCE
]


@pytest.mark.slow
@pytest.mark.parametrize(("info", "dtype"), BOTH, ids=lambda each: getattr(each, "name", str(each)))
def test_as_torch(info: ModuleInfo, dtype: torch.dtype, record_property: Callable[[str, object], None]) -> None:
    paths: collections.Counter[str] = collections.Counter()
    name = info.module_cls.__name__
    cases = calls(info, dtype)
    for call in covering(cases) if name in MANY else cases:
        ours = check(call, launches=None if call.loss in PROJECTED else (1, 1))
        paths[path_of(call) if ours.error is None else "torch raises"] += 1
    record_property("paths", (name, dict(paths)))
    expected = "partial" if name in PROJECTED else "handwritten" if name in HANDWRITTEN else "generated"
    also = {"generated"} if name == "LinearCrossEntropyLoss" else set()  # one row times a vector needs no product
    assert set(paths) == {expected} | also


def path_of(call: Call) -> str:
    """What `explain` says of the call."""
    return explain(getattr(autogen.losses, call.loss)(**call.options), *call.inputs).path


def test_all_the_classes_are_there() -> None:
    missing = set(autogen.losses.__all__) - BEYOND - {info.module_cls.__name__ for info in INFOS}
    assert missing == WITHOUT_CASES
