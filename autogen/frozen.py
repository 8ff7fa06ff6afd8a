"""Records whose fields are set once: dataclasses, as cheap to define as can be.

A first call from disk defines some forty of them. `dataclass(frozen=True)` compiles seven methods for each class, which
takes twenty times as long, and makes new instances slower. Here `__init__` is compiled when a class has its first
instance, if it ever has: what is found on disk was made elsewhere. What need not be compiled is shared; that fields are
not assigned to is left to type checkers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar

from typing_extensions import dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """A dataclass that compares and hashes by its fields, none of which is assigned to."""
    made = dataclass(init=False, eq=False, repr=False)(cls)
    values = _values(tuple(each.name for each in fields(made)))  # type: ignore[arg-type]

    def __init__(self: T, *args: Any, **kwargs: Any) -> None:
        compiled = _initializer(made)
        made.__init__ = compiled  # type: ignore[method-assign]
        compiled(self, *args, **kwargs)

    def __eq__(self: T, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: T) -> int:
        return hash(values(self))

    for name, method in (("__init__", __init__), ("__eq__", __eq__), ("__hash__", __hash__), ("__repr__", _repr)):
        if name not in vars(cls):
            setattr(made, name, method)
    return made


def _initializer(cls: type) -> Callable[..., None]:
    """The `__init__` of a dataclass. Having `dataclass` compile it late takes 2 ms more of a first call from disk."""
    scope: dict[str, Any] = {"missing": MISSING}
    parameters, lines = ["self"], []
    for each in fields(cls):
        value = each.name
        if not each.init:
            continue
        if each.default is not MISSING:
            scope[f"default_{value}"] = each.default
            parameters.append(f"{value}=default_{value}")
        elif each.default_factory is not MISSING:
            scope[f"make_{value}"] = each.default_factory
            parameters.append(f"{value}=missing")
            value = f"make_{value}() if {value} is missing else {value}"
        else:
            parameters.append(value)
        lines.append(f"    self.{each.name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    exec("\n".join((f"def __init__({', '.join(parameters)}):", *(lines or ["    pass"]))), scope)
    compiled: Callable[..., None] = scope["__init__"]
    compiled.__qualname__ = f"{cls.__qualname__}.__init__"
    return compiled


def _values(names: tuple[str, ...]) -> Callable[[Any], Any]:
    """What reads some attributes of an object, all at once."""
    return attrgetter(*names) if names else lambda _: ()


def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"
