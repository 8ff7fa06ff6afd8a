"""Fill the templates of an exported loss."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from autogen import ir
from autogen._version import __version__
from autogen.capture.graph import EdgeTensor
from autogen.emission.body import wrapped
from autogen.emission.shell import render
from autogen.emission.source import KernelSource
from autogen.errors import ExportError
from autogen.exporting import mathematics
from autogen.exporting.decisions import Decisions, Rule, text_of
from autogen.exporting.reference import reference_of
from autogen.exporting.subject import Subject
from autogen.ir.names import unique
from autogen.ir.sizes import SCOPE
from autogen.runtime.launch import Launcher, kernels_in
from autogen.tiling import tiler

_RESERVED = {
    *("torch", "triton", "tl", "math", "json", "functools", "threading", "Path", "ThreadPoolExecutor", "Any", "core"),
    *("device", "tensors", "kind", "each", "ctx", "plan", "launch", "fits", "configured", "counters", "cdiv"),
    *("striding", "aligned", "power_of_2", "in_torch", "keep", "differentiate", "self", "is_as_exported"),
}
_USE_PACKAGE = "Use the loss with autogen installed."
_CONSTANTS = {
    "few_programs": min(tiler.FEW_PROGRAMS, tiler.MOST_PROGRAMS),
    "most_programs": tiler.MOST_PROGRAMS,
    "most_tiles": tiler.MOST_TILES,
    "max_programs": tiler.MAX_PROGRAMS,
    "max_shared": tiler.MAX_SHARED,
    "partials_of_warp": tiler.PARTIALS_OF_WARP,
    "max_partials": tiler.MAX_PARTIALS,
}


@dataclass(frozen=True)
class Written:
    """A loss as text: `render` makes a module or a file of a package of it; `configs` are the rules by kernel."""

    subject: Subject
    context: Mapping[str, Any]
    configs: Mapping[str, list[Rule]]

    def module(self) -> str:
        """One file that needs nothing beside it."""
        return self._code(is_hub=False, namespace="")

    def kernels(self, namespace: str) -> str:
        """The same for a package, whose ops are in a namespace of torch."""
        return self._code(is_hub=True, namespace=namespace)

    def _code(self, **where: Any) -> str:
        context = {**self.context, **where}
        text = render("export.py.jinja", imports=[], **context)
        imports = _imports(text, self.context["needed"], is_hub=where["is_hub"])
        return _tidy(render("export.py.jinja", imports=imports, **context))

    def layers(self, layer: str) -> str:
        """The layer of a package."""
        return _tidy(render("export_layers.jinja", layer=layer, **self.context))


def write(subject: Subject) -> Written:
    """The text of a loss.

    Raises:
        ExportError: the kernels are not made for other sizes than those of the example.
    """
    names = _names(subject)
    decisions = [Decisions(launcher) for launcher in subject.launchers]
    hints = subject.joint.sizes.hints()
    configs = {each.name: each.rules(hints) for each in decisions}
    plans = [each.context(configs[each.name]) for each in decisions]
    variants = {each.name: each.variants(configs[each.name]) for each in decisions}
    functions, helpers = _functions(variants)
    needed = mathematics.needed_by(helpers)
    limits = [limit for each in decisions for limit in each.limits()]
    checks = list(dict.fromkeys([*_shapes(subject, names), *_conditions(subject), *limits]))
    if not all(eval(check, dict(SCOPE), dict(hints)) for check in (*_conditions(subject), *limits)):
        raise ExportError(subject.title, "its kernels hold for few sizes only, not those of the example", _USE_PACKAGE)
    given = [names[each.edge.name] for each in subject.tensors]
    forward = _direction("forward", subject, names, variants)
    backward = _direction("backward", subject, names, variants) if subject.training else None
    directions = [each for each in (forward, backward) if each is not None]
    own = subject.backward
    by_input = dict(zip((each.name for each in subject.joint.inputs), own.gradients, strict=True)) if own else {}
    gradients = [names.get(by_input.get(each.edge.name) or "", "None") for each in subject.tensors]
    taken = _RESERVED | mathematics.NAMES | {*functions}
    function_name = unique(subject.name, taken)
    uses = "\n".join(render("export_plan.jinja", kernel=plan, **_CONSTANTS) for plan in plans)
    context = {
        **_CONSTANTS,
        "title": subject.title,
        "version": __version__,
        "fixed": subject.fixed,
        "intro": _intro(subject, names),
        "needed": needed.imports,
        "definitions": [text.replace("  # fmt: skip", "") for text in needed.definitions],
        "functions": list(functions.values()),
        "configs": {name: [repr(rule).replace("'", '"') for rule in rules] for name, rules in configs.items()},
        "plans": plans,
        "uses": {name: f"{name}(" in uses for name in ("power_of_2", "aligned", "striding")},
        "tensors": [_described(each.edge, names, has_gradient=each.has_gradient) for each in subject.tensors],
        "names": ", ".join(given),
        "first": given[0],
        "constant": [
            names[each.edge.name]
            for each in subject.tensors
            if each.edge.dtype.is_floating_point and not each.has_gradient
        ],
        "sizes": _sizes(subject, names, " ".join(checks)),
        "checks": checks,
        "directions": directions,
        "forward": forward,
        "backward": backward,
        "saved": [*given, *(names[each.name] for each in subject.compiled.plan.saved)],
        "upstream": next((names[each.name] for each in subject.joint.upstream if each is not None), "_"),
        "gradients": gradients,
        "contiguous": [f"{name}.contiguous()" for name in given],
        "class_name": f"{class_name(subject.title)}Function",
        "function_name": function_name,
        "gradients_name": unique(f"gradients_of_{subject.name}", taken),
        "reference": reference_of(subject, names),
        **_of_layer(subject, names),
    }
    return Written(subject, context, configs)


def class_name(title: str) -> str:
    """What a class is called for a loss that may be a function: `smooth_l1` → `SmoothL1`."""
    words = re.findall(r"[A-Za-z0-9]+", title)
    return title if title.isidentifier() and title[0].isupper() else "".join(f"{w[0].upper()}{w[1:]}" for w in words)


def _names(subject: Subject) -> dict[str, str]:
    """What tensors are called in host code, by their names in kernels."""
    taken = {*_RESERVED, *map(str, subject.joint.sizes.symbols)}
    found: dict[str, str] = {}
    named = [each.name for each in subject.joint.inputs]
    named += [each.name for each in subject.compiled.outputs.buffers]
    named += [each.name for each in (subject.backward.results.buffers if subject.backward else ())]
    named += [each.name for each in subject.joint.upstream if each is not None]
    for name in dict.fromkeys(named):
        found[name] = unique(name, taken | set(found.values()))
    return found


def _functions(variants: Mapping[str, Mapping[str, KernelSource]]) -> tuple[dict[str, str], set[str]]:
    """The functions of all kernels by name, and the device math that they call."""
    functions: dict[str, str] = {}
    helpers: set[str] = set()
    for own in variants.values():
        for ending, source in own.items():
            tree: ast.Module = ast.parse(source.text)
            for imported in tree.body:
                if isinstance(imported, ast.ImportFrom) and (imported.module or "").startswith("autogen."):
                    helpers |= {each.name for each in imported.names}
            found = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
            lines = source.text.splitlines()
            for node in found:
                text = "\n".join(lines[node.decorator_list[0].lineno - 1 : node.end_lineno])
                for function in found:  # of a variant, all are called otherwise
                    text = re.sub(rf"\b{function.name}\b", f"{function.name}{ending}", text)
                functions[f"{node.name}{ending}"] = text
    return functions, helpers


def _direction(
    name: str, subject: Subject, names: Mapping[str, str], variants: Mapping[str, Mapping[str, KernelSource]]
) -> dict[str, Any]:
    """What the template says of forward, or of backward."""
    given = [names[each.edge.name] for each in subject.tensors]
    own = subject.backward
    if name == "forward" or own is None:
        launchers = subject.forward
        saved = [each.name for each in subject.compiled.plan.saved]
        returned = list(dict.fromkeys([*(each.name for each in subject.joint.outputs), *saved]))
        buffers = subject.compiled.outputs.buffers
    else:
        launchers = kernels_in(own.steps)
        returned = list(dict.fromkeys(filter(None, own.gradients)))
        buffers = own.results.buffers
        given += [names[each.name] for each in subject.compiled.plan.saved]
        given += [names[each.name] for each in subject.joint.upstream if each is not None]
    by_name = {each.name: each for each in buffers}
    made = [by_name[each] for each in returned]
    made += [each for each in buffers if each not in made]
    shown = [_described(each, names) for each in made]
    kernels = [_kernel(launcher, names, variants[launcher.kernel.name]) for launcher in launchers]
    arguments = f"({', '.join('Tensor ' + each for each in given)})"
    results = ", ".join(["Tensor"] * len(returned))
    return {
        "name": name,
        "given": given,
        "made": shown,
        "returned": [names[each] for each in returned],
        "kernels": kernels,
        "sizes": _sizes(subject, names, " ".join(f"{each['shape']} {each['strides']}" for each in shown)),
        "plan_sizes": _sizes(subject, names, " ".join(" ".join(each["symbols"]) for each in kernels)),
        "schema": f"{arguments} -> {results if len(returned) == 1 else f'({results})'}",
    }


def _kernel(launcher: Launcher, names: Mapping[str, str], variants: Mapping[str, KernelSource]) -> dict[str, Any]:
    first, *others = variants.values()
    assert all(each.buffers == first.buffers and len(each.partials) == len(first.partials) for each in others)
    decisions = Decisions(launcher)
    return {
        "name": launcher.kernel.name,
        "symbols": decisions.symbols(variants),
        "tensors": [names[each.name] for each in first.buffers],
        "partials": [str(each.dtype) for each in first.partials],
    }


def _described(
    tensor: EdgeTensor | ir.Buffer, names: Mapping[str, str], *, has_gradient: bool = False
) -> dict[str, Any]:
    strides = getattr(tensor, "allocated", None) or tensor.strides
    return {
        "name": names[tensor.name],
        "dtype": str(tensor.dtype),
        "rank": len(tensor.shape),
        "gradient": has_gradient,
        "shape": _tuple(tensor.shape),
        "strides": _tuple(strides),
    }


def _tuple(sizes: Sequence[sympy.Expr]) -> str:
    texts = list(map(text_of, sizes))
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _sizes(subject: Subject, names: Mapping[str, str], text: str) -> list[str]:
    """Statements that read the sizes that a text mentions."""
    words = set(re.findall(r"\w+", text))
    inputs = subject.joint.inputs
    return [
        f"{symbol} = {names[inputs[place.position].name]}.shape[{place.dim}]"
        for symbol, place in subject.joint.sizes.symbols.items()
        if str(symbol) in words
    ]


def _shapes(subject: Subject, names: Mapping[str, str]) -> Iterator[str]:
    """That tensors have the shapes that go together."""
    homes = {(place.position, place.dim): symbol for symbol, place in subject.joint.sizes.symbols.items()}
    for position, each in enumerate(subject.joint.inputs):
        if any(homes.get((position, dim)) != size for dim, size in enumerate(each.shape)):
            yield f"{names[each.name]}.shape == {_tuple(each.shape)}"


def _conditions(subject: Subject) -> list[str]:
    """What the capture takes for granted of the sizes."""
    sizes = subject.joint.sizes
    found = sizes.conditions()
    for each in found:
        if not each.free_symbols <= sizes.symbols.keys():
            raise ExportError(subject.title, f"its graph holds for a size that no kernel knows, {each}", _USE_PACKAGE)
    return [text_of(each) for each in found]


def _intro(subject: Subject, names: Mapping[str, str]) -> str:
    """The rest of a module's docstring."""
    made_for = f" for {subject.title}({', '.join(subject.fixed)})" if subject.fixed else ""
    lines = textwrap.wrap(f"Written by autogen-loss {__version__}{made_for}; needs torch and Triton alone.", 110)
    lines += ["", "The kernels read, laid out one row after the other:", ""]
    for each in subject.tensors:
        gradient = ", which has a gradient" if each.has_gradient else ""
        dtype = str(each.edge.dtype).removeprefix("torch.")
        lines.append(f"    {names[each.edge.name]}: {dtype} {_tuple(each.edge.shape)}{gradient}")
    other = "For other tensors, under autocast, and where there is no GPU, torch computes the loss. Second derivatives "
    return "\n".join([*lines, "", *textwrap.wrap(f"{other}of the kernels raise an error.", 110)])


