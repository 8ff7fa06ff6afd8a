"""Small layers, repositories of them, and classes whose `forward` they can replace."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Stub:
    """A repository with one layer, which returns its name."""

    name: str
    has_backward: bool = True
    can_torch_compile: bool = True
    takes_more: bool = False

    def load(self) -> type[nn.Module]:
        if self.takes_more:

            def forward(module: nn.Module, input: Any, target: Any, more: Any) -> str:
                return self.name

        else:

            def forward(module: nn.Module, input: Any, target: Any) -> str:  # type: ignore[misc]
                return self.name

        flags = {"has_backward": self.has_backward, "can_torch_compile": self.can_torch_compile}
        return type(self.name, (nn.Module,), {"forward": forward, **flags})


def new_class() -> type[nn.Module]:
    """A class of somebody else's."""

    class Theirs(nn.Module):
        def forward(self, input: Any, target: Any) -> str:
            return "theirs"

    return Theirs


def write_package(folder: Path, identity: str, result: str) -> Path:
    """A local repository of a layer `Theirs`, in plain Python."""
    variant = folder / "build" / "torch-universal"
    variant.mkdir(parents=True)
    metadata = {"name": "theirs", "id": identity, "version": 1, "license": "MIT", "python-depends": []}
    (variant / "metadata.json").write_text(json.dumps(metadata | {"backend": {"type": "cpu"}}))
    (variant / "__init__.py").write_text("from . import layers\n")
    body = f"class Theirs(nn.Module):\n    def forward(self, input, target):\n        return {result!r}\n"
    (variant / "layers.py").write_text("from torch import nn\n\n\n" + body)
    return folder


Result = Callable[[], str]
