"""Write the type stub of `autogen.losses`, whose constructors take `use_autogen`."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path

from autogen import losses

FILE = Path(__file__).parents[2] / "losses" / "__init__.pyi"
_WIDTH = 120


def text() -> str:
    """What the file has to say of the losses as they are."""
    classes = [getattr(losses, name) for name in losses.__all__]
    lines = [
        '"""The types of the losses, written by `python -m tests.codegen.regenerate`."""',
        *("", "import collections.abc", "from typing import Any", "", "import torch", ""),
        *(f"from autogen.losses import {each} as _{each}" for each in sorted(set(map(_module, classes)))),
        *("", "__all__: list[str]"),
        *(line for cls in classes for line in _class(cls)),
    ]
    return "\n".join(lines) + "\n"


def _module(cls: type) -> str:
    return cls.__module__.split(".")[2]  # of autogen.losses


def _class(cls: type) -> Iterator[str]:
    hints = {**typing.get_type_hints(inspect.unwrap(cls.__init__)), "use_autogen": bool}  # type: ignore[misc]
    parameters = ["self"]
    for each in inspect.signature(cls).parameters.values():
        if each.kind is Parameter.KEYWORD_ONLY and "*" not in "".join(parameters):
            parameters.append("*")
        stars = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}.get(each.kind, "")
        kind = inspect.formatannotation(hints.get(each.name, typing.Any)).replace("typing.", "")
        default = json.dumps(each.default) if isinstance(each.default, str) else repr(each.default)
        parameters.append(f"{stars}{each.name}: {kind}" + ("" if each.default is Parameter.empty else f" = {default}"))
    line = f"    def __init__({', '.join(parameters)}) -> None: ..."
    yield from ("", f"class {cls.__name__}(_{_module(cls)}.{cls.__name__}):", "    use_autogen: bool")
    if len(line) <= _WIDTH:
        yield line
    else:
        yield from ("    def __init__(", *(f"        {each}," for each in parameters), "    ) -> None: ...")
