"""What code does with the names that it mentions."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import pytest

from autogen.calls.mentions import computes_names, only_called

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
