"""Make folders that no other user can write to, for generated modules and tuned configurations."""

from __future__ import annotations

import functools
import logging
import os
import stat
from pathlib import Path

from autogen.errors import SharedCacheError

logger = logging.getLogger("autogen")


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for the user alone; one that is there stays as it is."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def refusal_of(*paths: Path) -> SharedCacheError | None:
    """Why some folders and files are not to be read: others may have made one, or may change it. That is said once."""
    for path in paths:
        if fault := _fault_of(path):
            _say(path, fault)
            return SharedCacheError(str(path), fault)
    return None


@functools.cache
def _say(path: Path, fault: str) -> None:
    logger.warning("what the cache has in %s is not used, as that %s", path, fault)


def _fault_of(path: Path) -> str:
    """What is wrong with what is at a path; empty if nothing is wrong, or nothing there.

    In a sticky folder, such as /tmp, everybody may make files, and change nobody else's.
    """
    if os.name != "posix":
        return ""
    try:
        state = path.stat()
    except OSError:
        return ""
    if state.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (uid {state.st_uid})"
    is_sticky = stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX
    if state.st_mode & 0o022 and not is_sticky:
        return f"can be written by other users (mode {stat.S_IMODE(state.st_mode):o})"
    return ""
