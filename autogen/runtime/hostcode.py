"""Write the host code of a warm call: one function that allocates and launches.

By then everything is known but the tensors, so nothing is left to be looked up. What sizes decide are parameters that
nobody passes: there is a function for all sizes of a text that is compiled once, with their defaults. For two inputs,
one result, and a kernel that stores partial results::

    def launch(given, sizes, numbers_0, run_0, function_0, metadata_0, x_0, y_0, z_0, offset_0_0, room, shape_2, \
strides_2, dtype_2):
        if current_device() != index or is_watched() or sizes is not None or is_capturing():
            return None
        t0, t1, = given
        p0 = t0.data_ptr()
        p1 = t1.data_ptr()
        if (p0 | p1) % 16:
            return None
        stream = current_stream(index)
        scratch = scratches.get(stream)
        if scratch is None or scratch.room < room:
            scratch = make_scratch(device, stream, room)
        t2 = empty(shape_2, strides_2, dtype_2)
        p2 = t2.data_ptr()
        try:
            run_0(x_0, y_0, z_0, stream, function_0, metadata_0, None, None, None, \
p0, p1, p2, scratch.start + offset_0_0, scratch.counter, *numbers_0)
        except Exception:
            forget()
            raise
        return [t2]

It returns None for a call of another kind: other tensors are aligned, or Triton has more to do than to launch. A step
of torch between launches is a call of its op::

    t3 = op_1(t2, 1, numbers_1[0])
    if t3.stride() != strides_3 or t3.data_ptr() % 16:
        t3 = copied(t3, strides_3)
    p3 = t3.data_ptr()
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch

from autogen import compat
from autogen.ir.torch_step import Operand, SizeArgument, call_text, constant_text, copied
from autogen.runtime import direct, scratch
from autogen.runtime.procedure import Calling, Launching, Procedure, Seen

HostCode = Callable[[Sequence[torch.Tensor], Mapping[str, Any] | None], list[Any] | None]


def host_code(procedure: Procedure, alignment: Sequence[bool], seen: Seen, *, varies: bool) -> HostCode | None:
    """A procedure for calls with a certain `alignment` of the tensors given, and of its constants, like one that has
    been `seen`.

    The function is called with the tensors given, and with sizes if numbers among them `varies` from call to call. None
    where Triton has not compiled the kernels for that, or has to launch them.
    """
    streams = direct.streams_of(procedure.device.type)
    if streams is None:
        return None
    aligned = [*alignment, *[True] * len(procedure.allocations)]
    aligned += [aligned[owner] and not offset % direct.ALIGNMENT for owner, offset, _ in procedure.parts]
    aligned += [is_aligned for _, is_aligned in seen]
    alike: list[Hashable] = [varies, *aligned]
    known: list[Any] = []
    room = 0
    for step in procedure.steps:
        numbers = step.launch.numbers if isinstance(step, Launching) else step.numbers
        known.append(numbers if varies else numbers(None))
        if isinstance(step, Launching):
            launch = step.launch
            compiled = launch.compiled.get(tuple([aligned[place] for place in step.places if place is not None]))
            if compiled is None:
                return None
            alike += (step.places, step.partials)
            known += (*compiled, *(*launch.grid, 1, 1)[:3], *launch.offsets)
            room = max(room, launch.room)
    known.append(room)
    known += procedure.constants
    for geometry in procedure.allocations:
        known += geometry
    known += [offset for _, offset, _ in procedure.parts]
    known += [strides for strides, _ in seen]
    key = tuple(alike)
    written = procedure.written.get(key)
    if written is None:
        written = procedure.written[key] = _written(procedure, aligned, streams, varies=varies)
    return FunctionType(written.__code__, written.__globals__, "launch", (None, *known))


def _known(procedure: Procedure) -> Iterator[str]:
    """What sizes decide, by name."""
    for k, step in enumerate(procedure.steps):
        yield f"numbers_{k}"
        if isinstance(step, Launching):
            yield from (f"run_{k}", f"function_{k}", f"metadata_{k}", f"x_{k}", f"y_{k}", f"z_{k}")
            yield from (f"offset_{k}_{each}" for each in range(step.partials))
    yield "room"
    yield from (f"t{k}" for k in range(procedure.given, procedure.present))
    for k in range(procedure.present, procedure.first_part):
        yield from (f"shape_{k}", f"strides_{k}", f"dtype_{k}")
    yield from (f"part_{k}" for k in range(procedure.first_part, procedure.first_made))
    yield from (f"strides_{k}" for k in range(procedure.first_made, procedure.first_made + procedure.made))


def _written(procedure: Procedure, alignment: Sequence[bool], streams: direct.Streams, *, varies: bool) -> FunctionType:
    device = procedure.device
    scope: dict[str, Any] = {
        "index": device.index,
        "device": device,
        "current_device": streams.current_device,
        "current_stream": streams.current_stream,
        "is_capturing": streams.is_capturing,
        "is_watched": direct.is_watched,
        "empty": compat.empty_on(device.type),
        "scratches": scratch.scratches_of(device),
        "make_scratch": scratch.make_scratch,
        "forget": scratch.forget,
        "is_autocast": compat.is_autocast,
        "without_autocast": compat.WithoutAutocast,
        "copied": copied,
    }
    text = "\n".join(_lines(procedure, alignment, scope, varies=varies))
    exec(_compiled(text), scope)
    written: FunctionType = scope["launch"]
    return written


@functools.lru_cache(1024)
def _compiled(text: str) -> CodeType:
    """Losses of one kind have the same text."""
    return compile(text, "<host code>", "exec")


def _lines(procedure: Procedure, alignment: Sequence[bool], scope: dict[str, Any], *, varies: bool) -> Iterator[str]:
    first, last = procedure.present, procedure.first_part
    used = {place for step in procedure.launched for place in step.places if place is not None}
    used |= {procedure.parts[place - last][0] for place in used if last <= place < procedure.first_made}
    taken = sorted(place for place in used if place < first)
    has_scratch = any(step.partials for step in procedure.launched)
    other = ["current_device() != index", "is_watched()"]
    other += [] if varies else ["sizes is not None"]
    other += ["is_capturing()"] if has_scratch else []  # the memory is the graph's own, which Triton's way allocates
    known = ", ".join(_known(procedure))
    yield f"def launch(given, sizes, {known}):"
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
    if procedure.called:  # the casts of autocast are steps already
        yield "    if is_autocast():"
        yield "        with without_autocast():"
        yield f"            return launch(given, sizes, {known})"
    yield "    stream = current_stream(index)"
    if has_scratch:
        yield "    scratch = scratches.get(stream)"
        yield "    if scratch is None or scratch.room < room:"
        yield "        scratch = make_scratch(device, stream, room)"
    for k in range(first, last):
        yield f"    t{k} = empty(shape_{k}, strides_{k}, dtype_{k})"
        if k in used:
            yield f"    p{k} = t{k}.data_ptr()"
    if procedure.steps:
        yield "    try:"
        for k, step in enumerate(procedure.steps):
            if isinstance(step, Launching):
                yield f"        {_launched(k, step, procedure, varies=varies)}"
                continue
            checked = {place for place in used if place >= procedure.first_made and alignment[place]}
            yield from (f"        {line}" for line in _called(k, step, used, checked, scope, varies=varies))
        yield "    except Exception:"
        yield "        forget()"
        yield "        raise"
    yield f"    return [{', '.join('None' if k is None else f't{k}' for k in procedure.wanted)}]"


def _launched(k: int, step: Launching, procedure: Procedure, *, varies: bool) -> str:
    def pointer(place: int) -> str:
        if not procedure.first_part <= place < procedure.first_made:
            return f"p{place}"
        return f"p{procedure.parts[place - procedure.first_part][0]} + part_{place}"

    arguments = [f"x_{k}, y_{k}, z_{k}, stream, function_{k}, metadata_{k}, None, None, None"]
    arguments += ["None" if place is None else pointer(place) for place in step.places]
    arguments += [f"scratch.start + offset_{k}_{each}" for each in range(step.partials)]
    arguments += ["scratch.counter"] if step.partials else []
    return f"run_{k}({', '.join(arguments)}, *numbers_{k}{'(sizes)' if varies else ''})"


def _called(
    k: int, call: Calling, used: Collection[int], aligned: Collection[int], scope: dict[str, Any], *, varies: bool
) -> Iterator[str]:
    """A step of torch. Kernels have been compiled for `aligned` tensors, and read those `used` by their addresses."""
    step, places = call.step, dict(zip(call.step.reads, call.read, strict=True))
    scope[f"op_{k}"] = step.target
    numbers = itertools.count()

    def written(leaf: Any) -> str:
        if isinstance(leaf, Operand):
            return f"t{places[leaf.name]}"
        if isinstance(leaf, SizeArgument):
            return f"{'n' if varies else 'numbers_'}{k}[{next(numbers)}]"
        return constant_text(leaf, scope)

    arguments = call_text(step.arguments, written)
    if varies and next(numbers):
        yield f"n{k} = numbers_{k}(sizes)"
    names = ["_" if place is None else f"t{place}" for place in call.made]
    target = names[0] if step.returns_tensor else "".join(f"{name}, " for name in names)
    yield f"{target} = op_{k}({arguments})"
    for place in call.made:
        if place is None:
            continue
        unlike = f" or t{place}.data_ptr() % {direct.ALIGNMENT}" if place in aligned else ""
        yield f"if t{place}.stride() != strides_{place}{unlike}:"
        yield f"    t{place} = copied(t{place}, strides_{place})"
        if place in used:
            yield f"p{place} = t{place}.data_ptr()"
