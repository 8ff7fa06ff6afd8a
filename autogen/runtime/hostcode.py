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

It returns None for a call of another kind: other tensors are aligned, or Triton has more to do than to launch. A step
of torch between launches is a call of its op::

    t3 = op_1(t2, 1)
    if t3.stride() != strides_3 or t3.data_ptr() % 16:
        t3 = copied(t3, strides_3)
    p3 = t3.data_ptr()
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from autogen.frozen import frozen
from autogen.runtime import direct, scratch
from autogen.torch_step import Operand, SizeArgument, TorchStep, call_text, constant_text, copied

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
class Launched:
    """A launch, and the tensors that it takes, None for None."""

    launch: Launchable
    places: Sequence[int | None]

    def run(self, tensors: list[Any], sizes: Mapping[str, Any] | None) -> None:
        """Launch by Triton."""
        self.launch([None if place is None else tensors[place] for place in self.places], sizes)


@frozen
class Called:
    """A step of torch: which tensor each operand is, and each result; and the sizes of the preparation."""

    step: TorchStep
    places: Mapping[str, int]
    sizes: Mapping[str, Any]
    device: torch.device

    def numbers(self, sizes: Mapping[str, Any] | None) -> tuple[Any, ...]:
        """The sizes among its arguments. `sizes` are None if they are those of the preparation."""
        return self.step.numbers(self.sizes if sizes is None else sizes)

    def run(self, tensors: list[Any], sizes: Mapping[str, Any] | None) -> None:
        """Have torch run it."""
        named = {name: tensors[self.places[name]] for name in self.step.reads}
        self.step(named, self.sizes if sizes is None else sizes, self.device)
        for name in self.step.writes:
            tensors[self.places[name]] = named[name]


@frozen
class Procedure:
    """What a call does on one device. Its tensors are numbered: those `given`, `constants`, what is allocated, `parts`,
    and what torch makes.

    Returned are those `wanted`.
    """

    device: torch.device
    given: int
    constants: Sequence[torch.Tensor]
    allocations: Sequence[Geometry]
    parts: Sequence[Part]
    steps: Sequence[Launched | Called]
    wanted: Sequence[int | None]

    @property
    def present(self) -> int:
        """How many tensors are there before anything is allocated."""
        return self.given + len(self.constants)

    @property
    def first_part(self) -> int:
        """The number of the first part."""
        return self.present + len(self.allocations)

    @property
    def first_made(self) -> int:
        """The number of the first tensor that torch makes."""
        return self.first_part + len(self.parts)

    @property
    def made(self) -> int:
        """How many tensors torch makes."""
        return sum(len(step.step.writes) for step in self.steps if isinstance(step, Called))

    @property
    def launched(self) -> list[Launched]:
        """The launches among the steps."""
        return [step for step in self.steps if isinstance(step, Launched)]


@frozen
class Seen:
    """What torch has made in one call, each tensor: its strides, and whether it is aligned."""

    strides: tuple[tuple[int, ...], ...]
    alignment: tuple[bool, ...]

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> Seen:
        """From what torch has made."""
        return cls(tuple([each.stride() for each in tensors]), tuple(map(direct.is_aligned, tensors)))


def host_code(procedure: Procedure, alignment: Sequence[bool], seen: Seen, *, varies: bool) -> HostCode | None:
    """A procedure for calls with a certain `alignment` of the tensors given, and of its constants, like one that has
    been `seen`.

    The function is called with the tensors given, and with sizes if numbers among them `varies` from call to call. None
    where Triton has not compiled the kernels for that, or has to launch them.
    """
    streams = direct.streams_of(procedure.device.type)
    if streams is None:
        return None
    first, last = procedure.present, procedure.first_made
    alignment = [*alignment, *[True] * len(procedure.allocations)]
    alignment += [alignment[part.owner] and not part.offset % direct.ALIGNMENT for part in procedure.parts]
    alignment += seen.alignment
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
        "is_autocast": torch._C._is_any_autocast_enabled,
        "without_autocast": torch._C._DisableAutocast,
        "copied": copied,
    }
    for k, step in enumerate(procedure.steps):
        if isinstance(step, Called):
            scope[f"op_{k}"], scope[f"numbers_{k}"] = step.step.target, step.numbers
            continue
        places = [place for place in step.places if place is not None]
        compiled = step.launch.compiled.get(tuple([alignment[place] for place in places]))
        if compiled is None:
            return None
        scope[f"run_{k}"], scope[f"function_{k}"], scope[f"metadata_{k}"] = compiled
        scope[f"numbers_{k}"] = step.launch.numbers if varies else step.launch.numbers(None)
    for k, constant in enumerate(procedure.constants, procedure.given):
        scope[f"t{k}"] = constant
    for k, (shape, strides, dtype) in enumerate(procedure.allocations, first):
        scope[f"shape_{k}"], scope[f"strides_{k}"], scope[f"dtype_{k}"] = shape, strides, dtype
    scope |= {f"strides_{k}": strides for k, strides in enumerate(seen.strides, last)}
    text = "\n".join(_lines(procedure, alignment, scope, varies=varies))
    exec(compile(text, "<host code>", "exec"), scope)
    written: HostCode = scope["launch"]
    return written


