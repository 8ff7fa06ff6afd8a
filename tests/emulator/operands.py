"""The operands of PTX in C: registers, of the thread `q`, immediates, symbols and addresses."""

from __future__ import annotations

import re

from tests.emulator.instructions import UnknownInstructionError, number
from tests.emulator.ptx import Kernel, Operand

_SPECIAL = {
    "%tid.x": "q->tid",
    "%tid.y": "0",
    "%tid.z": "0",
    "%ntid.x": "m->threads",
    "%laneid": "(q->tid % WARP)",
    **{f"%ctaid.{axis}": f"m->program[{k}]" for k, axis in enumerate("xyz")},
    **{f"%nctaid.{axis}": f"m->grid[{k}]" for k, axis in enumerate("xyz")},
}


class Operands:
    """The operands of a kernel. `local` is how many bytes of local memory a thread has."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._places: dict[str, str] = {}
        ends = {"shared": 0, "local": 0}
        for name, (space, size, _) in kernel.variables.items():
            if space == "global":
                self._places[name] = f"(uint64_t){c_name(name)}"
                continue
            self._places[name] = str(ends[space])
            ends[space] += -(-size // 16) * 16
        self.local = ends["local"]

    def place(self, operand: Operand) -> str:
        """A register, as what C can assign to."""
        assert isinstance(operand, str), operand
        if operand == "_":
            return "(uint64_t){0}"
        name = operand.lstrip("%")
        if name in self.kernel.registers:
            return f"q->{c_name(name)}"
        found = re.fullmatch(r"(\D+)(\d+)", name)
        if found is None or found[1] not in self.kernel.registers:
            raise UnknownInstructionError(f"the operand {operand}")
        return f"q->{c_name(found[1])}[{found[2]}]"

    def bits(self, operand: Operand) -> str:
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
        return self.place(operand)

    def number(self, operand: Operand, kind: str) -> str:
        if kind == "pred":
            return f"({self.bits(operand)} != 0)"
        return number(self.bits(operand), kind)

    def address(self, operand: Operand) -> tuple[str, str, str]:
        """What is added in `[base + offset]`, and the base as it is written."""
        assert isinstance(operand, str), operand
        base, _, offset = operand.strip("[] ").replace(" ", "").partition("+")
        found = re.fullmatch(r"(%?[\w$]+)(-\d+)?", base)
        assert found is not None, operand
        return found[1], offset or found[2] or "0", found[1]


def c_name(name: str) -> str:
    """What a register or variable of PTX is called in C."""
    return "_" + re.sub(r"\W", "_", name)