def _imports(text: str, needed: Iterable[str], *, is_hub: bool) -> list[str]:
    """The imports of a module, in groups."""
    own = {"import functools", "import threading", "from concurrent.futures import ThreadPoolExecutor"}
    own |= {"import json", "from pathlib import Path"} if is_hub else set()
    own |= {"import math"} if "math." in text else set()
    own |= {each for each in needed if "triton" not in each}
    libraries = {
        "import torch",
        "import triton",
        "import triton.language as tl",
        *(each for each in needed if "triton" in each),
    }
    return [*_sorted(own), "", *_sorted(libraries)]


def _sorted(imports: Iterable[str]) -> list[str]:
    return sorted(imports, key=lambda line: (line.startswith("from"), line))


def _of_layer(subject: Subject, names: Mapping[str, str]) -> dict[str, Any]:
    """What the template of the layer says."""
    signature, passed, is_keyword = "", "", False
    for each in subject.parameters:
        if each.kind is each.KEYWORD_ONLY and not is_keyword:
            signature, is_keyword = f"{signature}, *", True
        default = "" if each.default is each.empty else f"={each.default!r}"
        signature += f", {each.name}{default}"
        passed += f", {each.name}={each.name}" if is_keyword else f", {each.name}"
    sources = [each.source for each in subject.tensors]
    return {
        "signature": signature,
        "passed": passed,
        "conditions": subject.conditions,
        "sources": sources,
        "laid_out": [f"{each}.contiguous()" for each in sources],
        "state": subject.state,
    }


def _tidy(text: str) -> str:
    """A module whose long lines are wrapped, with no more than two empty ones in a row."""
    return wrapped(re.sub(r"\n{4,}", "\n\n\n", text).strip("\n")) + "\n"
