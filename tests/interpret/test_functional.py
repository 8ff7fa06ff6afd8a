"""`autogen.functional` against torch's own operator tests: every sample input and every error input of `op_db`."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

import autogen.functional
from autogen import policy
from tests.interpret.compare import Call, check, differentiable, run
from tests.interpret.covering import covering
from tests.interpret.launches import Launches

INFOS = [info for info in op_db if info.name.removeprefix("nn.functional.") in autogen.functional.__all__]
SEQUENCES = 2  # of the 16 in a sample of CTC, each of which takes seconds
MANY = ("ctc_loss", "gaussian_nll_loss", "linear_cross_entropy", "nll_loss", "poisson_nll_loss")
pytestmark = pytest.mark.filterwarnings("ignore")


def name_of(info: OpInfo) -> str:
    return info.name.removeprefix("nn.functional.")


def call_of(info: OpInfo, sample: SampleInput) -> Call:
    inputs = tuple(each.detach() if isinstance(each, Tensor) else each for each in (sample.input, *sample.args))
    if info.name == "nn.functional.ctc_loss" and inputs[0].dim() == 3:
        inputs = (inputs[0][:, :SEQUENCES], *(each[:SEQUENCES] for each in inputs[1:]))
    return Call(name_of(info), sample.kwargs, inputs, functional=True)


def test_every_function_is_torchs() -> None:
    for name in autogen.functional.__all__:
        ours, theirs = getattr(autogen.functional, name), getattr(F, name)
        taken = [
            [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]
            for function in (ours, theirs)
        ]
        assert ours is not theirs and taken[0] == taken[1]
        assert ours.__module__ == "autogen.functional" and ours.__name__ == name


@pytest.mark.slow
@pytest.mark.parametrize("info", INFOS, ids=name_of)
def test_samples(info: OpInfo) -> None:
    torch.manual_seed(0)
    samples = info.sample_inputs("cpu", torch.float32, requires_grad=False)
    calls = [differentiable(call_of(info, sample)) for sample in samples]
    for call in covering(calls) if name_of(info) in MANY else calls:
        check(call, launches=None)


@pytest.mark.parametrize("info", [info for info in INFOS if info.error_inputs_func], ids=name_of)
def test_error_inputs(info: OpInfo, launches: Launches) -> None:
    """The type that torch raises, with its message, and nothing launched."""
    for error_input in info.error_inputs("cpu"):
        call = call_of(info, error_input.sample_input)
        theirs = run(torch.nn, call)
        assert isinstance(theirs.error, error_input.error_type)
        for level in ("default", "mandatory"):
            with policy(level):
                ours = run(autogen.losses, call)
            assert type(ours.error) is type(theirs.error), f"{call}: torch {theirs.error!r}, we {ours.error!r}"
            assert str(ours.error) == str(theirs.error)
            assert launches.take() == 0


def test_legacy_flags_warn_as_in_torch() -> None:
    x, t = torch.rand(3), torch.rand(3)
    with pytest.warns(UserWarning, match="size_average and reduce args will be deprecated"):
        value: Any = autogen.functional.mse_loss(x, t, size_average=False)
    torch.testing.assert_close(value, F.mse_loss(x, t, reduction="sum"))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["l1_loss", "mse_loss", "huber_loss"])
def test_weights_of_elements(name: str, reduction: str, launches: Launches) -> None:
    """Of `l1_loss`, torch tells no mode of its weight, nor a tracer that is one."""
    theirs, ours = getattr(F, name), getattr(autogen.functional, name)
    x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
    t, weight = torch.zeros(3, 4), torch.linspace(0, 2, 12).reshape(3, 4)
    values = [each(x, t, reduction=reduction, weight=weight) for each in (ours, theirs)]
    assert launches.take() == 1
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(value.sum(), x)[0] for value in values))
    for each in (ours, theirs):
        with pytest.raises(ValueError, match="same size"):
            each(x, t, weight=weight[:2])
