"""Losses in several threads and processes: each kind of call is compiled once, and DDP's gradients are torch's."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from autogen.calls.surroundings import Surroundings
from torch import Tensor, nn

from autogen import autogen_loss, explain, policy, trace_count
from autogen.decorator import dispatcher_of
from autogen.locks import replaced
from tests.interpret.agreement import draw

ROOT = Path(__file__).parents[2]


class Scaled(nn.Module):
    """A loss with a number that tells its instances apart."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return ((x - y) * self.scale).abs().mean()


def test_threads_compile_each_kind_of_call_once() -> None:
    decorated: Any = autogen_loss(type("Scaled", (Scaled,), {}))
    losses = [decorated(scale) for scale in (0.5, 0.5, 2.0)]
    x, y = draw("real", 6, 5), draw("real", 6, 5, seed=1).detach()
    together = threading.Barrier(8)

    def look(k: int) -> tuple[str, str]:
        together.wait()
        report = explain(losses[k % 3], x, y)
        assert report.forward is not None
        return report.path, report.forward.source

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(look, range(8)))
    assert {path for path, _ in found} == {"generated"}
    assert len({source for _, source in found}) == 2
    assert trace_count(losses[0]) == 2


def test_threads_call_losses_at_once() -> None:
    """Triton's interpreter runs one kernel at a time, whichever thread it is for."""
    decorated: Any = autogen_loss(type("Scaled", (Scaled,), {}))
    loss, plain = decorated(0.5), Scaled(0.5)
    loss(draw("real", 6, 5), draw("real", 6, 5, seed=1).detach()).backward()
    together = threading.Barrier(4)

    def run(k: int) -> None:
        together.wait()
        for step in range(15):
            x, own = (draw("real", 6, 5, seed=100 * k + step).detach().requires_grad_() for _ in range(2))
            y = draw("real", 6, 5, seed=1).detach()
            value, expected = loss(x, y), plain(own, y)
            value.backward(), expected.backward()
            torch.testing.assert_close((value, x.grad), (expected, own.grad))

    with policy("mandatory"), ThreadPoolExecutor(4) as threads:
        list(threads.map(run, range(4)))


class Weighted(nn.Module):
    """A loss with tensors of its own, in whose place a trace puts others for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = nn.ParameterList(nn.Parameter(torch.tensor(0.1 * k)) for k in range(3))
        self.register_buffer("scale", torch.tensor(1.5))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        terms = ((x - y).abs().mean(), (x * self.scale).logsumexp(1).mean(), x.square().mean())
        return torch.stack([log.exp() * term - log for log, term in zip(self.logs, terms, strict=True)]).sum()


@pytest.mark.parametrize("is_short", [True, False])
def test_no_thread_sees_what_a_trace_has_put_in_a_module(is_short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    loss, plain = autogen_loss(Weighted(), policy="mandatory"), Weighted()
    x, y = draw("real", 6, 5), draw("real", 6, 5, seed=1).detach()
    for _ in range(3 if is_short else 1):
        loss(x, y)
    swapped = Surroundings.swapped

    @contextlib.contextmanager
    def slowly(state: Surroundings, *args: Any) -> Iterator[Any]:
        with swapped(state, *args) as changed:
            found.append(other.submit(loss, x, y))
            time.sleep(0.3)
            yield changed

    found: list[Future[Tensor]] = []
    monkeypatch.setattr(Surroundings, "swapped", slowly)
    with ThreadPoolExecutor(1) as other:
        torch.testing.assert_close(loss(x[0, :, None], y[0, :, None]), plain(x[0, :, None], y[0, :, None]))
        torch.testing.assert_close([each.result() for each in found], [plain(x, y)])


def test_a_trace_does_not_wait_for_a_thread_that_waits_for_it() -> None:
    part = autogen_loss(lambda x, y: (x - y).abs().mean())
    x, y = draw("real", 6, 5).detach(), draw("real", 6, 5, seed=1).detach()
    with ThreadPoolExecutor(2) as threads:
        total = autogen_loss(lambda x, y: sum(threads.map(part, (x, 2 * x), (y, y))))
        for _ in range(3):
            torch.testing.assert_close(total(x, y), (x - y).abs().mean() + (2 * x - y).abs().mean())
        assert explain(total, x, y).path == "eager"


def test_a_policy_is_that_of_its_thread() -> None:
    loss = autogen_loss(nn.MSELoss())
    x, y = draw("real", 6, 5), draw("real", 6, 5, seed=1).detach()
    with policy("disabled"), ThreadPoolExecutor(1) as other:
        assert explain(loss, x, y).path == "eager"
        assert other.submit(explain, loss, x, y).result().path == "generated"


@pytest.mark.parametrize("is_short", [False, True])
def test_what_a_replay_has_put_there_meanwhile_is_not_read(is_short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    loss, x, y = autogen_loss(Weighted()), draw("real", 6, 5), draw("real", 6, 5, seed=1).detach()
    for _ in range(3):
        loss(x, y)
    found = dispatcher_of(loss)
    assert found is not None
    shortcuts = found[0]._sites.of(loss).shortcuts
    owner, name = (shortcuts[0], "read") if is_short else (found[0], "bind")
    read = getattr(owner, name)

    def read_meanwhile(*arguments: Any, **options: Any) -> Any:
        setattr(owner, name, read)
        with replaced.replacing(), monkeypatch.context() as patch:
            patch.setitem(loss._buffers, "scale", torch.tensor(100.0))
            return read(*arguments, **options)

    if not is_short:
        shortcuts.clear()
    setattr(owner, name, read_meanwhile)
    torch.testing.assert_close(loss(x, y), Weighted()(x, y))
    assert getattr(owner, name) == read


PROGRAM = """
import os, sys, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from autogen import autogen_loss, set_policy

set_policy("mandatory")
torch.set_num_threads(1)
rank, file = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)

class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 5))

    def forward(self, logits, labels):
        return (nn.functional.cross_entropy(logits, labels, reduction="none") * self.weight[labels]).mean()

class Model(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.layer, self.loss = nn.Linear(7, 5), loss

    def forward(self, x, labels):
        return self.loss(self.layer(x), labels)

found = []
for decorate in (autogen_loss, lambda loss: loss):
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(decorate(Weighted())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    for _ in range(3):
        x, labels = torch.randn(8, 7), torch.randint(5, (8,))
        optimizer.zero_grad()
        model(x, labels).backward()
        optimizer.step()
    found.append([parameter.detach().clone() for parameter in model.parameters()])
for ours, theirs in zip(*found):
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    mean = ours.clone()
    dist.all_reduce(mean)
    torch.testing.assert_close(mean / 2, ours)  # the same in both
dist.destroy_process_group()
print("done", flush=True)
os._exit(0)  # threads of gloo's may outlive the group, and Python then aborts
"""


def test_gradients_of_a_model_in_several_processes(tmp_path: Path) -> None:
    """DistributedDataParallel around a model that ends in a loss, which has a parameter of its own."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "meeting")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=180)
        assert process.returncode == 0 and output.endswith("done\n"), output
