"""Losses in threads: what one compiles while others read, train and save the same modules; and interrupts."""

from __future__ import annotations

import builtins
import copy
import io
import math
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen
from autogen import autogen_loss, policy, trace_count
from autogen.runtime.availability import has_interpreter

ROOT = Path(__file__).parents[2]
OWN = str(Path(autogen.__file__).parent)


class Weighted(nn.Module):
    """A loss with a parameter, a buffer and a number."""

    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.linspace(0.5, 1.5, 3))
        self.scale = nn.Parameter(torch.ones(()))
        self.margin = 0.5

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return ((x - y).abs().sub(self.margin).clamp(min=0) * self.weight).sum(-1).mean() * self.scale


def call(loss: Callable[..., Tensor], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return loss(*(torch.randn(2 + seed % 5, 3, generator=generator) for _ in range(2)))


def state_of(module: nn.Module) -> dict[str, Any]:
    """All that a module is made of, by identity where it is a tensor."""
    own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    kept = {name: id(value) for name, value in (*module.named_parameters(), *module.named_buffers())}
    return {**own, **kept, "forward": vars(module).get("forward"), "class": type(module)}


def test_threads_call_losses_at_once() -> None:
    losses = [autogen_loss(Weighted(), policy="mandatory") for _ in range(4)]
    plain = Weighted()
    wanted = [call(plain, seed) for seed in range(8)]

    def work(k: int) -> list[Tensor]:
        return [call(losses[k % 4], seed) for seed in range(8)]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(work, range(8)):
            torch.testing.assert_close(found, wanted)
    assert all(trace_count(loss) <= 3 for loss in losses)


@pytest.mark.slow
def test_one_thread_compiles_while_others_read_train_and_save() -> None:
    """Nothing of the modules, of Python or of torch is another thing meanwhile."""
    modules = [Weighted() for _ in range(6)]
    before = [state_of(each) for each in modules]
    builtin, functions = dict(vars(builtins)), dict(vars(math))
    done = threading.Event()
    faults: list[str] = []

    def watch() -> None:
        while not done.is_set():
            for module, state in zip(modules, before, strict=True):
                if state_of(module) != state | {"forward": vars(module).get("forward")}:
                    faults.append("a module has changed")
                if any(type(each) is not nn.Parameter for each in module.parameters()):
                    faults.append("a parameter is no parameter")
            if any(vars(builtins).get(name) is not value for name, value in builtin.items() if name != "_"):
                faults.append("a builtin has changed")
            if vars(math) != functions:
                faults.append("a function of math has changed")

    def save() -> None:
        while not done.is_set():
            for module in modules:
                buffer = io.BytesIO()
                torch.save(module.state_dict(), buffer)
                call(module.__class__.forward.__get__(copy.deepcopy(module)), 1).backward()

    others = [threading.Thread(target=each) for each in (watch, save)]
    for thread in others:
        thread.start()
    try:
        for module in modules:
            ours = autogen_loss(lambda x, y, own=module: own(x, y), policy="mandatory")
            torch.testing.assert_close(call(ours, 3), call(module, 3))
    finally:
        done.set()
        for thread in others:
            thread.join()
    assert not faults


@pytest.mark.slow
def test_interrupted_compilations_leave_everything_as_it_was() -> None:
    """Ctrl-C in a capture: modules, builtins and later calls are as if nothing had been.

    In a process of its own: torch's capture is not made for an interruption at any call, and may be left in a state in
    which what is captured later is wrong.
    """
    program = "from tests.interpret.test_parallel import interrupt_compilations as run; run()"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def interrupt_compilations() -> None:
    """Interrupt captures at calls of our own functions, and look at what is left."""
    draws, calls, interrupted = random.Random(0), 0, 0
    builtin = dict(vars(builtins))
    for left in (0, *(draws.random() for _ in range(12))):
        module = Weighted()
        before = state_of(module)
        ours = autogen_loss(lambda x, y, own=module: own(x, y))
        number, last = 0, int(left * calls)

        def interrupt(frame: Any, event: str, argument: Any, last: int = last) -> None:
            nonlocal number
            # Not where a lock in C has just been taken, as no signal is heard there.
            number += event == "call" and frame.f_code.co_filename.startswith(OWN)
            if last and number == last:
                number += 1
                raise KeyboardInterrupt

        sys.setprofile(interrupt)
        try:
            call(ours, 2)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.setprofile(None)
        calls = calls or number  # those of a whole capture
        assert state_of(module) == before
        assert not [name for name, value in builtin.items() if name != "_" and vars(builtins)[name] is not value]
        torch.testing.assert_close(call(ours, 2), call(module, 2))
    assert interrupted > 6 or not has_interpreter()


def test_a_policy_is_that_of_its_thread() -> None:
    ours = autogen_loss(lambda x: x.square().mean() if x.sum() > 0 else x.abs().mean())
    with policy("mandatory"), ThreadPoolExecutor(1) as other:
        torch.testing.assert_close(other.submit(ours, torch.ones(3)).result(), torch.tensor(1.0))
        with pytest.raises(RuntimeError, match="one graph"):
            ours(torch.ones(3))
