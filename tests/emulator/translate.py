"""Translate PTX to a C program whose `run` runs a launch of the kernel on `machine.h`.

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
from tests.emulator.operands import Operands, c_name
from tests.emulator.ptx import Instruction, Kernel, Operand, parse
from tests.emulator.together import ACROSS_LANES, together

_MEMORY = ("global", "shared", "local", "param")
_HINTS = re.compile(r"c[agvs]|wt|wb|nc|(L1|L2)::\w+|relaxed|acquire|release|acq_rel|volatile|weak|gpu|cta|sys")


def translate(text: str) -> str:
    """The program of a module of PTX.

    Raises:
        UnknownInstructionError: an instruction that the emulator does not know.
    """
    return "\n".join(_Translator(parse(text)).program())


class _Translator(Operands):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._blocks: list[list[Instruction]] = [[]]
        self._labels: dict[str, int] = {}
        self._cut()

    def _cut(self) -> None:
        """The body, cut into blocks: where labels are, after branches, and around what lanes do together."""
        for each in self.kernel.body:
            if isinstance(each, str):
                self._start_block()
                self._labels[each] = len(self._blocks) - 1
                continue
            is_together = each.opcode[0] in ACROSS_LANES
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
        own = []
        for name, (space, size, values) in self.kernel.variables.items():
            if space == "global":
                shown = ", ".join(map(str, values))
                yield f"static uint8_t {c_name(name)}[{size}] __attribute__((aligned(16))) = {{{shown}}};"
                own.append(f"{{(uint64_t){c_name(name)}, (uint64_t){c_name(name)} + {size}}}")
        yield f"static const Region own[] = {{{', '.join(own or ['{0, 0}'])}}};"
        yield "typedef struct {"
        yield "  int block; State state; uint32_t tid; uint8_t carry;"
        for name, (width, count) in self.kernel.registers.items():
            yield f"  uint{max(width, 8)}_t {c_name(name)}{f'[{count}]' if count else ''};"
        yield f"  uint8_t local[{self.local}] __attribute__((aligned(16)));" if self.local else ""
        yield "} Thread;"
        yield "static void run_block(Machine *m, Thread **group, int n, int block) {"
        yield "  switch (block) {"
        for position, block in enumerate(self._blocks):
            yield f"  case {position}:"
            if self._is_together(block):
                yield from together(self, block[0], position + 1)
                continue
            yield f"    for (int k = 0; k < n; k++) {{ Thread *q = group[k]; q->block = {position + 1};"
            for each in block:
                yield f"      {self._guarded(each)}"
            yield "    } break;"
        yield '  default: fail(m, "a thread ran past the end");'
        yield "  }"
        yield "}"
        waits = ", ".join(str(int(self._is_together(block))) for block in [*self._blocks, []])
        yield f"static const uint8_t is_together[] = {{{waits}}};"
        yield '#include "scheduler.h"'

    def _is_together(self, block: list[Instruction]) -> bool:
        return bool(block) and block[0].opcode[0] in ACROSS_LANES

    # Instructions

    def _guarded(self, each: Instruction) -> str:
        done = self._one(each)
        if each.guard is None:
            return done
        negated = "!" if each.guard.startswith("!") else ""
        return f"if ({negated}{self.place(each.guard.lstrip('!'))}) {{ {done} }}"

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
                chosen = f"{self.place(condition)} ? {self._sized(a, kind)} : {self._sized(b, kind)}"
                return f"{self.place(to)} = {chosen};"
            case "cvt" if each.opcode[-2].endswith("x2"):
                to, high, low = each.operands
                half, of = each.opcode[-2].removesuffix("x2"), each.opcode[-1]
                if each.opcode[1:-2] != ("rn",):
                    raise UnknownInstructionError(str(each))
                low, high = (bits(f"(float){self.number(x, of)}", half) for x in (low, high))
                return f"{self.place(to)} = (uint32_t){high} << 16 | {low};"
            case "cvt":
                return self._calculate(each, *conversion(each.opcode))
            case "cvta":
                return f"{self.place(each.operands[0])} = {self.bits(each.operands[1])};"
            case "createpolicy":  # there is no cache
                return f"{self.place(each.operands[0])} = 0;"
            case "membar" | "fence":
                return ";"
            case "cp":
                return self._copy(each)
            case "prmt" | "lop3":
                to, *operands = each.operands
                return f"{self.place(to)} = {name}({', '.join(map(self.bits, operands))});"
            case "bfe" | "bfi":
                to, *operands = each.operands
                width, sign = bits_of(each.opcode[-1]), f", {int(each.opcode[-1][0] == 's')}" if name == "bfe" else ""
                return f"{self.place(to)} = {name}({', '.join(map(self.bits, operands))}, {width}{sign});"
            case "shf":
                to, low, high, by = each.operands
                if each.opcode[1:] not in (("l", "wrap", "b32"), ("r", "wrap", "b32")):
                    raise UnknownInstructionError(str(each))
                both = f"((uint64_t){self.bits(high)} << 32 | {self.bits(low)})"
                by = f"({self.bits(by)} & 31)"
                return f"{self.place(to)} = {both} " + (f">> {by};" if each.opcode[1] == "r" else f"<< {by} >> 32;")
        if each.opcode[-1].endswith("x2"):
            return self._halves(each)
        if each.opcode[0] in ("addc", "madc") or "cc" in each.opcode:
            return self._carried(each)
        return self._calculate(each, *calculation(each.opcode))

    def _sized(self, operand: Operand, kind: str) -> str:
        return f"(uint{bits_of(kind)}_t)({self.bits(operand)})"

    def _calculate(self, each: Instruction, expression: str, of: str, to: str) -> str:
        target, *operands = each.operands
        kinds = [of] * 3
        if each.opcode[0] in ("shl", "shr"):
            kinds[1] = "u32"
        if each.opcode[0] == "mad":
            kinds[2] = to
        declared = [
            f"{c_type(kind)} {name} = {self.number(operand, kind)};"
            for name, kind, operand in zip("abc", kinds, operands, strict=False)
        ]
        return f"{{ {' '.join(declared)} {self.place(target)} = {bits(expression, to)}; }}"

    def _carried(self, each: Instruction) -> str:
        """A sum of numbers of 32 bits, to which the instruction before or after carries."""
        name, *modifiers, kind = each.opcode
        target, *operands = each.operands
        part = next((one for one in modifiers if one in ("lo", "hi")), None)
        stem = name.removesuffix("c")
        if stem not in ("add", "mad") or (stem == "mad") != (part is not None) or kind not in ("u32", "b32"):
            raise UnknownInstructionError(str(each))
        numbers = [f"(uint64_t){self.number(one, kind)}" for one in operands]
        product = "(uint32_t)({} * {}{})".format(*numbers[:2], " >> 32" if part == "hi" else "")
        total = " + ".join([f"(uint64_t){product}" if part else numbers[0], numbers[-1]])
        total += " + q->carry" if name.endswith("c") else ""
        kept = " q->carry = sum >> 32;" if "cc" in modifiers else ""
        return f"{{ uint64_t sum = {total}; {self.place(target)} = sum;{kept} }}"

    def _halves(self, each: Instruction) -> str:
        """A calculation with two numbers in each register."""
        kind = each.opcode[-1].removesuffix("x2")
        expression, of, to = calculation((*each.opcode[:-1], kind))
        target, *operands = each.operands
        done = []
        for shift in (0, 16):
            declared = [
                f"{c_type(of)} {name} = {number(f'{self.bits(operand)} >> {shift}', of)};"
                for name, operand in zip("abc", operands, strict=False)
            ]
            done.append(f"{{ {' '.join(declared)} found |= (uint32_t)(uint16_t){bits(expression, to)} << {shift}; }}")
        return f"{{ uint32_t found = 0; {' '.join(done)} {self.place(target)} = found; }}"

    def _move(self, each: Instruction) -> str:
        to, of = each.operands
        kind = each.opcode[-1]
        if isinstance(to, tuple):
            width = bits_of(kind) // len(to)
            value = f"(uint{bits_of(kind)}_t)({self.bits(of)})"
            parts = [f"{self.place(one)} = found >> {width * k};" for k, one in enumerate(to)]
            return f"{{ uint{bits_of(kind)}_t found = {value}; {' '.join(parts)} }}"
        if isinstance(of, tuple):
            width = bits_of(kind) // len(of)
            parts = [f"(uint64_t)(uint{width}_t){self.bits(one)} << {width * k}" for k, one in enumerate(of)]
            return f"{self.place(to)} = {' | '.join(parts)};"
        return f"{self.place(to)} = {self.number(of, 'pred') if kind == 'pred' else self.bits(of)};"

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
        base, offset, name = self.address(operand)
        size = bits_of(kind) // 8 * count
        unsigned = f"uint{bits_of(kind)}_t"
        if space == "param":
            position = list(self.kernel.parameters).index(name)
            return f"({unsigned} *)((char *)m->parameters[{position}] + {offset})"
        address = f"({self.bits(base)} + {offset})"
        what = '"' + str(each).replace('"', "") + '"'
        if space == "local":
            return f"({unsigned} *)local_at(m, q->local, {self.local}, {address}, {size}, {what})"
        return f"({unsigned} *){space}_at(m, {address}, {size}, {what})"

    def _load(self, each: Instruction) -> str:
        to, address, *policy = each.operands
        if bool(policy) != ("L2::cache_hint" in each.opcode):
            raise UnknownInstructionError(str(each))
        kind, registers, declared = self._reached(each, address, to)
        signed = c_type(kind) if kind[0] == "s" else f"uint{bits_of(kind)}_t"
        done = [f"{self.place(one)} = ({signed})at[{k}];" for k, one in enumerate(registers)]
        return f"{{ {declared} {' '.join(done)} }}"

    def _store(self, each: Instruction) -> str:
        address, of = each.operands
        _, registers, declared = self._reached(each, address, of)
        done = [f"at[{k}] = {self.bits(one)};" for k, one in enumerate(registers)]
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
        unsigned, b = f"uint{bits_of(kind)}_t", self.number(operand, kind)
        declared = f"{unsigned} *at = {reached}, old = *at; {c_type(kind)} b = {b};"
        return f"{{ {declared} *at = {new}; {self.place(to)} = old; }}"

    def _copy(self, each: Instruction) -> str:
        """`cp.async`, done at once: what is beyond the last operand is zero."""
        if each.opcode[2] in ("commit_group", "wait_group", "wait_all"):
            return ";"
        if each.opcode not in (("cp", "async", kind, "shared", "global") for kind in ("ca", "cg")):
            raise UnknownInstructionError(str(each))
        to, of, size, *least = each.operands
        given = self.bits(least[0]) if least else self.bits(size)
        places = []
        for operand, space in ((to, "shared"), (of, "global")):
            base, offset, _ = self.address(operand)
            places.append(f'{space}_at(m, {self.bits(base)} + {offset}, {self.bits(size)}, "{each}")')
        zeros = f"memset(to, 0, {self.bits(size)});"
        return f"{{ char *to = {places[0]}; {zeros} if ({given}) memcpy(to, {places[1]}, {given}); }}"

    def _compare(self, each: Instruction) -> str:
        _, how, *modifiers, kind = each.opcode
        targets, a, b, *also = each.operands
        assert isinstance(targets, str)
        places = [self.place(one) for one in targets.split("|")]
        halves = [kind] if not kind.endswith("x2") else [kind.removesuffix("x2")] * 2
        done = []
        for position, one in enumerate(halves):
            numbers = [
                number(
                    f"{self.bits(operand)} >> {16 * position}" if len(halves) > 1 else self.bits(operand),
                    one,
                )
                for operand in (a, b)
            ]
            declared = f"{c_type(one)} a = {numbers[0]}, b = {numbers[1]};"
            done.append(f"{{ {declared} found[{position}] = {comparison(how, one)}; }}")
        combined = ""
        if modifiers:
            operators = {"and": "&", "or": "|", "xor": "^"}
            if modifiers[0] not in operators or len(modifiers) > 1:
                raise UnknownInstructionError(str(each))
            combined = f" {operators[modifiers[0]]} {self.place(also[0])}"
        if len(halves) == 1 and len(places) == 2:
            done.append("found[1] = !found[0];")
        stored = [f"{place} = found[{k}]{combined};" for k, place in enumerate(places)]
        return f"{{ uint8_t found[2]; {' '.join(done)} {' '.join(stored)} }}"
