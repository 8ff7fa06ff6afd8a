"""PTX instructions as C expressions; unknown instructions and modifiers are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

FLOATS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
_HALF = ("f16", "bf16")
_C_TYPES = {"f16": "float", "bf16": "float", "f32": "float", "f64": "double", "pred": "uint8_t"}

# By name: the expression, of a, b and c.
_INTEGER = {
    "add": "a + b",
    "sub": "a - b",
    "and": "a & b",
    "or": "a | b",
    "xor": "a ^ b",
    "not": "~a",
    "neg": "-a",
    "abs": "a < 0 ? -a : a",
    "min": "a < b ? a : b",
    "max": "a > b ? a : b",
    "min.relu": "(a < b ? a : b) > 0 ? (a < b ? a : b) : 0",
    "max.relu": "(a > b ? a : b) > 0 ? (a > b ? a : b) : 0",
    "div": "b == 0 ? -1 : b == (T)-1 && (T)-1 < 0 ? -a : a / b",
    "rem": "b == 0 ? a : b == (T)-1 && (T)-1 < 0 ? 0 : a % b",
    "mul.lo": "a * b",
    "mad.lo": "a * b + c",
    "mul.hi": "(T)((__int128)a * b >> 8 * sizeof(T))",
    "popc": "__builtin_popcountll(a)",
    "clz": "a ? __builtin_clzll(a) - (64 - 8 * (int)sizeof(T)) : 8 * (int)sizeof(T)",
}
_SHIFTS = {  # by any number of bits
    "shl": "b >= 8 * sizeof(T) ? 0 : a << b",
    "shr": "b >= 8 * sizeof(T) ? (a < 0 ? -1 : 0) : a >> b",
}
_FLOAT = {
    "add.rn": "a + b",
    "sub.rn": "a - b",
    "mul.rn": "a * b",
    "div.rn": "a / b",
    "div.full": "approximate((double)a / b, a - 3.0 * b)",
    "div.approx": "FABS(b) > 0x1p126 ? a * 0 : approximate((double)a / b, a - 3.0 * b)",
    "neg": "-a",
    "abs": "FABS(a)",
    "copysign": "COPYSIGN(b, a)",
    "min": "TYPE_min(a, b)",
    "max": "TYPE_max(a, b)",
    "min.NaN": "TYPE_min_nan(a, b)",
    "max.NaN": "TYPE_max_nan(a, b)",
    "sqrt.rn": "SQRT(a)",
}
_FMA = {"fma.rn": "FMA(a, b, c)"}  # of half precision, C has none
_APPROXIMATE = {  # of single precision
    "sqrt.approx": "approximate(sqrt(a), a)",
    "rsqrt.approx": "approximate(1 / sqrt(a), a)",
    "rcp.approx": "approximate(1 / (double)a, a)",
    "ex2.approx": "approximate(exp2(a), a)",
    "lg2.approx": "approximate(log2(a), a)",
    "sin.approx": "approximate(sin(a), a)",
    "cos.approx": "approximate(cos(a), a)",
    "tanh.approx": "approximate(tanh(a), a)",
}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED_COMPARISONS = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_UNORDERED = {"equ": "!(a < b || a > b)", "ltu": "!(a >= b)", "leu": "!(a > b)", "gtu": "!(a <= b)", "geu": "!(a < b)"}
_OF_NANS = {"ne": "(a < b || a > b)", "neu": "a != b", "num": "(a == a && b == b)", "nan": "(a != a || b != b)"}
_ROUNDED = {"rni": "RINT", "rzi": "TRUNC", "rmi": "FLOOR", "rpi": "CEIL"}


class UnknownInstructionError(Exception):
    """The emulator does not know an instruction."""


def bits_of(kind: str) -> int:
    """How wide a type is."""
    return 1 if kind == "pred" else int(re.sub(r"\D*", "", kind.replace("bf", "").removesuffix("x2")) or 0)


def c_type(kind: str) -> str:
    """The type of C in which numbers of a type of PTX are computed with; of bits, as unsigned integers."""
    return _C_TYPES.get(kind) or f"{'' if kind[0] == 's' else 'u'}int{bits_of(kind)}_t"


def number(bits: str, kind: str) -> str:
    """The number that bits mean."""
    return f"{kind}({bits})" if kind in FLOATS else f"({c_type(kind)})({bits})"


def bits(expression: str, kind: str) -> str:
    """The bits of a number; integers shorter than their register fill it by their sign."""
    return f"{kind}_bits({expression})" if kind in FLOATS else f"({c_type(kind)})({expression})"


def calculation(opcode: Sequence[str]) -> tuple[str, str, str]:
    """Of an instruction whose result depends on its operands alone: the expression of a, b and c, the type of these,
    and the result's. The second operand of a shift is always of 32 bits.
    """
    name, *modifiers, kind = opcode
    if kind.endswith("x2"):
        raise UnknownInstructionError(".".join(opcode))
    if kind in FLOATS and name not in ("and", "or", "xor", "not"):
        return _of_floats(name, modifiers, kind), kind, kind
    if name in ("mul", "mad") and modifiers == ["wide"]:
        wide = f"{kind[0]}{2 * bits_of(kind)}"
        return f"({c_type(wide)})a * ({c_type(wide)})b" + (" + c" if name == "mad" else ""), kind, wide
    found = {**_INTEGER, **_SHIFTS}.get(".".join([name, *modifiers]))
    if found is None:
        raise UnknownInstructionError(".".join(opcode))
    if kind == "pred" and name == "not":
        return "!a", kind, kind
    result = "u32" if name in ("popc", "clz") else kind
    return re.sub(r"\bT\b", c_type(kind), found), kind, result


def _of_floats(name: str, modifiers: Sequence[str], kind: str) -> str:
    flushes = "ftz" in modifiers
    key = ".".join([name, *(each for each in modifiers if each != "ftz")])
    if (name, kind) == ("rcp", "f64") and set(modifiers) == {"approx", "ftz"}:
        return "rough_reciprocal(a)"
    if (key, kind) == ("rsqrt.approx", "f64"):
        return "approximate_double(1 / sqrt(a), a)"
    if flushes and kind != "f32":
        raise UnknownInstructionError(f"{key}.ftz.{kind}")
    if key in ("add", "sub", "mul"):
        key += ".rn"  # the only rounding that is left open, which forbids ptxas nothing but to fuse
    known = {**_FLOAT, **(_FMA if kind not in _HALF else {}), **(_APPROXIMATE if kind == "f32" else {})}
    if key not in known:
        raise UnknownInstructionError(f"{key}.{kind}")
    found = re.sub(r"\b(FABS|COPYSIGN|SQRT|FMA)\b", lambda each: c_function(each[1], kind), known[key])
    found = re.sub(r"\bTYPE_", "f64_" if kind == "f64" else "f32_", found)
    return "ftz(" + re.sub(r"\b([abc])\b", r"ftz(\1)", found) + ")" if flushes else found


def c_function(name: str, kind: str) -> str:
    """A function of C's `math.h`, for numbers of a type."""
    return name.lower() + ("" if kind == "f64" else "f")


