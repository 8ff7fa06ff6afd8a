"""What others may have written is not read: a cache that they can write to is refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from autogen import SharedCacheError, autogen_loss
from autogen.runtime import build
from autogen.runtime.folders import make_private
from autogen.tiling.tiler import Config
from autogen.tuning import store

TEXT = "def answer():\n    return 42\n"
KEY = store.Key("a device", ("float32",), "a pattern", (8,), "versions")
TUNED = store.Tuned(Config((("BLOCK", 8),), 4, False), 1.5)
pytestmark = [
    pytest.mark.usefixtures("folder"),
    pytest.mark.skipif(os.name != "posix", reason="others write to folders by POSIX's rules"),
]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a path another user's: by giving it away, which only root can, or by being somebody else."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 65534, -1)
        else:
            user = os.geteuid() + 1
            monkeypatch.setattr(os, "geteuid", lambda: user)

    return give


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777], ids=oct)
@pytest.mark.parametrize("below", ["", build.TUNED])
def test_a_folder_that_others_can_write_to_is_refused(below: str, mode: int, folder: Path) -> None:
    (folder / below).mkdir(parents=True)
    (folder / below).chmod(mode)
    with pytest.raises(SharedCacheError, match="can be written by other users") as raised:
        build.load_function("answer", TEXT)
    assert f"chmod go-w {folder / below}" in str(raised.value) and build.CACHE_VARIABLE in str(raised.value)
    (folder / below).chmod(mode & ~0o022)
    assert build.load_function("answer", TEXT)() == 42


@pytest.mark.parametrize("below", ["", build.TUNED])
def test_a_folder_of_another_user_is_refused(below: str, folder: Path, give_away: Callable[[Path], None]) -> None:
    (folder / below).mkdir(parents=True)
    give_away(folder / below)
    with pytest.raises(SharedCacheError, match="belongs to another user"):
        build.load_function("answer", TEXT)


@pytest.mark.parametrize("below", ["", build.TUNED])
def test_configurations_that_others_can_write_are_not_read(
    below: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.write(KEY, TUNED)
    assert store.read(KEY) == TUNED
    (folder / below).chmod(0o770)
    assert store.read(KEY) is None and not list(store.entries())
    (said,) = caplog.messages
    assert str(folder / below) in said and said.endswith("can be written by other users (mode 770)")
    assert build.clear_cache() == 1


def test_a_loss_says_so(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(SharedCacheError):
        autogen_loss(lambda x: (x * 3).sum(), policy="mandatory")(torch.ones(3))
    assert autogen_loss(lambda x: (x * 3).sum(), policy="default")(torch.ones(3)) == 9
    assert any(str(folder) in each.message for each in caplog.records if each.levelname == "WARNING")


@pytest.mark.parametrize("spoil", ["write", "give away"])
def test_files_of_others_in_a_sticky_folder_are_not_read(
    spoil: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder like /tmp may be the cache: others cannot change our files there, but make their own."""
    for each in (folder, folder / build.TUNED):
        each.mkdir()
        each.chmod(0o1777)
    store.write(KEY, TUNED)
    assert build.load_function("answer", TEXT)() == 42
    assert store.read(KEY) == TUNED and not caplog.records
    if spoil == "write":
        KEY.file.chmod(0o666)
    elif os.geteuid() == 0:
        os.chown(KEY.file, 65534, -1)
    else:
        pytest.skip("only root can give files away")
    for _ in range(2):
        assert store.read(KEY) is None and not list(store.entries())
    assert len(caplog.messages) == 1


def test_new_folders_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "a" / "b"))
    before = os.umask(0)
    try:
        store.write(KEY, TUNED)
    finally:
        os.umask(before)
    made = (tmp_path / "a", *(path for path in (tmp_path / "a").rglob("*") if path.is_dir()))
    assert KEY.file.parent in made
    assert {mode_of(each) for each in made} == {0o700}


def test_a_folder_that_is_there_keeps_its_mode(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    make_private(folder / "below")
    assert (mode_of(folder), mode_of(folder / "below")) == (0o755, 0o700)


@pytest.mark.parametrize("what", ["modules", "tuned"])
def test_a_filled_folder_that_cannot_be_written_is_read(
    what: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if what == "modules":
        build.module_file("answer", TEXT)
    else:
        store.write(KEY, TUNED)

    def fail(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(build.tempfile, "mkstemp", fail)
    assert build.cache_folder() == folder
    assert build.load_function("answer", TEXT)() == 42 and len(caplog.records) == (what != "modules")
    assert store.read(KEY) == (TUNED if what == "tuned" else None)
    for number in (43, 44):
        assert build.load_function("answer", TEXT.replace("42", str(number)))() == number
    (said,) = caplog.messages
    assert str(folder) in said and said.endswith("Read-only file system")
