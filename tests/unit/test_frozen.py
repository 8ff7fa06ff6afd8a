"""Records are dataclasses in all that is used of them."""

from __future__ import annotations

import copy
import pickle
from dataclasses import field, fields, replace

import pytest

from autogen.frozen import frozen


@frozen
class Base:
    """A record with a default of each kind."""

    first: int
    second: tuple[int, ...] = (2,)
    third: list[int] = field(default_factory=list)
    hidden: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        self.__dict__["hidden"] = f"of {self.first}"


@frozen
class Derived(Base):
    """A record with one field more."""

    fourth: str = "four"


@frozen
class Empty:
    """A record without fields."""


def test_fields_have_what_is_given_or_their_defaults() -> None:
    one, two = Base(1), Base(1, (3,), third=[4])
    assert (one.first, one.second, one.third, one.hidden) == (1, (2,), [], "of 1")
    assert (two.first, two.second, two.third) == (1, (3,), [4])
    assert one.third is not Base(1).third
    assert [each.name for each in fields(Derived)] == ["first", "second", "third", "hidden", "fourth"]  # type: ignore[arg-type]
    derived = Derived(1, fourth="4")
    assert (derived.first, derived.fourth, derived.hidden) == (1, "4", "of 1")
    assert Empty() == Empty()


def test_what_does_not_fit_the_fields_is_an_error() -> None:
    for _ in range(2):  # the first instance, and later ones
        with pytest.raises(TypeError, match=r"Strict.__init__\(\) missing 1 required positional argument: 'only'"):
            Strict()  # type: ignore[call-arg]
    for arguments in ((1, 2), (1,)):
        with pytest.raises(TypeError):
            Strict(*arguments, other=3)
    assert Strict(1).only == 1


@frozen
class Strict:
    """A record whose first instance cannot be made."""

    only: int


def test_equality_hash_and_text() -> None:
    assert Base(1) == Base(1) != Base(2) and Base(1) != Derived(1)
    assert hash(Strict(1)) == hash(Strict(1))
    assert repr(Derived(1)) == "Derived(first=1, second=(2,), third=[], fourth='four')"


def test_copies() -> None:
    changed = replace(Derived(1), second=(5,))
    assert type(changed) is Derived and changed.second == (5,) and changed.hidden == "of 1"
    assert copy.copy(changed) == changed == pickle.loads(pickle.dumps(changed))


def test_init_is_compiled_for_the_first_instance() -> None:
    @frozen
    class Late:
        """A record."""

        value: int

    before = Late.__init__
    assert pickle.loads(pickle.dumps(Base(1))).first == 1
    assert Late(1).value == Late(value=1).value == 1
    assert Late.__init__ is not before and Late.__init__.__code__.co_varnames == ("self", "value")
