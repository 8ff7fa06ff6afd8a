"""Host code: all that a warm call does for its launches, written out as one function.

By then everything is known but the tensors, so nothing is left to be looked up. For two inputs, one result, and a
kernel that stores partial results::

    def launch(given, sizes):
        if current_device() != index or is_watched() or sizes is not None or is_capturing():
            return None
        t0, t1, = given
        p0 = t0.data_ptr()
        p1 = t1.data_ptr()
        if (p0 | p1) % 16:
            return None
        stream = current_stream(index)
        scratch = scratches.get(stream)
        if scratch is None or scratch.room < 2064:
            scratch = make_scratch(device, stream, 2064)
        t2 = empty(shape_2, strides_2, dtype_2)
        p2 = t2.data_ptr()
        try:
            run_0(514, 1, 1, stream, function_0, metadata_0, None, None, None, \
p0, p1, p2, scratch.start + 0, scratch.counter, *numbers_0)
        except Exception:
            forget()
            raise
        return [t2]

It returns None for a call of another kind: other tensors are aligned, or Triton has more to do than to launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from autogen.frozen import frozen
from autogen.runtime import direct, scratch

if TYPE_CHECKING:
    from autogen.runtime.launch import Geometry

Allocator = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
HostCode = Callable[[Sequence[torch.Tensor], Mapping[str, Any] | None], list[Any] | None]


class Launchable(Protocol):
    """A prepared launch: `autogen.runtime.launch.Launch`, or one of a handwritten kernel.

    A call goes through Triton. What Triton has `compiled`, by which of the tensors are aligned, is there to be launched
    directly: with pointers to the tensors and to the partial results, which are at `offsets` in `room` bytes, and with
    `numbers`.
    """

    grid: tuple[int, ...]
    compiled: dict[tuple[bool, ...], direct.Compiled]
    offsets: tuple[int, ...]
    room: int

    def numbers(self, sizes: Mapping[str, Any] | None) -> tuple[Any, ...]:
        """What comes after the pointers. `sizes` are None if they are those of the preparation."""

    def __call__(self, tensors: Sequence[Any], sizes: Mapping[str, Any] | None) -> None:
        """Launch by Triton."""


@frozen
class Part:
    """A tensor in the memory of another one, its `owner`, from a byte on."""

    owner: int
    offset: int
    geometry: Geometry


@frozen
class Procedure:
    """What a call does on one device. Its tensors are numbered: those `given`, `constants`, what is allocated, `parts`.

    Each of the `launches` comes with the tensors that it takes, and None for None. Returned are those `wanted`.
    """

    device: torch.device
    given: int
    constants: Sequence[torch.Tensor]
    allocations: Sequence[Geometry]
    parts: Sequence[Part]
    launches: Sequence[tuple[Launchable, Sequence[int | None]]]
    wanted: Sequence[int | None]


def host_code(procedure: Procedure, alignment: Sequence[bool], *, varies: bool) -> HostCode | None:
    """A procedure for calls with a certain `alignment` of the tensors given, and of its constants.

    The function is called with the tensors given, and with sizes if numbers among them `varies` from call to call. None
    where Triton has not compiled the kernels for that, or has to launch them.
    """
    streams = direct.streams_of(procedure.device.type)
    if streams is None:
        return None
    first = len(alignment)
    alignment = [*alignment, *[True] * len(procedure.allocations)]
    alignment += [alignment[part.owner] and not part.offset % direct.ALIGNMENT for part in procedure.parts]
    scope: dict[str, Any] = {
        "index": procedure.device.index,
        "device": procedure.device,
        "current_device": streams.current_device,
        "current_stream": streams.current_stream,
        "is_capturing": streams.is_capturing,
        "is_watched": direct.is_watched,
        "empty": allocator(procedure.device),
        "scratches": scratch.scratches_of(procedure.device),
        "make_scratch": scratch.make_scratch,
        "forget": scratch.forget,
    }
    for k, (launch, places) in enumerate(procedure.launches):
        compiled = launch.compiled.get(tuple([alignment[place] for place in places if place is not None]))
        if compiled is None:
            return None
        scope[f"run_{k}"], scope[f"function_{k}"], scope[f"metadata_{k}"] = compiled
        scope[f"numbers_{k}"] = launch.numbers if varies else launch.numbers(None)
    for k, constant in enumerate(procedure.constants, procedure.given):
        scope[f"t{k}"] = constant
    for k, (shape, strides, dtype) in enumerate(procedure.allocations, first):
        scope[f"shape_{k}"], scope[f"strides_{k}"], scope[f"dtype_{k}"] = shape, strides, dtype
    exec(compile("\n".join(_lines(procedure, alignment, varies=varies)), "<host code>", "exec"), scope)
    written: HostCode = scope["launch"]
    return written


def _lines(procedure: Procedure, alignment: Sequence[bool], *, varies: bool) -> Iterator[str]:
    first = procedure.given + len(procedure.constants)  # of the tensors that are allocated
    last = first + len(procedure.allocations)  # and the first part
    used = {place for _, places in procedure.launches for place in places if place is not None}
    used |= {procedure.parts[place - last].owner for place in used if place >= last}
    taken = sorted(place for place in used if place < first)
    room = max((launch.room for launch, _ in procedure.launches), default=0)
    other = ["current_device() != index", "is_watched()"]
    other += [] if varies else ["sizes is not None"]
    other += ["is_capturing()"] if room else []  # the memory then is the graph's own, which Triton's way allocates
    yield "def launch(given, sizes):"
    yield f"    if {' or '.join(other)}:"
    yield "        return None"
    yield f"    {''.join(f't{k}, ' for k in range(procedure.given))}= given"
    yield from (f"    p{k} = t{k}.data_ptr()" for k in taken)
    unlike = [f"not p{k} % {direct.ALIGNMENT}" for k in taken if not alignment[k]]
    aligned = " | ".join(f"p{k}" for k in taken if alignment[k])
    unlike += [f"({aligned}) % {direct.ALIGNMENT}"] if aligned else []
    if unlike:
        yield f"    if {' or '.join(unlike)}:"
        yield "        return None"
    yield "    stream = current_stream(index)"
    if room:
        yield "    scratch = scratches.get(stream)"
        yield f"    if scratch is None or scratch.room < {room}:"
        yield f"        scratch = make_scratch(device, stream, {room})"
    for k in range(first, last):
        yield f"    t{k} = empty(shape_{k}, strides_{k}, dtype_{k})"
        if k in used:
            yield f"    p{k} = t{k}.data_ptr()"
    if procedure.launches:
        yield from _launches(procedure, varies=varies)
    yield f"    return [{', '.join('None' if k is None else f't{k}' for k in procedure.wanted)}]"


def _launches(procedure: Procedure, *, varies: bool) -> Iterator[str]:
    last = procedure.given + len(procedure.constants) + len(procedure.allocations)
    pointers = [f"p{k}" for k in range(last)] + [f"p{part.owner} + {part.offset}" for part in procedure.parts]
    yield "    try:"
    for k, (launch, places) in enumerate(procedure.launches):
        x, y, z = (*launch.grid, 1, 1)[:3]
        arguments = [f"{x}, {y}, {z}, stream, function_{k}, metadata_{k}, None, None, None"]
        arguments += ["None" if place is None else pointers[place] for place in places]
        arguments += [f"scratch.start + {offset}" for offset in launch.offsets]
        arguments += ["scratch.counter"] if launch.offsets else []
        yield f"        run_{k}({', '.join(arguments)}, *numbers_{k}{'(sizes)' if varies else ''})"
    yield "    except Exception:"
    yield "        forget()"
    yield "        raise"


def allocator(device: torch.device) -> Allocator:
    """How to make a tensor of given shape, strides and dtype on a device that is the current one.

    It is what Inductor's code calls, and takes half as long as `torch.empty_strided`, but is not public.
    """
    from torch._C._dynamo import guards

    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    return getattr(guards, f"_empty_strided_{device.type}", empty)
