"""What code mentions: the names by which it may read something."""

from __future__ import annotations

import dis
import functools
import itertools
import operator
import re
import sys
import types
from collections.abc import Sequence

from autogen.frozen import frozen

_NAMES = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_OF_CELLS = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_READS = (*_NAMES, *_ATTRIBUTES, *_OF_CELLS, "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_SUPER_ATTR")
_OF_KEYS = ("LOAD_CONST", "LOAD_FAST", "LOAD_SMALL_INT")
_BEGINNINGS = ("FOR_ITER", "SETUP_", "SEND", "YIELD")  # after which code may be left out, beside jumps
_SELF = ("self", "cls")  # whose type is that of a module, or of another object of the user's
# In code that may find names, and modules, by strings.
_LOOKS_UP = frozenset({
    "getattr", "__getattribute__", "attrgetter", "methodcaller", "getmembers", "__dict__", "vars", "dir", "globals",
    "eval", "exec", "__import__", "import_module",
})  # fmt: skip
_GIVES_ALL = frozenset({"__getstate__", "__reduce__", "__reduce_ex__", "asdict", "astuple"})  # attributes of an object
_BY_STRINGS = frozenset({"getattr", "hasattr", "setattr", "delattr"})
ANY = "*"  # in the place of a name
_WITH_ARGUMENTS = ("PRECALL", "CALL", "CALL_FUNCTION", "CALL_METHOD")
_IDLE = ("CACHE", "EXTENDED_ARG", "KW_NAMES", "NOP")
_FIELDS = re.compile(r"\.(\w+)")  # attributes in a text, as in "{0.name}"
_CATCHES = ("PUSH_EXC_INFO", "SETUP_FINALLY")
_CALLS = frozenset({"__call__", "_call_impl", "_wrapped_call_impl"})  # of a module
_OF_MODULES = frozenset({"__import__", "import_module", "modules"})
_TENSORS = ("Tensor", "Parameter")  # which no number is
_LIBRARIES = ("torch", "F", "nn")
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
def passed_on(code: types.CodeType) -> frozenset[str]:
    """The global names and attributes that code does not only read attributes of, as `cfg` in `f(cfg, ops.mean)`, and
    `mean`: others may read these; inner functions included.
    """
    steps = _steps(code)
    ends = itertools.pairwise(steps)
    found = {a.argval for a, b in ends if a.opname in (*_NAMES, *_ATTRIBUTES) and b.opname not in _ATTRIBUTES}
    return frozenset(found).union(*(passed_on(each) for each in code.co_consts if isinstance(each, types.CodeType)))


@frozen
class Uses:
    """What code does with names: of attributes, global ones, and those of enclosing functions.

    What is `read` may be looked at as it was before, all names if `ANY` is among them. Of others only `append` is
    called, or of their items, as in `logs["loss"].append(x)`; and attributes are `assigned` a new value.
    """

    read: frozenset[str] = frozenset()
    appended: frozenset[str] = frozenset()
    with_appended: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()

    def __or__(self, other: Uses) -> Uses:
        return Uses(
            self.read | other.read,
            self.appended | other.appended,
            self.with_appended | other.with_appended,
            self.assigned | other.assigned,
        )

    def without(self, names: frozenset[str]) -> Uses:
        """Those of what is not read, nor among some names; what is assigned and nothing else."""
        read = self.read | names
        appended, with_appended = self.appended - read, self.with_appended - read
        return Uses(read, appended, with_appended, self.assigned - read - appended - with_appended)


