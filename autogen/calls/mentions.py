"""What code mentions: the names by which it may read something."""

from __future__ import annotations

import dis
import functools
import types

_SELF = ("self", "cls")  # whose type is that of a module, or of another object of the user's
_TENSORS = ("Tensor", "Parameter")  # which no number is
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")  # of two objects, as dataclasses have them
_ENDS = ("IS_OP", "COMPARE_OP", "CONTAINS_OP", "RAISE_VARARGS", "RETURN_VALUE", "STORE_FAST")  # of an expression


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
    """Whether code asks for the very type of something that may be a number, for which no symbol passes, as in
    `type(n) is int`, `n.__class__ in NUMBERS` and `case int():`; inner functions included.
    """
    steps = list(dis.get_instructions(code))
    if any(_asks_for_type(steps, k) for k in range(len(steps))) and code.co_name not in _COMPARISONS:
        return True
    return any(asks_for_types(each) for each in code.co_consts if isinstance(each, types.CodeType))


def _asks_for_type(steps: list[dis.Instruction], k: int) -> bool:
    """Whether a step of code does, and what is made of the answer can be another for a symbol."""
    step, before, after = steps[k], steps[k - 1], [each for each in steps[k + 1 :] if each.opname != "PUSH_NULL"]
    if step.opname == "MATCH_CLASS":
        return steps[k - 2].argval not in _TENSORS
    if step.argval == "type" and step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
        if _is_call(after[0]) or (
            after[0].argval in _SELF and _is_call(after[1])
        ):  # `isinstance(x, type)`, of a module
            return False
    elif step.argval != "__class__" or step.opname not in ("LOAD_ATTR", "LOAD_CONST") or before.argval in _SELF:
        return False
    end = next((j for j, each in enumerate(after) if each.opname in _ENDS or "JUMP" in each.opname), 0)
    is_of_tensors = after[end].opname in ("IS_OP", "COMPARE_OP") and after[end - 1].argval in _TENSORS
    return not is_of_tensors and after[end].opname != "RAISE_VARARGS"  # which makes a message


def _is_call(step: dis.Instruction) -> bool:
    return step.opname.startswith(("CALL", "PRECALL"))


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
