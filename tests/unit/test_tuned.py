"""Tuned configurations on disk: JSON that processes share, and that is a miss where anything is wrong with it."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autogen.__main__ import main
from autogen.runtime import build
from autogen.tiling.tiler import WARPS, Config
from autogen.tuning import store
from tests.unit.tuned import folder

__all__ = ["folder"]  # a fixture


def entry(**changes: Any) -> store.Key:
    key = store.Key("H200, capability 9.0", ("float32",), "rows: a0 < s0", (1024, 16, 1, 0), "triton 3.7")
    return replace(key, **changes)


TUNED = store.Tuned(Config((("ROWS", 2), ("COLS", 1024)), 4, True), 1.25)


class TestStore:
    @given(
        st.dictionaries(st.sampled_from(["BLOCK", "ROWS", "COLS"]), st.integers(1, 2**16)),
        st.sampled_from(WARPS),
        st.booleans(),
    )
    def test_configurations_go_through_json(self, tiles: dict[str, int], warps: int, looped: bool) -> None:
        tuned = store.Tuned(Config(tuple(tiles.items()), warps, looped), 1.5)
        assert store.from_record(json.loads(json.dumps(store.to_record(tuned)))) == tuned

    def test_what_was_written_is_read(self) -> None:
        assert store.read(entry()) is None
        store.write(entry(), TUNED)
        assert store.read(entry()) == TUNED
        assert list(store.entries()) == [(entry(), TUNED)]

    def test_each_part_of_the_key_counts(self) -> None:
        store.write(entry(), TUNED)
        others = {"device": "H100", "dtypes": ("float16",), "pattern": "", "bucket": (2048, 16, 1, 0), "versions": ""}
        assert set(others) == {field.name for field in fields(store.Key)}
        for name, value in others.items():
            assert store.read(entry(**{name: value})) is None, name

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b"\xff\xfe",
            b'{"key": {}, "tuned": {}}',
            b'{"key": 1, "tuned": 2}',
            b"[" * 100_000,
        ],
        ids=range(8),
    )
    def test_a_corrupt_entry_is_a_miss(self, content: bytes) -> None:
        store.write(entry(), TUNED)
        entry().file.write_bytes(content)
        assert store.read(entry()) is None and not list(store.entries())
        store.write(entry(), TUNED)
        assert store.read(entry()) == TUNED

    @pytest.mark.parametrize(
        "change",
        [
            {"num_warps": 3},
            {"num_warps": "many"},
            {"num_warps": math.inf},
            {"tiles": {"ROWS": 0}},
            {"tiles": {"ROWS": math.inf}},
            {"tiles": None},
            {"speedup": 10**400},
        ],
        ids=str,
    )
    def test_a_record_of_no_configuration_is_a_miss(self, change: dict[str, Any]) -> None:
        store.write(entry(), TUNED)
        record = json.loads(entry().file.read_text())
        record["tuned"] |= change
        entry().file.write_text(json.dumps(record))
        assert store.read(entry()) is None

    @pytest.mark.parametrize("change", [{"bucket": None}, {"bucket": ["a", "b", "c"]}, {"dtypes": [1]}], ids=str)
    def test_a_key_that_was_edited_is_a_miss(self, change: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
        store.write(entry(), TUNED)
        record = json.loads(entry().file.read_text())
        record["key"] |= change
        entry().file.write_text(json.dumps(record))
        assert store.read(entry()) is None and not list(store.entries())
        main(["cache"])
        assert "tuned:" not in capsys.readouterr().out

    def test_another_key_under_the_same_name_is_a_miss(self) -> None:
        store.write(entry(device="H100"), TUNED)
        os.replace(entry(device="H100").file, entry().file)
        assert store.read(entry()) is None

    def test_a_disk_that_takes_nothing_is_no_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(os, "replace", fail)
        store.write(entry(), TUNED)
        assert store.read(entry()) is None

    def test_many_writers_leave_one_whole_entry(self, folder: Path) -> None:
        context = multiprocessing.get_context("fork")
        writers = [context.Process(target=_write_often, args=(warps,)) for warps in WARPS[:4]]
        for each in writers:
            each.start()
        while any(each.is_alive() for each in writers):
            found = store.read(entry())
            assert found is None or found.config.num_warps in WARPS
        assert [each.exitcode for each in writers] == [0] * 4
        assert store.read(entry()) is not None
        assert [path.suffix for path in folder.iterdir()] == [".json"]

    def test_the_command_lists_and_clears(self, capsys: pytest.CaptureFixture[str]) -> None:
        store.write(entry(), TUNED)
        (build.tuned_folder() / "0123456789abcdef01234567.json.half_new.tmp").write_text("")
        main(["cache"])
        line = capsys.readouterr().out.splitlines()[-1]
        assert "ROWS 2, COLS 1024 in steps, 4 warps" in line and "1.25" in line and "1024x16" in line and "H200" in line
        main(["cache", "--clear"])
        assert capsys.readouterr().out.startswith("2 files") and not list(store.entries())


def _write_often(warps: int) -> None:
    for _ in range(50):
        store.write(entry(), replace(TUNED, config=replace(TUNED.config, num_warps=warps)))