@functools.lru_cache(maxsize=4096)
def uses_in(code: types.CodeType) -> Uses:
    """What code does with names; inner functions included."""
    steps = _steps(code)
    read, appended, with_appended, assigned = set[str](), set[str](), set[str](), set[str]()
    first = set[str]()  # assigned to `self` before anything else can have happened
    is_straight = not getattr(code, "co_exceptiontable", b"") and not any(map(_is_another_self, steps))
    for k, step in enumerate(steps):
        is_of_self = k > 0 and steps[k - 1].argval == "self"
        is_straight &= "JUMP" not in step.opname and not step.opname.startswith(_BEGINNINGS)
        if step.argval == "format" and step.opname in _ATTRIBUTES:
            texts = (each for each in code.co_consts if isinstance(each, str))
            read.update(name for each in texts for name in _FIELDS.findall(each))
        if step.opname == "STORE_ATTR":
            assigned.add(step.argval)
            if is_straight and is_of_self:
                first.add(step.argval)
        elif step.opname in _READS and step.argval in _LOOKS_UP | _BY_STRINGS | _GIVES_ALL:
            read.add(_named_by(code, steps, k))
        elif step.opname in _READS and not (is_of_self and step.argval in first):
            after = steps[k + 1 : k + 4]
            is_item = len(after) == 3 and after[0].opname.startswith(_OF_KEYS) and after[1].opname.startswith("BINARY_")
            found = appended if _is_append(after[0]) else read
            (with_appended if is_item and _is_append(after[2]) else found).add(step.argval)
        elif step.opname.startswith("DELETE_"):
            read.add(step.argval)
        elif step.opname == "MATCH_CLASS":
            read.update(steps[k - 1].argval, [ANY] if step.arg else [])  # what has no name may be any
    uses = Uses(*map(frozenset, (read, appended, with_appended, assigned)))
    inner = (uses_in(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return functools.reduce(operator.or_, inner, uses)


def _named_by(code: types.CodeType, steps: Sequence[dis.Instruction], k: int) -> str:
    """What a step asks for that finds names: of torch, nothing; `ANY` if it may be anything."""
    if steps[k].argval not in _BY_STRINGS or k + 2 >= len(steps):
        return ANY
    if steps[k + 1].argval in _LIBRARIES:
        return ""
    name = next(each for each in steps[k + 2 :] if each.opname not in _ATTRIBUTES)
    is_text = name.opname == "LOAD_CONST" and isinstance(name.argval, str)
    return name.argval if is_text and _is_given(code, name.offset, 1) else ANY


def _is_another_self(step: dis.Instruction) -> bool:
    """Whether a step gives the variable `self` another value; Python 3.13 does more at once."""
    names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
    return step.opname.startswith(("STORE_FAST", "STORE_DEREF")) and "self" in names


def _is_append(step: dis.Instruction) -> bool:
    return step.opname in _ATTRIBUTES and step.argval == "append"


@functools.lru_cache(maxsize=4096)
def only_called(code: types.CodeType, name: str) -> bool:
    """Whether code, inner functions included, does nothing with a global name but call it, give it to `map` first, or
    ask what is an instance of it. Before Python 3.11 that is not known.
    """
    steps = _steps(code)
    here = [k for k, step in enumerate(steps) if step.argval == name and step.opname.endswith(("_GLOBAL", "_NAME"))]
    if not all(_is_called_here(steps[k]) or _is_mapped(steps, k) or _is_asked_about(steps, k) for k in here):
        return False
    return all(only_called(each, name) for each in code.co_consts if isinstance(each, types.CodeType))


def _is_called_here(step: dis.Instruction) -> bool:
    """Whether a step that reads a global name also makes room for a call of it."""
    return sys.version_info >= (3, 11) and step.opname == "LOAD_GLOBAL" and bool((step.arg or 0) & 1)


def _is_mapped(steps: Sequence[dis.Instruction], k: int) -> bool:
    """Whether what a step reads is called by `map`."""
    return k > 0 and steps[k - 1].argval == "map" and _is_called_here(steps[k - 1])


def _is_asked_about(steps: Sequence[dis.Instruction], k: int) -> bool:
    """Whether what a step reads is given to `isinstance`, alone or in a tuple."""
    end = next(j for j in range(k + 1, len(steps)) if steps[j].opname not in (*_NAMES, *_ATTRIBUTES, "BUILD_TUPLE"))
    return _is_call(steps[end]) and steps[end].arg == 2 and any(each.argval == "isinstance" for each in steps[:k])


@functools.lru_cache(maxsize=4096)
def asks_for_types(code: types.CodeType) -> bool:
    """Whether code asks for the very type of something that may be a number, for which no symbol passes, as in
    `type(n) is int`, `n.__class__ in NUMBERS` and `case int():`; inner functions included.
    """
    steps = _steps(code)
    if any(_asks_for_type(steps, k) for k in range(len(steps))) and code.co_name not in _COMPARISONS:
        return True
    return any(asks_for_types(each) for each in code.co_consts if isinstance(each, types.CodeType))


def _asks_for_type(steps: Sequence[dis.Instruction], k: int) -> bool:
    """Whether a step of code does, and what is made of the answer can be another for a symbol."""
    step = steps[k]
    if step.opname == "MATCH_CLASS":
        return steps[k - 2].argval not in _TENSORS
    if step.argval == "type" and step.opname in _NAMES:
        if _is_call(steps[k + 1]) or _is_of_self(steps, k):  # as in `isinstance(x, type)`
            return False
    elif step.argval != "__class__" or step.opname not in ("LOAD_ATTR", "LOAD_CONST") or _is_of_self(steps, k):
        return False
    rest = range(k + 1, len(steps))
    end = next((j for j in rest if steps[j].opname in _ENDS or "JUMP" in steps[j].opname), k)
    is_of_tensors = steps[end].opname in ("IS_OP", "COMPARE_OP") and steps[end - 1].argval in _TENSORS
    return not is_of_tensors and steps[end].opname != "RAISE_VARARGS"  # which makes a message


def _is_of_self(steps: Sequence[dis.Instruction], k: int) -> bool:
    """Whether a step reads an attribute of `self`, or begins a call with `self` alone."""
    if steps[k].opname in _NAMES:
        return steps[k + 1].argval in _SELF and _is_call(steps[k + 2])
    return steps[k - 1].argval in _SELF


def _steps(code: types.CodeType) -> list[dis.Instruction]:
    """What code does, one by one: Python 3.13 loads two variables at once."""
    found: list[dis.Instruction] = []
    for each in dis.get_instructions(code):
        if each.opname.startswith("LOAD_FAST") and isinstance(each.argval, tuple):
            found += [each._replace(argval=name) for name in each.argval]
        elif each.opname != "PUSH_NULL":
            found.append(each)
    return found


def _is_call(step: dis.Instruction) -> bool:
    return step.opname.startswith(("CALL", "PRECALL"))


@functools.lru_cache(maxsize=4096)
def calls_itself(code: types.CodeType) -> bool:
    """Whether code of a module calls the module: `self(x)`, `super().__call__(x)`; inner functions included."""
    if not _CALLS.isdisjoint(code.co_names):
        return True
    steps = list(dis.get_instructions(code))
    if any(step.argval == "self" and _is_called(steps, k) for k, step in enumerate(steps)):
        return True
    return any(calls_itself(each) for each in code.co_consts if isinstance(each, types.CodeType))


def _is_called(steps: Sequence[dis.Instruction], k: int) -> bool:
    """Whether what a step reads is called, or given to a function in Python 3.10."""
    if sys.version_info >= (3, 13):
        return steps[k + 1].opname == "PUSH_NULL"
    if sys.version_info >= (3, 11):
        return steps[k - 1].opname == "PUSH_NULL"
    return not steps[k + 1].opname.endswith(("_ATTR", "_METHOD"))


@functools.lru_cache(maxsize=4096)
def looks_up(code: types.CodeType) -> bool:
    """Whether code may find something by a name that is not in it."""
    return not _LOOKS_UP.isdisjoint(attributes_in(code))


@functools.lru_cache(maxsize=4096)
def computes_names(code: types.CodeType) -> bool:
    """Whether code looks something up, not in `self` or in torch, by what is no name in it, and may be computed; inner
    functions included.
    """
    steps = _steps(code)
    if any(_computes_name(code, steps, k) for k in range(len(steps))):
        return True
    return any(computes_names(each) for each in code.co_consts if isinstance(each, types.CodeType))


def _computes_name(code: types.CodeType, steps: Sequence[dis.Instruction], k: int) -> bool:
    step = steps[k]
    if step.opname not in (*_NAMES, *_ATTRIBUTES) or step.argval not in _LOOKS_UP | _OF_MODULES:
        return False
    if step.argval in ("getattr", "attrgetter", "methodcaller"):
        first = k + 1 if step.argval == "getattr" else k
        name = next(j for j in range(first + 1, len(steps)) if steps[j].opname not in _ATTRIBUTES)
        is_of_ours = first > k and steps[first].argval in _SELF + _LIBRARIES and name == first + 1
        is_text = steps[name].opname == "LOAD_CONST" and isinstance(steps[name].argval, str)
        return not is_of_ours and not (is_text and _is_given(code, steps[name].offset, first - k))
    if step.argval == "modules":  # of a module of torch's otherwise
        return steps[k - 1].argval == "sys"
    return not _is_of_self(steps, k)


def _is_given(code: types.CodeType, offset: int, position: int) -> bool:
    """Whether the constant that a step loads is the argument of a call at this position as it is, and not a part of it
    (`"weight_" + kind`, f"weight_{kind}"). What lies above it on Python's stack is followed until something takes it.
    """
    above = 0
    for step in dis.get_instructions(code):
        if step.offset <= offset or step.opname in _IDLE:
            continue
        if "JUMP" in step.opname:
            return False
        effect, count = dis.stack_effect(step.opcode, step.arg), step.arg or 0
        if step.opname == "PRECALL":  # which Python 3.11 has before CALL
            taken = count + 2
        elif step.opname in _ATTRIBUTES:
            taken = 1
        else:
            taken = 0 if step.opname.startswith(("LOAD_", "PUSH_")) else 1 - effect
        if taken > above:
            return step.opname in _WITH_ARGUMENTS and above == count - 1 - position
        above += effect
    return False


@functools.lru_cache(maxsize=4096)
def finds_modules(code: types.CodeType) -> bool:
    """Whether code may find modules by strings."""
    return not _OF_MODULES.isdisjoint(attributes_in(code))


def names_in(code: types.CodeType) -> list[str]:
    """The strings in code that may be names, of modules too."""
    return [each for each in code.co_consts if isinstance(each, str) and each.replace(".", "_").isidentifier()]


@functools.lru_cache(maxsize=4096)
def asked_for(code: types.CodeType) -> frozenset[str]:
    """The names that code may ask for without knowing that they are there: those in its strings, and where it catches
    errors, all; inner functions included.
    """
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    catches = any(step.opname in _CATCHES for step in dis.get_instructions(code))
    return frozenset(_words_in(code)).union(code.co_names if catches else (), *map(asked_for, inner))


def _words_in(code: types.CodeType) -> list[str]:
    """The names in the strings in code: one each, or several with dots between."""
    return [part for text in names_in(code) for part in text.split(".") if part]


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
