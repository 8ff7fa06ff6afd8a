"""Few of many calls, two options at a time."""

from __future__ import annotations

import itertools

import torch

from tests.interpret.compare import Call
from tests.interpret.covering import covering


def test_all_pairs_of_options_are_there() -> None:
    options = [(a, b, c) for a in "xyz" for b in (1, 2, None) for c in (True, False)]
    calls = [Call("L1Loss", dict(zip("abc", each, strict=True)), (torch.zeros(2),)) for each in options]
    few = covering(calls)
    assert len(few) < len(calls) and few == [call for call in calls if any(call is each for each in few)]
    for first, second in itertools.combinations("abc", 2):
        shown = {(call.options[first], call.options[second]) for call in few}
        assert shown == {(call.options[first], call.options[second]) for call in calls}


def test_kinds_of_tensors_are_told_apart() -> None:
    inputs = [torch.zeros(2), torch.ones(3), torch.zeros(2, 1), torch.zeros(2).double(), torch.zeros(0)]
    assert [call.inputs[0].shape for call in covering([Call("L1Loss", {}, (each, 1)) for each in inputs])] == [
        (2,),
        (2, 1),
        (2,),
        (0,),
    ]
