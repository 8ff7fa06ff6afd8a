"""Time configurations of a kernel, on tensors made for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch

from autogen import ir
from autogen.errors import AutogenError, ScheduleError
from autogen.ir.sizes import Evaluator
from autogen.runtime.availability import has_interpreter
from autogen.runtime.launch import Launch, Launcher, device_context
from autogen.scheduling.launches.kernel import Kernel
from autogen.tiling.tiler import Config
from autogen.tuning.store import Tuned

logger = logging.getLogger("autogen")

MARGIN = 0.97  # of the default's time: what another has to stay below, so that noise does not decide
WARM_UP, REPEAT = 10, 50  # ms


def can_time(device: torch.device) -> bool:
    """Whether kernels can be timed on a device now."""
    is_real = device.type == "cuda" and not has_interpreter()
    return is_real and not torch.cuda.is_current_stream_capturing()


def milliseconds(launch: Launch, tensors: Sequence[torch.Tensor]) -> float:
    """The median time of some launches, each with a cold L2 cache."""
    from triton.testing import do_bench

    return float(do_bench(lambda: launch(tensors), warmup=WARM_UP, rep=REPEAT, return_mode="median"))


def refusals() -> tuple[type[Exception], ...]:
    """What is raised where a configuration does not go, as opposed to defects."""
    from triton.errors import TritonError

    return AutogenError, TritonError, torch.OutOfMemoryError


def is_valid(launcher: Launcher, config: Config, sizes: Mapping[str, int], device: torch.device) -> bool:
    """Whether a configuration compiles, within the resources of the device, without spilling registers."""
    try:
        spilled = launcher.launch(config, sizes, device).compile()
    except refusals() as error:
        logger.debug("%s: %s is skipped: %s", launcher.kernel.name, config, error)
        return False
    return spilled == 0


def fastest(launcher: Launcher, configs: Sequence[Config], sizes: Mapping[str, int], device: torch.device) -> Tuned:
    """The configuration that takes the least time; the first one unless another is faster by a margin, and is so again.

    Raises:
        ScheduleError: none could be timed.
    """
    times: dict[Config, float] = {}
    launches: dict[Config, Launch] = {}
    tensors = _tensors(launcher, configs[0], sizes, device)

    def time(config: Config) -> float:
        with device_context(device):
            return milliseconds(launches[config], [tensors[name] for name in launches[config].names])

    for config in configs:
        if is_valid(launcher, config, sizes, device):
            launches[config] = launcher.launch(config, sizes, device)
            try:
                times[config] = time(config)
            except refusals() as error:
                logger.debug("%s: %s is skipped: %s", launcher.kernel.name, config, error)
    if not times:
        raise ScheduleError("no configuration fits the device")
    default, best = configs[0], min(times, key=times.__getitem__)
    if default not in times or best == default:
        return Tuned(best)
    # The first was timed on a device that had been idle: once more, one right after the other.
    again = {config: time(config) for config in (default, best)}
    if any(found[best] > MARGIN * found[default] for found in (times, again)):
        return Tuned(default)
    return Tuned(best, round(again[default] / again[best], 3))


def _tensors(
    launcher: Launcher, config: Config, sizes: Mapping[str, int], device: torch.device
) -> dict[str, torch.Tensor]:
    """Memory for a kernel's tensors by name, what it reads filled at random; the device's own random stream stays."""
    generator = torch.Generator(device).manual_seed(0)
    kernel, bounds = launcher.kernel, _bounds(launcher.kernel, sizes)
    written = {root.buffer for root in kernel.roots}
    found = {}
    for buffer in launcher.source(launcher.tiler.cut(config, sizes).variant).buffers:
        shape, strides = Evaluator(buffer.shape)(sizes), Evaluator(buffer.strides)(sizes)
        extent = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1 if all(shape) else 1
        tensor = found[buffer.name] = torch.empty(extent, dtype=buffer.dtype, device=device)
        if buffer in written:
            continue
        if buffer.dtype.is_floating_point:
            tensor.normal_(generator=generator)
        else:
            most = 1 if buffer.dtype == torch.bool else torch.iinfo(buffer.dtype).max
            tensor.random_(0, min(bounds.get(buffer, 2), most + 1), generator=generator)
    return found


def _bounds(kernel: Kernel, sizes: Mapping[str, int]) -> dict[ir.Buffer, int]:
    """Below what the integers of a tensor have to stay that other tensors are indexed by."""
    found: dict[ir.Buffer, int] = {}
    for load in kernel.loads():
        buffer, entries = load.attrs
        for position, computed in enumerate(load.args):
            (size,) = Evaluator([buffer.shape[entries.index(ir.hole(position))]])(sizes)
            for node in ir.topological([computed]):
                if node.op == "load":
                    found[node.attrs[0]] = max(size, 1)
    return found
