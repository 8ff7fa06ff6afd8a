"""Every test of this folder may count launches and starts from none."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interpret.launches import LAUNCHES, Launches


@pytest.fixture(scope="session", autouse=True)
def _counting() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        LAUNCHES.patch(patch)
        # torch's structured trace, meant for files, would bury every failure report.
        patch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
        yield


@pytest.fixture(autouse=True)
def launches() -> Launches:
    """The launches since the test began."""
    LAUNCHES.take()
    return LAUNCHES


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
