"""Find out which instructions the loads, stores and atomics of a kernel became.

Triton records a source position for every instruction, by which an instruction is found to belong to one `tl.load`
or `tl.store` of the generated text.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autogen.aot import TARGETS, CompiledKernel, SpecializedKernel
from autogen.aot.compilation import function_of

Kind = Literal["load", "store"]

_Position = tuple[str, int, int]  # file, line and column
_NOWHERE: _Position = ("", 0, 0)

_POSITION = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
_INLINE = re.compile(r"\s*// (begin|end) inline asm")
_FILE = re.compile(r'\s*\.file\s+(\d+)\s+(?:"[^"]*"\s+)?"(?:[^"]*/)?([^"/]+)"')
_HASH = re.compile(r"_[0-9a-f]{16}(?=\.py$)")
_PTX_ACCESS = re.compile(r"\s*(?:@!?%\w+\s+)?(ld|st)\.(?:\w+\.)*?global\.(\S+)")
_PTX_ATOMIC = re.compile(r"\b(?:atom|red)\.(\S+)")
_AMD_ACCESS = re.compile(r"\s*(?:buffer|global|flat)_(load|store)_(\w+)")
_AMD_MEMORY = re.compile(r"\bs\[\d+:\d+\]")  # the registers that say where it is
_ITEM_BITS = re.compile(r"\d+$")
_LLVM_ATOMIC = re.compile(r'\batomicrmw (\w+) .*?(?:syncscope\("([\w-]+)"\))? (\w+), align')

_KINDS: dict[str, Kind] = {"tl.load": "load", "tl.store": "store"}

# Bytes of AMD's memory instructions, by what follows `load_` or `store_`.
_AMD_BYTES = {
    "byte": 1,
    "ubyte": 1,
    "sbyte": 1,
    "short": 2,
    "ushort": 2,
    "sshort": 2,
    "dword": 4,
    "dwordx2": 8,
    "dwordx3": 12,
    "dwordx4": 16,
    "dwordx8": 32,
    "dwordx16": 64,
}


@dataclass(frozen=True)
class Access:
    """A `tl.load` or `tl.store` of a kernel, and the instructions that it became.

    Instructions that an optimizer made from several of them (the same store on both sides of an `if`) have no source
    position; they are together in one more access of line 0, without a function or an address. Loads through AMD's
    scalar unit, which single values may take, are not counted.

    Attributes:
        kind: "load" or "store".
        function: the function that it is in, the kernel or a helper.
        parameters: the parameters of that function.
        line: its line in the text of that function's module, from 1.
        address: its address as written.
        mask: its mask as written, None if it has none.
        item_bytes: bytes of one element, 0 if unknown.
        widths: bytes that each instruction moves per thread, in program order.
    """

    kind: Kind
    function: str
    parameters: tuple[str, ...]
    line: int
    address: str
    mask: str | None
    item_bytes: int
    widths: tuple[int, ...]


@dataclass(frozen=True)
class Atomic:
    """An atomic instruction in Triton's words: "add", "acq_rel", "gpu" (which AMD calls "agent")."""

    operation: str
    semantics: str
    scope: str


@dataclass(frozen=True)
class _Call:
    """A call of `tl.load` or `tl.store`, and the lines of the statement around it."""

    kind: Kind
    function: str
    parameters: tuple[str, ...]
    start: tuple[int, int]
    end: tuple[int, int]
    statement: range
    address: str
    mask: str | None
    pointer: str


@functools.lru_cache
def _calls(text: str) -> tuple[_Call, ...]:
    """The loads and stores of a module."""
    calls = []
    functions = [each for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)]
    for function, statement in ((around, each) for around in functions for each in ast.walk(around)):
        if not isinstance(statement, (ast.Assign, ast.AugAssign, ast.Expr)):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and (kind := _KINDS.get(ast.unparse(node.func))):
                names = [each.id for each in ast.walk(node.args[0]) if isinstance(each, ast.Name)]
                masks = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "mask"]
                call = _Call(
                    kind=kind,
                    function=function.name,
                    parameters=tuple(each.arg for each in function.args.args),
                    start=(node.lineno, node.col_offset),
                    end=(node.end_lineno or 0, node.end_col_offset or 0),
                    statement=range(statement.lineno, (statement.end_lineno or 0) + 1),
                    address=ast.unparse(node.args[0]),
                    mask=masks[0] if masks else None,
                    pointer=next(name for name in names if name.endswith("_ptr")),
                )
                calls.append(call)
    return tuple(sorted(calls, key=lambda call: call.start))


@functools.lru_cache
def accesses_of(kernel: SpecializedKernel, compiled: CompiledKernel) -> tuple[Access, ...]:
    """What the loads and stores of a kernel became, in the order of its text; then those of what it imports."""
    function = function_of(kernel)
    named = dict(zip(function.arg_names, (each.type for each in kernel.parameters), strict=True))
    return accesses(
        compiled.asm,
        TARGETS[compiled.target].backend,
        kernel.text,
        kernel.name,
        {name: _item_bytes(kind) for name, kind in named.items() if kind.startswith("*")},
        _helpers(function.__globals__),
    )


def atomics_of(compiled: CompiledKernel) -> tuple[Atomic, ...]:
    """The atomics of a kernel."""
    return atomics(compiled.asm, compiled.llir, TARGETS[compiled.target].backend)


def _helpers(names: Mapping[str, Any]) -> dict[str, str]:
    """The modules of imported Triton functions that load or store, by their file names."""
    from triton import JITFunction

    functions = [each for each in names.values() if isinstance(each, JITFunction) and each.__globals__ is not names]
    found: dict[str, str] = {}
    for each in {id(each.__globals__): each for each in functions}.values():  # one of each module
        text = inspect.getsource(inspect.getmodule(each.fn) or each.fn)
        if "tl.load(" in text or "tl.store(" in text:
            found |= {Path(inspect.getfile(each.fn)).name: text, **_helpers(each.__globals__)}
    return found