def _lines(procedure: Procedure, alignment: Sequence[bool], scope: dict[str, Any], *, varies: bool) -> Iterator[str]:
    first, last = procedure.present, procedure.first_part
    used = {place for step in procedure.launched for place in step.places if place is not None}
    used |= {procedure.parts[place - last].owner for place in used if last <= place < procedure.first_made}
    taken = sorted(place for place in used if place < first)
    room = max((step.launch.room for step in procedure.launched), default=0)
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
    if len(procedure.launched) < len(procedure.steps):  # the casts of autocast are steps already
        yield "    if is_autocast():"
        yield "        with without_autocast():"
        yield "            return launch(given, sizes)"
    yield "    stream = current_stream(index)"
    if room:
        yield "    scratch = scratches.get(stream)"
        yield f"    if scratch is None or scratch.room < {room}:"
        yield f"        scratch = make_scratch(device, stream, {room})"
    for k in range(first, last):
        yield f"    t{k} = empty(shape_{k}, strides_{k}, dtype_{k})"
        if k in used:
            yield f"    p{k} = t{k}.data_ptr()"
    if procedure.steps:
        yield "    try:"
        for k, step in enumerate(procedure.steps):
            if isinstance(step, Launched):
                yield f"        {_launched(k, step, procedure, varies=varies)}"
                continue
            checked = {place for place in used if place >= procedure.first_made and alignment[place]}
            yield from (f"        {line}" for line in _called(k, step, used, checked, scope, varies=varies))
        yield "    except Exception:"
        yield "        forget()"
        yield "        raise"
    yield f"    return [{', '.join('None' if k is None else f't{k}' for k in procedure.wanted)}]"


def _launched(k: int, step: Launched, procedure: Procedure, *, varies: bool) -> str:
    def pointer(place: int) -> str:
        if not procedure.first_part <= place < procedure.first_made:
            return f"p{place}"
        part = procedure.parts[place - procedure.first_part]
        return f"p{part.owner} + {part.offset}"

    launch = step.launch
    x, y, z = (*launch.grid, 1, 1)[:3]
    arguments = [f"{x}, {y}, {z}, stream, function_{k}, metadata_{k}, None, None, None"]
    arguments += ["None" if place is None else pointer(place) for place in step.places]
    arguments += [f"scratch.start + {offset}" for offset in launch.offsets]
    arguments += ["scratch.counter"] if launch.offsets else []
    return f"run_{k}({', '.join(arguments)}, *numbers_{k}{'(sizes)' if varies else ''})"


def _called(
    k: int, call: Called, used: Collection[int], aligned: Collection[int], scope: dict[str, Any], *, varies: bool
) -> Iterator[str]:
    """A step of torch. Kernels have been compiled for `aligned` tensors, and read those `used` by their addresses."""
    step, places = call.step, call.places
    known = call.numbers(None)
    numbers = iter([f"n{k}[{position}]" for position in range(len(known))] if varies else known)

    def written(leaf: Any) -> str:
        if isinstance(leaf, Operand):
            return f"t{places[leaf.name]}"
        if isinstance(leaf, SizeArgument):
            leaf = next(numbers)
            if varies:
                return str(leaf)
        return constant_text(leaf, scope)

    arguments = call_text(step.arguments, written)
    if varies and known:
        yield f"n{k} = numbers_{k}(sizes)"
    made = [None if each is None else places[each.name] for each in step.results]
    names = ["_" if place is None else f"t{place}" for place in made]
    target = names[0] if step.returns_tensor else "".join(f"{name}, " for name in names)
    yield f"{target} = op_{k}({arguments})"
    for place in made:
        if place is None:
            continue
        unlike = f" or t{place}.data_ptr() % {direct.ALIGNMENT}" if place in aligned else ""
        yield f"if t{place}.stride() != strides_{place}{unlike}:"
        yield f"    t{place} = copied(t{place}, strides_{place})"
        if place in used:
            yield f"p{place} = t{place}.data_ptr()"


def allocator(device: torch.device) -> Allocator:
    """How to make a tensor of given shape, strides and dtype on a device that is the current one.

    It is what Inductor's code calls, and takes half as long as `torch.empty_strided`, but is not public.
    """
    from torch._C._dynamo import guards

    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    return getattr(guards, f"_empty_strided_{device.type}", empty)
