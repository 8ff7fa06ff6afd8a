"""Instructions that the lanes of a warp execute together: barriers, exchanges, and matrix products."""

from __future__ import annotations

from collections.abc import Iterator

from tests.emulator.instructions import ATOMICS, UnknownInstructionError, c_type, number
from tests.emulator.operands import Operands
from tests.emulator.ptx import Instruction, Operand

ACROSS_LANES = ("shfl", "bar", "redux", "ldmatrix", "stmatrix", "mma", "wgmma")
_EVERY = "for (int k = 0; k < n; k++) { Thread *q = group[k];"
_DEPTHS = {"tf32": 8, "f16": 16, "bf16": 16}  # of a product's factors


def together(operands: Operands, each: Instruction, after: int) -> Iterator[str]:
    """What a warp does in an instruction, and that it goes on with the block `after` it.

    Raises:
        UnknownInstructionError: an instruction that the emulator does not know.
    """
    if each.guard is not None:
        raise UnknownInstructionError(str(each))
    yield "  {"
    match each.opcode:
        case ("bar", "sync") if each.operands == ("0",):
            yield f"    {_EVERY} q->state = WAITS; }}"
        case ("bar", "warp", "sync"):
            pass
        case ("shfl", "sync", mode, "b32"):
            yield from _exchange(operands, each, mode)
        case ("redux", "sync", operation, kind):
            to, of, _ = each.operands
            yield f"    {c_type(kind)} sum = 0; {c_type(kind)} *at = &sum;"
            yield f"    {_EVERY} {c_type(kind)} b = {operands.number(of, kind)};"
            yield f"      sum = k == 0 ? b : {ATOMICS[operation](kind)}; }}"
            yield f"    {_EVERY} {operands.place(to)} = sum; }}"
        case ("ldmatrix" | "stmatrix", "sync", "aligned", "m8n8", count, *rest, "b16"):
            if set(rest) - {"shared", "trans"}:
                raise UnknownInstructionError(str(each))
            yield from _matrices(operands, each, int(count[1:]))
        case ("mma", "sync", "aligned", shape, "row", "col", "f32", of, kind, "f32"):
            if of != kind or shape != f"m16n8k{_DEPTHS.get(kind)}":
                raise UnknownInstructionError(str(each))
            yield from _product(operands, each, kind)
        case ("wgmma", "fence" | "commit_group" | "wait_group", "sync", "aligned"):
            pass  # a product is done at once
        case ("wgmma", "mma_async", "sync", "aligned", shape, "f32", of, kind):
            columns, found, depth = shape.removeprefix("m64n").partition("k")
            if of != kind or not found or depth != str(_DEPTHS.get(kind)):
                raise UnknownInstructionError(str(each))
            yield from _part_of_product(operands, each, kind, int(columns))
        case _:
            raise UnknownInstructionError(str(each))
    yield f"    {_EVERY} q->block = {after}; }}"
    yield "  } break;"


def _exchange(operands: Operands, each: Instruction, mode: str) -> Iterator[str]:
    to, of, by, clamp, _ = each.operands
    assert isinstance(to, str)
    target, _, within = to.partition("|")
    yield "    uint32_t shown[WARP]; uint8_t is_here[WARP] = {0};"
    yield f"    {_EVERY} shown[q->tid % WARP] = {operands.bits(of)}; is_here[q->tid % WARP] = 1; }}"
    yield f"    {_EVERY} int is_within;"
    lane = f"source_lane({mode.upper()}, q->tid % WARP, {operands.bits(by)}, {operands.bits(clamp)}, &is_within)"
    yield f"      int lane = {lane};"
    yield f'      if (!is_here[lane]) fail(m, "a lane that is elsewhere: %s", "{each}");'
    yield f"      {operands.place(target)} = shown[lane];"
    yield f"      {operands.place(within)} = is_within; }}" if within else "    }"


def _matrices(operands: Operands, each: Instruction, count: int) -> Iterator[str]:
    """Matrices of 8 x 8 halves: each lane has two neighbours, and the first lanes the addresses of the rows."""
    is_load = each.opcode[0] == "ldmatrix"
    registers, address = each.operands if is_load else each.operands[::-1]
    assert isinstance(registers, tuple) and len(registers) == count, each
    base, offset, _ = operands.address(address)
    yield f"    uint16_t *rows[WARP]; {_whole(each)}"
    yield f"    {_EVERY} if (q->tid % WARP < {8 * count})"
    yield f'      rows[q->tid % WARP] = shared_at(m, {operands.bits(base)} + {offset}, 16, "{each}"); }}'
    yield f"    {_EVERY} int row = q->tid % WARP / 4, pair = q->tid % 4 * 2;"
    for k, register in enumerate(registers):
        if "trans" in each.opcode:
            low, high = (f"rows[{8 * k} + pair + {one}][row]" for one in (0, 1))
        else:
            low, high = (f"rows[{8 * k} + row][pair + {one}]" for one in (0, 1))
        if is_load:
            yield f"      {operands.place(register)} = (uint32_t){high} << 16 | {low};"
        else:
            yield f"      {low} = {operands.bits(register)}; {high} = {operands.bits(register)} >> 16;"
    yield "    }"


