"""Losses that communicate with other processes: never by a trace, and in each call exactly as torch does. Those whose
parameters are sharded over processes, which come together around a call, have kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from autogen import CollectiveError, autogen_loss, explain
from tests.interpret.launches import Launches
from tests.interpret.processes import result_of, start

pytestmark = [
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()), reason="needs torch.distributed with gloo"
    ),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # some of these collectives have new names
]


@pytest.fixture(scope="module", autouse=True)  # as torch.distributed.nn remembers the group that it is imported with
def _group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def made() -> int:
    """How many collectives the group has made so far."""
    group = dist.group.WORLD
    assert group is not None
    return int(group._get_sequence_number_for_group())


def three() -> Tensor:
    return torch.as_tensor([3.0])


def of_sizes(a: Tensor) -> Tensor:  # the normaliser of DETR
    boxes = torch.as_tensor([len(a)], dtype=torch.float)
    dist.all_reduce(boxes)
    return a.sum() / boxes


def of_values(a: Tensor) -> Tensor:
    total = a.detach().sum()
    dist.all_reduce(total)
    return (a * total).sum()


def of_number(a: Tensor) -> Tensor:  # another way that has no trace at first comes before it
    boxes = torch.as_tensor([float(a.detach().sum())])
    dist.all_reduce(boxes)
    return a.sum() / boxes.clamp(min=1).item()


def of_branch(a: Tensor) -> Tensor:
    if (a.detach() > 0).any():
        dist.barrier()
    return a.sum()


def awaited(a: Tensor) -> Tensor:
    factor = three()
    dist.all_reduce(factor, async_op=True).wait()
    return (a * factor).sum()


def broadcast(a: Tensor) -> Tensor:
    factor = three()
    dist.broadcast(factor, 0)
    return (a * factor).sum()


def gathered(a: Tensor) -> Tensor:
    factors = [three()]
    dist.all_gather(factors, three())
    return (a * factors[0]).sum()


def gathered_into(a: Tensor) -> Tensor:
    factor = three()
    dist.all_gather_into_tensor(factor, three())
    return (a * factor).sum()


def gathered_objects(a: Tensor) -> Tensor:
    factors = [0.0]
    dist.all_gather_object(factors, 3.0)
    return (a * factors[0]).sum()


def broadcast_objects(a: Tensor) -> Tensor:
    factors = [3.0]
    dist.broadcast_object_list(factors, 0)
    return (a * factors[0]).sum()


def with_gradient(a: Tensor) -> Tensor:
    from torch.distributed.nn.functional import all_gather

    return torch.cat(all_gather(a)).square().sum()


def functional(a: Tensor) -> Tensor:
    from torch.distributed._functional_collectives import all_reduce

    return all_reduce(a.sum(), "sum", [0])


def caught(a: Tensor) -> Tensor:
    factor = three()
    try:
        dist.all_reduce(factor)
    except RuntimeError:
        return a.sum()
    return (a * factor).sum()


class _ReducedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, a: Tensor) -> Tensor:
        return a.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, upstream: Tensor) -> Tensor:
        count = torch.ones(())
        dist.all_reduce(count)
        return upstream * count


def in_backward(a: Tensor) -> Tensor:
    result: Tensor = _ReducedGradient.apply(a)
    return result.sum()


LOSSES = [
    of_sizes, of_values, of_number, of_branch, awaited, broadcast, gathered, gathered_into, gathered_objects,
    broadcast_objects, with_gradient, functional, caught, in_backward,
]  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_every_call_makes_the_collectives_of_torch(loss: Callable[[Tensor], Tensor]) -> None:
    decorated = autogen_loss(loss)
    for size in (4, 4, 5, 1):  # the last ones are traced again
        results = []
        for each in (loss, decorated):
            a, before = torch.arange(1.0, size + 1).requires_grad_(), made()
            value = each(a)
            value.backward()
            results.append((value.item(), a.grad, made() - before))
        (value, gradient, count), (ours, our_gradient, our_count) = results
        assert (ours, our_count) == (value, count)
        torch.testing.assert_close(our_gradient, gradient)
    before = made()
    report = explain(decorated, torch.ones(4, requires_grad=True))
    assert report.path == "eager"
    assert made() == before


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_reason_names_the_collective_and_its_line(loss: Callable[[Tensor], Tensor]) -> None:
    before = made()
    with pytest.raises(CollectiveError, match="is made by every process, each time") as refused:
        autogen_loss(loss, policy="mandatory")(torch.ones(4, requires_grad=True))
    assert made() == before
    assert str(refused.value.where).startswith(__file__)


def test_collective_in_a_branch_is_refused_for_its_calls_alone() -> None:
    decorated = autogen_loss(of_branch)
    assert explain(decorated, torch.ones(4, requires_grad=True)).path == "eager"
    assert explain(decorated, -torch.ones(4, requires_grad=True)).path == "generated"


def test_error_of_the_loss_itself_is_no_collective() -> None:
    @autogen_loss
    def loss(a: Tensor) -> Tensor:
        raise KeyError(f"of rank {dist.get_rank()}")

    with pytest.raises(KeyError, match="of rank 0"):
        loss(torch.ones(4, requires_grad=True))
    assert "could not be traced" in explain(loss, torch.ones(4, requires_grad=True)).reason


OF_TWO = """
import os, sys, warnings
import torch
import torch.distributed as dist
from autogen import autogen_loss, explain, trace_count

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)

