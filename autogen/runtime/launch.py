"""Launch a kernel: from the tensors and sizes of a call to its results."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from autogen import compat, ir
from autogen.emission.source import KernelSource, Partial
from autogen.errors import CompileError, StorageError, defects_of
from autogen.ir.provenance import Provenance
from autogen.ir.sizes import Evaluator
from autogen.ir.torch_step import TorchStep
from autogen.runtime import build, direct, scratch
from autogen.runtime.locks import compiling, interpreting
from autogen.scheduling.launches.kernel import CHUNKS, PROGRAMS, Kernel
from autogen.tiling.horizontal import HorizontalTiler
from autogen.tiling.space import Space
from autogen.tiling.tiler import Config, Tiler, Tiling
from autogen.tiling.variant import Variant

_PROGRAMS, _CHUNKS = PROGRAMS.name, CHUNKS.name

Geometry = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and dtype."""


def empty(geometry: Geometry, device: torch.device) -> torch.Tensor:
    """A new tensor."""
    shape, strides, dtype = geometry
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


class Results:
    """The tensors that some launches write to."""

    def __init__(self, buffers: Iterable[ir.Buffer]) -> None:
        self.buffers = tuple(buffers)
        self.names = tuple(buffer.name for buffer in self.buffers)
        laid = [(*each.shape, *(each.allocated or each.strides)) for each in self.buffers]
        self._geometry = Evaluator(list(itertools.chain(*laid)))

    def geometry(self, sizes: Mapping[str, int]) -> dict[str, Geometry]:
        """Shape, strides and dtype of the results for given sizes, by name."""
        numbers, geometry, start = self._geometry(sizes), {}, 0
        for buffer in self.buffers:
            middle = start + len(buffer.shape)
            end = middle + len(buffer.shape)
            geometry[buffer.name] = numbers[start:middle], numbers[middle:end], buffer.dtype
            start = end
        return geometry


class Tuner(Protocol):
    """What chooses the configurations of one kernel by more than its sizes: `autogen.tuning.Tuner`, or the user.

    `origin` is what reports call the choice.
    """

    origin: str

    def known(self, sizes: Mapping[str, int]) -> Config | None:
        """What has been chosen for sizes like these, None if nothing has. Compiles nothing, and times nothing."""

    def choose(self, sizes: Mapping[str, int]) -> Config | None:
        """The same; what has not been chosen is chosen now, if that is possible here."""


Tune = Callable[["Launcher"], Tuner | None]
"""What gives a launcher its tuner, if it has one."""


@dataclass(frozen=True)
class Written:
    """A kernel in one variant, and what its launches need of it.

    `compiled` is what Triton has made of it, by all else that it specialises on but the alignment of the tensors.
    """

    source: KernelSource
    names: tuple[str, ...]
    arguments: Evaluator
    counts: Evaluator
    is_sized: bool = False  # whether sizes decide how many partial results there are, beside the programs
    compiled: dict[Hashable, dict[tuple[bool, ...], direct.Compiled]] = field(default_factory=dict)

    def partials(self, sizes: Mapping[str, int], tiling: Tiling) -> list[tuple[Partial, int]]:
        """What programs store for the last block, and how many values."""
        if not self.source.partials:
            return []
        launched: Mapping[str, int] = {_PROGRAMS: tiling.programs, _CHUNKS: tiling.chunks}
        if self.is_sized:
            launched = {**sizes, **launched}
        return list(zip(self.source.partials, self.counts(launched), strict=True))


class Launcher:
    """One kernel of a plan, ready to be launched for any sizes; its variants are emitted when first needed."""

    def __init__(self, kernel: Kernel, provenance: Provenance, tune: Tune | None = None) -> None:
        self.kernel = kernel
        self.provenance = provenance
        self._space = Space(kernel)
        self.tiler = HorizontalTiler(kernel) if kernel.parts else Tiler(kernel, self._space)
        self._written: dict[Variant, Written] = {}
        self._tuner = tune(self) if tune else None

    def config(self, sizes: Mapping[str, int]) -> tuple[Config, str]:
        """The configuration for the given sizes as far as it is known, and where it is from."""
        known = self._tuner.known(sizes) if self._tuner else None
        if self._tuner is None or known is None:
            return self.tiler.default(sizes), "default"
        return known, self._tuner.origin

    def tiling(self, sizes: Mapping[str, int]) -> Tiling:
        """The launch parameters for the given sizes."""
        return self.tiler.cut(self.config(sizes)[0], sizes)

    def source(self, variant: Variant) -> KernelSource:
        """The kernel's text in a variant."""
        return self._in(variant).source

    def _in(self, variant: Variant) -> Written:
        written = self._written.get(variant)
        if written is None:
            from autogen.emission.emit import emit

            with compiling, defects_of(self.provenance.loss):
                source = emit(self.kernel, self._space, variant, self.provenance)
            arguments = Evaluator([size for _, size in source.sizes])
            counts = Evaluator([partial.count for partial in source.partials])
            symbols = {symbol for partial in source.partials for symbol in partial.count.free_symbols}
            is_sized = not symbols <= {PROGRAMS, CHUNKS}
            names = tuple(buffer.name for buffer in source.buffers)
            written = self._written[variant] = Written(source, names, arguments, counts, is_sized)
        return written

    def arguments(self, sizes: Mapping[str, int], variant: Variant) -> tuple[int, ...]:
        """The sizes that the kernel is given in a variant."""
        return self._in(variant).arguments(sizes)

    def partials(self, sizes: Mapping[str, int], tiling: Tiling) -> list[tuple[Partial, int]]:
        """What programs store for the last block, and how many values."""
        return self._in(tiling.variant).partials(sizes, tiling)

    def prepare(self, sizes: Mapping[str, int], device: torch.device) -> Launch:
        """The launch for the given sizes."""
        chosen = self._tuner.choose(sizes) if self._tuner else None
        tiling = self.tiler.tiling(sizes) if chosen is None else self.tiler.cut(chosen, sizes)
        return Launch(self._in(tiling.variant), tiling, sizes, device)

    def launch(self, config: Config, sizes: Mapping[str, int], device: torch.device) -> Launch:
        """The launch of a configuration."""
        tiling = self.tiler.cut(config, sizes)
        return Launch(self._in(tiling.variant), tiling, sizes, device)


