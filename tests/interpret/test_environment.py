"""Variables of the environment: what is not understood is an error of calls, and keeps nobody from importing."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from autogen import autogen_loss, explain, policy
from autogen.settings.options import RETRACE_VARIABLE, TUNE_VARIABLE, Options
from tests.interpret.agreement import draw
from tests.interpret.processes import result_of, start

X, Y = draw("real", 6, 5), draw("real", 6, 5, seed=1).detach()

CALL = """
import torch
from autogen import losses
try:
    losses.MSELoss()(torch.ones(3), torch.ones(3))
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("variable", "value", "choice"),
    [
        (TUNE_VARIABLE, "yes", "0, 1, profile, first_valid"),
        (RETRACE_VARIABLE, "true", "0, 1"),
    ],
)
def test_what_is_not_understood(
    variable: str, value: str, choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    expected = f"environment variable {variable}: {value!r} is not understood; choose from {choice}"
    loss = autogen_loss(nn.MSELoss())
    for call in (lambda: loss(X, Y), lambda: loss(X, Y), lambda: explain(loss, X, Y)):
        with pytest.raises(ValueError) as raised:
            call()
        assert str(raised.value) == expected
    with policy("disabled"):
        loss(X, Y)
    assert result_of(start(CALL, tmp_path, 1)) == expected


@pytest.mark.parametrize(("value", "expected"), [("", "changes"), ("0", "changes"), ("1", "every")])
def test_retrace(value: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RETRACE_VARIABLE, value)
    assert Options().retrace == expected and not Options().fault
