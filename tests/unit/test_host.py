"""The host time of a call stays near eager's; the bounds are loose here, as the machine is busy with other tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import host


@pytest.mark.slow
def test_host_time_is_near_eagers(tmp_path: Path) -> None:
    as_installed = {**os.environ, "AUTOGEN_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "bench.host", "--seconds", "0.05", "--slack", "2", "--without-compile"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=as_installed)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert all(loss in ran.stdout for loss in host.cases())


@pytest.mark.parametrize(("slack", "status"), [("1", 1), ("2", 0)])
def test_a_ratio_above_its_bound_is_a_failure(
    slack: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"eager": 10.0, "autogen": 16.0, host.RATIO: 1.6}
    found = {"BCEWithLogits": {"forward": columns, "both": columns}}
    monkeypatch.setattr(host, "pretend", lambda: None)
    monkeypatch.setattr(host, "measure", lambda seconds, compiled: found)
    monkeypatch.setattr(sys, "argv", ["bench.host", "--slack", slack])
    assert host.main() == status
    printed = capsys.readouterr()
    assert printed.err.count("times eager, more than") == 2 * status and "1.60" in printed.out
