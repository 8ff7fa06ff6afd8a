"""Make a Triton function of a kernel's text, with a module file in the cache.

Profilers, debuggers and people read the source of a kernel from a file, so every module is written to one, named by the
hash of its text. A module is made of its text, not of the file, so that it is none the worse where that cannot be
written. Beside the modules are tuned configurations (`autogen.tuning.store`). The folder is `AUTOGEN_CACHE_DIR`, else
`autogen-loss` in the user's cache folder, which is another on each system; one that others can write to is refused.

Nothing on disk is pickled: there are sources, Triton's own cache, and JSON. Kernels are compiled without fusing
products with sums (`OPTIONS`), as forward and backward compute the same value twice and compare the two (`v ==
v.amax()`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import linecache
import logging
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import platformdirs

from autogen.errors import CompileError
from autogen.runtime.folders import make_private, refusal_of

logger = logging.getLogger("autogen")

OPTIONS: dict[str, Any] = {"enable_fp_fusion": False}
"""What Triton is told of every kernel. A product that is fused with a sum in one kernel, or in one loop, and not in
another is not the same number: what is compared with its own largest would find none.
"""

_MOST_THREADS = 1024  # of a program, on every GPU

CACHE_VARIABLE = "AUTOGEN_CACHE_DIR"

TUNED = "tuned"  # the folder below, of JSON files

# The whole names of what is ours: the user may keep other files in the folder, which are neither counted nor deleted.
_MODULE = r"\w+_[0-9a-f]{16}\.py"
_CONFIG = r"[0-9a-f]{24}\.json"

_MOST_CHARACTERS = 100  # of a kernel's name in that of its file

_UNFINISHED = ".tmp"
_BEGUN = rf"({_MODULE}|{_CONFIG})\.[a-z0-9_]{{8}}\{_UNFINISHED}"  # what writers that were killed have left

_functions: dict[tuple[str, str], Any] = {}


def cache_folder() -> Path:
    """Where generated modules are kept; made if need be, in the temporary folder if it cannot be written.

    One that cannot be written is used if it holds something, as in the image of a container. It is not there if no
    folder can be made: writers find that out. Whether others can write to it, readers find out (`is_own`).
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    folder = Path(os.devnull, "autogen-loss")  # which nobody can make
    reason = "it cannot be written"
    try:
        folder = Path(chosen).expanduser() if chosen else _users_folder()
        make_private(folder)
    except OSError as error:
        reason = error.strerror or str(error)
    except RuntimeError as error:  # nobody knows where a user's folder is
        reason = str(error)
    else:
        if os.access(folder, os.W_OK) or _is_filled(folder):
            return folder
    with contextlib.suppress(OSError):
        temporary = _temporary_folder()
        if chosen:
            _say_unused(chosen, temporary, reason)
        return temporary
    return folder


def _is_filled(folder: Path) -> bool:
    return os.path.isdir(folder / TUNED) or bool(_files(folder, _MODULE))


def _users_folder() -> Path:
    """Ours, where the system keeps what can be made again for a user.

    Raises:
        RuntimeError: neither the environment nor the system knows the user.
    """
    return platformdirs.user_cache_path("autogen-loss", appauthor=False).expanduser()  # a ~ is left of an unknown home


@functools.cache
def _say_unused(chosen: str, folder: Path, reason: str) -> None:
    logger.warning("the cache is in %s, as %s=%s cannot be used: %s", folder, CACHE_VARIABLE, chosen, reason)


def _temporary_folder() -> Path:
    user = f"-{os.getuid()}" if hasattr(os, "getuid") else ""  # Windows has a temporary folder for each user
    folder = Path(tempfile.gettempdir()) / f"autogen-loss{user}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def tuned_folder() -> Path:
    """Where tuned configurations are kept (`autogen.tuning.store`), beside the modules."""
    return cache_folder() / TUNED


