"""The host time of a call stays near eager's; the bounds are loose here, as the machine is busy with other tests."""

from __future__ import annotations

import subprocess
import sys

from bench.host import BOUNDS, failures


def test_host_time_is_near_eagers() -> None:
    command = [sys.executable, "-m", "bench.host", "--seconds", "0.1", "--check", "--slack", "2", "--without-compile"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert all(loss in ran.stdout for loss in BOUNDS)


def test_a_ratio_above_its_bound_is_a_failure() -> None:
    columns = {"eager": 10.0, "autogen": 16.0}
    found = {"BCEWithLogits": {"forward": columns, "both": columns}}
    assert len(failures(found, 1.0)) == 2 and not failures(found, 2.0)
