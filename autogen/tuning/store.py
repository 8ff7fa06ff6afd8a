"""Store tuned configurations on disk, in a small JSON file for each kind of kernel, device and size.

    {"key": {"device": "NVIDIA H200, capability 9.0", "dtypes": ["float32"], "pattern": "…", …},
     "tuned": {"tiles": {"BLOCK": 8192}, "num_warps": 16, "looped": false, "speedup": 1.07}}

Files are written whole or not at all, so processes may share the folder. What cannot be read counts as not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autogen.runtime import build
from autogen.tiling.tiler import WARPS, Config

logger = logging.getLogger("autogen")

_NO_RECORD = (ValueError, TypeError, KeyError, AttributeError, OverflowError)  # the last is raised for an infinity


@dataclass(frozen=True)
class Key:
    """What a tuned configuration holds for: everything that decides about time, and nothing of the loss's arithmetic.

    `pattern` is that of the skeleton, in which are the classes of strides; `bucket` are rounded sizes.
    """

    device: str
    dtypes: tuple[str, ...]
    pattern: str
    bucket: tuple[int, ...]
    versions: str

    @property
    def file(self) -> Path:
        """Where the entry is kept."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:24]
        return build.tuned_folder() / f"{digest}.json"


@dataclass(frozen=True)
class Tuned:
    """A configuration that was found by timing, and how many times as fast as the default it was."""

    config: Config
    speedup: float = 1.0


def read(key: Key) -> Tuned | None:
    """What is kept under a key."""
    found = _entry(key.file)
    return found[1] if found is not None else None


def write(key: Key, tuned: Tuned) -> None:
    """Keep an entry. A disk that takes nothing costs other processes their time, and is no error."""
    text = json.dumps({"key": asdict(key), "tuned": to_record(tuned)}, indent=1)
    try:
        build.write_whole(key.file, f"{text}\n".encode())
    except OSError as error:
        logger.warning("a tuned configuration could not be kept: %s", error)


def entries() -> Iterator[tuple[Key, Tuned]]:
    """Everything that is kept."""
    for path in build.tuned_configs():
        found = _entry(path)
        if found is not None:
            yield found


def _entry(path: Path) -> tuple[Key, Tuned] | None:
    """What is in a file, if that is an entry whose key belongs there."""
    if not build.is_own(path):
        return None
    with contextlib.suppress(OSError, *_NO_RECORD, RecursionError):  # the last where JSON is nested too deep
        record = json.loads(path.read_text(encoding="utf-8"))
        key: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in record["key"].items()
        }
        found = Key(**key)
        return (found, from_record(record["tuned"])) if found.file.name == path.name else None
    return None


def to_record(tuned: Tuned) -> dict[str, Any]:
    """An entry as what JSON knows."""
    config = tuned.config
    found = {"tiles": dict(config.tiles), "num_warps": config.num_warps, "looped": config.looped}
    return {**found, "speedup": tuned.speedup}


def from_record(record: dict[str, Any]) -> Tuned:
    """The reverse of `to_record`.

    Raises:
        ValueError, TypeError, KeyError, AttributeError, OverflowError: it is no such record.
    """
    tiles = tuple((str(name), int(size)) for name, size in record["tiles"].items())
    config = Config(tiles, int(record["num_warps"]), bool(record["looped"]))
    if config.num_warps not in WARPS or any(size < 1 for _, size in tiles):
        raise ValueError(f"no kernel has {config}")
    return Tuned(config, float(record["speedup"]))
