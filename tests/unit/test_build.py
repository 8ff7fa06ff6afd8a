"""The cache of generated modules: written whole or not at all, and never the reason for a failure."""

from __future__ import annotations

import hashlib
import inspect
import linecache
import os
import pwd
import py_compile
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from platformdirs.macos import MacOS
from platformdirs.windows import Windows

from autogen.errors import SharedCacheError
from autogen.runtime import build

TEXT = "def answer():\n    return 42\n"
pytestmark = pytest.mark.usefixtures("folder")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_holds_the_text_and_is_named_by_it(folder: Path) -> None:
    path = build.module_file("answer", TEXT)
    assert path.parent == folder and path.name.startswith("answer_")
    assert path.read_text() == TEXT
    assert build.module_file("answer", TEXT + "\n") != path


@pytest.mark.parametrize("name", ["größe", "L" * 300], ids=["letters", "length"])
def test_any_file_system_takes_the_name_of_a_file(name: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = build.module_file(name, TEXT)
    assert path.name.isascii() and path.read_text() == TEXT and not caplog.records
    assert build.cache_content().modules == build.clear_cache() == 1


def test_the_same_text_is_written_once(folder: Path) -> None:
    before = build.module_file("answer", TEXT).stat()
    after = build.module_file("answer", TEXT).stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert len(files(folder)) == 1


@pytest.mark.parametrize("content", ["", "def answer(", "def answer():\n    return 41\n"])
def test_a_corrupt_file_is_a_miss(content: str) -> None:
    path = build.module_file("answer", TEXT)
    path.write_text(content)
    assert build.load_function("answer", TEXT)() == 42
    assert path.read_text() == TEXT


def test_a_file_that_is_no_text_is_a_miss() -> None:
    path = build.module_file("answer", TEXT)
    path.write_bytes(b"\xff\xfe\x00")
    assert build.load_function("answer", TEXT)() == 42


def compiled_by_python(path: Path) -> Path:
    """The file that Python keeps of a module."""
    return Path(py_compile.compile(str(path), doraise=True) or "")


@pytest.mark.parametrize("damage", [lambda whole: whole[: len(whole) // 2], lambda whole: whole[:16] + b"\xff" * 40])
def test_what_python_has_compiled_may_be_damaged(damage: Callable[[bytes], bytes]) -> None:
    compiled = compiled_by_python(build.module_file("answer", TEXT))
    compiled.write_bytes(damage(compiled.read_bytes()))
    assert build.load_function("answer", TEXT)() == 42


def test_a_write_that_fails_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    for number in (42, 43):
        assert build.load_function("answer", TEXT.replace("42", str(number)))() == number
    assert not files(folder)
    (record,) = caplog.records
    assert str(folder) in record.message and record.message.endswith("No space left on device")


def test_a_folder_in_the_place_of_a_module_is_left_alone() -> None:
    path = build.module_file("answer", TEXT)
    path.unlink()
    path.mkdir()
    assert build.load_function("answer", TEXT)() == 42
    assert path.is_dir()


def test_the_source_is_known_without_a_file() -> None:
    text = '# \x0c a page\ndef answer():\n    return "\u2028"\n'
    function = build.load_function("answer", text)
    build.clear_cache()
    linecache.checkcache()
    assert inspect.getsource(function) == text.split("\n", 1)[1]


def test_the_file_is_absolute(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(build.CACHE_VARIABLE, "cache")
    assert Path(build.load_function("answer", TEXT).__code__.co_filename).parent == folder


def test_no_folder_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(unusable(tmp_path / "file")))
    monkeypatch.setattr(build.tempfile, "tempdir", str(unusable(tmp_path / "temporary")))
    assert build.load_function("answer", TEXT)() == 42
    assert build.cache_content().modules == 0 and build.clear_cache() == 0


def test_many_writers_at_once_leave_one_whole_file(folder: Path) -> None:
    text = TEXT + "# padding\n" * 5000
    seen: list[str] = []

    def write() -> None:
        for _ in range(20):
            build.module_file("answer", text)
            seen.append(build.module_file("answer", text).read_text())

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [text] * 80
    assert len(files(folder)) == 1


def test_the_same_text_is_the_same_function(monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.load_function("answer", TEXT)
    assert build.load_function("answer", TEXT) is first
    other = build.load_function("answer", TEXT.replace("42", "43"))
    assert (first(), other()) == (42, 43)


def test_a_new_process_reads_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    path = build.module_file("answer", TEXT)
    monkeypatch.setattr(build, "_functions", {})
    inode = path.stat().st_ino
    assert build.load_function("answer", TEXT)() == 42
    assert path.stat().st_ino == inode


def test_the_folder_is_the_users_cache_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(build.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert build.cache_folder() == tmp_path / "xdg" / "autogen-loss"


@pytest.mark.parametrize(("system", "below"), [(Windows, "autogen-loss/Cache"), (MacOS, "Library/Caches/autogen-loss")])
def test_the_folder_is_the_systems_own(
    system: type, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(build.CACHE_VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("platformdirs.windows.get_win_folder", lambda name: str(tmp_path))
    monkeypatch.setattr(platformdirs, "PlatformDirs", system)
    assert build.cache_folder() == tmp_path / below


def test_a_system_without_user_ids_has_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(unusable(tmp_path / "file")))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    monkeypatch.delattr(os, "getuid")
    assert build.cache_folder() == tmp_path / "autogen-loss"


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user whom neither the environment nor the system knows, with a temporary folder."""

    def unknown(uid: int) -> Any:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_user_without_a_home(homeless: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.cache_folder() == folder
    monkeypatch.delenv(build.CACHE_VARIABLE)
    assert build.cache_folder().parent == homeless
    assert build.load_function("answer", TEXT)() == 42
    monkeypatch.setenv("XDG_CACHE_HOME", str(homeless / "xdg"))
    assert build.cache_folder() == homeless / "xdg" / "autogen-loss"


def test_a_user_without_a_home_where_no_folder_can_be_made(homeless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(build.CACHE_VARIABLE)
    monkeypatch.setattr(build.tempfile, "tempdir", str(unusable(homeless / "temporary")))
    assert build.load_function("answer", TEXT.replace("42", "44"))() == 44
    assert not build.cache_folder().exists()


def test_a_tilde_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(build.CACHE_VARIABLE, "~/kernels")
    assert build.cache_folder() == tmp_path / "kernels"


def unusable(path: Path) -> Path:
    """A place where no folder can be made, whoever asks: below a file."""
    path.write_text("")
    return path / "cache"


def test_an_unusable_folder_falls_back_to_a_private_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(unusable(tmp_path / "file")))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    assert build.load_function("answer", TEXT)() == 42
    (fallback,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert stat.S_IMODE(fallback.stat().st_mode) & 0o077 == 0
    assert len(files(fallback)) == 1


@pytest.mark.parametrize("place", ["below a file", "of nobody"])
def test_a_chosen_folder_that_is_not_used_is_said_once(
    place: str, homeless: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = "~/kernels" if place == "of nobody" else str(unusable(homeless / "file"))
    monkeypatch.setenv(build.CACHE_VARIABLE, chosen)
    folders = {build.cache_folder() for _ in range(3)}
    assert [folder.parent for folder in folders] == [homeless]
    (said,) = caplog.messages
    assert f"{build.CACHE_VARIABLE}={chosen} cannot be used" in said and str(*folders) in said
    monkeypatch.delenv(build.CACHE_VARIABLE)
    caplog.clear()
    assert build.cache_folder() in folders and not caplog.messages  # nobody chose one


def test_a_temporary_folder_that_others_may_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(unusable(tmp_path / "file")))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    build.cache_folder().chmod(0o777)
    with pytest.raises(SharedCacheError, match="can be written by other users"):
        build.module_file("answer", "")


def test_a_folder_that_cannot_be_written_falls_back(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder)  # as it is for another user
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    assert build.cache_folder().parent == tmp_path
    assert build.cache_folder() != folder


WRITER = """
import sys, itertools
from autogen.runtime import build
for number in itertools.count():
    text = "def answer():\\n    return %d\\n" % (number % 5) + "# padding\\n" * 50000
    assert build.load_function("answer", text)() == number % 5
    build._functions.clear()
    if sys.argv[1] != "forever" and number == int(sys.argv[1]):
        break
"""


def start(times: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, times], stderr=subprocess.PIPE)


def is_whole(path: Path) -> bool:
    return path.stem.endswith(hashlib.sha256(path.read_bytes()).hexdigest()[:16])


@pytest.mark.slow
def test_twenty_processes_start_on_one_cache(folder: Path) -> None:
    writers = [start("9") for _ in range(20)]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors.decode()
    modules = list(folder.glob("*.py"))
    assert len(modules) == 5 and all(map(is_whole, modules))
    assert not list(folder.glob("*.tmp"))


def test_writers_that_are_killed_leave_a_usable_cache(folder: Path) -> None:
    for delay in (0.0, 0.01, 0.03, 0.07, 0.11, 0.2):
        for path in folder.glob("*.py"):
            path.unlink()  # so that each writes again
        writer = start("forever")
        deadline = time.monotonic() + 60
        while not [*folder.glob("*.py"), *folder.glob("*.tmp")] and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(delay)
        writer.kill()
        writer.communicate()
        assert all(map(is_whole, folder.glob("*.py")))
    survivor = start("9")
    _, errors = survivor.communicate(timeout=60)
    assert survivor.returncode == 0, errors.decode()
    assert all(map(is_whole, folder.glob("*.py")))
