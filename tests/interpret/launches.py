"""Kernel launches, counted from outside: whatever runs in Triton's interpreter goes through its grid executor."""

from __future__ import annotations

from typing import Any

import pytest
from triton.runtime.interpreter import GridExecutor


class Launches:
    """How many kernels were launched since the last look."""

    def __init__(self) -> None:
        self._count = 0

    def take(self) -> int:
        """The launches since the last call of this method."""
        count, self._count = self._count, 0
        return count

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count from now on."""
        launch = GridExecutor.__call__

        def counted(executor: GridExecutor, *args: Any, **kwargs: Any) -> Any:
            self._count += 1
            return launch(executor, *args, **kwargs)

        monkeypatch.setattr(GridExecutor, "__call__", counted)


LAUNCHES = Launches()
