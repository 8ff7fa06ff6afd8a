"""Tune losses of one skeleton on a driver that does nothing, and print what Triton compiles for each.

    python -m tests.ptx.tuning libcuda.so.1

A timer that is told the winner stands for the device's.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import torch
from torch import nn

from tests.ptx.launching import pretend

WINNER = {"BLOCK": 4096, "warps": 8}


def main(library: str) -> None:
    pretend()
    driver = ctypes.CDLL(library)
    import autogen.tuning
    from autogen import autogen_loss, explain
    from autogen.tuning import profile

    compiled: list[str] = []

    def note(*, fn: Any, **_: Any) -> None:
        compiled.append(fn.name.rsplit(".")[-1])

    from triton import knobs

    knobs.runtime.jit_post_compile_hook = note
    timed: list[Any] = []

    def milliseconds(launch: Any, tensors: Any) -> float:
        timed.append(launch.tiling)
        launch(tensors)
        is_winner = (dict(launch.tiling.tiles)["BLOCK"], launch.tiling.num_warps) == tuple(WINNER.values())
        return 0.5 if is_winner else 1.0

    profile.can_time = lambda device: True
    profile.milliseconds = milliseconds
    autogen.tuning.capability_of = lambda device: (9, 0)
    for loss in (nn.MSELoss(), nn.HuberLoss(), nn.SmoothL1Loss()):
        before = len(timed)
        tuned = autogen_loss(loss, tune=True, policy="mandatory")
        x, t = torch.rand(300_000), torch.rand(300_000)
        for _ in range(4):
            tuned(x, t)
        report = explain(tuned, x, t)
        assert report.forward is not None
        found = {"compiled": compiled[:], "candidates": len(set(timed[before:])), "config": report.forward.configs[0]}
        print(json.dumps(found | {"programs": driver.noted_programs()}))
        compiled.clear()


if __name__ == "__main__":
    main(sys.argv[1])
