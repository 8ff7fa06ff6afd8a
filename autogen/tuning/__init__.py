"""Tune tiles and warps of kernels on the device, for losses that ask for it.

Which configuration is best depends on what a kernel reads, reduces and stores, and hardly on the arithmetic between. So
there are two steps:

1. *Candidates are timed on a skeleton* (`skeleton.py`): the same loads, stores and reductions, and the plainest
   arithmetic. `candidates.py` says which, the default first; `profile.py` times them. One that does not compile, or
   spills registers, is left out. The default stays unless another is faster by a margin.
2. *The loss's own kernel is compiled once*, with the winner. If that does not fit the device, or spills, the default
   is taken after all.

L losses of one skeleton thus cost K + L compilations, not K × L. Winners are kept on disk (`store.py`) by device,
dtypes, skeleton, versions, and *bucket*: rows and columns rounded up to powers of two, whether what is adjacent in
memory is a multiple of 16, and whether offsets need 64 bits. So 1000 and 1008 rows share an entry; 1025 have another.

A `Tuner` belongs to one launcher. Nothing is timed where nothing can be (on the CPU, while a CUDA graph is captured)
or nothing is to be launched (`explain`, `aot`): what is kept is used there, else the default. Without `tune`, this
package is not even imported. Tuning is never the reason why a loss fails: what goes wrong is logged.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping

import torch

from autogen._version import __version__
from autogen.errors import AutogenError, defects_of
from autogen.ir.sizes import next_power_of_2
from autogen.runtime.launch import Launcher
from autogen.runtime.locks import compiling, measuring
from autogen.settings.options import Tuning
from autogen.tiling.tiler import Config, Tiler
from autogen.tuning import profile, store
from autogen.tuning.candidates import Capability, candidates
from autogen.tuning.skeleton import Skeleton

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


class Tuner:
    """Chooses the configurations of one launcher; see `autogen.runtime.launch.Tuner`."""

    origin = "tuned"

    def __init__(self, launcher: Launcher, mode: Tuning, device: torch.device) -> None:
        self._launcher, self._mode, self._device = launcher, mode, device
        self._chosen: dict[Bucket, Config] = {}

    @property
    def _tiler(self) -> Tiler:
        tiler = self._launcher.tiler
        assert isinstance(tiler, Tiler), "a kernel of several parts is not tuned"
        return tiler

    @functools.cached_property
    def _skeleton(self) -> Skeleton | None:
        name = self._launcher.kernel.name
        try:
            with compiling, defects_of(name):
                return Skeleton.of(self._launcher.kernel)
        except AutogenError as error:
            logger.warning("%s is not tuned: %s", name, error.reason, exc_info=error)
            return None

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
        """The first configuration that is valid for the kernel itself: of all, or of the winner and the default."""
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
        name, skeleton, tried = self._launcher.kernel.name, self._skeleton, self._candidates(sizes)
        if skeleton is None or 0 in bucket[:-2] or len(tried) == 1:
            return None
        try:
            with defects_of(name):
                launcher = Launcher(skeleton.kernel, skeleton.provenance)
                tuned = profile.fastest(launcher, tried, skeleton.sizes(sizes), self._device)
        except AutogenError as error:
            logger.info("%s is not tuned: %s", name, error.reason)
            return None
        store.write(self._key(skeleton, bucket), tuned)
        logger.info("%s is tuned: %s, %.2f times as fast as the default", name, tuned.config, tuned.speedup)
        return tuned.config

    def _kept(self, bucket: Bucket, sizes: Mapping[str, int]) -> Config | None:
        """What is kept on disk, if it goes with the kernel."""
        skeleton = self._skeleton if self._mode == "profile" else None
        tuned = store.read(self._key(skeleton, bucket)) if skeleton is not None else None
        tiler = self._tiler
        if tuned is None or not (tuned.config == tiler.default(sizes) or tiler.admits(tuned.config, sizes)):
            return None
        return tuned.config

    def _key(self, skeleton: Skeleton, bucket: Bucket) -> store.Key:
        return store.Key(device_name(self._device), skeleton.dtypes, skeleton.pattern, bucket, versions())
