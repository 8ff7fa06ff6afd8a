"""Tuning: which tiles and how many warps suit a kernel best, found out on the device. Only for losses that ask for it.

`candidates.py` says which configurations are tried, the default first, and `profile.py` times them. One that does not
compile, or spills registers, is left out. The default stays unless another is faster by a margin.

Winners are kept on disk (`store.py`) by device, dtypes, the kernel's expressions, versions, and *bucket*: rows and
columns rounded up to powers of two, whether what is adjacent in memory is a multiple of 16, and whether offsets need 64
bits. So 1000 and 1008 rows share an entry; 1025 have another.

A `Tuner` belongs to one launcher. Nothing is timed where nothing can be (on the CPU, while a CUDA graph is captured)
or nothing is to be launched (`explain`, `aot`): what is kept is used there, else the default. Without `tune`, this
package is not even imported. Tuning is never the reason why a loss fails: what goes wrong is logged.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping

import torch

from autogen import ir
from autogen._version import __version__
from autogen.errors import AutogenError, defects_of
from autogen.locks import measuring
from autogen.options import Tuning
from autogen.runtime.launch import Launcher
from autogen.scheduling.kernel import Kernel
from autogen.sizes import next_power_of_2
from autogen.tiling.tiler import Config, Tiler
from autogen.tuning import profile, store
from autogen.tuning.candidates import Capability, candidates

logger = logging.getLogger("autogen")

Bucket = tuple[int, ...]


def bucket_of(tiler: Tiler, sizes: Mapping[str, int]) -> Bucket:
    """What sizes have in common that share a configuration."""
    extents = tiler.extents(sizes)
    rounded = (extents.rows, extents.inner_rows, extents.columns, extents.kept, *extents.whole)
    adjacent = extents.columns if tiler.columns_adjacent else extents.inner_rows
    return *map(next_power_of_2, rounded), int(adjacent % 16 == 0), int(extents.wide)


def device_name(device: torch.device) -> str:
    """The kind of a device, as it is in keys."""
    if device.type != "cuda":
        return device.type
    return f"{torch.cuda.get_device_name(device)}, capability {'.'.join(map(str, capability_of(device)))}"


def capability_of(device: torch.device) -> Capability:
    """The compute capability of a device; of the CPU, the least."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


@functools.cache
def versions() -> str:
    """The versions that decide what a kernel becomes."""
    import triton

    return f"autogen-loss {__version__}, torch {torch.__version__}, triton {triton.__version__}"


def dtypes_of(kernel: Kernel) -> tuple[str, ...]:
    """The dtypes of a kernel's tensors, as they are in keys."""
    buffers = [load.attrs[0] for load in kernel.loads()] + [root.buffer for root in kernel.roots]
    return tuple(sorted({str(buffer.dtype).removeprefix("torch.") for buffer in buffers}))


def pattern_of(kernel: Kernel) -> str:
    """All about a kernel that decides about time, as text: its constants do not."""
    axes = (("rows", kernel.rows), ("kept", kernel.kept), ("columns", kernel.columns))
    lines = [f"{name}: {', '.join(f'{axis} < {axis.size}' for axis in group)}" for name, group in axes if group]
    last = kernel.last_block
    flags = {"whole rows": kernel.whole_rows, "one block": kernel.one_block, "last block": last is not None}
    lines.append(", ".join(name for name, holds in flags.items() if holds) or "many programs")
    nodes = [*kernel.totals, *(root.node for root in (*kernel.roots, *(last.kernel.roots if last else ())))]
    read = {node.attrs[0]: None for node in ir.topological(nodes) if node.op == "load"}
    lines += [f"{buffer.name}: {buffer.describe()}" for buffer in read]
    lines += [f"{r.buffer.name}[{', '.join(map(str, r.index))}]: {r.buffer.describe()}, written" for r in kernel.roots]
    return "\n".join([*lines, re.sub(r"= const \S+", "= const", ir.format_nodes(nodes))])


class Tuner:
    """Chooses the configurations of one launcher; see `autogen.runtime.launch.Tuner`."""

    def __init__(self, launcher: Launcher, mode: Tuning, device: torch.device) -> None:
        self._launcher, self._mode, self._device = launcher, mode, device
        self._chosen: dict[Bucket, Config] = {}

    @property
    def _tiler(self) -> Tiler:
        tiler = self._launcher.tiler
        assert isinstance(tiler, Tiler), "a kernel of several parts is not tuned"
        return tiler

    @functools.cached_property
    def _kernel(self) -> tuple[tuple[str, ...], str]:
        """The dtypes of the kernel's tensors, and its pattern."""
        kernel = self._launcher.kernel
        return dtypes_of(kernel), pattern_of(kernel)

    def known(self, sizes: Mapping[str, int]) -> Config | None:
        """What has been chosen for sizes like these, None if nothing has. Compiles nothing, and times nothing."""
        bucket = bucket_of(self._tiler, sizes)
        return self._chosen.get(bucket) or self._kept(bucket, sizes)

    def choose(self, sizes: Mapping[str, int]) -> Config | None:
        """The same; what has not been chosen is chosen now, if that is possible here."""
        bucket = bucket_of(self._tiler, sizes)
        if bucket not in self._chosen and profile.can_time(self._device):
            with measuring:
                self._chosen[bucket] = self._choice(bucket, sizes)
        return self._chosen.get(bucket) or self._kept(bucket, sizes)

    def _choice(self, bucket: Bucket, sizes: Mapping[str, int]) -> Config:
        """The first configuration that is valid: of all, or of the winner and the default."""
        default = self._tiler.default(sizes)
        if self._mode == "first_valid":
            tried = self._candidates(sizes)
        else:
            tried = (self._kept(bucket, sizes) or self._profiled(bucket, sizes) or default,)
        valid = (each for each in tried if profile.is_valid(self._launcher, each, sizes, self._device))
        return next(valid, default)

    def _candidates(self, sizes: Mapping[str, int]) -> tuple[Config, ...]:
        return candidates(self._tiler, sizes, capability_of(self._device))

    def _profiled(self, bucket: Bucket, sizes: Mapping[str, int]) -> Config | None:
        """The winner among the candidates, which is kept; None if they could not be timed."""
        name, tried = self._launcher.kernel.name, self._candidates(sizes)
        if 0 in bucket[:-2] or len(tried) == 1:
            return None
        try:
            with defects_of(name):
                tuned = profile.fastest(self._launcher, tried, sizes, self._device)
        except AutogenError as error:
            logger.info("%s is not tuned: %s", name, error.reason)
            return None
        store.write(self._key(bucket), tuned)
        logger.info("%s is tuned: %s, %.2f times as fast as the default", name, tuned.config, tuned.speedup)
        return tuned.config

    def _kept(self, bucket: Bucket, sizes: Mapping[str, int]) -> Config | None:
        """What is kept on disk, if it goes with the kernel."""
        tuned = store.read(self._key(bucket)) if self._mode == "profile" else None
        tiler = self._tiler
        if tuned is None or not (tuned.config == tiler.default(sizes) or tiler.admits(tuned.config, sizes)):
            return None
        return tuned.config

    def _key(self, bucket: Bucket) -> store.Key:
        return store.Key(device_name(self._device), *self._kernel, bucket, versions())
