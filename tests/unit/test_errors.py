"""The errors say what was wrong, where and what to do, and they pickle."""

import copy
import inspect
import pickle
import sys
import traceback

import pytest

from autogen import errors
from autogen.errors import (
    AutogenError,
    CompileError,
    ConfigError,
    DataError,
    ExportError,
    GraphBreakError,
    GraphChangedError,
    GraphError,
    InternalError,
    RecompileLimitError,
    RefusedError,
    ScheduleError,
    SharedCacheError,
    SourceLine,
    StorageError,
    UnavailableError,
    UnsupportedOpError,
    ValueBranchError,
)
from autogen.runtime import availability

WHERE = SourceLine("loss.py", 12, "    return torch.cummax(x, 0)\n")
CAUSE = TypeError("no such overload.\nsecond line")

LOCATED = [
    UnsupportedOpError("aten.cummax.default", node="cummax_1", where=WHERE),
    ValueBranchError(".item()", where=WHERE),
    GraphBreakError("a generator", where=WHERE),
    ScheduleError("two reductions share no axis", where=WHERE),
]
UNLOCATED = [
    UnsupportedOpError("aten.cummax.default", node="cummax_1"),
    ValueBranchError(".item()"),
    GraphBreakError("a generator"),
    ScheduleError("two reductions share no axis"),
    GraphChangedError("Switched", "1 more operations, from exp.default on"),
    ConfigError("mse_loss_forward", "it has no ROWS", "It has BLOCK."),
    DataError("lengths[1] is -1", "A sequence has 0 elements or more."),
    RecompileLimitError("Annealed", "it was captured 16 times"),
    UnavailableError("Triton is not installed", remedy="Install it."),
    GraphError("Contrastive", "a result is a view of an input"),
    ExportError("InfoNCELoss", "torch runs mm between kernels", "Use the loss with autogen installed."),
    RefusedError("CTCLoss", "an empty target"),
    InternalError("BCELoss", cause=KeyError("x")),
    SharedCacheError("/cache", "belongs to another user (uid 65534)"),
    StorageError("bce_forward", cause=OSError(28, "No space left on device")),
    CompileError("bce_forward", cause=CAUSE),
]
ALL = LOCATED + UNLOCATED


@pytest.mark.parametrize(
    ("system", "remedy"), [("linux", "package triton."), ("win32", "package triton-windows."), ("darwin", "Use Linux")]
)
def test_a_missing_triton_names_its_package(system: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "has_triton", lambda: False)
    monkeypatch.setattr(sys, "platform", system)
    assert remedy in str(availability.refusal_of("cuda"))


def name(error: AutogenError) -> str:
    return type(error).__name__


def test_every_class_is_among_the_examples() -> None:
    classes = {c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, AutogenError)}
    assert {type(error) for error in UNLOCATED} == classes - {AutogenError}


def test_source_line_prints_file_line_and_code() -> None:
    assert str(WHERE) == "loss.py:12  return torch.cummax(x, 0)"


def test_source_line_without_code() -> None:
    assert str(SourceLine("<stdin>", 1, "")) == "<stdin>:1"


@pytest.mark.parametrize("error", ALL, ids=name)
def test_message_is_reason_then_remedy(error: AutogenError) -> None:
    assert isinstance(error, RuntimeError)
    assert str(error) == f"{error.reason}\n{error.remedy}"
    assert error.remedy not in error.reason
    assert "\n" not in error.reason
    assert error.remedy.endswith(".")


@pytest.mark.parametrize("error", LOCATED, ids=name)
def test_reason_names_the_source_line(error: AutogenError) -> None:
    assert error.where == WHERE
    assert error.reason.endswith(f", at {WHERE}")


@pytest.mark.parametrize("error", UNLOCATED, ids=name)
def test_no_source_line_is_made_up(error: AutogenError) -> None:
    assert error.where is None
    assert ", at " not in error.reason


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (LOCATED[0], {"op": "aten.cummax.default", "node": "cummax_1"}),
        (LOCATED[1], {"operation": ".item()"}),
        (UNLOCATED[-1], {"kernel": "bce_forward"}),
    ],
    ids=lambda value: name(value) if isinstance(value, AutogenError) else "",
)
def test_facts_are_attributes_and_in_the_reason(error: AutogenError, facts: dict[str, str]) -> None:
    for attribute, fact in facts.items():
        assert getattr(error, attribute) == fact
        assert fact in error.reason


def test_unsupported_op_outside_a_graph() -> None:
    assert UnsupportedOpError("aten.resize_").reason == "no kernel can be generated for aten.resize_"


@pytest.mark.parametrize("error", [InternalError("Loss", cause=CAUSE), UNLOCATED[-1]], ids=name)
def test_cause_is_chained_and_summarised(error: AutogenError) -> None:
    assert error.__cause__ is CAUSE
    assert "(TypeError: no such overload)" in error.reason
    assert "direct cause" in "".join(traceback.format_exception(error))


def test_cause_without_message_is_summarised_by_its_type() -> None:
    assert "(KeyboardInterrupt)" in InternalError("Loss", cause=KeyboardInterrupt()).reason


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", ALL, ids=name)
def test_pickle(error: AutogenError, protocol: int) -> None:
    restored = pickle.loads(pickle.dumps(error, protocol))
    assert type(restored) is type(error)
    assert str(restored) == str(error)
    assert restored.args == error.args
    assert vars(restored) == vars(error)


def test_copy() -> None:
    error = copy.copy(LOCATED[0])
    assert (str(error), vars(error)) == (str(LOCATED[0]), vars(LOCATED[0]))
