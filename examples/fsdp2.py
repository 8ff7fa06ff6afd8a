"""Train with FSDP2 (`fully_shard`) and a loss on kernels, in two processes.

    TRITON_INTERPRET=1 python -m examples.fsdp2    # on CPUs, by gloo; with GPUs, by NCCL, without TRITON_INTERPRET

The model is sharded, its loss is not: logits are plain tensors, as kernels take them. Parameters are float32, and
computed with in bfloat16; so the logits are bfloat16, too, and the loss reads them as they are.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import autogen

PROCESSES = 2


def train(loss: nn.Module, device: torch.device) -> Tensor:
    """Train for some steps; returns the loss of each, averaged over the processes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 6)).to(device)
    inputs, labels = torch.randn(64, 16, device=device), torch.randint(6, (64,), device=device)
    own = slice(dist.get_rank(), None, PROCESSES)
    mesh = init_device_mesh(device.type, (PROCESSES,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    curve = []
    for _ in range(10):
        value = loss(model(inputs[own]), labels[own])
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = value.detach().float() / PROCESSES
        dist.all_reduce(mean)
        curve.append(mean)
    return torch.stack(curve).cpu()


def work(rank: int, folder: str) -> None:
    """What each process does: train with torch's loss and with ours, and compare."""
    has_gpus = torch.cuda.device_count() >= PROCESSES
    device = torch.device("cuda", rank) if has_gpus else torch.device("cpu")
    if has_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if has_gpus else "gloo", init_method=Path(folder, "store").as_uri(), rank=rank, world_size=PROCESSES
    )
    expected = train(nn.CrossEntropyLoss(), device)
    with autogen.policy("mandatory"):  # a loss that cannot run on kernels is an error
        found = train(autogen.losses.CrossEntropyLoss(), device)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-2)  # the rounding of bfloat16
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
