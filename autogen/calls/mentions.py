"""What code mentions: the names by which it may read something."""

from __future__ import annotations

import dis
import functools
import types

_NUMBERS = ("int", "float", "bool")
_BUILT = ("BUILD_TUPLE", "BUILD_LIST", "BUILD_SET")


@functools.lru_cache(maxsize=4096)
def globals_in(code: types.CodeType) -> tuple[str, ...]:
    """The global names that code reads or writes, inner functions included."""
    found = [each.argval for each in dis.get_instructions(code) if each.opname.endswith(("_GLOBAL", "_NAME"))]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found += globals_in(inner)
    if "globals" in found:
        found += _words_in(code)
    return tuple(dict.fromkeys(found))


@functools.lru_cache(maxsize=4096)
def attributes_in(code: types.CodeType) -> frozenset[str]:
    """The attributes that code mentions, also by a string, and its global names, inner functions included."""
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(code.co_names).union(_words_in(code), *map(attributes_in, inner))


@functools.lru_cache(maxsize=4096)
def asks_for_types(code: types.CodeType) -> bool:
    """Whether code compares the very type of something with that of numbers, for which no symbol passes, as in
    `type(n) is int`, `type(n) in (int, float)` and `case int():`; inner functions included.
    """
    steps = list(dis.get_instructions(code))
    for k, step in enumerate(steps):
        if step.opname in ("IS_OP", "COMPARE_OP", "CONTAINS_OP"):
            first = k - 1 - (steps[k - 1].arg or 0 if steps[k - 1].opname in _BUILT else 0)
        elif step.opname == "MATCH_CLASS":
            first = k - 2
        else:
            continue
        if any(each.opname == "LOAD_GLOBAL" and each.argval in _NUMBERS for each in steps[max(first, 0) : k]):
            return True
    return any(asks_for_types(each) for each in code.co_consts if isinstance(each, types.CodeType))


def _words_in(code: types.CodeType) -> list[str]:
    """The strings in code that may be names."""
    return [each for each in code.co_consts if isinstance(each, str) and each.isidentifier()]


@functools.lru_cache(maxsize=4096)
def imports_in(code: types.CodeType) -> tuple[str, ...]:
    """The modules that code imports when it runs, those near its own with leading dots; inner functions included."""
    steps = list(dis.get_instructions(code))
    found = [
        "." * (steps[k - 2].argval or 0) + step.argval for k, step in enumerate(steps) if step.opname == "IMPORT_NAME"
    ]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found += imports_in(inner)
    return tuple(dict.fromkeys(found))
