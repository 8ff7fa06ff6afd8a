"""Print the captured loss as readable Python, in torch's operations."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping

import torch

from autogen import compat
from autogen.exporting.subject import Subject, source_of
from autogen.ir.names import unique

_OF_SIZES = (bool, int, float, torch.Size, torch.SymBool, torch.SymInt, torch.SymFloat)
_KNOWN = frozenset({"torch", "Ellipsis", "float", "int", "bool", "slice"})


def reference_of(subject: Subject, names: Mapping[str, str]) -> list[str]:
    """The statements that compute the loss from its tensors, which have `names` by what kernels call them.

    Of a loss that reads what no text stands for, an error.
    """
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(subject.graph.graph, {}))
    graph.eliminate_dead_code(lambda node: not _is_of_sizes(node))  # what is written in place is not dead
    written = graph.python_code("self")
    (function,) = (node for node in ast.parse(written.src).body if isinstance(node, ast.FunctionDef))
    called = {each.source: names[each.edge.name] for each in subject.tensors}
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    texts: dict[str, str] = {}
    for node, source in zip(placeholders, subject.sources, strict=True):
        text = _call_of(source, subject, called)
        if text is not None:
            texts[str(node.target)] = text
    taken = {*called.values(), *_KNOWN}
    made = {each.id for each in _names(function.body) if isinstance(each.ctx, ast.Store)}
    read = {each.id for each in _names(function.body) if isinstance(each.ctx, ast.Load)}
    renamed = {name: unique(name, taken) for name in sorted(made)}
    own = _Own(texts, renamed, read, next(iter(called.values())))
    kept = [each for each in map(own.visit, function.body) if each is not None]
    if not {each.id for each in _names(kept)} <= {*taken, *own.renamed.values()}:
        return [f'raise ValueError("there are no kernels of {subject.title} for these tensors")']
    return [ast.unparse(each) for each in kept]


def _is_of_sizes(node: torch.fx.Node) -> bool:
    """Whether a node is a computation with sizes, such as of a check."""
    return node.op not in ("placeholder", "output") and isinstance(node.meta.get("example_value"), _OF_SIZES)


def _names(statements: list[ast.stmt]) -> list[ast.Name]:
    return [node for each in statements for node in ast.walk(each) if isinstance(node, ast.Name)]


def _call_of(source: str, subject: Subject, called: Mapping[str, str]) -> str | None:
    """Where a call has an argument of Dynamo's graph, as text; None if that is in no tensor that kernels are given."""
    found = re.fullmatch(r"(.*?)(\.size\(\)\[\d+\])?", source)
    assert found is not None
    tensor = source_of(found[1], subject.owner)
    return None if tensor is None or tensor not in called else f"{called[tensor]}{found[2] or ''}"


class _Own(ast.NodeTransformer):
    """Writes arguments by their names, drops what fx deletes, and makes new tensors on the device of the first."""

    def __init__(self, texts: Mapping[str, str], renamed: Mapping[str, str], read: Collection[str], first: str) -> None:
        self._texts, self.renamed, self._read, self._first = dict(texts), renamed, read, first

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | None:
        if isinstance(node.value, ast.Constant) and node.value.value is None:
            return None
        (target,) = node.targets
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Name) and node.value.id in self._texts:
            self._texts[target.id] = self._texts[node.value.id]  # another name of an argument
            return None
        self.generic_visit(node)
        return ast.Expr(node.value) if isinstance(target, ast.Name) and target.id not in self._read else node

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        self.generic_visit(node)
        if isinstance(node.value, ast.Tuple):
            (node.value,) = node.value.elts
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) == compat.GRAD_SWITCH:
            return ast.Call(ast.parse("torch.set_grad_enabled", mode="eval").body, node.args, [])
        if isinstance(node.func, ast.Name) and node.func.id == "device":
            return ast.parse(f"{self._first}.device", mode="eval").body
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        text = self._texts.get(node.id)
        if text is not None and isinstance(node.ctx, ast.Load):
            return ast.parse(text, mode="eval").body
        if node.id in ("inf", "nan"):
            return ast.parse(f"float({node.id!r})", mode="eval").body
        return ast.Name(self.renamed.get(node.id, node.id), node.ctx)