def comparison(how: str, kind: str) -> str:
    """The condition of a and b."""
    if kind in FLOATS:
        if how in _UNORDERED or how in _OF_NANS:
            return _UNORDERED.get(how) or _OF_NANS[how]
        return f"a {_COMPARISONS[how]} b"
    return f"a {({**_COMPARISONS, **_UNSIGNED_COMPARISONS})[how]} b"


def conversion(opcode: Sequence[str]) -> tuple[str, str, str]:
    """Of `cvt`: the expression of a, its type, and the result's."""
    if opcode == ("cvt", "rna", "tf32", "f32"):
        return "tf32(a)", "f32", "f32"
    *modifiers, to, of = opcode[1:]
    rounding = next((each for each in modifiers if each in _ROUNDED), None)
    others = set(modifiers) - {rounding}
    if of in FLOATS and to in FLOATS:
        narrows = bits_of(to) < bits_of(of)
        flushes = (to, of) == ("f32", "f32") and "ftz" in others
        if others - {"rn"} - ({"ftz"} if flushes else set()) or (narrows and rounding):
            raise UnknownInstructionError(".".join(opcode))
        if to in _HALF and of == "f64":
            return "odd(a)", of, to
        a = "ftz(a)" if flushes else "a"
        return f"{c_function(_ROUNDED[rounding], of)}({a})" if rounding else f"({c_type(to)}){a}", of, to
    if of in FLOATS:
        if rounding is None or others - ({"ftz"} if of == "f32" else set()):
            raise UnknownInstructionError(".".join(opcode))
        return f"to_{to}({c_function(_ROUNDED[rounding], of)}({'ftz(a)' if others else 'a'}))", of, to
    if others - ({"rn"} if to in FLOATS else set()) or rounding:
        raise UnknownInstructionError(".".join(opcode))
    return f"({c_type(to)})a", of, to


ATOMICS: dict[str, Callable[[str], str]] = {
    "add": lambda kind: f"{number('*at', kind)} + b",
    "min": lambda kind: f"{number('*at', kind)} < b ? {number('*at', kind)} : b",
    "max": lambda kind: f"{number('*at', kind)} > b ? {number('*at', kind)} : b",
    "and": lambda kind: "*at & b",
    "or": lambda kind: "*at | b",
    "xor": lambda kind: "*at ^ b",
    "exch": lambda kind: "b",
    "inc": lambda kind: "*at >= b ? 0 : *at + 1",
}
