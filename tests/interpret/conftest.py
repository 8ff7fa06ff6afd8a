"""Let every test of this folder count launches from zero."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction

import autogen.dispatch.backend
import autogen.dispatch.site
from autogen import policy
from tests.interpret.bounds import Bounds
from tests.interpret.direct import DIRECT
from tests.interpret.launches import LAUNCHES, Launches
from tests.interpret.long_rows import short_of_room as short_of_room  # a fixture


@pytest.fixture(scope="session", autouse=True)
def _interpreted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Launches are counted, made by the host code of GPUs, and looked at, as an emulated GPU does by itself."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.config.option.emulate:
            LAUNCHES.patch(patch)
            DIRECT.patch(patch)
            Bounds().patch(patch)
            _patch_device_functions(patch)
        patch.setattr(autogen.dispatch.site, "MOST_CAPTURES", 1000)  # tests draw many kinds of calls
        yield


def _patch_device_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each call of a device function Triton patches its language, for half of its time; once is enough.

    The launch has patched `tl`, and takes it back. What functions of Triton's own library call, nobody takes back.
    """
    is_patched = False

    def call(function: InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_patched
        if not is_patched and any(each is tl.core for each in function.fn.__globals__.values()):
            interpreter._patch_lang(function.fn)
            is_patched = True
        return function.rewrite()(*args, **kwargs)

    monkeypatch.setattr(InterpretedFunction, "__call__", call)


@pytest.fixture(autouse=True)
def launches() -> Launches:
    """The launches since the test began."""
    LAUNCHES.take()
    return LAUNCHES


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """What `torch.compile` has compiled is forgotten, before and after the test."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The segments that were compiled, by their loss's name; none may run in torch."""
    names: list[str] = []
    compile_segment = autogen.dispatch.backend.compile_segment

    def counted(module: Any, inputs: Any, count: int, shapes: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        names.append(name)
        return compile_segment(module, inputs, count, shapes, name, *args, **kwargs)

    monkeypatch.setattr(autogen.dispatch.backend, "compile_segment", counted)
    with policy("mandatory"):
        yield names


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A table of the paths that tests recorded, one line per loss."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for report in terminalreporter.stats.get("passed", []):
        for name, value in getattr(report, "user_properties", ()):
            if name == "paths" and report.when == "call":
                table[value[0]].update(value[1])
    if table:
        terminalreporter.section("torch's module tests, by path")
    for loss, paths in sorted(table.items()):
        found = ", ".join(f"{count} {path}" for path, count in paths.items())
        terminalreporter.line(f"{loss:<30} {found}")