@autogen_loss
def detr(a):
    boxes = torch.as_tensor([len(a)], dtype=torch.float)
    dist.all_reduce(boxes)
    return a.sum() / boxes

@autogen_loss
def neighbours(a):
    mine, other = torch.tensor([rank + 1.0]), torch.zeros(1)
    if rank:
        dist.send(mine, 0)
        dist.recv(other, 0)
    else:
        dist.recv(other, 1)
        dist.send(mine, 1)
    return (a * other).sum()

def tensor(*shape):
    return torch.ones(shape, requires_grad=True)

found = [detr(tensor(3 + 2 * rank)).item() for _ in range(3)]
found.append(detr(tensor(4, 2) if rank else tensor(3)).item())  # traced by one process alone
found += [neighbours(tensor(2)).item() for _ in range(2)]
mine = torch.tensor(float(rank))
dist.all_reduce(mine)
found.append(mine.item())
print(found, trace_count(detr), explain(neighbours, tensor(2)).reason.partition(",")[0], flush=True)
dist.barrier()
os._exit(0)
"""


def test_two_processes_agree(tmp_path: Path) -> None:
    folders = [tmp_path / str(rank) for rank in (0, 1)]
    for folder in folders:
        folder.mkdir()
    store = str(tmp_path / "of_two")
    running = [start(OF_TWO, folder, rank, str(rank), store) for rank, folder in enumerate(folders)]
    of_first, of_second = map(result_of, running)
    assert of_first == (
        "[0.375, 0.375, 0.375, 0.4285714328289032, 4.0, 4.0, 1.0] 1 a collective (c10d::recv_) is made by every process"
    )
    assert of_second == (
        "[0.625, 0.625, 0.625, 1.1428571939468384, 2.0, 2.0, 1.0] 2 a collective (c10d::send) is made by every process"
    )


class Proxies(nn.Module):
    """A loss with parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.proxies = nn.Parameter(torch.arange(12.0).view(3, 4).sin())

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of distances."""
        return nn.functional.cross_entropy(-(x[:, None] - self.proxies).square().sum(-1), labels)


@pytest.mark.parametrize(
    "decorate", [lambda: autogen_loss(type("Own", (Proxies,), {}))(), lambda: autogen_loss(Proxies())]
)
def test_a_loss_whose_parameters_are_sharded(decorate: Callable[[], nn.Module], launches: Launches) -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (1,))
    found = []
    for loss in (decorate(), Proxies()):
        fully_shard(loss, mesh=mesh)
        optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
        for step in range(4):
            x = torch.linspace(-1, 1, 4 * (5 - step % 2)).view(-1, 4).requires_grad_()
            loss(x, torch.arange(len(x)) % 3).backward()
            optimizer.step()
            found.append(x.grad)
        found += [each.full_tensor() for each in loss.parameters()]
    assert launches.take() == 8
    torch.testing.assert_close(found[: len(found) // 2], found[len(found) // 2 :])