# Products, of factors `a` and `b`: each lane has some of the numbers of a matrix, in rows `row` and `row + 8`.


def _product(operands: Operands, each: Instruction, kind: str) -> Iterator[str]:
    """A product of 16 x K by K x 8, all of it in registers."""
    to, a, b, c = each.operands
    assert isinstance(to, tuple) and isinstance(a, tuple) and isinstance(b, tuple) and isinstance(c, tuple)
    yield f"    float a[16][16], b[16][8]; {_whole(each)}"
    yield from _left_factor(operands, a, kind)
    wide = 1 if kind == "tf32" else 2
    yield f"    {_EVERY} int row = q->tid % WARP / 4, t = q->tid % 4;"
    for k, register in enumerate(b):
        for one, value in _factors(operands, register, kind):
            yield f"      b[{wide} * t + {4 * wide * k + one}][row] = {value};"
    yield "    }"
    yield from _sums(operands, to, [operands.number(each, "f32") for each in c], kind)


def _part_of_product(operands: Operands, each: Instruction, kind: str, columns: int) -> Iterator[str]:
    """Of a product of 64 x K by K x N, which four warps share, the 16 rows of one.

    The right factor is in shared memory, the left one there or in registers. It is done at once.
    """
    to, a, b, is_added, *rest = each.operands
    signs, transposed = rest[:2], rest[2:]
    n_in_memory = 1 if isinstance(a, tuple) else 2
    may_be_transposed = kind != "tf32"
    if signs != ["1", "1"] or len(transposed) != n_in_memory * may_be_transposed or len(to) != columns // 2:
        raise UnknownInstructionError(str(each))
    assert isinstance(to, tuple)
    yield f"    float a[16][16], b[16][{columns}]; {_whole(each)}"
    flags = [str(flag) for flag in transposed] or ["0"] * n_in_memory
    if isinstance(a, tuple):
        yield from _left_factor(operands, a, kind)
    else:
        yield from _shared_factor(operands, each, a, kind, flags[0], "group[0]->tid / WARP % 4 * 16", 16, "a[outer][j]")
    yield from _shared_factor(operands, each, b, kind, flags[-1], "0", columns, "b[j][outer]")
    yield from _sums(
        operands, to, [f"{operands.bits(is_added)} ? {operands.number(one, 'f32')} : 0" for one in to], kind
    )


def _shared_factor(
    operands: Operands, each: Instruction, descriptor: Operand, kind: str, flag: str, first: str, count: int, place: str
) -> Iterator[str]:
    """A factor in shared memory, or 16 rows of it, from the `first`."""
    yield f"    {{ Thread *q = group[0]; uint64_t shown = {operands.bits(descriptor)};"
    yield f'      {_EVERY} if ({operands.bits(descriptor)} != shown) fail(m, "lanes that differ: {each.opcode[1]}"); }}'
    yield f"      for (int outer = 0; outer < {count}; outer++) for (int j = 0; j < {_DEPTHS[kind]}; j++) {{"
    unsigned = "uint32_t" if kind == "tf32" else "uint16_t"
    at = f'element_at(m, shown, {first} + outer, j, sizeof({unsigned}), {flag}, "{".".join(each.opcode)}")'
    value = f"*({unsigned} *){at}"
    yield f"        {place} = {f'seen_as_tf32({value})' if kind == 'tf32' else number(value, kind)};"
    yield "      } }"


def _left_factor(operands: Operands, registers: tuple[str, ...], kind: str) -> Iterator[str]:
    """`a`, of 16 x K, from registers."""
    wide = 1 if kind == "tf32" else 2
    yield f"    {_EVERY} int row = q->tid % WARP / 4, t = q->tid % 4;"
    for k, register in enumerate(registers):
        for one, value in _factors(operands, register, kind):
            yield f"      a[row + {8 * (k % 2)}][{wide} * t + {4 * wide * (k // 2) + one}] = {value};"
    yield "    }"


def _sums(operands: Operands, to: tuple[str, ...], given: list[str], kind: str) -> Iterator[str]:
    """The product, of 16 rows, plus what is `given`.

    Tensor cores add up in an order, and with a rounding, that nobody states, but do it towards zero; so here, once.
    """
    yield f"    {_EVERY} int row = q->tid % WARP / 4, t = q->tid % 4;"
    for k, (result, start) in enumerate(zip(to, given, strict=True)):
        row, column = f"row + {k // 2 % 2 * 8}", f"2 * t + {k // 4 * 8 + k % 2}"
        yield f"      {{ double sum = {start};"
        yield f"        for (int j = 0; j < {_DEPTHS[kind]}; j++) sum += (double)a[{row}][j] * b[j][{column}];"
        yield f"        {operands.place(result)} = f32_bits(toward_zero(sum)); }}"
    yield "    }"


def _factors(operands: Operands, register: Operand, kind: str) -> list[tuple[int, str]]:
    """The numbers in a register of a factor, with their places."""
    if kind == "tf32":
        return [(0, f"seen_as_tf32({operands.bits(register)})")]
    return [(k, number(f"(uint16_t)({operands.bits(register)} >> {16 * k})", kind)) for k in (0, 1)]


def _whole(each: Instruction) -> str:
    return f'if (n != WARP) fail(m, "a part of a warp: {each}");'
