"""Count kernel launches independently, at the interpreter's grid executor."""

from __future__ import annotations

from typing import Any

import pytest
from triton.runtime.interpreter import GridExecutor


class Launches:
    """Which kernels were launched since the last look."""

    def __init__(self) -> None:
        self._modules: list[str] = []

    def take(self) -> int:
        """How many launches there were since the last look."""
        return len(self.take_modules())

    def take_modules(self) -> list[str]:
        """The modules of the kernels that were launched since the last look."""
        modules, self._modules = self._modules, []
        return modules

    def note(self, module: str) -> None:
        """A kernel of a module is launched."""
        self._modules.append(module)

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count from now on."""
        launch = GridExecutor.__call__

        def counted(executor: GridExecutor, *args: Any, **kwargs: Any) -> Any:
            self.note(executor.fn.__globals__["__name__"])
            return launch(executor, *args, **kwargs)

        monkeypatch.setattr(GridExecutor, "__call__", counted)


LAUNCHES = Launches()
