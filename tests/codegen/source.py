"""Parse a generated module: its kernel, what that loads and stores, and the names that it uses."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Source:
    """The text of a generated module, and of its functions the one that is looked at."""

    text: str
    position: int = -1

    @cached_property
    def kernels(self) -> list[ast.FunctionDef]:
        """The functions under `@triton.jit`."""
        functions = [node for node in ast.parse(self.text).body if isinstance(node, ast.FunctionDef)]
        return [f for f in functions if any(ast.unparse(each) == "triton.jit" for each in f.decorator_list)]

    @cached_property
    def kernel(self) -> ast.FunctionDef:
        """The function that is looked at: the kernel is the last."""
        return self.kernels[self.position]

    @cached_property
    def handed_on(self) -> set[str]:
        """What the kernel gives to another function of the module."""
        calls = [call for other in self.kernels for call in self.calls(other.name)]
        return {ast.unparse(argument) for call in calls for argument in call.args}

    @cached_property
    def parameters(self) -> list[str]:
        """The kernel's parameters."""
        return [each.arg for each in self.kernel.args.args]

    @cached_property
    def pointers(self) -> list[str]:
        """The parameters that are pointers."""
        return [name for name in self.parameters if name.endswith("_ptr")]

    @cached_property
    def tiles(self) -> list[str]:
        """The parameters that are compile-time constants."""
        return [each.arg for each in self.kernel.args.args if each.annotation is not None]

    @cached_property
    def documentation(self) -> str:
        """The kernel's docstring."""
        return ast.get_docstring(self.kernel) or ""

    @cached_property
    def comments(self) -> list[str]:
        """The comments, without their sign."""
        return [line.strip()[2:] for line in self.text.splitlines() if line.strip().startswith("# ")]

    @cached_property
    def assigned(self) -> set[str]:
        """The names that the kernel assigns to."""
        return self._names(ast.Store)

    @cached_property
    def used(self) -> set[str]:
        """The names that the kernel reads."""
        return self._names(ast.Load)

    def _names(self, context: type[ast.expr_context]) -> set[str]:
        return {n.id for n in ast.walk(self.kernel) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}

    def calls(self, name: str) -> list[ast.Call]:
        """The kernel's calls of a function, such as `tl.load`."""
        return [n for n in ast.walk(self.kernel) if isinstance(n, ast.Call) and ast.unparse(n.func) == name]

    @cached_property
    def passes(self) -> list[Counter[str]]:
        """How often each address is loaded: in straight-line code first, then in each loop."""
        straight, loops = _loads(self.kernel.body)
        return [straight, *loops]

    def values_in(self, address: str) -> set[str]:
        """The values that an address is computed from, beside the place in the iteration space and sizes."""
        names = {node.id for node in ast.walk(ast.parse(address)) if isinstance(node, ast.Name)}
        return {name for name in names - set(self.parameters) if not re.fullmatch(r"offsets|row|batch\d*|col\d*", name)}


def tensor_of(address: str | ast.expr) -> str:
    """The pointer in an address such as `input_ptr + offsets`."""
    tree = ast.parse(address) if isinstance(address, str) else address
    return next(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id.endswith("_ptr"))


def _loads(statements: list[ast.stmt]) -> tuple[Counter[str], list[Counter[str]]]:
    straight: Counter[str] = Counter()
    loops: list[Counter[str]] = []
    for statement in statements:
        match statement:
            case ast.For():
                inside, deeper = _loads(statement.body)
                loops += [inside, *deeper]
            case ast.If():
                # One of two branches runs: what both load is loaded once.
                (first, more), (second, others) = _loads(statement.body), _loads(statement.orelse)
                straight += first | second
                loops += more + others
            case _:
                for node in ast.walk(statement):
                    if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.load":
                        straight[ast.unparse(node.args[0])] += 1
    return straight, loops
