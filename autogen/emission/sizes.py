"""Print size expressions: sizes and numbers as kernel arguments, offsets as sums of `index * stride`."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
import torch

from autogen import compat
from autogen.ir.names import unique


class Sizes:
    """The sizes that a kernel is given as arguments, found while its offsets are printed.

    Args:
        known: sizes that have a name of their own, such as `N*C` → "n_elements".
        variables: kernel variables by axis, such as the axis `row` → "row".
    """

    def __init__(self, known: Mapping[sympy.Expr, str], variables: Mapping[sympy.Symbol, str]) -> None:
        self._known = {size: name for size, name in known.items() if not size.is_Integer}
        self._variables = dict(variables)
        self.arguments: dict[str, sympy.Expr] = {}
        self.doubles: set[str] = set()  # the arguments that the kernel is given in double precision

    def text(self, expression: sympy.Expr, computed: Mapping[sympy.Symbol, str] | None = None) -> str:
        """An integer expression as Triton text; `computed` are further variables."""
        if computed:
            return self._with(computed).text(expression)
        return self._print(sympy.sympify(expression))[0]

    def _with(self, computed: Mapping[sympy.Symbol, str]) -> Sizes:
        inner = Sizes(self._known, {**self._variables, **computed})
        inner.arguments, inner.doubles = self.arguments, self.doubles
        return inner

    def number(self, expression: sympy.Expr, dtype: torch.dtype) -> str:
        """The argument that a number is, whatever it is computed from: that is done before the launch."""
        name = str(expression) if expression.is_Symbol else self._unnamed(expression, "number")
        if dtype == torch.float64:
            self.doubles.add(name)
        return self._argument(name, expression)

    def factor(self, expression: sympy.Expr) -> str:
        """`text`, in parentheses if it is a sum."""
        text, atomic = self._print(sympy.sympify(expression))
        return text if atomic else f"({text})"

    def divisor(self, expression: sympy.Expr) -> str:
        """`text` as the right side of `//` or `%`: in parentheses unless it is a name or a number."""
        text = self.text(expression)
        return text if text.isidentifier() or text.isdigit() else f"({text})"

    def _argument(self, name: str, size: sympy.Expr) -> str:
        self.arguments[name] = size
        return name

    def _computed(self, expression: sympy.Expr) -> str:
        """The argument that an integer is which is computed before the launch. One that floats decide is a number, too:
        Triton would look whether an integer is 1, and another call may have another.
        """
        if all(symbol.is_integer for symbol in expression.free_symbols):
            return self._argument(self._unnamed(expression), expression)
        return f"tl.cast({self.number(compat.size_functions().ToFloat(expression), torch.float64)}, tl.int64)"

    def _print(self, expression: sympy.Expr) -> tuple[str, bool]:
        if expression.is_Integer:
            return str(expression), expression >= 0
        if expression in self._variables:
            return self._variables[expression], True
        if expression in self._known:
            return self._argument(self._known[expression], expression), True
        if expression.is_Symbol:
            return self._argument(str(expression), expression), True
        if expression.is_Add:
            terms = sorted(expression.args, key=self._term_order)
            text = self._print(terms[0])[0]
            for term in terms[1:]:
                negative = term.could_extract_minus_sign()
                part = self._print(-term if negative else term)[0]
                text += f" {'-' if negative else '+'} {part}"
            return text, False
        if (expression.is_Mul or expression.is_Pow) and not expression.free_symbols & self._variables.keys():
            return self._computed(expression), True  # 32 bits may not hold it here
        if expression.is_Mul:
            return " * ".join(self.factor(each) for each in self._factors(expression)), True
        name = type(expression).__name__
        if name in ("FloorDiv", "CleanDiv", "Mod", "PythonMod"):
            sign = "%" if "Mod" in name else "//"
            left, right = expression.args
            is_of_sizes = not expression.free_symbols & self._variables.keys()
            if is_of_sizes and not (left.is_nonnegative and right.is_positive):  # Triton rounds to 0, Python down
                return self._computed(expression), True
            left_text, right_text = self.factor(left), self.divisor(right)
            if left.is_nonnegative or not _may_be_below_0(left):
                return f"({left_text} {sign} {right_text})", True
            remainder = f"(({left_text} % {right_text} + {right_text}) % {right_text})"
            return (remainder if sign == "%" else f"(({left_text} - {remainder}) // {right_text})"), True
        if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
            return " * ".join([self.factor(expression.base)] * int(expression.exp)), True
        if name in ("Max", "Min"):
            first, *rest = map(self.text, expression.args)
            for each in rest:
                first = f"tl.{name.lower()}imum({first}, {each})"
            return first, True
        if any(symbol in self._variables for symbol in expression.free_symbols):
            raise NotImplementedError(f"the size {expression}")
        return self._computed(expression), True  # computed before the launch

    def _unnamed(self, expression: sympy.Expr, kind: str = "size") -> str:
        """The name of an argument that is no size of a tensor; the same for the same expression."""
        found = (name for name, known in self.arguments.items() if known == expression)
        return next(found, None) or unique(kind, self.arguments)

    def _term_order(self, term: sympy.Expr) -> tuple[int, str]:
        """Program and row before column, numbers last."""
        symbols = [symbol for symbol in self._variables if symbol in term.free_symbols]
        if not symbols:
            return (len(self._variables), str(term))
        return (min(list(self._variables).index(symbol) for symbol in symbols), str(term))

    def _factors(self, product: sympy.Expr) -> list[sympy.Expr]:
        """The factors of a product: variables first, then sizes, as few as their names allow."""
        variables = [f for f in product.args if f in self._variables]
        size = product / sympy.Mul(*variables)
        found: list[sympy.Expr] = []
        for known in sorted(self._known, key=lambda e: -e.count_ops()):
            while size not in (1, known) and known.free_symbols <= size.free_symbols:  # cancelling takes ms
                quotient = sympy.cancel(size / known)
                if quotient.as_numer_denom()[1] != 1:
                    break
                found.append(known)
                size = quotient
        rest = list(size.args) if size.is_Mul and size not in self._known else [size]
        ordered = sorted((*found, *rest), key=str)
        return variables + [each for each in ordered if each != 1]


def _may_be_below_0(expression: sympy.Expr) -> bool:
    """Whether a part of an index, such as what sympy leaves of a quotient, has terms below 0."""
    return any(term.could_extract_minus_sign() for term in sympy.Add.make_args(sympy.expand(expression)))
