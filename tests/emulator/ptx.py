"""Parse the PTX that LLVM prints for Triton's kernels into instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

Operand = str | tuple[str, ...]
"""A register, an immediate, a symbol, `[address]`, or registers in braces."""

_SCOPED = re.compile(r"%?[A-Za-z_]\w*")
_SAYS_NOTHING = re.compile(r"\.(loc|pragma|reqntid|maxntid|minnctapersm)\b")


@dataclass(frozen=True)
class Instruction:
    """`@guard opcode operands;`, the opcode in the parts between its dots."""

    opcode: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: str | None

    def __str__(self) -> str:
        shown = (each if isinstance(each, str) else "{" + ", ".join(each) + "}" for each in self.operands)
        return f"{f'@{self.guard} ' if self.guard else ''}{'.'.join(self.opcode)} {', '.join(shown)};"


@dataclass
class Kernel:
    """A kernel: its parameters by name, in bytes; registers by name, in bits, and how many there are of that name;
    variables of the module or the thread, by name, as (space, bytes, values); instructions and labels in their order.
    """

    name: str
    parameters: dict[str, int] = field(default_factory=dict)
    registers: dict[str, tuple[int, int]] = field(default_factory=dict)
    variables: dict[str, tuple[str, int, tuple[int, ...]]] = field(default_factory=dict)
    body: list[Instruction | str] = field(default_factory=list)


def parse(text: str) -> Kernel:
    """The one kernel of a module."""
    entry = re.search(r"\.entry (\w+)\(([^)]*)\)", text)
    assert entry is not None and len(re.findall(r"\.(?:entry|func)\b", text)) == 1, "not one kernel"
    kernel = Kernel(entry[1])
    for kind, name in re.findall(r"\.param \.[usbf](\d+)\b.*?(\w+)(?=,|\n|$)", entry[2]):
        kernel.parameters[name] = int(kind) // 8
    assert len(kernel.parameters) == entry[2].count(".param"), entry[2]
    _Body(kernel).read(_lines(text))
    return kernel


def _lines(text: str) -> Iterator[str]:
    """The lines that say what a kernel does: no comments, no lines for debuggers, nothing after its end."""
    is_header = True
    for line in text.splitlines():
        line = line.partition("//")[0].rstrip()
        if line == "}":
            return
        if line in ("{", ")"):
            is_header = False
            continue
        line = line.strip()
        is_variable = re.match(r"\.(visible |extern )?\.?(shared|global)", line)
        if line and (not is_header or is_variable) and not _SAYS_NOTHING.match(line):
            yield line


class _Body:
    """Reads lines. Registers of an inner scope, as inline assembly has, get a name of their own."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._scopes: list[dict[str, str]] = []
        self._opened = 0

    def read(self, lines: Iterator[str]) -> None:
        for line in lines:
            rest = line
            while rest:
                rest = self._one(rest).strip()

    def _one(self, text: str) -> str:
        """Read what a line begins with; the rest."""
        if text[0] == "{":
            self._scopes.append({})
            self._opened += 1
            return text[1:]
        if text[0] == "}":
            self._scopes.pop()
            return text[1:]
        label = re.match(r"(\$?\w+):", text)
        if label is not None:
            self._kernel.body.append(label[1])
            return text[label.end() :]
        statement, found, rest = text.partition(";")
        assert found, f"no statement: {text}"
        if statement.startswith(".reg"):
            self._registers(statement)
        elif statement.startswith("."):
            self._variable(statement)
        else:
            self._kernel.body.append(self._instruction(statement))
        return rest

    def _registers(self, statement: str) -> None:
        kind, names = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", statement).groups()  # type: ignore[union-attr]
        bits = 1 if kind == "pred" else int(kind.lstrip("bfus"))
        for name in names.split(","):
            stem, count = re.fullmatch(r"\s*([%\w]+?)(?:<(\d+)>)?\s*", name).groups()  # type: ignore[union-attr]
            if self._scopes:
                assert count is None, statement
                self._scopes[-1][stem] = stem = f"{stem}_scope{self._opened}"
            self._kernel.registers[stem.lstrip("%")] = (bits, int(count or 0))

    def _variable(self, statement: str) -> None:
        pattern = r"\.(?:extern \.|visible \.)?(shared|global|local)\s+\.align \d+\s+\.b(\d+)\s+([\w$]+)(?:\[(\d*)\])?"
        found = re.match(pattern, statement)
        assert found is not None, f"an unknown directive: {statement}"
        space, bits, name, count = found.groups()
        values = tuple(map(int, statement.partition("{")[2].rstrip("} ").split(","))) if "{" in statement else ()
        self._kernel.variables[name] = (space, int(bits) // 8 * int(count or 0 if count is not None else 1), values)

    def _instruction(self, statement: str) -> Instruction:
        statement = " ".join(self._renamed(statement).split())
        guard, opcode, rest = re.fullmatch(r"(?:@(!?%\w+) )?([\w.:]+)(?: (.*))?", statement).groups()  # type: ignore[union-attr]
        opcode = opcode.replace("shared::cta", "shared")  # which PTX takes it for
        return Instruction(tuple(opcode.split(".")), tuple(_operands(rest or "")), guard)

    def _renamed(self, statement: str) -> str:
        for scope in self._scopes:
            statement = _SCOPED.sub(lambda found, scope=scope: scope.get(found[0], found[0]), statement)  # type: ignore[misc]
        return statement


def _operands(text: str) -> Iterator[Operand]:
    for braces, other in re.findall(r"\{([^}]*)\}|([^,{}]+)", text):
        if braces:
            yield tuple(each.strip() for each in braces.split(","))
        elif other.strip():
            yield other.strip()
