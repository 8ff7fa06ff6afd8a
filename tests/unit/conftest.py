"""Fixtures that several unit tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from autogen.runtime import build


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, on disk and in memory."""
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_functions", {})
    return tmp_path / "cache"
