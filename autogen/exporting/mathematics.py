"""Collect the source of the `autogen.device_math` functions that kernels call, with their dependencies."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from autogen import device_math

NAMES = device_math.NAMES
"""What kernels call."""


@dataclass(frozen=True)
class Mathematics:
    """Functions and constants in an order in which Python takes them, and the imports that they need."""

    imports: tuple[str, ...]
    definitions: tuple[str, ...]


@dataclass(frozen=True)
class _Definition:
    text: str
    uses: frozenset[str]


def needed_by(names: Iterable[str]) -> Mathematics:
    """What kernels need that call the functions `names`."""
    definitions, imports = _library()
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in definitions and name not in found:
            found.add(name)
            todo += definitions[name].uses
    used = set().union(*(definitions[name].uses for name in found))
    return Mathematics(
        tuple(sorted({text for name, text in imports.items() if name in used})),
        tuple(definition.text for name, definition in definitions.items() if name in found),
    )


@functools.cache
def _library() -> tuple[dict[str, _Definition], dict[str, str]]:
    """All definitions of the package by name, after what they use; and its imports from elsewhere by name.

    A name stands for one thing in all of its files, which the tests see to.
    """
    files = {
        each.name.removesuffix(".py"): each.read_text()
        for each in resources.files(device_math).iterdir()
        if each.name.endswith(".py") and each.name != "__init__.py"
    }
    trees = {name: ast.parse(text) for name, text in files.items()}
    definitions: dict[str, _Definition] = {}
    imports: dict[str, str] = {}
    done: set[str] = set()

    def visit(name: str) -> None:
        done.add(name)
        previous = 0  # the last line of what comes before
        for node in trees[name].body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{device_math.__name__}."):
                other = str(node.module).rpartition(".")[2]
                if other not in done:
                    visit(other)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                imports.update({each.asname or each.name: ast.unparse(node) for each in node.names})
            elif isinstance(node, (ast.FunctionDef, ast.Assign)):
                own = node.name if isinstance(node, ast.FunctionDef) else ast.unparse(node.targets[0])
                definitions[own] = _Definition(_with_comments(files[name], node, previous), _uses(node))
            previous = node.end_lineno or previous

    for name in sorted(trees):
        if name not in done:
            visit(name)
    return definitions, imports


def _with_comments(text: str, node: ast.FunctionDef | ast.Assign, previous: int) -> str:
    """The text of a definition, with the comments that stand before it."""
    lines = text.splitlines()
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    first = min([node.lineno, *(each.lineno for each in decorators)]) - 1
    while first > previous and lines[first - 1].startswith("#"):
        first -= 1
    return "\n".join(lines[first : node.end_lineno])


def _uses(node: ast.AST) -> frozenset[str]:
    """The names that a definition reads and does not make itself."""
    names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
    made = {each.id for each in names if not isinstance(each.ctx, ast.Load)}
    made |= {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
    return frozenset(each.id for each in names) - made
