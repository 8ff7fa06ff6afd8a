"""The op table: one row for each scalar op of the IR.

A row says how the op is written in Triton and which torch function means the same, for which dtypes it is
defined, and what it promises on accuracy, nan and ties. One generic test holds every row to its promises, in
Triton's interpreter and for real targets. Triton itself is not needed to read the table.

This is all of `log2`; the number before the ties is the error in ulps that it promises::

    yield _row("log2", "log2({0})", real, positive, 1, ties=((0, -inf),))

It is lowered from `aten.log2.default` by its name; another overload, or several, are given as a tuple. The text may
call `tl.` functions, and those of `autogen.device_math`, which the generated module then imports. To add an op: a row
and, if Triton has no accurate text for it, a `@triton.jit` function in `autogen.device_math` with its name in the list
there.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch.nn import functional

_FLOATS = (torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Rule(Enum):
    """Which dtypes an op takes and which one it gives; the value says so in words."""

    ARITHMETIC = "numbers of one dtype, and gives that dtype"
    FLOAT = "floats of one dtype, and gives that dtype"
    COMPARE = "arguments of one dtype, and gives bool"
    LOGICAL = "bools, and gives bool"
    BITWISE = "integers of one dtype or bools, and gives that dtype"
    PREDICATE = "a float, and gives bool"
    SELECT = "a bool and two arguments of one dtype, and gives that dtype"

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes that the arguments may share; under SELECT, those that may be chosen."""
        match self:
            case Rule.ARITHMETIC:
                return (*_INTEGERS, *_FLOATS)
            case Rule.FLOAT | Rule.PREDICATE:
                return _FLOATS
            case Rule.LOGICAL:
                return (torch.bool,)
            case Rule.BITWISE:
                return (torch.bool, *_INTEGERS)
            case Rule.COMPARE | Rule.SELECT:
                return (torch.bool, *_INTEGERS, *_FLOATS)


class Nan(Enum):
    """What becomes of a nan among the arguments."""

    PROPAGATES = "the result is nan"
    ABSORBED = "the result may be a number"
    NEVER = "the result is never nan, whatever the arguments"


class Precedence(IntEnum):
    """How tightly Python binds an expression. Comparisons chain, so one within another needs parentheses."""

    COMPARE = 1
    OR = 2
    XOR = 3
    AND = 4
    SUM = 5
    PRODUCT = 6
    UNARY = 7
    ATOM = 8


_PRECEDENCE: Mapping[type[ast.AST], Precedence] = MappingProxyType({
    ast.Compare: Precedence.COMPARE, ast.BitOr: Precedence.OR, ast.BitXor: Precedence.XOR,
    ast.BitAnd: Precedence.AND, ast.Add: Precedence.SUM, ast.Sub: Precedence.SUM,
    ast.Mult: Precedence.PRODUCT, ast.Div: Precedence.PRODUCT, ast.UnaryOp: Precedence.UNARY,
    ast.Call: Precedence.ATOM,
})  # fmt: skip


class Interval(NamedTuple):
    """Where the generic test draws an argument from; special values are tried everywhere besides, unless it is `hard`:
    no argument is ever elsewhere.
    """

    low: float
    high: float
    zero: bool = True  # whether an integer may be 0
    hard: bool = False


