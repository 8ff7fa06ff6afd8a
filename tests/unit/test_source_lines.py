"""The user's line, where its file is no longer what was imported, or where there is none."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from torch import Tensor

from autogen.errors import SourceLine, TraceError
from tests.unit.pipeline import positive, program_of, trace_of

TEXT = """
def loss(x, t):
    error = (x - t).abs()
    return error.no_such_method()
"""


def where_of(loss: Any, *tensors: Tensor) -> SourceLine | None:
    """The line that the error of a loss names."""
    with pytest.raises(TraceError) as caught:
        trace_of(loss, *tensors)
    assert isinstance(caught.value.__cause__, AttributeError)
    return caught.value.where


ABOVE = {
    "docstring": '"""Of several\nlines.\n\n\n\n"""\n',
    "string": "x = '''\n" * 7,
    "open": "(\n" * 5,
    "indented": "    a\n  b\n" * 3,
    "null": "\x00\n" * 9,
    "comments": "# more\n" * 9,
    "nothing": "",
}


@pytest.mark.parametrize("above", ABOVE)
def test_a_file_that_was_edited_since_it_was_imported(above: str, tmp_path: Path) -> None:
    file = tmp_path / "loss.py"
    scope: dict[str, Any] = {}
    exec(compile(TEXT, str(file), "exec"), scope)
    file.write_text(ABOVE[above] + TEXT)
    where = where_of(scope["loss"], positive(3), positive(3))
    assert where is not None and (where.filename, where.lineno) == (str(file), 4)


def test_a_module_that_is_loaded_again_has_the_lines_of_its_new_text(tmp_path: Path) -> None:
    file = tmp_path / "loss.py"
    for above in ("", "# more\n\n", "\n\n\n"):
        file.write_text(above + TEXT)
        scope: dict[str, Any] = {}
        exec(compile(above + TEXT, str(file), "exec"), scope)
        where = where_of(scope["loss"], positive(3), positive(3))
        assert where is not None and where.code == "return error.no_such_method()"


def test_a_module_in_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("loss_in_archive.py", TEXT)
    monkeypatch.syspath_prepend(str(tmp_path / "archive.zip"))
    where = where_of(importlib.import_module("loss_in_archive").loss, positive(3), positive(3))
    assert where is not None and where.code == "return error.no_such_method()"


@pytest.mark.parametrize("filename", ["<string>", "<stdin>", "/deleted/loss.py"])
def test_a_line_without_a_text_is_a_place(filename: str) -> None:
    scope: dict[str, Any] = {}
    exec(compile(TEXT, filename, "exec"), scope)
    where = where_of(scope["loss"], positive(3), positive(3))
    assert where == SourceLine(filename, 4, "") and str(where) == f"{filename}:4"


def test_it_is_preferred_to_a_line_in_torch() -> None:
    scope: dict[str, Any] = {"torch": torch}
    exec("def loss(x):\n    return torch.nn.functional.l1_loss(x, None)\n", scope)
    with pytest.raises(TraceError, match=r", at <string>:2\n"):
        trace_of(scope["loss"], positive(3))


def test_a_line_with_a_text_is_preferred() -> None:
    scope: dict[str, Any] = {}
    exec("def apply(function, x):\n    return function(x).no_such_method()\n", scope)
    where = where_of(lambda x: scope["apply"](torch.exp, x), positive(3))
    assert where is not None and where.filename == __file__ and "scope" in where.code


def test_kernels_show_no_line_without_a_text() -> None:
    scope: dict[str, Any] = {}
    exec("def loss(x):\n    return x.abs().sum()\n", scope)
    program, _ = program_of(scope["loss"], positive(3))
    origins = program.provenance.origins.values()
    assert origins and all(origin.line is None for origin in origins)
