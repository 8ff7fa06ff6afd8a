"""Run a loss on a driver that does nothing (`libcuda.c`), and print what Triton's launcher passes to it.

    python -m tests.ptx.launching libcuda.so.1

Tensors on the CPU pass for those of device 0. Triton compiles for sm_90, and launches as it does on a GPU.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import torch

STREAM = 0xABC


def pretend() -> None:
    """Make torch say that there is a GPU, as far as Triton asks."""
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda device=None: (9, 0)  # type: ignore[assignment]
    torch._C._cuda_getCurrentRawStream = lambda device: STREAM
    from triton.backends.nvidia.driver import CudaDriver

    from autogen.runtime import availability, direct

    CudaDriver.is_active = staticmethod(lambda: True)  # type: ignore[assignment]

    availability.has_interpreter = lambda: True  # type: ignore[assignment]
    streams = direct.Streams(lambda: None, lambda index: STREAM, lambda: False)
    direct.streams_of = lambda kind: streams  # type: ignore[assignment]


def main(library: str) -> None:
    pretend()
    driver = ctypes.CDLL(library)
    driver.noted_parameter.restype = driver.noted_stream.restype = ctypes.c_uint64
    from autogen import policy
    from autogen.losses import BCEWithLogitsLoss
    from autogen.runtime.launch import Launch

    through_triton: list[int] = []
    original = Launch.__call__

    def counted(self: Any, *args: Any) -> None:
        through_triton.append(1)
        original(self, *args)

    Launch.__call__ = counted  # type: ignore[method-assign]
    loss = BCEWithLogitsLoss()

    def note(tensors: list[torch.Tensor]) -> None:
        parameters = [driver.noted_parameter(k) for k in range(6)]
        found = {"parameters": parameters, "programs": driver.noted_programs(), "stream": driver.noted_stream()}
        found |= {"launches": driver.noted_launches(), "through_triton": len(through_triton)}
        print(json.dumps(found | {"pointers": [each.data_ptr() for each in tensors]}))

    driver.noted_parameters(6)
    for size, offset in [(5008, 0)] * 4 + [(5008, 1)] * 2 + [(4992, 0), (4993, 0)]:
        x, y = (torch.rand(size)[offset:] for _ in range(2))
        x.requires_grad_()
        with policy("mandatory"):
            value = loss(x, y)
        note([x, y, value.detach()])
        (gradient,) = torch.autograd.grad(value, x, torch.ones(()))
        note([x, y, gradient])


if __name__ == "__main__":
    main(sys.argv[1])
