"""Plans on disk: what one process has compiled, the next one launches, and traces nothing."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autogen import autogen_loss, explain, losses, trace_count
from autogen.dispatch import stored
from autogen.options import PLANS_VARIABLE
from autogen.runtime import build
from tests.interpret.agreement import draw, labels
from tests.interpret.launches import Launches
from tests.interpret.pairs import FIRST, pair
from tests.interpret.processes import result_of, start
from tests.interpret.table import Row

X, Y = draw("real", 6, 5), draw("real", 6, 5, seed=1).detach()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and plans kept in it."""
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(PLANS_VARIABLE)
    return tmp_path / build.PLANS


def plans(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*/*{build.PLAN}"))


class Scaled(nn.Module):
    """A loss with a buffer, a parameter and a number."""

    def __init__(self, margin: float = 0.5) -> None:
        super().__init__()
        self.margin = margin
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 5))
        self.register_buffer("shift", torch.linspace(-1, 1, 5))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        error = (x - y - self.shift).abs() * self.weight
        return torch.where(error > self.margin, error, error**2).mean()


def again(make: Callable[[], Any]) -> Any:
    """A loss as another process would decorate it: nothing of it is compiled."""
    return autogen_loss(make(), policy="mandatory")


def agrees(loss: Any, plain: Any, *inputs: Any) -> None:
    """The loss gives what torch gives, and so do its gradients."""
    results = []
    for each in (loss, plain):
        leaves = [t.detach().requires_grad_(t.requires_grad) if isinstance(t, Tensor) else t for t in inputs]
        value = each(*leaves)
        value.sum().backward()
        results.append([value.detach(), *(leaf.grad for leaf in leaves if getattr(leaf, "requires_grad", False))])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_the_next_process_traces_nothing(folder: Path, launches: Launches) -> None:
    for traces in (1, 0, 0):
        loss = again(Scaled)
        launches.take()
        agrees(loss, Scaled(), X, Y)
        assert launches.take() == 2
        assert trace_count(loss) == traces
        for _ in range(3):  # the short way, too
            agrees(loss, Scaled(), X, Y)
        assert trace_count(loss) == traces
    assert len(plans(folder)) == 1


@pytest.mark.parametrize("row", [row for row in FIRST if row.loss != "KLDivLoss"], ids=lambda row: row.loss)  # it warns
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_every_loss(row: Row, reduction: str, folder: Path, launches: Launches) -> None:
    counts = []
    for traces in (1, 0):
        _, plain, inputs = pair(row, torch.float32, reduction=reduction)
        loss = autogen_loss(copy.deepcopy(plain), policy="mandatory")
        launches.take()
        agrees(loss, plain, *inputs)
        counts.append(launches.take())
        assert trace_count(loss) == traces
    assert counts == [2, 2]


def test_the_report_is_the_same(folder: Path) -> None:
    def mean_of_rows(x: Tensor, y: Tensor) -> Tensor:
        return (torch.log_softmax(x, 1) * y).sum(1).mean()

    x = draw("real", 6, 5000)
    found = [str(explain(autogen_loss(mean_of_rows), x, x.detach())) for _ in range(2)]
    assert found[0] == found[1] and "1 launch " in found[0]
    wide = draw("real", 6, 70_000)  # looped: another variant of the text
    loss = autogen_loss(mean_of_rows)
    assert "for " in str(explain(loss, wide, wide.detach())) and trace_count(loss) == 0


def test_any_size_that_the_trace_holds_for(folder: Path) -> None:
    for rows_, traces in ((6, 1), (9, 0), (3, 0)):
        loss = again(Scaled)
        agrees(loss, Scaled(), draw("real", rows_, 5), draw("real", rows_, 5, seed=1))
        assert trace_count(loss) == traces
    loss = again(Scaled)
    agrees(loss, Scaled(), draw("real", 1, 5), draw("real", 6, 5))  # broadcast: another trace
    assert trace_count(loss) == 1 and len(plans(folder)) == 2


def test_several_traces_of_one_kind_of_call(folder: Path) -> None:
    def by_size(x: Tensor, y: Tensor) -> Tensor:
        return (x - y).abs().sum() if x.shape[0] > 4 else (x - y).exp().sum()

    for size, traces in ((6, 1), (3, 1), (7, 0), (2, 0)):
        decorated = autogen_loss(by_size, policy="mandatory")
        agrees(decorated, by_size, draw("real", size, 5), draw("real", size, 5, seed=1))
        assert trace_count(decorated) == traces
    assert len(plans(folder)) == 2 and len({plan.parent for plan in plans(folder)}) == 1


def test_what_the_loss_reads_is_looked_at(folder: Path) -> None:
    agrees(again(Scaled), Scaled(), X, Y)
    for make in (lambda: Scaled(0.25), lambda: Scaled().double().float().requires_grad_(False)):
        loss = again(make)
        agrees(loss, make(), X, Y)
        assert trace_count(loss) == 1
    scales = iter((2.0, 3.0))

    def closing() -> Any:
        scale = next(scales)
        return lambda x, y: (x - y).abs().sum() * scale

    for factor in (2.0, 3.0):
        decorated = autogen_loss(closing(), policy="mandatory")
        torch.testing.assert_close(decorated(X, Y), (X - Y).abs().sum() * factor)
        assert trace_count(decorated) == 1


def test_what_values_decide_is_looked_at(folder: Path) -> None:
    def branching(x: Tensor) -> Tensor:
        return x.exp().sum() if (x > 3).any() else x.abs().sum()

    near, far = (each.detach().requires_grad_() for each in (X.clamp(-1, 1), X + 9))
    for x, traces in ((near, 1), (near, 0), (far, 1), (far, 0)):
        decorated = autogen_loss(branching, policy="mandatory")
        agrees(decorated, branching, x)
        assert trace_count(decorated) == traces


def test_a_label_out_of_range_is_still_an_error(folder: Path) -> None:
    for _ in range(2):
        loss = losses.CrossEntropyLoss()
        loss(X, labels(5, 6))
        with pytest.raises(IndexError):
            loss(X, torch.full((6,), 9))


def test_other_layouts_of_upstream_gradients_and_second_derivatives(folder: Path) -> None:
    loss = autogen_loss(nn.MSELoss(reduction="none"), policy="mandatory")
    loss(X, Y).backward(torch.ones(6, 5))
    loss = autogen_loss(nn.MSELoss(reduction="none"), policy="mandatory")
    x = X.detach().requires_grad_()
    for upstream in (torch.ones(5, 6).t(), torch.ones(()).expand(6, 5)):
        (found,) = torch.autograd.grad(loss(x, Y), x, upstream)
        torch.testing.assert_close(found, 2 * (x - Y).detach())
    assert trace_count(loss) == 0
    (first,) = torch.autograd.grad(loss(x, Y).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, torch.full_like(x, 2.0))


class Corrected(Scaled):
    """One with arithmetic on a number and on sizes."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x, y) / (1 - self.margin**5) * (1 - 1 / x.shape[0]) ** x.shape[1]


@pytest.mark.parametrize("make", [Scaled, Corrected])
def test_numbers_that_vary(make: type[Scaled], folder: Path) -> None:
    for traces in (3, 0):
        loss = again(make)
        counts = []
        for margin in (0.5, 0.4, 0.3, 0.2, 0.1):
            loss.margin = margin
            agrees(loss, make(margin), X, Y)
            counts.append(trace_count(loss))
        assert counts[-1] == traces


def test_the_gradient_in_forward(folder: Path, launches: Launches) -> None:
    for traces in (1, 0):
        loss = autogen_loss(Scaled(), policy="mandatory", gradient="forward")
        launches.take()
        agrees(loss, Scaled(), X, Y)
        assert launches.take() == 2 and trace_count(loss) == traces
    loss = again(Scaled)
    agrees(loss, Scaled(), X, Y)
    assert trace_count(loss) == 1


def test_a_kernel_of_several_parts(folder: Path, launches: Launches) -> None:
    def pyramid(a: Tensor, b: Tensor) -> Tensor:
        return a.exp().mean() + b.logsumexp(1).sum()

    inputs = draw("real", 150, 120), draw("real", 30, 601)
    for traces in (1, 0):
        loss = again(lambda: pyramid)
        launches.take()
        agrees(loss, pyramid, *inputs)
        assert launches.take() == 2 and trace_count(loss) == traces
    assert "pyramid_forward_part_2" in explain(loss, *inputs).forward.source  # type: ignore[union-attr]


def test_a_deep_loss(folder: Path) -> None:
    def deep(x: Tensor, y: Tensor) -> Tensor:
        for k in range(150):
            x = (x + y * k).tanh()
        return x.sum()

    for traces in (1, 0):
        decorated = autogen_loss(deep, policy="mandatory")
        agrees(decorated, deep, X, Y)
        assert trace_count(decorated) == traces


def test_what_surrounds_the_tensors_of_a_result(folder: Path) -> None:
    def surrounded(x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"loss": (x - y).abs().sum(), "rows": x.shape[0], "name": "l1", "parts": [x.sum(), None]}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", module="triton.runtime.interpreter")  # warns itself in 3.6
        for traces in (1, 0):
            decorated = autogen_loss(surrounded, policy="mandatory")
            found, expected = decorated(X, Y), surrounded(X, Y)
            assert found.keys() == expected.keys() and found["rows"] == 6 and found["name"] == "l1"
            assert found["parts"][1] is None
            torch.testing.assert_close([found["loss"], found["parts"][0]], [expected["loss"], expected["parts"][0]])
            assert trace_count(decorated) == traces


def test_a_loss_that_warns_is_not_kept(folder: Path) -> None:
    for _ in range(2):
        loss = again(nn.MSELoss)
        with pytest.warns(UserWarning, match="target size"):
            loss(X, Y[:1])
        assert trace_count(loss) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again(nn.MSELoss)(X, Y[:1])
    assert not plans(folder)


def test_a_defect_in_keeping_a_plan(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(stored.Shelf, "keep", broken)
    loss, x = autogen_loss(lambda x: x.square().sum()), torch.ones(3)
    assert loss(x).item() == 3 and loss(x).item() == 3
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "runs in torch" in record.getMessage()


def test_losses_that_other_processes_cannot_know_are_not_kept(folder: Path) -> None:
    held = object()

    def holds(x: Tensor) -> Tensor:
        return x.sum() if held is None else x.mean()

    def counts(x: Tensor) -> Tensor:
        x = x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
        return x.sum()

    def steps(x: Tensor) -> Tensor:
        return torch.sort(x, dim=0).values[0].abs().sum()

    for plain in (holds, counts, steps):
        for _ in range(2):
            decorated = autogen_loss(plain, policy="mandatory")
            agrees(decorated, plain, X)
            assert trace_count(decorated) == 1
    for options in ({"static_graph": True}, {"retrace": "every"}):
        autogen_loss(Scaled(), policy="mandatory", **options)(X, Y)
    assert not plans(folder)


def test_a_torch_that_has_been_patched_is_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = autogen_loss(nn.MSELoss(), policy="mandatory")
    torch.testing.assert_close(loss(X, Y), nn.functional.mse_loss(X, Y))
    assert len(plans(folder)) == 1
    monkeypatch.setattr(nn.functional, "mse_loss", lambda x, y, **_: (x - y).abs().mean())
    loss = autogen_loss(nn.MSELoss(), policy="mandatory")
    torch.testing.assert_close(loss(X, Y), (X - Y).abs().mean())
    assert len(plans(folder)) == 1


@pytest.mark.parametrize("damage", [b"", b"half", None])
def test_a_damaged_file_is_none(damage: bytes | None, folder: Path) -> None:
    agrees(again(Scaled), Scaled(), X, Y)
    (plan,) = plans(folder)
    whole = plan.read_bytes()
    plan.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    for traces in (1, 0):
        loss = again(Scaled)
        agrees(loss, Scaled(), X, Y)
        assert trace_count(loss) == traces and plans(folder) == [plan]


def test_a_file_that_cannot_be_read_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user's, or where too many files are open."""
    agrees(again(Scaled), Scaled(), X, Y)
    (plan,) = plans(folder)
    written, read, access = plan.stat().st_mtime_ns, Path.read_bytes, os.access

    def refuse(path: Path) -> bytes:
        if path == plan:
            raise PermissionError(13, "Permission denied")
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        patch.setattr(os, "access", lambda path, mode: path != plan and access(path, mode))
        loss = again(Scaled)
        agrees(loss, Scaled(), X, Y)
        assert trace_count(loss) == 1
    assert plan.stat().st_mtime_ns == written
    loss = again(Scaled)
    agrees(loss, Scaled(), X, Y)
    assert trace_count(loss) == 0


class OwnError(Exception):
    """What a class of the user's raises."""


def refuse_to_be_made(error: type[Exception]) -> Any:
    raise error("another version")


class Changed:
    """What another version of its class has pickled."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return refuse_to_be_made, (self.error,)


@pytest.mark.parametrize(
    "error", [TypeError, ValueError, KeyError, IndexError, pickle.UnpicklingError, EOFError, RuntimeError, OwnError]
)
def test_a_plan_that_cannot_be_made_again_is_none(error: type[Exception], folder: Path) -> None:
    agrees(again(Scaled), Scaled(), X, Y)
    (plan,) = plans(folder)
    content = pickle.dumps((Changed(error),))
    plan.write_bytes(hashlib.sha256(content).digest() + content)
    for traces in (1, 0):  # and the next one takes its place
        loss = again(Scaled)
        agrees(loss, Scaled(), X, Y)
        assert trace_count(loss) == traces and plans(folder) == [plan]


def test_another_version_of_anything_is_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agrees(again(Scaled), Scaled(), X, Y)
    monkeypatch.setattr(stored, "versions", lambda: ("another",))
    loss = again(Scaled)
    agrees(loss, Scaled(), X, Y)
    assert trace_count(loss) == 1 and len(plans(folder)) == 2


def test_nothing_is_kept_where_that_is_not_wanted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLANS_VARIABLE, "0")
    agrees(again(Scaled), Scaled(), X, Y)
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    agrees(again(Scaled), Scaled(), X, Y)  # the modules are there
    (plan,) = plans(folder)
    plan.unlink()
    monkeypatch.setattr(os, "replace", fail)
    agrees(again(Scaled), Scaled(), X, Y)
    assert not plans(folder)


@pytest.mark.parametrize("ask", ["os.environ['RANK']", "environ['RANK']", "os.getenv('RANK')", "getenv('RANK')"])
def test_a_rank_is_that_of_the_process(ask: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in losses over the batches of all processes, whose labels begin at `rank * batch`."""
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        scope: dict[str, Any] = {"__name__": "users", "os": os, "environ": os.environ, "getenv": os.getenv}
        exec(f"def loss(x):\n    return (x * (1 + int({ask}))).sum()\n", scope)
        decorated = autogen_loss(scope["loss"], policy="mandatory")
        torch.testing.assert_close(decorated(X), X.sum() * (1 + rank))
        assert trace_count(decorated) == 1


def test_a_setting_of_torch_is_that_of_the_process(folder: Path) -> None:
    def asks(x: Tensor) -> Tensor:
        return (x * (2.0 if torch.are_deterministic_algorithms_enabled() else 1.0)).sum()

    for is_on, traces in ((False, 1), (True, 1), (False, 0), (True, 0)):
        torch.use_deterministic_algorithms(is_on)
        try:
            decorated = autogen_loss(asks, policy="mandatory")
            torch.testing.assert_close(decorated(X), X.sum() * (1 + is_on))
        finally:
            torch.use_deterministic_algorithms(False)
        assert trace_count(decorated) == traces


@pytest.mark.parametrize("error", [AttributeError, ModuleNotFoundError])
def test_a_class_that_is_not_there(error: type[Exception], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(content: bytes) -> Any:
        raise error("a class of what the loss returns")

    for traces in (1, 0):
        loss = again(Scaled)
        agrees(loss, Scaled(), X, Y)
        assert trace_count(loss) == traces
    monkeypatch.setattr(pickle, "loads", fail)
    loss = again(Scaled)
    agrees(loss, Scaled(), X, Y)
    assert trace_count(loss) == 1


PROGRAM = """
import sys, torch
from torch import nn
from autogen import autogen_loss, trace_count
torch.set_num_threads(1)
torch.manual_seed(0)
x, y = torch.randn(6, 5, requires_grad=True), torch.randint(5, (6,))
modes = frozenset({"a", "b", "c"})

class Loss(nn.Module):
    def forward(self, x, y):
        return nn.functional.cross_entropy(x, y) if "a" in modes and "x" not in {"e", "f"} else x.sum()

loss = autogen_loss(Loss(), policy="mandatory")
print("start", flush=True)
value = loss(x, y)
value.backward()
print(trace_count(loss), value.item(), x.grad.sum(0).tolist())
"""


def test_processes_one_after_the_other_and_at_once(folder: Path) -> None:
    first = result_of(start(PROGRAM, folder.parent, 1))
    others = [result_of(each) for each in [start(PROGRAM, folder.parent, seed) for seed in (2, 3, 4)]]
    assert first.startswith("1 ")
    assert others == ["0 " + first[2:]] * 3


def test_processes_that_are_killed(folder: Path) -> None:
    for delay in (0.0, 0.2, 0.35):
        process = start(PROGRAM, folder.parent, 1)
        assert process.stdout is not None and process.stdout.readline() == "start\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    last = result_of(start(PROGRAM, folder.parent, 1))
    assert result_of(start(PROGRAM, folder.parent, 2)) == "0 " + last[2:]
