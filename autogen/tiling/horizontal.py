"""Launch parameters of kernels with several parts: those of each part, with the most warps that one has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autogen.scheduling.launches.kernel import Kernel
from autogen.tiling.space import Space
from autogen.tiling.tiler import Config, Tiler, Tiling
from autogen.tiling.variant import Variant, tile_of_part


class HorizontalTiler:
    """The tilings of a kernel of several parts; see `autogen.tiling.tiler.Tiler`."""

    def __init__(self, kernel: Kernel) -> None:
        self._parts = [Tiler(part, Space(part), is_part=True) for part in kernel.parts]

    def default(self, sizes: Mapping[str, int]) -> Config:
        """The configuration for the given sizes, without any measurement."""
        found = [part.default(sizes) for part in self._parts]
        warps = max(config.num_warps for config in found)
        return Config((), warps, parts=tuple(_for_warps(config, warps) for config in found))

    def tiling(self, sizes: Mapping[str, int]) -> Tiling:
        """The default's tiling for the given sizes."""
        return self.cut(self.default(sizes), sizes)

    def cut(self, config: Config, sizes: Mapping[str, int]) -> Tiling:
        """The launch of a configuration."""
        found = [part.cut(own, sizes) for part, own in zip(self._parts, config.parts, strict=True)]
        tiles: dict[str, int] = {}
        for number, tiling in enumerate(found, 1):
            for tile, size in tiling.tiles:
                if tile == "PARTIALS":  # of the last block, which combines the totals of one part after the other
                    tiles[tile] = max(tiles.get(tile, 0), size)
                else:
                    tiles[tile_of_part(tile, number)] = size
        variants = tuple(tiling.variant for tiling in found)
        variant = Variant(wide=any(each.wide for each in variants), parts=variants)
        return Tiling(variant, tuple(tiles.items()), sum(tiling.programs for tiling in found), config.num_warps)


def _for_warps(config: Config, num_warps: int) -> Config:
    """A configuration with more warps, and as much for each of them to do."""
    (first, size), *others = config.tiles
    return replace(config, tiles=((first, size * num_warps // config.num_warps), *others), num_warps=num_warps)
