"""Count the instructions that a kernel issues for each byte it moves, in its machine code.

A multiprocessor of an H100 or H200 issues 128 instructions of a thread per cycle: 132 of them, at 1.7 GHz, some 29
million in a µs. An H200 copies some 4.3 million bytes in a µs, so that a kernel of more than 6.7 instructions per byte
is not as fast as memory, whatever it does about memory. Counted is what full tiles run: a kernel without its branches
for the elements at an end and without its last block, each loop as often as it is run. Nothing is known of a kernel
whose loops the compiler took apart.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace

from autogen.aot import TARGETS, specialize
from autogen.aot.compilation import triton_kernel
from autogen.runtime.launch import Launcher
from autogen.tiling.tiler import Tiler

TARGET = "sm_90"

_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9_.]*)(.*)")
_LABEL = re.compile(r"\s*(\.L_\S+):")


def issued(launcher: Launcher, sizes: Mapping[str, int]) -> int | None:
    """The instructions of all threads of a launch, None if that cannot be told."""
    kernel = specialize(launcher, sizes, "loss", "forward")
    function = _of_full_tiles(kernel.text, kernel.name)
    walks = [node for node in ast.walk(function) if isinstance(node, ast.For)]
    if launcher.kernel.parts:
        return None
    steps = _steps(launcher, sizes) if walks else 0
    if steps is None:
        return None
    text = kernel.text.replace(_source_of(kernel.text, kernel.name), ast.unparse(function))
    _, compiled = triton_kernel(replace(kernel, text=text), TARGETS[TARGET])
    instructions, loops = _read(_disassembled(compiled.asm["cubin"]))
    if len(loops) != len(walks):
        return None
    repeated = sum(map(len, loops)) * (steps - 1)
    return (instructions + repeated) * 32 * kernel.num_warps * kernel.programs


def _source_of(text: str, name: str) -> str:
    """The text of a function, from its name on."""
    function = next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name)
    lines = text.splitlines()
    return "\n".join(lines[function.lineno - 1 : function.end_lineno])


class _FullTiles(ast.NodeTransformer):
    """Takes the branches of full tiles that are not the last."""

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        self.generic_visit(node)
        return node.body if ast.unparse(node.test) == "is_full" else node.orelse


def _of_full_tiles(text: str, name: str) -> ast.FunctionDef:
    """A kernel's function without what only the ends and the last block run."""
    function = next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name)
    function.decorator_list = []
    found = ast.fix_missing_locations(_FullTiles().visit(function))
    assert isinstance(found, ast.FunctionDef)
    return found


def _steps(launcher: Launcher, sizes: Mapping[str, int]) -> int | None:
    """How often a program runs each of its loops."""
    tiling, tiler = launcher.tiling(sizes), launcher.tiler
    assert isinstance(tiler, Tiler), "a kernel of several parts is not asked"
    extents, tiles = tiler.extents(sizes), dict(tiling.tiles)
    if tiling.variant.looped:
        return -(-extents.columns // tiles["COLS"])
    if tiling.variant.strided:
        return max(extents.rows // tiles["BLOCK" if "BLOCK" in tiles else "ROWS"] // tiling.programs, 1)
    if not tiler.is_chunked:
        return None
    return max(extents.rows // tiles["ROWS"] // tiling.chunks, 1)


def _disassembled(cubin: bytes) -> str:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.nvdisasm.path, "--print-code", file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _read(text: str) -> tuple[int, list[range]]:
    """How many instructions there are, and which of them are loops."""
    labels: dict[str, int] = {}
    loops = []
    count = 0
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = count
        elif (found := _INSTRUCTION.match(line)) and found[1] != "NOP":
            target = re.search(r"`\((\.L_\S+)\)", found[2])
            if found[1].startswith("BRA") and target and labels.get(target[1], count) < count:
                loops.append(range(labels[target[1]], count + 1))
            count += 1
    return count, loops
