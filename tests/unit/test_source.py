"""The user's line, where its file is no longer what was imported, or where there is none."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from torch import nn

from autogen.capture.source import innermost, line_of_trace, statement_at
from autogen.errors import SourceLine
from tests.unit.pipeline import joint_of, positive, program_of

TEXT = """
def loss(x):
    error = x.abs()
    return error.no_such_method()
"""


def where_of(loss: Any, x: torch.Tensor) -> SourceLine | None:
    """The innermost line of the error of a loss."""
    with pytest.raises(AttributeError) as caught:
        loss(x)
    return innermost(
        [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(caught.value.__traceback__)]
    )


def loss_of(text: str, filename: str) -> Any:
    scope: dict[str, Any] = {}
    exec(compile(text, filename, "exec"), scope)
    return scope["loss"]


@pytest.mark.parametrize("above", ["x = '''\n" * 7, "(\n" * 5, "\x00\n" * 9, ""])
def test_a_file_that_was_edited_since_it_was_imported(above: str, tmp_path: Path) -> None:
    file = tmp_path / "loss.py"
    loss = loss_of(TEXT, str(file))
    file.write_text(above + TEXT)
    where = where_of(loss, torch.ones(3))
    assert where is not None and (where.filename, where.lineno) == (str(file), 4)


def test_a_module_in_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("loss_in_archive.py", TEXT)
    monkeypatch.syspath_prepend(str(tmp_path / "archive.zip"))
    where = where_of(importlib.import_module("loss_in_archive").loss, torch.ones(3))
    assert where is not None and where.code == "return error.no_such_method()"


@pytest.mark.parametrize("filename", ["<string>", "<stdin>", "/deleted/loss.py"])
def test_a_line_without_a_text_is_a_place(filename: str) -> None:
    line = innermost([(filename, 4)])
    assert line == SourceLine(filename, 4, "") and str(line) == f"{filename}:4"


def test_which_line_is_the_users() -> None:
    here, in_torch, without_text = (__file__, 1), (nn.functional.__file__, 9), ("<string>", 2)
    assert innermost([here, without_text, in_torch]) == statement_at(*here)
    assert innermost([without_text, in_torch]) == SourceLine("<string>", 2, "")
    assert innermost([("<torch.nn.modules.loss>", 9)]) == statement_at(nn.modules.loss.__file__, 9)
    assert innermost([(torch.__file__, 9)]) is None


def test_a_statement_over_several_lines_is_joined(tmp_path: Path) -> None:
    file = tmp_path / "loss.py"
    file.write_text("x = f(\n    a,  # first\n    [b, c],\n)  # done\ny = '#'  # one\n")
    for line in (1, 2, 3):
        assert statement_at(str(file), line) == SourceLine(str(file), 1, "x = f(a, [b, c])")
    assert statement_at(str(file), 5) == SourceLine(str(file), 5, "y = '#'")
    assert line_of_trace(f'  File "{file}", line 5, in loss\n    y = 1\n') == statement_at(str(file), 5)
    assert line_of_trace(None) is None


def test_kernels_show_no_line_without_a_text() -> None:
    program, _ = program_of(loss_of("def loss(x):\n    return x.abs().sum()\n", "<string>"), positive(3))
    origins = program.provenance.origins.values()
    assert origins and all(origin.line is None for origin in origins)


def test_every_op_knows_its_line() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        error = x.abs()
        return error.exp().sum()

    nodes = [n for n in joint_of(loss, positive(3)).graph.nodes if "geometry" in n.meta and not n.meta["backward"]]
    assert {n.meta["origin"].code for n in nodes} == {"error = x.abs()", "return error.exp().sum()"}


def test_a_loss_of_torch_names_the_line_in_torch() -> None:
    (node,) = (n for n in joint_of(nn.MSELoss(), positive(3), positive(3)).graph.nodes if "mse_loss.d" in str(n.target))
    assert "mse_loss(" in node.meta["origin"].code


def test_a_step_of_torch_names_its_line() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        order = torch.cummax(x, 0).values
        return order.sum()

    (step,) = program_of(loss, positive(3).detach())[0].steps
    assert step.name == "cummax" and step.line is not None and step.line.code == "order = torch.cummax(x, 0).values"