@dataclass(frozen=True)
class Op:
    """One scalar op.

    name: its name in the IR.
    triton: its text in a kernel, with a placeholder per argument.
    twin: the torch function of the same meaning.
    rule: the dtypes it takes and gives.
    domain: per argument, where the generic test samples.
    ulp: the greatest error in ulps of the result, on every target; 0 is exact, 0.5 correctly rounded. The sign of
        a zero counts in `ties` only.
    unit: a result smaller than this counts as this large when its ulp is taken.
    nan: what becomes of a nan argument.
    ties: arguments and result where a choice had to be made; the generic test tries them all.
    aten: the ATen overloads that are this op and nothing else.
    half: the op in its place where all results are in half precision, if there is a cheaper one.
    work: about how many instructions it is in single precision.
    """

    name: str
    triton: str
    twin: Callable[..., torch.Tensor]
    rule: Rule
    domain: tuple[Interval, ...]
    ulp: float
    unit: float
    nan: Nan
    ties: tuple[tuple[float, ...], ...]
    aten: tuple[str, ...]
    half: str | None
    work: int

    @cached_property
    def _expression(self) -> ast.expr:
        return ast.parse(self.triton.format(*(f"_{i}" for i in range(self.arity))), mode="eval").body

    @property
    def arity(self) -> int:
        """How many arguments it takes."""
        return len(self.domain)

    @cached_property
    def precedence(self) -> Precedence:
        """How tightly the text binds."""
        expression = self._expression
        return _PRECEDENCE[type(expression.op if isinstance(expression, ast.BinOp) else expression)]

    @cached_property
    def helpers(self) -> tuple[str, ...]:
        """The functions of `autogen.device_math` in the text."""
        calls = (node.func for node in ast.walk(self._expression) if isinstance(node, ast.Call))
        return tuple(sorted({function.id for function in calls if isinstance(function, ast.Name)}))

    def result_dtype(self, arg_dtypes: Sequence[torch.dtype]) -> torch.dtype:
        """The dtype of the result; raises `TypeError` if the arguments break the rule."""
        condition = self.rule == Rule.SELECT
        values = arg_dtypes[condition:]
        if (
            len(arg_dtypes) != self.arity
            or len(set(values)) != 1
            or values[0] not in self.rule.dtypes
            or (condition and arg_dtypes[0] != torch.bool)
        ):
            given = ", ".join(str(dtype).removeprefix("torch.") for dtype in arg_dtypes)
            wanted = f"{self.arity} argument{'s' * (self.arity > 1)}: {self.rule.value}"
            raise TypeError(f"{self.name} takes {wanted}; got ({given})")
        return torch.bool if self.rule in (Rule.COMPARE, Rule.PREDICATE) else values[0]


def _row(
    name: str,
    triton: str,
    rule: Rule,
    domain: Interval | tuple[Interval, ...],
    ulp: float,
    aten: tuple[str, ...] = (".default",),
    *,
    twin: Callable[..., torch.Tensor] | None = None,
    unit: float = 0,
    nan: Nan | None = None,
    ties: tuple[tuple[float, ...], ...] = (),
    half: str | None = None,
    work: int = 1,
) -> Op:
    """A row, by default with torch's function of that name, one domain for all arguments, nan by the rule."""
    arity = len(set(re.findall(r"{\d}", triton)))
    return Op(
        name=name,
        triton=triton,
        twin=twin or getattr(torch, name),
        rule=rule,
        domain=(domain,) * arity if isinstance(domain, Interval) else domain,
        ulp=ulp,
        unit=unit,
        nan=nan or (Nan.PROPAGATES if rule in (Rule.ARITHMETIC, Rule.FLOAT) else Nan.NEVER),
        ties=ties,
        aten=tuple(f"{name}{overload}" if overload.startswith(".") else overload for overload in aten),
        half=half,
        work=work,
    )


def _trigamma(x: torch.Tensor) -> torch.Tensor:
    """The derivative of digamma, from Hurwitz's zeta function; `torch.polygamma(1, x)` has but nine digits."""
    reflected = (math.pi / torch.sin(math.pi * x)) ** 2 - torch.special.zeta(2.0, 1 - x)
    result = torch.where(x > 0, torch.special.zeta(2.0, x), reflected).masked_fill(x == math.inf, 0)
    return result.masked_fill((x <= 0) & (x == x.floor()) & x.isfinite(), math.inf)


def _tetragamma(x: torch.Tensor) -> torch.Tensor:
    """The second derivative of digamma."""
    result = -2 * torch.special.zeta(3.0, x)
    return result.masked_fill(x == math.inf, 0).masked_fill(x == -math.inf, math.nan)


