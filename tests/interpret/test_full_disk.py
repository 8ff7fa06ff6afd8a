"""A disk that takes nothing costs other processes their time, and is no error; where Triton needs it, torch runs."""

from __future__ import annotations

import ast
import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autogen import FallbackWarning, StorageError, autogen_loss, explain, policy
from autogen.runtime import build, launch
from tests.interpret.agreement import draw
from tests.interpret.processes import result_of, start

X, Y = draw("real", 6, 5), draw("real", 6, 5, seed=1).detach()

PROGRAM = """
import logging, os, resource, signal, sys
import torch
from autogen import losses, set_policy
folder, level = sys.argv[1:]
set_policy(level)

class Noted(logging.Handler):
    def emit(self, record):
        warnings.append(record.getMessage())

warnings = []
logging.getLogger("autogen").addHandler(Noted(logging.WARNING))
x, y = torch.randn(6, 5, requires_grad=True), torch.rand(6, 5)
losses.MSELoss()(x, y)  # torch itself writes when it first traces
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
before = sorted(os.listdir(folder))
for loss in (losses.SmoothL1Loss, losses.BCEWithLogitsLoss):
    for _ in range(2):
        loss()(x, y).backward()
assert sorted(os.listdir(folder)) == before
print(warnings)
"""


@pytest.mark.slow
@pytest.mark.parametrize("level", ["default", "mandatory"])
def test_losses_run_on_kernels_with_one_warning(level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv(build.CACHE_VARIABLE, str(folder))
    (warning,) = ast.literal_eval(result_of(start(PROGRAM, tmp_path, 1, str(folder), level)))
    assert warning.startswith(f"kernels cannot be kept in {folder}")


def fill_tritons_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton cannot keep what it compiles."""

    class Refused:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(launch.build, "load_function", lambda *_: Refused())


def test_triton_has_no_space_for_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    fill_tritons_disk(monkeypatch)
    loss = autogen_loss(nn.MSELoss())
    with pytest.warns(FallbackWarning, match="No space left on device") as warned:
        for _ in range(2):
            torch.testing.assert_close(loss(X, Y), nn.MSELoss()(X, Y))
    assert len(warned) == 1
    assert "No space left on device" in explain(loss, X, Y).reason
    with policy("mandatory"), pytest.raises(StorageError, match="TRITON_CACHE_DIR"):
        loss(X, Y)
