"""PTX as a program of C: `run`, which runs a launch of the kernel on `machine.h`.

Each warp goes on by itself until it waits for the others, as on a device, the warps in a drawn order. In a warp, the
threads that are furthest behind in the text run next, and where lanes exchange values they wait for each other. A
*block* is what threads run without looking at each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.emulator.instructions import (
    ATOMICS,
    UnknownInstructionError,
    bits,
    bits_of,
    c_type,
    calculation,
    comparison,
    conversion,
    number,
)
from tests.emulator.ptx import Instruction, Kernel, Operand, parse

_SPECIAL = {
    "%tid.x": "q->tid",
    "%tid.y": "0",
    "%tid.z": "0",
    "%ntid.x": "m->threads",
    "%laneid": "(q->tid % WARP)",
    **{f"%ctaid.{axis}": f"m->program[{k}]" for k, axis in enumerate("xyz")},
    **{f"%nctaid.{axis}": f"m->grid[{k}]" for k, axis in enumerate("xyz")},
}
_MEMORY = ("global", "shared", "local", "param")
_HINTS = re.compile(r"c[agvs]|wt|wb|nc|(L1|L2)::\w+|relaxed|acquire|release|acq_rel|volatile|weak|gpu|cta|sys")
_PRODUCTS = (("m16n8k8", "tf32"), ("m16n8k16", "f16"), ("m16n8k16", "bf16"))
_ACROSS_LANES = ("shfl", "bar", "redux", "ldmatrix", "stmatrix", "mma")


def translate(text: str) -> str:
    """The program of a module of PTX.

    Raises:
        UnknownInstructionError: an instruction that the emulator does not know.
    """
    return "\n".join(_Translator(parse(text)).program())


class _Translator:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._blocks: list[list[Instruction]] = [[]]
        self._labels: dict[str, int] = {}
        self._cut()
        self._places: dict[str, str] = {}
        ends = {"shared": 0, "local": 0}
        for name, (space, size, _) in kernel.variables.items():
            if space == "global":
                self._places[name] = f"(uint64_t){_c_name(name)}"
                continue
            start = "0" if space == "shared" else "(uint64_t)q->local"
            self._places[name] = f"({start} + {ends[space]})"
            ends[space] += -(-size // 16) * 16
        self._local = ends["local"]

    def _cut(self) -> None:
        """The body, cut into blocks: where labels are, after branches, and around what lanes do together."""
        for each in self.kernel.body:
            if isinstance(each, str):
                self._start_block()
                self._labels[each] = len(self._blocks) - 1
                continue
            is_together = each.opcode[0] in _ACROSS_LANES
            if is_together:
                self._start_block()
            self._blocks[-1].append(each)
            if is_together or each.opcode[0] in ("bra", "ret", "exit", "trap"):
                self._start_block()

    def _start_block(self) -> None:
        if self._blocks[-1]:
            self._blocks.append([])

    def program(self) -> Iterator[str]:
        yield '#include "machine.h"'
        for name, (space, size, values) in self.kernel.variables.items():
            if space == "global":
                shown = ", ".join(map(str, values))
                yield f"static uint8_t {_c_name(name)}[{size}] __attribute__((aligned(16))) = {{{shown}}};"
        yield "typedef struct {"
        yield "  int block; State state; uint32_t tid; uint8_t carry;"
        for name, (width, count) in self.kernel.registers.items():
            yield f"  uint{max(width, 8)}_t {_c_name(name)}{f'[{count}]' if count else ''};"
        yield f"  uint8_t local[{self._local}] __attribute__((aligned(16)));" if self._local else ""
        yield "} Thread;"
        yield "static void run_block(Machine *m, Thread **group, int n, int block) {"
        yield "  switch (block) {"
        for position, block in enumerate(self._blocks):
            yield f"  case {position}:"
            if self._is_together(block):
                yield from self._together(block[0], position + 1)
                continue
            yield f"    for (int k = 0; k < n; k++) {{ Thread *q = group[k]; q->block = {position + 1};"
            for each in block:
                yield f"      {self._guarded(each)}"
            yield "    } break;"
        yield '  default: fail(m, "a thread ran past the end");'
        yield "  }"
        yield "}"
        together = ", ".join(str(int(self._is_together(block))) for block in [*self._blocks, []])
        yield f"static const uint8_t is_together[] = {{{together}}};"
        yield '#include "scheduler.h"'

    def _is_together(self, block: list[Instruction]) -> bool:
        return bool(block) and block[0].opcode[0] in _ACROSS_LANES

    # Operands

    def _place(self, operand: Operand) -> str:
        """A register, as what C can assign to."""
        assert isinstance(operand, str), operand
        if operand == "_":
            return "(uint64_t){0}"
        name = operand.lstrip("%")
        if name in self.kernel.registers:
            return f"q->{_c_name(name)}"
        found = re.fullmatch(r"(\D+)(\d+)", name)
        if found is None or found[1] not in self.kernel.registers:
            raise UnknownInstructionError(f"the operand {operand}")
        return f"q->{_c_name(found[1])}[{found[2]}]"

    def _bits(self, operand: Operand) -> str:
        """An operand's bits."""
        assert isinstance(operand, str), operand
        if operand in _SPECIAL:
            return _SPECIAL[operand]
        if operand in self._places:
            return self._places[operand]
        if re.match(r"0[fFdD][0-9a-fA-F]{8,}$", operand):
            return f"0x{operand[2:]}u{'ll' if len(operand) > 10 else ''}"
        if re.match(r"-?\d", operand):
            return f"{int(operand.rstrip('U'), 0)}ll" if int(operand.rstrip("U"), 0) < 2**63 else f"{operand}ull"
        return self._place(operand)

    def _number(self, operand: Operand, kind: str) -> str:
        if kind == "pred":
            return f"({self._bits(operand)} != 0)"
        return number(self._bits(operand), kind)

    def _address(self, operand: Operand) -> tuple[str, str, str]:
        """What is added in `[base + offset]`, and the base as it is written."""
        assert isinstance(operand, str), operand
        base, _, offset = operand.strip("[] ").replace(" ", "").partition("+")
        found = re.fullmatch(r"(%?[\w$]+)(-\d+)?", base)
        assert found is not None, operand
        return found[1], offset or found[2] or "0", found[1]

    # Instructions

    def _guarded(self, each: Instruction) -> str:
        done = self._one(each)
        if each.guard is None:
            return done
        negated = "!" if each.guard.startswith("!") else ""
        return f"if ({negated}{self._place(each.guard.lstrip('!'))}) {{ {done} }}"

    def _one(self, each: Instruction) -> str:
        name = each.opcode[0]
        match name:
            case "bra":
                return f"q->block = {self._labels[str(each.operands[0])]};"
            case "ret" | "exit":
                return "q->state = ENDED;"
            case "trap":
                return 'fail(m, "trap");'
            case "mov":
                return self._move(each)
            case "ld":
                return self._load(each)
            case "st":
                return self._store(each)
            case "atom" | "red":
                return self._atomic(each)
            case "setp":
                return self._compare(each)
            case "selp":
                kind, (to, a, b, condition) = each.opcode[-1], each.operands
                chosen = f"{self._place(condition)} ? {self._sized(a, kind)} : {self._sized(b, kind)}"
                return f"{self._place(to)} = {chosen};"
            case "cvt" if each.opcode[-2].endswith("x2"):
                to, high, low = each.operands
                half, of = each.opcode[-2].removesuffix("x2"), each.opcode[-1]
                if each.opcode[1:-2] != ("rn",):
                    raise UnknownInstructionError(str(each))
                low, high = (bits(f"(float){self._number(x, of)}", half) for x in (low, high))
                return f"{self._place(to)} = (uint32_t){high} << 16 | {low};"
            case "cvt":
                return self._calculate(each, *conversion(each.opcode))
            case "cvta":
                return f"{self._place(each.operands[0])} = {self._bits(each.operands[1])};"
            case "membar" | "fence":
                return ";"
            case "cp":
                return self._copy(each)
            case "prmt" | "lop3":
                to, *operands = each.operands
                return f"{self._place(to)} = {name}({', '.join(map(self._bits, operands))});"
            case "bfe" | "bfi":
                to, *operands = each.operands
                width, sign = bits_of(each.opcode[-1]), f", {int(each.opcode[-1][0] == 's')}" if name == "bfe" else ""
                return f"{self._place(to)} = {name}({', '.join(map(self._bits, operands))}, {width}{sign});"
            case "shf":
                to, low, high, by = each.operands
                if each.opcode[1:] not in (("l", "wrap", "b32"), ("r", "wrap", "b32")):
                    raise UnknownInstructionError(str(each))
                both = f"((uint64_t){self._bits(high)} << 32 | {self._bits(low)})"
                by = f"({self._bits(by)} & 31)"
                return f"{self._place(to)} = {both} " + (f">> {by};" if each.opcode[1] == "r" else f"<< {by} >> 32;")
        if each.opcode[-1].endswith("x2"):
            return self._halves(each)
        if each.opcode[0] in ("addc", "madc") or "cc" in each.opcode:
            return self._carried(each)
        return self._calculate(each, *calculation(each.opcode))

    def _sized(self, operand: Operand, kind: str) -> str:
        return f"(uint{bits_of(kind)}_t)({self._bits(operand)})"

    def _calculate(self, each: Instruction, expression: str, of: str, to: str) -> str:
        target, *operands = each.operands
        kinds = [of] * 3
        if each.opcode[0] in ("shl", "shr"):
            kinds[1] = "u32"
        if each.opcode[0] == "mad":
            kinds[2] = to
        declared = [
            f"{c_type(kind)} {name} = {self._number(operand, kind)};"
            for name, kind, operand in zip("abc", kinds, operands, strict=False)
        ]
        return f"{{ {' '.join(declared)} {self._place(target)} = {bits(expression, to)}; }}"

    def _carried(self, each: Instruction) -> str:
        """A sum of numbers of 32 bits, to which the instruction before or after carries."""
        name, *modifiers, kind = each.opcode
        target, *operands = each.operands
        part = next((one for one in modifiers if one in ("lo", "hi")), None)
        stem = name.removesuffix("c")
        if stem not in ("add", "mad") or (stem == "mad") != (part is not None) or kind not in ("u32", "b32"):
            raise UnknownInstructionError(str(each))
        numbers = [f"(uint64_t){self._number(one, kind)}" for one in operands]
        product = "(uint32_t)({} * {}{})".format(*numbers[:2], " >> 32" if part == "hi" else "")
        total = " + ".join([f"(uint64_t){product}" if part else numbers[0], numbers[-1]])
        total += " + q->carry" if name.endswith("c") else ""
        kept = " q->carry = sum >> 32;" if "cc" in modifiers else ""
        return f"{{ uint64_t sum = {total}; {self._place(target)} = sum;{kept} }}"

    def _halves(self, each: Instruction) -> str:
        """A calculation with two numbers in each register."""
        kind = each.opcode[-1].removesuffix("x2")
        expression, of, to = calculation((*each.opcode[:-1], kind))
        target, *operands = each.operands
        done = []
        for shift in (0, 16):
            declared = [
                f"{c_type(of)} {name} = {number(f'{self._bits(operand)} >> {shift}', of)};"
                for name, operand in zip("abc", operands, strict=False)
            ]
            done.append(f"{{ {' '.join(declared)} found |= (uint32_t)(uint16_t){bits(expression, to)} << {shift}; }}")
        return f"{{ uint32_t found = 0; {' '.join(done)} {self._place(target)} = found; }}"

    def _move(self, each: Instruction) -> str:
        to, of = each.operands
        kind = each.opcode[-1]
        if isinstance(to, tuple):
            width = bits_of(kind) // len(to)
            value = f"(uint{bits_of(kind)}_t)({self._bits(of)})"
            parts = [f"{self._place(one)} = found >> {width * k};" for k, one in enumerate(to)]
            return f"{{ uint{bits_of(kind)}_t found = {value}; {' '.join(parts)} }}"
        if isinstance(of, tuple):
            width = bits_of(kind) // len(of)
            parts = [f"(uint64_t)(uint{width}_t){self._bits(one)} << {width * k}" for k, one in enumerate(of)]
            return f"{self._place(to)} = {' | '.join(parts)};"
        return f"{self._place(to)} = {self._number(of, 'pred') if kind == 'pred' else self._bits(of)};"

    def _space(self, each: Instruction) -> tuple[str, str, int]:
        """Of a load or store: the space, the type, and how many there are."""
        *modifiers, kind = each.opcode[1:]
        space, count = "global", 1
        for modifier in modifiers:
            if modifier in _MEMORY:
                space = modifier
            elif re.fullmatch(r"v\d", modifier):
                count = int(modifier[1:])
            elif not _HINTS.fullmatch(modifier):
                raise UnknownInstructionError(str(each))
        return space, kind, count

    def _memory(self, each: Instruction, operand: Operand, space: str, kind: str, count: int) -> str:
        """A pointer of C to what an instruction reaches."""
        base, offset, name = self._address(operand)
        size = bits_of(kind) // 8 * count
        unsigned = f"uint{bits_of(kind)}_t"
        if space == "param":
            position = list(self.kernel.parameters).index(name)
            return f"({unsigned} *)((char *)m->parameters[{position}] + {offset})"
        is_own = space == "local" or self.kernel.variables.get(name, ("", 0, ()))[0] == "global"
        address = f"({self._bits(base)} + {offset})"
        if is_own:
            return f"({unsigned} *){address}"
        what = '"' + str(each).replace('"', "") + '"'
        return f"({unsigned} *){space}_at(m, {address}, {size}, {what})"

    def _load(self, each: Instruction) -> str:
        to, address = each.operands
        kind, registers, declared = self._reached(each, address, to)
        signed = c_type(kind) if kind[0] == "s" else f"uint{bits_of(kind)}_t"
        done = [f"{self._place(one)} = ({signed})at[{k}];" for k, one in enumerate(registers)]
        return f"{{ {declared} {' '.join(done)} }}"

    def _store(self, each: Instruction) -> str:
        address, of = each.operands
        _, registers, declared = self._reached(each, address, of)
        done = [f"at[{k}] = {self._bits(one)};" for k, one in enumerate(registers)]
        return f"{{ {declared} {' '.join(done)} }}"

    def _reached(self, each: Instruction, address: Operand, operand: Operand) -> tuple[str, tuple[str, ...], str]:
        """Of a load or store: the type, the registers, and the declaration of `at`, the memory."""
        space, kind, count = self._space(each)
        registers = operand if isinstance(operand, tuple) else (operand,)
        assert len(registers) == count, each
        return kind, registers, f"uint{bits_of(kind)}_t *at = {self._memory(each, address, space, kind, count)};"

    def _atomic(self, each: Instruction) -> str:
        name, *modifiers, kind = each.opcode
        operation = next(one for one in modifiers if one in ATOMICS)
        space = next(one for one in modifiers if one in _MEMORY)
        if any(one not in (operation, space) and not _HINTS.fullmatch(one) for one in modifiers):
            raise UnknownInstructionError(str(each))
        to, address, operand = each.operands if name == "atom" else ("_", *each.operands)
        reached = self._memory(each, address, space, kind, 1)
        new = bits(ATOMICS[operation](kind), kind)
        unsigned, b = f"uint{bits_of(kind)}_t", self._number(operand, kind)
        declared = f"{unsigned} *at = {reached}, old = *at; {c_type(kind)} b = {b};"
        return f"{{ {declared} *at = {new}; {self._place(to)} = old; }}"

    def _copy(self, each: Instruction) -> str:
        """`cp.async`, done at once: what is beyond the last operand is zero."""
        if each.opcode[2] in ("commit_group", "wait_group", "wait_all"):
            return ";"
        if each.opcode not in (("cp", "async", kind, "shared", "global") for kind in ("ca", "cg")):
            raise UnknownInstructionError(str(each))
        to, of, size, *least = each.operands
        given = self._bits(least[0]) if least else self._bits(size)
        places = []
        for operand, space in ((to, "shared"), (of, "global")):
            base, offset, _ = self._address(operand)
            places.append(f'{space}_at(m, {self._bits(base)} + {offset}, {self._bits(size)}, "{each}")')
        zeros = f"memset(to, 0, {self._bits(size)});"
        return f"{{ char *to = {places[0]}; {zeros} if ({given}) memcpy(to, {places[1]}, {given}); }}"

    def _compare(self, each: Instruction) -> str:
        _, how, *modifiers, kind = each.opcode
        targets, a, b, *also = each.operands
        assert isinstance(targets, str)
        places = [self._place(one) for one in targets.split("|")]
        halves = [kind] if not kind.endswith("x2") else [kind.removesuffix("x2")] * 2
        done = []
        for position, one in enumerate(halves):
            numbers = [
                number(f"{self._bits(operand)} >> {16 * position}" if len(halves) > 1 else self._bits(operand), one)
                for operand in (a, b)
            ]
            declared = f"{c_type(one)} a = {numbers[0]}, b = {numbers[1]};"
            done.append(f"{{ {declared} found[{position}] = {comparison(how, one)}; }}")
        combined = ""
        if modifiers:
            operators = {"and": "&", "or": "|", "xor": "^"}
            if modifiers[0] not in operators or len(modifiers) > 1:
                raise UnknownInstructionError(str(each))
            combined = f" {operators[modifiers[0]]} {self._place(also[0])}"
        if len(halves) == 1 and len(places) == 2:
            done.append("found[1] = !found[0];")
        stored = [f"{place} = found[{k}]{combined};" for k, place in enumerate(places)]
        return f"{{ uint8_t found[2]; {' '.join(done)} {' '.join(stored)} }}"

    # What lanes do together

    def _together(self, each: Instruction, after: int) -> Iterator[str]:
        if each.guard is not None:
            raise UnknownInstructionError(str(each))
        every = "for (int k = 0; k < n; k++) { Thread *q = group[k];"
        yield "  {"
        match each.opcode:
            case ("bar", "sync") if each.operands == ("0",):
                yield f"    {every} q->state = WAITS; q->block = {after}; }}"
            case ("bar", "warp", "sync"):
                yield f"    {every} q->block = {after}; }}"
            case ("shfl", "sync", mode, "b32"):
                to, of, by, clamp, _ = each.operands
                assert isinstance(to, str)
                target, _, within = to.partition("|")
                yield "    uint32_t shown[WARP]; uint8_t is_here[WARP] = {0};"
                yield f"    {every} shown[q->tid % WARP] = {self._bits(of)}; is_here[q->tid % WARP] = 1; }}"
                yield f"    {every} int is_within;"
                lane = f"source_lane({mode.upper()}, q->tid % WARP, {self._bits(by)}, {self._bits(clamp)}, &is_within)"
                yield f"      int lane = {lane};"
                yield f'      if (!is_here[lane]) fail(m, "a lane that is elsewhere: %s", "{each}");'
                yield f"      {self._place(target)} = shown[lane]; q->block = {after};"
                yield f"      {self._place(within)} = is_within; }}" if within else "    }"
            case ("redux", "sync", operation, kind):
                to, of, _ = each.operands
                yield f"    {c_type(kind)} sum = 0; {c_type(kind)} *at = &sum;"
                yield f"    {every} {c_type(kind)} b = {self._number(of, kind)};"
                yield f"      sum = k == 0 ? b : {ATOMICS[operation](kind)}; q->block = {after}; }}"
                yield f"    {every} {self._place(to)} = sum; }}"
            case ("ldmatrix" | "stmatrix", "sync", "aligned", "m8n8", count, *rest, "b16"):
                if set(rest) - {"shared", "trans"}:
                    raise UnknownInstructionError(str(each))
                yield from self._matrices(each, int(count[1:]), every, after)
            case ("mma", "sync", "aligned", "m16n8k16" | "m16n8k8" as shape, "row", "col", "f32", of, kind, "f32"):
                if of != kind or (shape, kind) not in _PRODUCTS:
                    raise UnknownInstructionError(str(each))
                yield from self._product(each, kind, every, after)
            case _:
                raise UnknownInstructionError(str(each))
        yield "  } break;"

    def _matrices(self, each: Instruction, count: int, every: str, after: int) -> Iterator[str]:
        """Matrices of 8 x 8 halves: each lane has two neighbours, and the first lanes the addresses of the rows."""
        is_load = each.opcode[0] == "ldmatrix"
        registers, address = each.operands if is_load else each.operands[::-1]
        assert isinstance(registers, tuple) and len(registers) == count, each
        base, offset, _ = self._address(address)
        yield f'    uint16_t *rows[WARP]; if (n != WARP) fail(m, "a part of a warp: {each}");'
        yield f"    {every} if (q->tid % WARP < {8 * count})"
        yield f'      rows[q->tid % WARP] = shared_at(m, {self._bits(base)} + {offset}, 16, "{each}"); }}'
        yield f"    {every} int row = q->tid % WARP / 4, pair = q->tid % 4 * 2; q->block = {after};"
        for k, register in enumerate(registers):
            if "trans" in each.opcode:
                low, high = (f"rows[{8 * k} + pair + {one}][row]" for one in (0, 1))
            else:
                low, high = (f"rows[{8 * k} + row][pair + {one}]" for one in (0, 1))
            if is_load:
                yield f"      {self._place(register)} = (uint32_t){high} << 16 | {low};"
            else:
                yield f"      {low} = {self._bits(register)}; {high} = {self._bits(register)} >> 16;"
        yield "    }"

    def _product(self, each: Instruction, kind: str, every: str, after: int) -> Iterator[str]:
        """A product of 16 x K by K x 8, K being 8 of TF32 and 16 of halves: each lane has some of the three matrices.

        Tensor cores add up in an order, and with a rounding, that nobody states; here it is rounded once.
        """
        to, a, b, c = each.operands
        assert isinstance(to, tuple) and isinstance(a, tuple) and isinstance(b, tuple) and isinstance(c, tuple)
        is_half = kind != "tf32"
        yield f'    float a[16][16], b[16][8]; if (n != WARP) fail(m, "a part of a warp: {each}");'
        yield f"    {every} int row = q->tid % WARP / 4, t = q->tid % 4;"
        for k, register in enumerate(a):
            at_row, at_column = f"row + {8 * (k % 2)}", (2 if is_half else 1, k // 2 * (8 if is_half else 4))
            for column, value in self._factors(register, kind):
                yield f"      a[{at_row}][{at_column[0]} * t + {at_column[1] + column}] = {value};"
        for k, register in enumerate(b):
            at_row = f"{2 if is_half else 1} * t + {k * (8 if is_half else 4)}"
            for one, value in self._factors(register, kind):
                yield f"      b[{at_row} + {one}][row] = {value};"
        yield "    }"
        yield f"    {every} int row = q->tid % WARP / 4, t = q->tid % 4; q->block = {after};"
        for k, (result, given) in enumerate(zip(to, c, strict=True)):
            at_row, column = f"row + {k // 2 * 8}", f"2 * t + {k % 2}"
            terms = f"for (int j = 0; j < {16 if is_half else 8}; j++) sum += (double)a[{at_row}][j] * b[j][{column}];"
            yield f"      {{ double sum = {self._number(given, 'f32')}; {terms}"
            yield f"        {self._place(result)} = f32_bits((float)sum); }}"
        yield "    }"

    def _factors(self, register: Operand, kind: str) -> list[tuple[int, str]]:
        """The numbers in a register of a factor, with their places."""
        if kind == "tf32":
            return [(0, f"seen_as_tf32({self._bits(register)})")]
        return [(k, number(f"(uint16_t)({self._bits(register)} >> {16 * k})", kind)) for k in (0, 1)]


def _c_name(name: str) -> str:
    return "_" + re.sub(r"\W", "_", name)
