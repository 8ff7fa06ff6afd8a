"""Looking after the cache of generated modules and configurations: what is counted, and what is deleted."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from autogen.__main__ import main
from autogen.runtime import build

TEXT = "def answer():\n    return 42\n"
pytestmark = pytest.mark.usefixtures("folder")


def test_the_command_lists_and_clears_the_cache(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["cache"])
    assert capsys.readouterr().out == f"{folder}: 0 modules, 0.0 KiB\n"
    build.load_function("answer", TEXT)
    build.module_file("other", TEXT)
    (folder / "answer_0123456789abcdef.py.half_new.tmp").write_text("half")
    main(["cache"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{folder}: 2 modules, ")
    main(["cache", "--clear"])
    assert "files deleted" in capsys.readouterr().out
    assert not [path for path in folder.rglob("*") if path.is_file()]
    assert build.load_function("answer", TEXT)() == 42


def test_the_command_names_a_folder_that_the_output_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "ö"))
    output = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(output, "ascii", write_through=True))
    main(["cache"])
    main(["cache", "--clear"])
    assert output.getvalue().count(rb"\xf6") == 2


OTHERS = ("train.py", "results.tmp", "tuned/mine.json", "mine/best.py", "__pycache__/train.cpython-311.pyc")
OTHER_FOLDERS = (
    "answer_0123456789abcdef.py",
    "tuned/0123456789abcdef76543210.json",
    "own",
)


def test_what_is_not_ours_is_neither_counted_nor_deleted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (*OTHERS, *OTHER_FOLDERS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for name in OTHERS:
        (folder / name).write_text("mine")
    for name in OTHER_FOLDERS:
        (folder / name).mkdir()
    build.module_file("answer", TEXT)
    build.write_whole(folder / "tuned" / "0123456789abcdef01234567.json", b"{}")
    assert all((folder / name).is_file() for name in OTHERS)
    assert build.cache_content().modules == 1
    main(["cache", "--clear"])
    assert capsys.readouterr().out.startswith("2 files deleted")
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted(folder / name for name in OTHERS)
    assert all((folder / name).is_dir() for name in OTHER_FOLDERS)


OURS = (
    "answer_0123456789abcdef.py",
    "tuned/0123456789abcdef01234567.json",
)


@pytest.mark.parametrize("name", OURS)
def test_what_a_killed_writer_leaves_is_known_as_ours(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", lambda *_: None)
    build.write_whole(folder / name, b"whole")
    assert [path for path in folder.rglob("*") if path.is_file()]
    assert build.clear_cache() == 1 and not [path for path in folder.rglob("*") if path.is_file()]