def module_file(name: str, text: str) -> Path:
    """The file of a module, which holds its text if it can be written.

    Raises:
        SharedCacheError: others can write to the cache.
    """
    folder = cache_folder()
    if refusal := refusal_of(folder, folder / TUNED):
        raise refusal
    content = text.encode()
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)[:_MOST_CHARACTERS]  # which any file system takes
    path = folder / f"{plain}_{hashlib.sha256(content).hexdigest()[:16]}.py"
    try:
        if not _holds(path, content):
            write_whole(path, content)
    except OSError as error:
        _say_unwritten(path.parent, error.strerror or str(error))
    return path


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:  # it is not there, or no file, or cannot be read
        return False


@functools.cache
def _say_unwritten(folder: Path, reason: str) -> None:
    logger.warning("kernels cannot be kept in %s, so other processes generate them again: %s", folder, reason)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, whoever else writes it at the same time; its folder is made if need be."""
    make_private(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=_UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _files(folder: Path, name: str) -> list[Path]:
    """The files in a folder whose whole names match; none if there is no such folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [Path(e.path) for e in entries if re.fullmatch(name, e.name) and e.is_file(follow_symlinks=False)]
    return []


def is_own(path: Path) -> bool:
    """Whether a file in the cache can be read: nobody else has made it, or a folder it is in, or may change them."""
    cache = cache_folder()
    return refusal_of(*(each for each in (*path.parents[::-1], path) if each == cache or cache in each.parents)) is None


def tuned_configs() -> list[Path]:
    """The files of tuned configurations, in order of their names."""
    return sorted(_files(tuned_folder(), _CONFIG))


@dataclass(frozen=True)
class CacheContent:
    """What is in the cache: how many modules, and their bytes."""

    folder: Path
    modules: int
    size: int


def cache_content() -> CacheContent:
    """Look into the cache."""
    folder = cache_folder()
    sizes = []
    for path in _files(folder, _MODULE):
        with contextlib.suppress(OSError):  # another process may clear it now
            sizes.append(path.stat().st_size)
    return CacheContent(folder, len(sizes), sum(sizes))


def clear_cache() -> int:
    """Delete all modules, tuned configurations and leftovers, and nothing else; returns how many files.

    Processes that run go on with what they have loaded.
    """
    folder, cleared = cache_folder(), 0
    leftovers = *_files(folder, _BEGUN), *_files(folder / TUNED, _BEGUN)
    for path in (*_files(folder, _MODULE), *tuned_configs(), *leftovers):
        with contextlib.suppress(OSError):
            path.unlink()
            cleared += 1
    return cleared


def warps_within(num_warps: int, warp_size: int) -> int:
    """The warps of a program: as many as there is room for, where they have 64 threads, as on some of AMD's GPUs."""
    return min(num_warps, _MOST_THREADS // warp_size)


def load_function(name: str, text: str) -> Any:
    """The Triton function `name` of a module, generated or not.

    Raises:
        CompileError: Python does not take the text.
    """
    function = _functions.get((name, text))
    if function is None:
        path = module_file(name, text)
        try:
            function = getattr(_module(path, text), name)
        except (SyntaxError, RecursionError, MemoryError) as error:  # the last two of Python's own parser
            raise CompileError(name, cause=error) from error
        _functions[name, text] = function
    return function


def _module(path: Path, text: str) -> ModuleType:
    """A module of a text, as if it were imported from a file.

    What Python would keep of it beside the file is not used: it costs as much time to write as it saves, and a damaged
    one is an error.
    """
    file = os.path.abspath(path)
    module = ModuleType(f"autogen_generated.{path.stem}")
    module.__file__ = file
    # Triton asks `inspect` for the source, which looks here first; an entry without a time is not compared to the file.
    linecache.cache[file] = len(text), None, io.StringIO(text, newline=None).readlines(), file
    exec(compile(text, file, "exec", dont_inherit=True), vars(module))
    return module
