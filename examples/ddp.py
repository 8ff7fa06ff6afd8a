"""Train with DistributedDataParallel and a loss on kernels, in two processes.

    TRITON_INTERPRET=1 python -m examples.ddp    # on CPUs, by gloo; with GPUs, by NCCL, without TRITON_INTERPRET

Each process has half of the data. A process captures and compiles the loss for itself, and reads the modules that
others have written to the cache.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autogen

PROCESSES = 2


def train(loss: nn.Module, device: torch.device) -> Tensor:
    """Train for some steps; returns the loss of each, averaged over the processes."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 6)).to(device)
    inputs, targets = torch.randn(64, 16, device=device), torch.rand(64, 6, device=device).round()
    own = slice(dist.get_rank(), None, PROCESSES)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    curve = []
    for _ in range(10):
        value = loss(model(inputs[own]), targets[own])
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = value.detach() / PROCESSES
        dist.all_reduce(mean)
        curve.append(mean)
    return torch.stack(curve).cpu()


def work(rank: int, folder: str) -> None:
    """What each process does: train with torch's loss and with ours, and compare."""
    has_gpus = torch.cuda.device_count() >= PROCESSES
    device = torch.device("cuda", rank) if has_gpus else torch.device("cpu")
    dist.init_process_group(
        "nccl" if has_gpus else "gloo", init_method=Path(folder, "store").as_uri(), rank=rank, world_size=PROCESSES
    )
    expected = train(nn.BCEWithLogitsLoss(), device)
    with autogen.policy("mandatory"):  # a loss that cannot run on kernels is an error
        found = train(autogen.losses.BCEWithLogitsLoss(), device)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found[-1] < found[0]
    if rank == 0:
        print(f"torch: loss {expected[0]:.4f} at first, {expected[-1]:.4f} after {len(expected)} steps")
        print(f"on kernels: loss {found[0]:.4f} at first, {found[-1]:.4f} after {len(found)} steps")
    dist.destroy_process_group()


def main() -> None:
    """Start the processes."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (folder,), nprocs=PROCESSES)


if __name__ == "__main__":
    main()
