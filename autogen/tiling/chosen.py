"""Launch parameters that the user has set, in the place of those that follow from the sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autogen.errors import ConfigError
from autogen.scheduling.launches.kernel import Kernel
from autogen.settings.options import DIRECTIONS, LaunchConfig
from autogen.tiling.tiler import WARPS, Config, Tiler

NUM_WARPS = "num_warps"


class Chosen:
    """The configurations of one kernel, as far as the user has set them (compare `autogen.tuning.Tuner`).

    Args:
        kernel: the kernel.
        tiler: what knows its tiles; of a kernel of several parts, None.
        config: tile sizes and `num_warps` by name, for all kernels of the loss, or for "forward" and "backward" apart.
        loss: what the names of the loss's kernels begin with.
    """

    origin = "set"

    def __init__(self, kernel: Kernel, tiler: Tiler | None, config: LaunchConfig, loss: str) -> None:
        self._kernel, self._tiler = kernel.name, tiler
        apart = [which for which in DIRECTIONS if which in config]
        mine = [which for which in apart if kernel.name.startswith(f"{loss}_{which}")]
        self._admitted = config.admitted
        self._wanted: Mapping[str, int] = config[mine[0]] if mine else {} if apart else config

    def known(self, sizes: Mapping[str, int]) -> Config | None:
        """The configuration for some sizes, None if nothing is set.

        Where other sizes come later that it does not go with, such as those of a last batch, the default is taken.

        Raises:
            ConfigError: the kernel has no such tile, or cannot have one of that size for the sizes that come first.
        """
        if not self._wanted:
            return None
        if self._tiler is None:
            raise ConfigError(
                self._kernel,
                "it has parts, each with tiles of its own",
                "Leave out config: nothing of this kernel can be set.",
            )
        default = self._tiler.default(sizes)
        names = [*dict(default.tiles), NUM_WARPS]
        can = f"You can set {', '.join(names)}; the default for these sizes is {default}"
        for name in self._wanted:
            if name not in names:
                raise ConfigError(self._kernel, f"it has no parameter {name}", f"{can}.")
        tiles = tuple((name, self._wanted.get(name, size)) for name, size in default.tiles)
        config = replace(default, tiles=tiles, num_warps=self._wanted.get(NUM_WARPS, default.num_warps))
        if config != default and not self._tiler.admits(config, sizes):
            if self._kernel in self._admitted:
                return None
            most = 16 if self._tiler.is_double else 32
            raise ConfigError(
                self._kernel,
                f"it cannot have {config}",
                f"{can}. Tiles are powers of two, not longer than their axis, with 1 to {most} elements per thread; "
                f"num_warps is one of {', '.join(map(str, WARPS))}, with 32 threads each.",
            )
        self._admitted.add(self._kernel)
        return config

    choose = known