class Launch:
    """A kernel for one set of sizes on one device, as `autogen.runtime.procedure.Launchable` has it; called with its
    tensors, in the order of `names`. What Triton has `compiled` is shared with launches that it does not tell apart.
    """

    def __init__(
        self,
        written: Written,
        tiling: Tiling,
        sizes: Mapping[str, int],
        device: torch.device,
    ) -> None:
        self.names = written.names
        self.tiling = tiling
        self.grid: tuple[int, ...] = (tiling.programs,)
        self._partials = written.partials(sizes, tiling)
        self.offsets, self.room = scratch.lay_out([count * each.dtype.itemsize for each, count in self._partials])
        self._source = written.source
        self._device = device
        self._warps = build.warps_within(tiling.num_warps, _warp_size(device))
        self._evaluate = written.arguments
        tiles = dict(tiling.tiles)
        self._tiles = tuple(map(tiles.__getitem__, self._source.tiles))
        numbers = written.arguments(sizes)
        self._numbers = (*numbers, *self._tiles)
        kind = (device, self._warps, self._tiles, *map(direct.kind_of, numbers))
        self.compiled = written.compiled.setdefault(kind, {})

    def numbers(self, sizes: Mapping[str, int] | None) -> tuple[Any, ...]:
        """The sizes that the kernel is given, and its tiles. `sizes` are None if they are those of the preparation."""
        return self._numbers if sizes is None else (*self._evaluate(sizes), *self._tiles)

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int] | None = None) -> None:
        """Launch. `sizes` are given where numbers among them differ from those that the launch was prepared for."""
        arguments: list[Any] = list(tensors)
        for partial, count in self._partials:
            arguments.append(torch.empty(count, dtype=partial.dtype, device=self._device))
        if self._partials:
            arguments.append(scratch.ticket_counter(self._device))
        arguments += self.numbers(sizes)
        function = self._function
        with triton_around(self._device, self._source.name):
            kernel = function[self.grid](*arguments, num_warps=self._warps, **build.OPTIONS)
        if direct.streams_of(self._device.type) is not None and (compiled := direct.compiled_of(kernel)) is not None:
            self.compiled[tuple(map(direct.is_aligned, tensors))] = compiled

    @functools.cached_property
    def _function(self) -> Any:
        """What Triton launches; calls of sizes that it need not tell apart from others do without."""
        return build.load_function(self._source.name, self._source.text)

    def compile(self) -> int:
        """Have Triton compile the kernel for aligned tensors, which it then has for the launch.

        Returns how many registers per thread are spilled; 0 where kernels are interpreted.

        Raises:
            CompileError: Triton refused the kernel, or could not keep it (a StorageError), or the device cannot run it.
        """
        from triton import JITFunction

        if not isinstance(self._function, JITFunction):
            return 0
        arguments: list[Any] = [buffer.dtype for buffer in self._source.buffers]
        arguments += [partial.dtype for partial, _ in self._partials]
        arguments += [torch.int32] if self._partials else []
        with triton_around(self._device, self._source.name):
            arguments += self._numbers
            kernel = self._function.warmup(*arguments, grid=self.grid, num_warps=self._warps, **build.OPTIONS)
            _ = kernel.run  # loads it, and raises what keeps it from running
        return int(kernel.n_spills)


@contextlib.contextmanager
def triton_around(device: torch.device, name: str) -> Iterator[None]:
    """What Triton needs around it to compile and to launch a kernel; its refusals become errors of ours."""
    with device_context(device):
        try:
            yield
        except BaseException as error:  # what is interrupted may be an interpreted kernel, half-way
            scratch.forget()
            if isinstance(error, OSError):  # such as a full disk
                raise StorageError(name, cause=error) from error
            if isinstance(error, Exception) and compat.is_refusal(error):
                raise CompileError(name, cause=error) from error
            raise


def _warp_size(device: torch.device) -> int:
    """How many threads a warp has."""
    is_amd = device.type == "cuda" and torch.version.hip is not None
    return torch.cuda.get_device_properties(device).warp_size if is_amd else 32


@contextlib.contextmanager
def device_context(device: torch.device) -> Iterator[None]:
    """What a launch on a device needs around it."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield
        return
    import numpy

    from autogen.runtime.interpreter import converting

    # Triton's interpreter computes masked lanes too, whose results nobody uses.
    with interpreting, converting(), numpy.errstate(all="ignore"):
        yield


Step = Launcher | TorchStep


def kernels_in(steps: Iterable[Step]) -> tuple[Launcher, ...]:
    """The kernels among the steps of a loss."""
    return tuple(step for step in steps if isinstance(step, Launcher))


def results_of(
    steps: Iterable[Step], wanted: Iterable[ir.Buffer], aliases: Mapping[str, str], made: Collection[ir.Buffer] = ()
) -> Results:
    """What the kernels write, and results without elements, which none writes; not what is `made` already."""
    written = [root.buffer for step in steps if isinstance(step, Launcher) for root in step.kernel.roots]
    new = dict.fromkeys(each for each in (*wanted, *written) if each.name not in aliases)
    return Results(each for each in new if each not in made)
