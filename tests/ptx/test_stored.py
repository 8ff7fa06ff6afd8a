"""What a process finds on disk it neither makes nor reads again; Triton finds the same kernels as without it."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from autogen.device_math.device import Unread
from autogen.device_math.logarithms import log1p


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes say, one after the other, that need the same loss."""
    folder = str(tmp_path_factory.mktemp("cache"))
    folders = {"TRITON_CACHE_DIR": folder, "AUTOGEN_CACHE_DIR": folder}
    environment = {**os.environ, **folders, "TRITON_INTERPRET": "0", "PYTHONPATH": "."}
    environment.pop("AUTOGEN_PLANS", None)
    command = [sys.executable, "-m", "tests.ptx.finding"]
    found = []
    for _ in range(2):
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert ran.returncode == 0, ran.stderr
        found.append(json.loads(ran.stdout))
    return found


def test_the_second_finds_what_the_first_has_kept(processes: list[dict[str, Any]]) -> None:
    assert [each["is_first"] for each in processes] == [True, False]


def test_triton_would_compute_the_keys_that_were_kept(processes: list[dict[str, Any]]) -> None:
    first, second = processes  # the second has read nothing before, like the first when it computed them
    assert first["kept"] == second["kept"] == second["computed"]
    assert all(first["kept"]) and len(set(first["kept"])) == 2


def test_no_function_that_kernels_call_is_read(processes: list[dict[str, Any]]) -> None:
    first, second = processes
    assert {"exp_nonpositive", "log", "max_over"} <= {*first["read"]}
    assert second["read"] == [] and second["called"] >= len(first["read"])


def test_no_pass_is_imported(processes: list[dict[str, Any]]) -> None:
    first, second = processes
    assert len(first["imported"]) == 6 and second["imported"] == []


def test_a_function_that_many_threads_read_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, lines_of = [], inspect.getsourcelines

    def slowly(function: Any) -> Any:
        reads.append(function)
        time.sleep(0.1)
        return lines_of(function)

    monkeypatch.setattr(inspect, "getsourcelines", slowly)
    function = Unread(log1p.fn)  # type: ignore[attr-defined]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: (function.arg_names, function.src, function.noinline), range(8)))
    assert len(reads) == 1 and found == [(["x"], log1p.src, None)] * 8  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="nothing"):
        _ = function.nothing
