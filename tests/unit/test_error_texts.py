"""What each error prints, whole, as docs/errors.md shows it: every one is provoked as a user would meet it.

Where the cause is a bug of this package, or a device, it is simulated.
"""

from __future__ import annotations

import errno
import inspect
import linecache
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from triton.runtime.errors import OutOfResources

import autogen.compiler
from autogen import aot, autogen_loss, errors, losses
from autogen.dispatch import site
from autogen.runtime import launch
from autogen.scheduling.launches.kernel import Kernel

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
RAISED = [
    name
    for name, each in inspect.getmembers(errors, inspect.isclass)
    if issubclass(each, (errors.AutogenError, Warning)) and each is not errors.AutogenError  # the base of the others
]
X, Y = torch.rand(4, 6, requires_grad=True), torch.rand(4, 6)


def printed_on_the_page(name: str) -> str:
    """The example in the section of a class."""
    found = re.search(rf"^## {name}\n.*?^```text\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None and "\n## " not in found.group(), f"docs/errors.md has no example of {name}"
    return found.group(1)


def check(said: Warning | BaseException, *paths: Path) -> None:
    """Compare the text of an error with the page, where the user's file is loss.py, and its line 7."""
    where = getattr(said, "where", None)
    assert where is None or linecache.getline(where.filename, where.lineno).strip() == where.code.strip()
    text, _, _ = str(said).partition("\n\nWhile executing")  # which torch.fx adds to what is raised in its graphs
    text = re.sub(r"\S*test_error_texts\.py:\d+", "loss.py:7", text)
    for path in paths:
        text = text.replace(str(path), "/path/to/cache")
    assert text == printed_on_the_page(type(said).__name__)


def provoked(name: str, call: Callable[[], object]) -> BaseException:
    with pytest.raises(getattr(errors, name)) as raised:
        call()
    assert type(raised.value).__name__ == name
    return raised.value


def determinant(x: Tensor) -> Tensor:
    return torch.linalg.det(x)


def test_unsupported_op_error() -> None:
    loss = autogen_loss(determinant, policy="mandatory")
    check(provoked("UnsupportedOpError", lambda: loss(torch.eye(3))))


class Selected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * x[grad.nonzero()[:, 0]].sum()


def test_value_branch_error() -> None:
    loss = autogen_loss(lambda x: Selected.apply(x).sum(), policy="mandatory")
    check(provoked("ValueBranchError", lambda: loss(X)))


def test_fallback_warning() -> None:
    loss = autogen_loss(determinant)
    with pytest.warns(errors.FallbackWarning) as warned:
        loss(torch.eye(3))
    (said,) = warned
    assert said.filename == __file__ and isinstance(said.message, Warning)
    check(said.message)


def test_recompile_limit_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "MOST_CAPTURES", 16)  # the tests of other folders set another
    options = {"name": ""}

    @autogen_loss(policy="mandatory", cpu="eager")
    def scaled(x: Tensor) -> Tensor:
        return x.sum() * len(options["name"])

    def call() -> None:
        for length in range(17):
            options["name"] = "a" * length
            scaled(Y)

    check(provoked("RecompileLimitError", call))


def test_graph_break_error() -> None:
    @autogen_loss(policy="mandatory")
    def clipped(x: Tensor, y: Tensor) -> Tensor:
        error = (x - y).abs()
        if error.max() > 3:
            error = error.clamp(max=3)
        return error.mean()

    check(provoked("GraphBreakError", lambda: clipped(X, Y)))


def test_graph_changed_error() -> None:
    @autogen_loss(static_graph=True)
    def switched(x: Tensor, squared: bool) -> Tensor:
        return x.square().mean() if squared else x.abs().mean()

    switched(X, True)
    check(provoked("GraphChangedError", lambda: switched(X, False)))


def test_config_error() -> None:
    loss = autogen_loss(losses.MSELoss(), config={"ROWS": 4})
    check(provoked("ConfigError", lambda: loss(X, Y)))


def test_data_error() -> None:
    check(provoked("DataError", lambda: autogen.ragged(torch.rand(5, 2), lengths=[2, 1, 4])))


def test_schedule_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kernel, "holds", lambda *_: False)
    loss = autogen_loss(lambda x: x.logsumexp(1).sum(), policy="mandatory")
    check(provoked("ScheduleError", lambda: loss(X)))


def test_unavailable_error() -> None:
    loss = autogen_loss(torch.abs, policy="mandatory")
    check(provoked("UnavailableError", lambda: loss(torch.ones(3, dtype=torch.complex64))))


def test_graph_error() -> None:
    @autogen_loss(policy="mandatory")
    def noisy(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5).mean()

    step = torch.compile(lambda x: noisy(x) * 2, backend="aot_eager")
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as raised:  # torch's own, which prints ours
        step(X)
    assert str(raised.value.inner_exception) in str(raised.value)
    check(raised.value.inner_exception)


def test_export_error(tmp_path: Path) -> None:
    def ranked(x: Tensor) -> Tensor:
        return x.sort().values[:, 0].mean()

    check(provoked("ExportError", lambda: autogen.export(ranked, [X], tmp_path / "loss.py", format="module")))


def test_refused_error() -> None:
    kernels = aot.kernels_of(losses.InfoNCELoss(), X, Y)
    check(provoked("RefusedError", lambda: aot.compile_kernel(kernels[0], aot.TARGETS["gfx942"])))


def test_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> NoReturn:
        raise KeyError("an_index")

    monkeypatch.setattr(autogen.compiler, "lower", broken)
    loss = autogen_loss(losses.MSELoss(), policy="mandatory")
    check(provoked("InternalError", lambda: loss(X, Y)))


def refuse(monkeypatch: pytest.MonkeyPatch, cause: Exception) -> None:
    """Have Triton refuse each kernel."""

    class Refused:
        def __getitem__(self, grid: tuple[int, ...]) -> NoReturn:
            raise cause

    monkeypatch.setattr(launch.build, "load_function", lambda *_: Refused())


def test_compile_error(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, OutOfResources(300_000, 232_448, "shared memory"))
    loss = autogen_loss(losses.MSELoss(), policy="mandatory")
    check(provoked("CompileError", lambda: loss(X, Y)))


def test_storage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
    loss = autogen_loss(losses.MSELoss(), policy="mandatory")
    check(provoked("StorageError", lambda: loss(X, Y)))


def test_shared_cache_error(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    loss = autogen_loss(losses.MSELoss(), policy="mandatory")
    check(provoked("SharedCacheError", lambda: loss(X, Y)), folder)


def test_each_class_is_provoked_documented_and_exported() -> None:
    tests = {name.removeprefix("test_").replace("_", "") for name in globals() if name.startswith("test_")}
    assert [name for name in RAISED if name.lower() not in tests] == []
    rows = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\) \| \S.+ \| \S.+ \|$", PAGE, re.MULTILINE)
    assert sorted(rows) == [(name, name.lower()) for name in RAISED]
    assert set(RAISED) <= set(autogen.__all__)
