"""What code does with the names that it mentions."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import pytest

from autogen.calls.mentions import ANY, Uses, computes_names, only_called, uses_in

ONLY_CALLED: dict[str, Callable[..., Any]] = {
    "not at all": lambda x: x.float(),
    "called": lambda x: float(x) + max(float(x.sum()), 1.0),
    "called within a call": lambda x: round(float(x[0]), int(x[1])),
    "called in a comprehension": lambda x: [float(each) for each in x],
    "mapped": lambda x: list(map(float, x)),
    "asked about": lambda x: x if isinstance(x, float) else isinstance(x, (int, float)),
}
MORE: dict[str, Callable[..., Any]] = {
    "an argument": lambda x: x.to(float),
    "an argument of what is called": lambda x: sorted(x, key=float),
    "mapped over": lambda x: list(map(x, float)),
    "a keyword": lambda x: x.sum(dtype=float),
    "compared": lambda x: type(x) is float,
    "an attribute": lambda x: float.fromhex(x),
    "kept": lambda x: {float: 1}[x],
    "returned": lambda: float,
    "in an inner function": lambda: lambda x: x.to(float),
    "given beside a call": lambda x: x.to(float) + float(x),
}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the byte code does not tell")
@pytest.mark.parametrize("case", ONLY_CALLED)
def test_a_name_that_is_only_called(case: str) -> None:
    assert only_called(ONLY_CALLED[case].__code__, "float")


@pytest.mark.parametrize("case", MORE)
def test_a_name_that_is_more_than_called(case: str) -> None:
    assert not only_called(MORE[case].__code__, "float")


class _Keeping:
    """What its methods do with `kept`, which is told by their names."""

    kept: Any
    other: Any

    def assigned(self, x: Any) -> None:
        self.kept = {"kept": x}

    def assigned_and_then_read(self, x: Any) -> Any:
        self.kept = {}
        self.kept["x"] = x
        return self.kept if x else None

    def appended(self, x: Any) -> None:
        self.kept.append(x)

    def with_appended(self, x: Any) -> None:
        self.kept["x"].append(x)

    def read_by_another_name(self, x: Any) -> Any:
        return getattr(self.other, "kept", x)

    def read_first(self, x: Any) -> None:
        self.kept = [self.kept, x]

    def read_where_it_may_not_be_assigned(self, x: Any) -> Any:
        if x:
            self.kept = x
        return self.kept

    def read_after_what_may_fail(self, x: Any) -> Any:
        with x:
            self.kept = x
        return self.kept

    def read_in_an_inner_function(self, x: Any) -> Any:
        self.kept = x
        return lambda: self.kept

    def read_of_another_object(self, x: Any) -> Any:
        self.kept = x
        return self.other.kept

    def read_by_its_length(self, x: Any) -> Any:
        self.kept.append(x)
        return len(self.kept)

    def deleted(self, x: Any) -> None:
        del self.kept

    def added_to(self, x: Any) -> None:
        self.kept += x

    def any_by_a_name(self, x: Any) -> Any:
        return getattr(self, x)

    def any_by_a_part_of_a_name(self, x: Any) -> Any:
        return getattr(self, "ke" + x) or hasattr(self, f"ke{x}")

    def any_by_all(self, x: Any) -> Any:
        return {**vars(self), **x.__dict__}


@pytest.mark.parametrize("name", [name for name, each in vars(_Keeping).items() if callable(each)])
def test_what_code_does_with_a_name(name: str) -> None:
    uses = uses_in(getattr(_Keeping, name).__code__)
    if name.startswith("any"):
        assert ANY in uses.read
        return
    assert ANY not in uses.read
    left = uses.without(frozenset())
    first = name.partition("_and")[0]
    expected = {"assigned": left.assigned, "appended": left.appended, "with_appended": left.with_appended}
    assert [key for key, found in expected.items() if "kept" in found] == [each for each in expected if each == first]
    assert ("kept" in uses.read) == (first not in expected)
    assert uses.without(frozenset({"kept"})).read >= {"kept"}
    assert (uses | Uses()) == uses


LITERAL: dict[str, Callable[..., Any]] = {
    "alone": lambda x, o: getattr(o, "a"),  # noqa: B009
    "of an attribute": lambda x, o: getattr(o.inner, "a", None),
    "with a default": lambda x, o: getattr(o, "a", 1.0) * x,
    "with one that is computed": lambda x, o: getattr(o, "a", x.size(-1) - len(o)),
    "with one that is made": lambda x, o: getattr(o, "a", [x, {}]),
    "in an argument": lambda x, o: max(x, getattr(o, "a", f"{x}")),
    "of a getter": lambda x, o: operator.attrgetter("a.b", "c")(o) + operator.methodcaller("a", x)(o),
}
COMPUTED: dict[str, Callable[..., Any]] = {
    "a name": lambda x, o: getattr(o, x),
    "added": lambda x, o: getattr(o, "a_" + x),
    "added, with a default": lambda x, o: getattr(o, "a_" + x, 1.0),
    "in an f-string": lambda x, o: getattr(o, f"a_{x}", None),
    "formatted": lambda x, o: getattr(o, "a_%s" % x) + getattr(o, "a_{}".format(x)),  # noqa: UP031, UP032
    "joined": lambda x, o: getattr(o, "_".join(["a", x])),
    "of another case": lambda x, o: getattr(o, "A".lower(), 1.0),
    "one of several": lambda x, o: getattr(o, "abc"[x]),
    "of a getter": lambda x, o: operator.attrgetter("a." + x)(o),
}


@pytest.mark.parametrize("case", LITERAL)
def test_a_name_that_is_in_the_code(case: str) -> None:
    assert not computes_names(LITERAL[case].__code__)


@pytest.mark.parametrize("case", COMPUTED)
def test_a_name_that_is_computed(case: str) -> None:
    assert computes_names(COMPUTED[case].__code__)