def _through(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """Rounding to the values that a dtype has, in single precision first."""
    return lambda x: x.float().to(dtype).to(x.dtype)


def _rows() -> Iterator[Op]:
    number, real, compare, logical, bitwise, predicate, select = Rule
    inf, nan = math.inf, math.nan
    every, positive, within = Interval(-inf, inf), Interval(0, inf), Interval(-1, 1)
    exponent, angle, boolean = Interval(-750, 710), Interval(-1e4, 1e4), Interval(0, 1)
    division = (Interval(-1e4, 1e4), Interval(-50, 50, zero=False))
    tensor = (".Tensor",)
    # The columns: name, text in Triton, dtype rule, domain, ulp, ATen overloads; then what is particular.
    # fmt: off

    # signs, sums and products
    yield _row("neg",          "neg({0})",                number, every,    0,   ties=((0.0, -0.0), (-0.0, 0.0)))
    yield _row("abs",          "tl.abs({0})",             number, every,    0)
    yield _row("sign",         "sign({0})",               number, every,    0,   (".default", "sgn.default"),
               nan=Nan.ABSORBED, ties=((0, 0), (nan, 0)), work=5)
    yield _row("relu",         "relu({0})",               number, every,    0,   ties=((0, 0),))
    yield _row("maximum",      "maximum({0}, {1})",       number, every,    0,   ties=((1, nan, nan),))
    yield _row("minimum",      "minimum({0}, {1})",       number, every,    0,   ties=((1, nan, nan),))
    yield _row("add",          "{0} + {1}",               number, every,    0.5, ())  # ATen has alpha besides
    yield _row("sub",          "{0} - {1}",               number, every,    0.5, ())
    yield _row("mul",          "{0} * {1}",               number, every,    0.5, tensor)
    yield _row("div",          "{0} / {1}",               real,   every,    2,   tensor)
    yield _row("div_rn",       "div_rn({0}, {1})",        real,   every,    0.5, (), twin=torch.div)
    yield _row("reciprocal",   "1.0 / {0}",               real,   every,    2,   ties=((-0.0, -inf),))
    yield _row("fmod",         "fmod({0}, {1})",          number, division, 0,   tensor,
               ties=((-7, 2, -1), (7, -2, 1), (1, inf, 1), (1, 0, nan)), work=75)
    yield _row("remainder",    "remainder({0}, {1})",     number, division, 0.5, tensor,
               ties=((-7, 2, 1), (7, -2, -1), (-1, inf, inf), (1, 0, nan)), work=82)
    yield _row("hypot",        "hypot({0}, {1})",         real,   every,    5,   nan=Nan.ABSORBED,
               ties=((0, 0, 0), (inf, nan, inf), (nan, -inf, inf)), work=16)
    yield _row("floor_divide", "floor_divide({0}, {1})",  number, division, 2,
               ties=((-7, 2, -4), (7, -2, -4), (1, 0, inf)), work=93)

    yield _row("copysign",     "copysign({0}, {1})",      real,   every,    0,   tensor, nan=Nan.ABSORBED,
               ties=((0, -0.0, -0.0), (-2, 0, 2)))

    # rounding
    yield _row("floor",        "floor({0})",              real,   every,    0)
    yield _row("ceil",         "ceil({0})",               real,   every,    0,   ties=((-0.5, -0.0),))
    yield _row("trunc",        "trunc({0})",              real,   every,    0,   ties=((-0.5, -0.0),), work=5)
    yield _row("round",        "round({0})",              real,   every,    0,
               ties=((0.5, 0), (1.5, 2), (2.5, 2), (-0.5, -0.0), (-1.5, -2)), work=8)
    yield _row("round_to_float16", "round_to_float16({0})", real, every, 0, (), twin=_through(torch.float16),
               ties=((1 + 2**-11, 1), (1 + 3 * 2**-11, 1 + 2**-9), (65520, inf), (65519, 65504)))
    yield _row("round_to_bfloat16", "round_to_bfloat16({0})", real, every, 0, (), twin=_through(torch.bfloat16),
               ties=((1 + 2**-8, 1), (1 + 3 * 2**-8, 1 + 2**-6), (-3.3961776e38, -inf)))

    # roots, powers, exponentials and logarithms
    yield _row("sqrt",         "sqrt({0})",               real,   positive, 0.5, ties=((-0.0, -0.0),))
    yield _row("rsqrt",        "rsqrt({0})",              real,   positive, 2,   ties=((0, inf),), work=6)
    yield _row("exp",          "exp({0})",                real,   exponent, 3,   ties=((-inf, 0),), half="exp_half",
               work=11)
    yield _row("exp_nonpositive", "exp_nonpositive({0})", real, Interval(-inf, 0, hard=True), 3, (),
               twin=torch.exp, ties=((-inf, 0), (0, 1)), half="exp_half", work=10)
    yield _row("exp_summand",  "exp_summand({0})",        real, Interval(-inf, 0, hard=True), 3, (), twin=torch.exp,
               unit=1, ties=((-inf, 0), (0, 1)))
    yield _row("exp2",         "exp2({0})",               real,   exponent, 3,   ties=((-inf, 0),), work=10)
    yield _row("expm1",        "expm1({0})",              real,   exponent, 2,   ties=((-inf, -1),), work=21)
    yield _row("log",          "log({0})",                real,   positive, 2,   ties=((0, -inf),), half="log_half",
               work=27)
    yield _row("log2",         "log2({0})",               real,   positive, 1,   ties=((0, -inf),), work=42)
    yield _row("log10",        "log10({0})",              real,   positive, 3,   ties=((0, -inf),), work=43)
    yield _row("log1p",        "log1p({0})",              real,   Interval(-1, inf), 2, ties=((-1, -inf),), work=25)
    yield _row("clamped_log",  "clamped_log({0})",        real,   Interval(0, 1, hard=True), 5, (),
               twin=lambda x: torch.log(x).clamp(min=-100), ties=((0, -100), (1, 0)), half="clamped_log_half", work=19)
    yield _row("clamped_log1m", "clamped_log1m({0})",     real,   Interval(0, 1, hard=True), 5, (),
               twin=lambda x: torch.log1p(-x).clamp(min=-100), ties=((0, 0), (1, -100)), half="clamped_log1m_half",
               work=19)
    yield _row("sigmoid",      "sigmoid({0})",            real,   exponent, 7,   half="sigmoid_half", work=18)
    yield _row("log_sigmoid",  "log_sigmoid({0})",        real,   exponent, 4, (), twin=functional.logsigmoid,
               half="log_sigmoid_half", work=25)
    yield _row("sigmoid_neg",  "sigmoid_neg({0})",        real,   exponent, 7,   (), twin=lambda x: torch.sigmoid(-x),
               half="sigmoid_neg_half", work=18)
    yield _row("log_sigmoid_neg", "log_sigmoid_neg({0})", real,   exponent, 4,   (),
               twin=lambda x: functional.logsigmoid(-x), half="log_sigmoid_neg_half", work=26)
    yield _row("logaddexp",    "logaddexp({0}, {1})",     real,   exponent, 2,   unit=1,
               ties=((inf, inf, inf), (-inf, -inf, -inf), (inf, -inf, inf)), work=28)
    yield _row("xlogy",        "xlogy({0}, {1})",         real,   (every, positive), 3, tensor,
               ties=((0, 0, 0), (0, inf, 0), (0, nan, nan)), half="xlogy_half", work=32)
    yield _row("xlog1py",      "xlog1py({0}, {1})",       real,   (every, Interval(-1, inf)), 3,
               ("special_xlog1py.default",), twin=torch.special.xlog1py,
               ties=((0, -1, 0), (0, inf, 0), (0, nan, nan)), work=30)
    yield _row("pow",          "pow({0}, {1})",           real,   (positive, Interval(-300, 300)), 4,
               (".Tensor_Tensor",), nan=Nan.ABSORBED,
               ties=((0, 0, 1), (nan, 0, 1), (1, nan, 1), (-2, 3, -8), (-2, 0.5, nan), (-0.0, -1, -inf)), work=106)

    # for results in half precision; what is no normal number may be 0
    yield _row("exp_half",     "exp_half({0})",           real,   exponent, 64,  (), twin=torch.exp, unit=2**-100,
               ties=((-inf, 0),))
    yield _row("sigmoid_half", "sigmoid_half({0})",       real,   exponent, 64,  (), twin=torch.sigmoid, unit=2**-100,
               work=6)
    yield _row("sigmoid_neg_half", "sigmoid_neg_half({0})", real, exponent, 64,  (), twin=lambda x: torch.sigmoid(-x),
               unit=2**-100)
    yield _row("log_half",     "log_half({0})",           real,   positive, 40,  (), twin=torch.log, ties=((0, -inf),),
               work=12)
    yield _row("xlogy_half",   "xlogy_half({0}, {1})",    real,   (every, positive), 40, (), twin=torch.xlogy,
               unit=2**-100, ties=((0, 0, 0), (0, inf, 0), (0, nan, nan)), work=17)
    yield _row("clamped_log_half", "clamped_log_half({0})", real, Interval(0, 1, hard=True), 128, (),
               twin=lambda x: torch.log(x).clamp(min=-100), ties=((0, -100), (1, 0)), work=15)
    yield _row("clamped_log1m_half", "clamped_log1m_half({0})", real, Interval(0, 1, hard=True), 128, (),
               twin=lambda x: torch.log1p(-x).clamp(min=-100), ties=((0, 0), (1, -100)), work=15)
    yield _row("log_sigmoid_half", "log_sigmoid_half({0})", real, exponent, 192, (), twin=functional.logsigmoid,
               unit=2**-100, work=13)
    yield _row("log_sigmoid_neg_half", "log_sigmoid_neg_half({0})", real, exponent, 192, (),
               twin=lambda x: functional.logsigmoid(-x), unit=2**-100, work=14)

    # trigonometric and hyperbolic
    yield _row("sin",          "tl.sin({0})",             real,   angle,    2, work=98)
    yield _row("cos",          "tl.cos({0})",             real,   angle,    2, work=98)
    yield _row("tan",          "tan({0})",                real,   angle,    8, work=185)
    yield _row("asin",         "asin({0})",               real,   within,   3, work=19)
    yield _row("acos",         "acos({0})",               real,   within,   3, work=19)
    yield _row("atan",         "atan({0})",               real,   every,    2, work=22)
    yield _row("atan2",        "atan2({0}, {1})",         real,   every,    5,
               ties=((0, 0, 0), (-0.0, 0, -0.0)), work=34)
    yield _row("sinh",         "sinh({0})",               real,   Interval(-709, 709), 6, work=46)
    yield _row("cosh",         "cosh({0})",               real,   Interval(-709, 709), 4, work=16)
    yield _row("tanh",         "tanh({0})",               real,   Interval(-30, 30),   3, work=27)
    yield _row("asinh",        "asinh({0})",              real,   every,    3, work=63)
    yield _row("acosh",        "acosh({0})",              real,   Interval(1, inf),    3, work=62)
    yield _row("atanh",        "atanh({0})",              real,   within,   5,   ties=((1, inf),), work=34)

    # error and gamma functions
    yield _row("erf",          "tl.erf({0})",             real,   Interval(-6, 6),     2, work=36)
    yield _row("erfc",         "erfc({0})",               real,   Interval(-6, 28),    9, work=97)
    yield _row("erfcx",        "erfcx({0})",              real,   Interval(-3, inf),   9,
               ("special_erfcx.default",), twin=torch.special.erfcx, ties=((inf, 0), (-inf, inf)), work=110)
    yield _row("erfinv",       "erfinv({0})",             real,   within,   4,   ties=((1, inf),), work=68)
    yield _row("lgamma",       "lgamma({0})",             real,   Interval(-50, 1e6),  8, unit=1,
               ties=((0, inf), (-1, inf), (1, 0), (2, 0)), work=374)
    yield _row("digamma",      "digamma({0})",            real,   Interval(0, 1e6),    8, unit=1,
               ties=((0, -inf), (-0.0, inf), (-1, nan)), work=198)
    yield _row("trigamma",     "trigamma({0})",           real,   Interval(0, 1e6),    8, (), twin=_trigamma,
               ties=((0, inf), (-1, inf), (inf, 0)), work=130)
    yield _row("tetragamma",   "tetragamma({0})",         real,   Interval(0, 1e6),    8, (), twin=_tetragamma,
               ties=((0, -inf), (-1, -inf), (inf, 0)), work=147)

    # questions and choices
    yield _row("isnan",        "isnan({0})",              predicate, every, 0)
    yield _row("isinf",        "isinf({0})",              predicate, every, 0)
    yield _row("isfinite",     "isfinite({0})",           predicate, every, 0)
    yield _row("signbit",      "signbit({0})",            predicate, every, 0,   ties=((-0.0, 1), (0, 0)))
    yield _row("eq",           "{0} == {1}",              compare, every,   0, tensor, ties=((nan, nan, 0),))
    yield _row("ne",           "{0} != {1}",              compare, every,   0, tensor, ties=((nan, nan, 1),))
    yield _row("lt",           "{0} < {1}",               compare, every,   0, tensor, ties=((0, nan, 0),))
    yield _row("le",           "{0} <= {1}",              compare, every,   0, tensor, ties=((0, nan, 0),))
    yield _row("gt",           "{0} > {1}",               compare, every,   0, tensor, ties=((0, nan, 0),))
    yield _row("ge",           "{0} >= {1}",              compare, every,   0, tensor, ties=((0, nan, 0),))
    yield _row("logical_not",  "~{0}",                    logical, boolean, 0)
    yield _row("logical_and",  "{0} & {1}",               logical, boolean, 0)
    yield _row("logical_or",   "{0} | {1}",               logical, boolean, 0)
    yield _row("logical_xor",  "{0} ^ {1}",               logical, boolean, 0)
    yield _row("bitwise_not",  "~{0}",                    bitwise, every,   0,   ())  # bytes are another op
    yield _row("bitwise_and",  "{0} & {1}",               bitwise, every,   0, tensor)
    yield _row("bitwise_or",   "{0} | {1}",               bitwise, every,   0, tensor)
    yield _row("bitwise_xor",  "{0} ^ {1}",               bitwise, every,   0, tensor)
    yield _row("where",        "tl.where({0}, {1}, {2})", select, (boolean, every, every), 0, (".self",),
               nan=Nan.ABSORBED)
    # fmt: on


OPS: Mapping[str, Op] = MappingProxyType({op.name: op for op in _rows()})
