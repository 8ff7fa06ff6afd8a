"""What each process of `test_distributed` runs: losses of its shard, whose results it writes down."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel

import autogen
from autogen import autogen_loss, explain, losses
from tests.interpret.launches import Launches

ROWS, IGNORED = 6, -100
LAUNCHES = Launches()
Found = dict[str, Any]

# Calls with a sharded vocabulary: the dtype, the classes of each of four ranks, whether these are told, options.
CALLS: dict[str, tuple[torch.dtype, tuple[int, ...], bool, dict[str, Any]]] = {
    "plain": (torch.float32, (3, 3, 3, 3), False, {}),
    "halves": (torch.bfloat16, (3, 3, 3, 3), False, {"reduction": "none", "z_loss": 0.01}),
    "uneven": (torch.float64, (5, 1, 2, 4), True, {"reduction": "sum", "label_smoothing": 0.2}),
    "padding": (torch.float32, (3, 3, 3, 3), False, {}),
}


def calls_of(ranks: int) -> list[str]:
    """Which of the calls a group makes: four processes share the cores of two."""
    return list(CALLS) if ranks == 2 else ["uneven"]


def data(name: str, ranks: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """The logits of all ranks, as one ranks' would be, labels, and how many classes each rank has."""
    dtype, sizes, _, _ = CALLS[name]
    sizes = sizes[:ranks]
    generator = torch.Generator().manual_seed(len(name))
    logits = torch.randn(2, ROWS // 2, sum(sizes), generator=generator).mul(3).to(dtype)
    labels = torch.randint(0, sum(sizes) - 3, (2, ROWS // 2), generator=generator)
    labels[0, 0], labels[1, 1] = IGNORED, sum(sizes) - 4
    if name == "padding":
        logits[..., -sizes[-1] :] = -torch.inf
    return logits, labels, sizes


def global_sum(x: Tensor) -> Tensor:
    """The sum over all ranks, with torch's own gradient: the sum of those that arrive on each."""
    return collectives.all_reduce(x, "sum", dist.group.WORLD)


def by_hand(logits: Tensor, labels: Tensor) -> Tensor:
    """A cross entropy over all ranks as somebody would write it; its gradient is that of the losses of all of them."""
    first = dist.get_rank() * logits.shape[-1]
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    total = global_sum((logits - largest.unsqueeze(-1)).exp().sum(-1))
    place = labels - first
    is_own = (place >= 0) & (place < logits.shape[-1])
    own = logits.gather(-1, place.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
    return (total.log() + largest - global_sum(torch.where(is_own, own, 0))).mean()


def ordered(x: Tensor) -> Tensor:
    """Collectives that have to be met in their order by ranks of which some run this in torch.

    The first needs a kernel before it, the second nothing; the third and fourth are alike; of the fifth only the first
    rank needs the result.
    """
    peak = collectives.all_reduce(x.exp().sum(), "max", dist.group.WORLD)
    row = collectives.all_reduce(x[0], "sum", dist.group.WORLD)
    twice = collectives.all_reduce(x.sum(), "sum", dist.group.WORLD)
    twice = twice + collectives.all_reduce(x.sum(), "sum", dist.group.WORLD)
    unread = collectives.all_reduce(x[1] * 2, "min", dist.group.WORLD)
    if dist.get_rank() == 0:
        twice = twice + unread.sum() * 0
    return peak + row.sum() + twice + collectives.all_reduce(x.amax(), "min", dist.group.WORLD)


def summed(logits: Tensor, labels: Tensor) -> Tensor:
    """A loss of DTensors as users write it."""
    return F.cross_entropy(logits, labels, reduction="sum")


def squares(x: Tensor, y: Tensor) -> Tensor:
    """A loss per element."""
    return ((x - y) ** 2).mean()


def changing(x: Tensor, y: Tensor) -> Tensor:
    """A loss that writes to what it is given."""
    y.mul_(2)
    return ((x - y) ** 2).mean()


@contextlib.contextmanager
def counted() -> Iterator[dict[str, int]]:
    """The launches and the collectives in the block."""
    found: dict[str, int] = {}
    LAUNCHES.take()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        yield found
    names = [event.name for event in profile.events() if event.name.startswith("_c10d_functional::")]
    found["launches"] = LAUNCHES.take()
    found["collectives"] = sum(not name.endswith("wait_tensor") for name in names)


def counts_of(loss: Callable[..., Tensor], *inputs: Tensor) -> Found:
    """The value of a loss, and the gradient of its first input, with what was run for them, and what `explain` says."""
    report = explain(loss, *inputs)
    loss(*inputs).detach()  # captured, compiled, and the group asked
    with counted() as forward:
        value = loss(*inputs)
    with counted() as backward:
        value.backward(torch.ones_like(value))
    return {
        "path": report.path,
        "reason": report.reason,
        "breaks": report.breaks,
        "value": value.detach(),
        "gradient": inputs[0].grad,
        "forward": (forward["launches"], forward["collectives"]),
        "backward": (backward["launches"], backward["collectives"]),
    }


def error_of(function: Callable[[], Any]) -> str:
    """What a call raises, as text; empty if it does not."""
    try:
        function()
    except (ValueError, IndexError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def sharded_vocabulary(rank: int, ranks: int) -> Iterator[tuple[str, Found]]:
    """Each call of `CALLS`, and losses as users write them."""
    for name in calls_of(ranks):
        _, _, is_told, options = CALLS[name]
        logits, labels, sizes = data(name, ranks)
        own = logits.split(sizes, -1)[rank].clone().requires_grad_()
        told = sizes if is_told else None
        yield name, counts_of(losses.VocabParallelCrossEntropyLoss(sizes=told, **options), own, labels)
    if ranks > 2:
        return
    logits, labels, sizes = data("plain", ranks)
    labels = labels.clamp(min=0)
    own = logits.split(sizes, -1)[rank].clone().requires_grad_()
    eager = own.detach().clone().requires_grad_()
    by_hand(eager, labels).backward()
    yield "by hand", {**counts_of(autogen_loss(by_hand), own, labels), "eager": eager.grad}
    yield "head", head_in_chunks(rank, ranks)


def head_of(ranks: int) -> tuple[Tensor, Tensor, Tensor]:
    """The weight of a head with four classes for each rank, hidden states, and labels."""
    generator = torch.Generator().manual_seed(7)
    weight, hidden = (torch.randn(n, 5, generator=generator).requires_grad_() for n in (4 * ranks, 9))
    return weight, hidden, torch.randint(0, 4 * ranks, (9,), generator=generator)


def head_in_chunks(rank: int, ranks: int) -> Found:
    """The loss of a head whose classes are divided among ranks, in chunks of rows."""
    loss = losses.VocabParallelCrossEntropyLoss(sizes=(4,) * ranks)

    def of_head(weight: Tensor, hidden: Tensor, labels: Tensor) -> Tensor:
        return loss(hidden @ weight.t(), labels)

    weight, hidden, labels = head_of(ranks)
    own = weight.detach().split(4)[rank].clone().requires_grad_()
    decorated = autogen_loss(of_head, chunk=4)
    found = counts_of(decorated, own, hidden, labels)
    forward = explain(decorated, own, hidden, labels).forward
    return {**found, "hidden": hidden.grad, "chunks": forward.chunks if forward else ()}


def mixed(rank: int) -> Iterator[tuple[str, Found]]:
    """A loss that the first rank runs in torch."""
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(rank))
    with autogen.policy("disabled") if rank == 0 else contextlib.nullcontext():
        yield "ordered", {"value": autogen_loss(ordered)(x), "input": x}


def errors(rank: int, ranks: int) -> Iterator[tuple[str, str]]:
    """What is said of calls that cannot be right."""
    x, labels = torch.randn(4, 3), torch.zeros(4, dtype=torch.long)
    sharded = losses.VocabParallelCrossEntropyLoss
    yield "differing", error_of(lambda: sharded()(torch.randn(4, 3 + rank), labels))
    yield "sizes", error_of(lambda: sharded(sizes=(4,) * ranks)(x, labels))
    yield "label", error_of(lambda: sharded()(x, labels + 3 * ranks))
    first = dist.new_group([0])
    yield "outside", error_of(lambda: sharded(first)(x, labels))
    loss = sharded()
    loss(x, labels)
    yield "changed", error_of(lambda: loss(torch.randn(4, 5), labels))
    brief = dist.new_group(timeout=datetime.timedelta(seconds=2))
    loss = sharded(brief, sizes=(3,) * ranks)
    loss(x, labels)
    began = time.monotonic()
    yield "left alone", error_of(lambda: loss(x, labels - 1 if rank else labels))  # others raise before they meet
    yield "after", f"{time.monotonic() - began:.1f}"


def dtensors(rank: int, ranks: int) -> Iterator[tuple[str, Found]]:
    """Losses of DTensors."""
    mesh = init_device_mesh("cpu", (ranks,))
    generator = torch.Generator().manual_seed(1)

    def logits(*placements: Any, classes: int = 13, on: Any = mesh) -> DTensor:
        generator.manual_seed(1)
        return distribute_tensor(torch.randn(8, classes, generator=generator), on, placements).requires_grad_()

    def whole(found: Found) -> Found:
        tensors = {key: each.full_tensor() for key, each in found.items() if isinstance(each, DTensor)}
        placed = {f"{key} placed": each.placements for key, each in found.items() if isinstance(each, DTensor)}
        return found | tensors | placed

    labels = torch.arange(8) % 13
    everywhere = distribute_tensor(labels, mesh, [Replicate()])
    if ranks > 2:
        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "classes"))
        placed = distribute_tensor(labels, grid, [Shard(0), Replicate()])
        with loss_parallel():
            yield "grid", whole(counts_of(autogen_loss(summed), logits(Shard(0), Shard(1), on=grid), placed))
        return
    loss = losses.CrossEntropyLoss()
    with loss_parallel():
        yield "parallel", whole(counts_of(loss, logits(Shard(1)), everywhere))
        yield "plain labels", whole(counts_of(loss, logits(Shard(1)), labels))
    yield "gathered", whole(counts_of(loss, logits(Shard(1)), everywhere))
    other = distribute_tensor(torch.zeros(8, 13), mesh, [Shard(0)])
    yield "rows", whole(counts_of(autogen_loss(squares), logits(Shard(0)), other))
    yield "changing", {"reason": explain(autogen_loss(changing), logits(Shard(0)), other).reason}


def run(rank: int, ranks: int, folder: Path) -> None:
    """One process: what it has found is in a file of the folder."""
    torch.set_num_threads(1)
    LAUNCHES.patch(pytest.MonkeyPatch())
    store = f"file://{folder / 'store'}"
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks, timeout=timeout)
    found: dict[str, Any] = {
        **dict(sharded_vocabulary(rank, ranks)),
        **dict(mixed(rank)),
        **dict(dtensors(rank, ranks)),
    }
    if ranks == 2:
        found |= dict(errors(rank, ranks))
    torch.save(found, folder / f"{rank}.pt")
    (folder / f"{rank}.done").touch()
    while not all((folder / f"{each}.done").exists() for each in range(ranks)):  # who leaves ends others' collectives
        time.sleep(0.05)
    dist.destroy_process_group()
