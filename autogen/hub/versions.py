"""Choose among versions of a layer in a local folder by bounds, as tags of the hub do."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels import LocalLayerRepository
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

_FOLDER = re.compile(r"v(\d+\.\d+\.\d+)")
_UPPER = {"<", "<=", "==", "===", "~="}


@dataclass(frozen=True)
class LocalVersions:
    """A layer in the newest of several local repositories whose version is within bounds.

    Args:
        path: a folder with one repository per version, in folders named `v<major>.<minor>.<patch>`.
        layer_name: the name of the layer in the repository.
        version: bounds as in PEP 440, such as `>=0.0.4,<0.1.0`. Without an upper one a UserWarning is given, as a later
            version may change what the layer does.

    Raises:
        ValueError: `version` is not understood.
        FileNotFoundError: from `repository`, `load` and registering: there is no folder, or no version fits.
    """

    path: Path
    layer_name: str
    version: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        try:
            bounds = SpecifierSet(self.version or "")
        except InvalidSpecifier:
            raise ValueError(f"version {self.version!r} is not understood; write bounds as '>=0.0.4,<0.1.0'") from None
        if not any(each.operator in _UPPER for each in bounds):
            warnings.warn(
                f"{self.layer_name} of {self.path} has no upper bound of its version, and a later one may change it; "
                "say for instance version='>=0.0.4,<0.1.0'",
                stacklevel=3,
            )

    def repository(self) -> LocalLayerRepository:
        """The repository of the newest version within the bounds."""
        if not self.path.is_dir():
            raise FileNotFoundError(f"there is no folder {self.path}; pass the one that has the versions in it")
        folders = (each for each in self.path.iterdir() if each.is_dir())
        known = {Version(match[1]): each for each in folders if (match := _FOLDER.fullmatch(each.name))}
        fitting = list(SpecifierSet(self.version or "").filter(known))
        if not fitting:
            there = ", ".join(map(str, sorted(known))) or "none"
            raise FileNotFoundError(
                f"no version of {self.layer_name} in {self.path} fits {self.version or 'any'!r}; there is {there}"
            )
        return LocalLayerRepository(known[max(fitting)], layer_name=self.layer_name)

    def load(self) -> Any:
        """The class of the layer."""
        return self.repository().load()

    def __str__(self) -> str:
        return f"{self.path}, version {self.version or 'any'}, layer {self.layer_name}"