def _item_bytes(pointer: str) -> int:
    bits = _ITEM_BITS.search(pointer)
    assert bits is not None, pointer
    return max(int(bits[0]) // 8, 1)


def accesses(
    assembly: str, backend: str, text: str, name: str, item_bytes: Mapping[str, int], helpers: Mapping[str, str]
) -> tuple[Access, ...]:
    """What the loads and stores of a kernel became, in the order of its text; then those of its helpers.

    Args:
        assembly: PTX, or AMD's assembly.
        backend: Triton's name of the backend, "cuda" or "hip".
        text: the kernel's module.
        name: the kernel's, with which the module's file name begins. A hash of the text follows, which may be that of
            another text: Triton takes functions to be the same that are, on the same lines, in whatever module.
        item_bytes: bytes per element, by pointer parameter; other pointers are those of device functions.
        helpers: other modules that have functions of the kernel with loads or stores, by their file names.

    """
    modules = {file: _calls(each) for file, each in {f"{name}.py": text, **helpers}.items()}
    widths: dict[_Call, list[int]] = {call: [] for calls in modules.values() for call in calls}
    merged: dict[Kind, list[int]] = {}
    for kind, width, (file, line, column) in _memory_instructions(assembly, backend, modules):
        call = _call_at(modules.get(file, ()), kind, (line, column))
        if call is not None:
            widths[call].append(width)
        else:
            merged.setdefault(kind, []).append(width)
    found = [
        Access(
            kind=call.kind,
            function=call.function,
            parameters=call.parameters,
            line=call.start[0],
            address=call.address,
            mask=call.mask,
            item_bytes=item_bytes.get(call.pointer, 0),
            widths=tuple(each),
        )
        for call, each in widths.items()
    ]
    return (*found, *(Access(kind, "", (), 0, "", None, 0, tuple(each)) for kind, each in merged.items()))


def _call_at(calls: Sequence[_Call], kind: Kind, position: tuple[int, int]) -> _Call | None:
    inside = [call for call in calls if call.kind == kind and call.start <= position < call.end]
    if inside:
        return inside[-1]
    # A load may have been made one with the conversion around it.
    beside = [call for call in calls if call.kind == kind and position[0] in call.statement]
    return beside[0] if len(beside) == 1 else None


def _memory_instructions(assembly: str, backend: str, files: Collection[str]) -> Iterator[tuple[Kind, int, _Position]]:
    """Kind, bytes per thread and source position of the instructions that access global memory."""
    for position, lines in _positioned(assembly, files):
        memory: str | None = None
        for line in lines:
            if backend == "cuda":
                if match := _PTX_ACCESS.match(line):
                    kind: Kind = "load" if match[1] == "ld" else "store"
                    yield kind, _ptx_bytes(match[2]), position
            elif match := _AMD_ACCESS.match(line):
                kind = "load" if match[1] == "load" else "store"
                found = _AMD_MEMORY.search(line)
                memory = memory or (found[0] if found else None)
                # What the optimizer has moved here may have no position, and is known by its other memory.
                at = _NOWHERE if found and found[0] != memory else position
                yield kind, _AMD_BYTES[match[2].removesuffix("_d16").removesuffix("_d16_hi")], at


def _positioned(assembly: str, files: Collection[str]) -> Iterator[tuple[_Position, list[str]]]:
    """Source positions in some files, whose hashes do not count, and the lines after each."""
    lines = assembly.splitlines()
    named = {match[1]: _HASH.sub("", match[2]) for match in map(_FILE.match, lines) if match}
    position, found = _NOWHERE, list[str]()
    is_inline, is_counted = False, False  # in inline assembly LLVM goes on counting lines: only the first is a position
    for line in lines:
        if match := _INLINE.match(line):
            is_inline, is_counted = match[1] == "begin", False
        elif match := _POSITION.match(line):
            if named.get(match[1]) in files and not is_counted:
                yield position, found
                position, found = (named[match[1]], int(match[2]), int(match[3])), []
            is_counted = is_inline
        else:
            found.append(line)
    yield position, found


def _ptx_bytes(suffix: str) -> int:
    """Bytes of an instruction such as `ld.global.v4.b32`, by what follows `global.`."""
    bits = re.search(r"\b[bfsu](\d+)$", suffix)
    assert bits is not None, suffix
    vector = re.search(r"\bv(\d)\b", suffix)
    return int(bits[1]) // 8 * (int(vector[1]) if vector else 1)


def atomics(assembly: str, llvm: str, backend: str) -> tuple[Atomic, ...]:
    """The atomics of a kernel: from PTX, or for AMD from LLVM's IR, which names what assembly spells in fences."""
    found = []
    if backend == "cuda":
        for match in _PTX_ATOMIC.finditer(assembly):
            words = match[1].split(".")
            semantics = next((w for w in words if w in ("relaxed", "acquire", "release", "acq_rel")), "relaxed")
            scope = next((w for w in words if w in ("cta", "cluster", "gpu", "sys")), "gpu")
            operation = next(w for w in words if w in ("add", "and", "or", "xor", "cas", "exch", "min", "max"))
            found.append(Atomic(operation, semantics, scope))
    else:
        for match in _LLVM_ATOMIC.finditer(llvm):
            scope = {"agent": "gpu", "workgroup": "cta", None: "sys"}[match[2]]
            semantics = "relaxed" if match[3] == "monotonic" else match[3]
            found.append(Atomic(match[1], semantics, scope))
    return tuple(found)
