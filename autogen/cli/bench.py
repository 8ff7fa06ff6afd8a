"""`autogen bench`: time a call on the GPU, beside eager and `torch.compile`."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from autogen.cli.output import progress, say, table
from autogen.cli.targets import Target, add_call, calling, device_of, target_of
from autogen.cli.usage import UsageError

ROUNDS = 5
_TEXT = "time a call on the GPU against eager and torch.compile"
_MORE = """
Each of five rounds times all columns in turn; times are medians over the rounds, and so are ratios. The GPU's cache is
flushed before each call. Without a GPU nothing is measured, and the exit status is 2."""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """The command's arguments."""
    parser = commands.add_parser("bench", help=_TEXT, description=f"{_TEXT[0].upper()}{_TEXT[1:]}.{_MORE}")
    add_call(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    import torch

    if not torch.cuda.is_available() or (options.device or "cuda").partition(":")[0] != "cuda":
        raise UsageError(
            "times are of a GPU, and there is none here; run it where there is one, or, in a checkout, "
            "`python -m bench.host` for what a call costs the host"
        )
    from autogen.report import explain_call

    target, device = target_of(options), device_of(options)
    args, named = target.arguments(device)
    with calling(target), torch.cuda.device(device):
        report = explain_call(target.loss, args, named)
        say(f"{report.loss}: {report.path}, as {report.reason}")
        calls = calls_of(target, args, named)
        with progress("timing", ROUNDS * sum(map(len, calls.values()))) as step:
            found = measure(calls, _time, step)
    table(("", *next(iter(found.values()))), [(name, *columns.values()) for name, columns in found.items()])
    return 0


def calls_of(
    target: Target, args: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, dict[str, Callable[[], object]]]:
    """What is timed: each direction, in each column."""
    import torch

    from autogen.cli.judging import calling_ours, in_torch
    from autogen.compat import pytree
    from autogen.decorator import call_of

    dispatcher, own = call_of(target.loss, args)
    compiled = torch.compile(dispatcher.function)
    columns: dict[str, Callable[[], Any]] = {
        "eager": lambda: in_torch(lambda: dispatcher.function(*own, **named)),
        "compile": lambda: in_torch(lambda: compiled(*own, **named)),
        "autogen": calling_ours(target.loss, args, named),
    }
    given = [each for each in (*args, *named.values()) if isinstance(each, torch.Tensor)]
    parameters = target.loss.parameters() if isinstance(target.loss, torch.nn.Module) else ()
    leaves = [each for each in (*given, *parameters) if each.requires_grad]

    def both(call: Callable[[], Any]) -> None:
        values = [each for each in pytree.tree_leaves(call()) if isinstance(each, torch.Tensor) and each.requires_grad]
        torch.autograd.grad(values, leaves, [torch.ones_like(each) for each in values], allow_unused=True)

    found: dict[str, dict[str, Callable[[], object]]] = {"forward": dict(columns)}
    if leaves:
        found["forward + backward"] = {name: lambda call=call: both(call) for name, call in columns.items()}  # type: ignore[misc]
    return found


def measure(
    calls: Mapping[str, Mapping[str, Callable[[], object]]],
    time: Callable[[Callable[[], object]], float],
    step: Callable[[str], None],
) -> dict[str, dict[str, str]]:
    """The cells of the table: by direction and column, µs and ratios."""
    found: dict[str, dict[str, str]] = {}
    for direction, columns in calls.items():
        rounds: list[dict[str, float]] = []
        for _ in range(ROUNDS):
            rounds.append({})
            for name, call in columns.items():
                step(f"{direction}, {name}")
                rounds[-1][name] = time(call)
        cells = {f"{name} µs": f"{statistics.median(each[name] for each in rounds):.1f}" for name in columns}
        for name in columns:
            if name != "autogen":
                ratio = statistics.median(each[name] / each["autogen"] for each in rounds)
                cells[f"times as fast as {name}"] = f"{ratio:.2f}"
        found[direction] = cells
    return found


def _time(call: Callable[[], object]) -> float:
    """µs of a call between events of the GPU, the median of many, with its L2 cache emptied before each."""
    from triton.testing import do_bench

    return float(do_bench(call, warmup=25, rep=100, return_mode="median")) * 1000
