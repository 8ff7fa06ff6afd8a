"""Run a loss in chunks of rows."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from autogen.errors import defects_of
from autogen.ir.sizes import Evaluator
from autogen.ir.torch_step import TorchStep
from autogen.runtime.directions import Direction
from autogen.runtime.launch import Launcher, Results, Step, Tune, empty, kernels_in, results_of
from autogen.runtime.locks import compiling
from autogen.runtime.route import Route
from autogen.scheduling.chunks.body import ROWS
from autogen.scheduling.chunks.chunk import Chunk
from autogen.scheduling.launches.kernel import Kernel
from autogen.scheduling.plan import Plan

_MOST_PREPARED = 64  # sizes for which launches are kept


def launchers_of(steps: Iterable[Kernel | TorchStep], plan: Plan, tune: Tune | None) -> tuple[Step, ...]:
    """The steps of a plan, ready to run."""
    found: list[Step] = []
    for step in steps:
        if isinstance(step, TorchStep):
            found.append(step.calling(ChunkLoop(step.target, plan, tune)) if isinstance(step.target, Chunk) else step)
        else:
            found.append(Launcher(step, plan.provenance, tune))
    return tuple(found)


def loops_in(steps: Iterable[Step]) -> tuple[ChunkLoop, ...]:
    """The steps that go through chunks of rows."""
    targets = (step.target for step in steps if isinstance(step, TorchStep))
    return tuple(target for target in targets if isinstance(target, ChunkLoop))


def launched(steps: Iterable[Step], sizes: Mapping[str, Any]) -> Iterator[tuple[Launcher, Mapping[str, Any]]]:
    """The kernels of some steps, each with the sizes that it is launched for; of all chunks, those of the first."""
    for step in steps:
        if isinstance(step, Launcher):
            yield step, sizes
        elif isinstance(step.target, ChunkLoop):
            for rows in step.target.lengths(sizes)[:1]:
                known = {**sizes, ROWS.name: rows}
                yield from launched(step.target.steps(known), known)


class _Variant(NamedTuple):
    """A chunk as steps, for sizes that they are made for; and the tensors that its kernels write to for each other."""

    steps: tuple[Step, ...]
    made: Results
    route: Route


class ChunkLoop:
    """All chunks of rows, one after the other: called with the tensors and then the sizes that a `Chunk` names, it
    returns the results of rows, and the totals.
    """

    __name__ = "mm"

    def __init__(self, chunk: Chunk, plan: Plan, tune: Tune | None) -> None:
        self.chunk, self._plan, self._tune = chunk, plan, tune
        self._symbols = [str(symbol) for symbol in chunk.symbols]
        self._varies = any(not symbol.is_integer for symbol in chunk.symbols)
        laid = [(*each.buffer.shape[1:], *each.buffer.strides) for each in chunk.slices]
        self._laid = Evaluator(list(itertools.chain(*laid)))
        self._results = Results((*chunk.rows, *chunk.totals))
        self._variants: list[_Variant] = []
        self._prepared: dict[Hashable, Direction] = {}
        self._variant({**plan.hints, ROWS.name: chunk.size.of(plan.hints)})

    def lengths(self, sizes: Mapping[str, Any]) -> list[int]:
        """How many rows each chunk has."""
        (rows,), step = Evaluator([self.chunk.size.rows])(sizes), self.chunk.size.of(sizes)
        return [min(step, rows - start) for start in range(0, rows, step)]

    def steps(self, sizes: Mapping[str, Any]) -> tuple[Step, ...]:
        """The steps of a chunk for some sizes."""
        return self._variant(sizes).steps

    def __call__(self, *arguments: Any) -> tuple[torch.Tensor, ...]:
        chunk, count = self.chunk, len(arguments) - len(self._symbols)
        tensors = arguments[:count]
        sizes = dict(zip(self._symbols, arguments[count:], strict=True))
        lengths, device = self.lengths(sizes), tensors[0].device
        made = [empty(each, device) for each in self._results.geometry(sizes).values()]
        for total in made[len(chunk.rows) :]:
            total.zero_()
        by_rows = [each if each.dim() == 1 else each.view(sum(lengths), -1) for each in made[: len(chunk.rows)]]
        start = 0
        for length in lengths:
            given = [
                *self._slices(tensors, sizes, start, length),
                *(each.narrow(0, start, length) for each in by_rows),
                *made[len(chunk.rows) :],
            ]
            known = {**sizes, ROWS.name: length}
            self._direction(known, device)(given, known if self._varies else None)
            start += length
        return tuple(made)

    def _slices(
        self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, Any], start: int, length: int
    ) -> list[torch.Tensor]:
        """What a chunk reads."""
        numbers, given = iter(self._laid(sizes)), []
        for each, tensor in zip(self.chunk.slices, tensors, strict=False):
            shape = (length, *itertools.islice(numbers, len(each.buffer.shape) - 1))
            strides = tuple(itertools.islice(numbers, len(shape)))
            given.append(tensor.as_strided(shape, strides, tensor.storage_offset() + start * strides[0]))
        rest = tensors[len(given) :]
        given += [own.narrow(each.dim, start, length) for each, own in zip(self.chunk.sliced, rest, strict=False)]
        return [*given, *rest[len(self.chunk.sliced) :]]

    def _direction(self, sizes: Mapping[str, Any], device: torch.device) -> Direction:
        """The launches of a chunk of some rows."""
        key = device, *(size for size in sizes.values() if not isinstance(size, float))
        direction = self._prepared.get(key)
        if direction is None:
            variant = self._variant(sizes)
            made = tuple(variant.made.geometry(sizes).values())
            procedure = variant.route.procedure(made, (), sizes, device)
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            direction = self._prepared[key] = Direction(procedure, f"autogen::{self._plan.name}.chunk")
        return direction

    def _variant(self, sizes: Mapping[str, Any]) -> _Variant:
        """The steps of a chunk that hold for some sizes, planned if there are none."""
        for variant in self._variants:
            if all(each.kernel.holds(sizes) for each in kernels_in(variant.steps)):
                return variant
        from autogen.scheduling.schedule import steps_of

        with compiling, defects_of(self._plan.provenance.loss):
            planned = steps_of(self.chunk.direction, sizes, self._plan.provenance)
        steps = launchers_of(planned, self._plan, self._tune)
        for launcher in kernels_in(steps):  # so that what fails fails before anything ran
            launcher.source(launcher.tiling(sizes).variant)
        chunk = self.chunk
        own = [each.name for each in (*chunk.rows, *chunk.totals)]
        read = [
            *(each.buffer.name for each in chunk.slices),
            *(each.name for each in chunk.sliced),
            *chunk.whole,
        ]
        made = results_of(steps, (), {}, [root.buffer for root in chunk.direction.results])
        route = Route([*read, *own], {}, made.names, (), steps, {}, ())
        self._variants.append(_Variant(steps, made, route))
        return self._variants[-1]
