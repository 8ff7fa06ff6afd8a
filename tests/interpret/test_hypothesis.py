"""Random calls of every loss against torch; see `strategies` for what they range over."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import autogen.losses
from tests.interpret.compare import check, differentiable
from tests.interpret.strategies import CLASSES, ELEMENTWISE, class_calls, elementwise_calls
from tests.interpret.table import ELSEWHERE
from tests.tiers import examples

EXAMPLES = 25
SLOW = ("CrossEntropyLoss", "MultiLabelSoftMarginLoss")  # of many options, each a capture of its own
pytestmark = pytest.mark.filterwarnings("ignore")


def test_every_loss_is_drawn() -> None:
    assert {*ELEMENTWISE, *CLASSES} | ELSEWHERE == set(autogen.losses.__all__)


@pytest.mark.cases(len(ELEMENTWISE) + len(CLASSES))
@pytest.mark.parametrize(
    "loss", [pytest.param(loss, marks=[pytest.mark.slow] * (loss in SLOW)) for loss in (*ELEMENTWISE, *CLASSES)]
)
@settings(max_examples=examples(EXAMPLES), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_as_torch(loss: str, data: st.DataObject) -> None:
    calls = class_calls if loss in CLASSES else elementwise_calls
    call = data.draw(calls(loss))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(differentiable(call), launches=None)
