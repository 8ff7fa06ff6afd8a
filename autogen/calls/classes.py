"""Classes of the user's: what they have of their own, and where their objects keep attributes."""

from __future__ import annotations

import collections
import enum
import types
from typing import Any

import torch

from autogen.calls.libraries import is_of_library

# What cannot be changed, and holds nothing else: of these classes alone, and of them or derived from them.
PLAIN = frozenset({bool, int, str, bytes, types.NoneType})
CONSTANTS = (int, str, bytes, complex, torch.dtype, torch.device, torch.layout, torch.memory_format)

# Of which there are classes with attributes, and what is always the library's.
NUMBERS_AND_TEXTS: Any = (int, float, str, bytes, complex)
_EXACT = frozenset({*NUMBERS_AND_TEXTS, bool, tuple, list, dict, set, frozenset})

_FIELDS: Any = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    type(vars(collections.namedtuple("_", "a"))["a"]),
)

# What Python puts into classes of enumerations and named tuples, beside what the user names.
_MADE = frozenset({
    "_member_names_", "_value2member_map_", "_unhashable_values_", "_member_type_", "_value_repr_", "_use_args_",
    "_new_member_", "__new__", "_fields", "_make", "_replace", "_asdict", "__getnewargs__",
})  # fmt: skip


# What Python, and its library, say of a class in the class.
_ABOUT_CLASSES = frozenset({
    "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__",
    "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__", "__firstlineno__", "__match_args__",
    "__module__", "__orig_bases__", "__parameters__", "__qualname__", "__signature__", "__slots__",
    "__static_attributes__", "__type_params__", "__weakref__", "_abc_impl",
})  # fmt: skip


def is_derived(owner: type) -> bool:
    """Whether a class, which is one of Python's or derived from it, is the user's."""
    return owner not in _EXACT and not is_of_library(owner)


def is_derived_constant(value: Any) -> bool:
    """Whether a number or a string may have attributes."""
    owner = type(value)
    return owner not in _EXACT and isinstance(value, NUMBERS_AND_TEXTS) and not is_of_library(owner)


def keeps_more(owner: type) -> bool:
    """Whether objects of a class of the user's hold something that is no attribute, such as a decimal number."""
    return any(isinstance(vars(base).get("__new__"), types.BuiltinMethodType) for base in owner.__mro__[:-1])


def pythons_own(owner: type) -> frozenset[str]:
    """The entries of a class that are not the user's, such as its name."""
    is_named_tuple = issubclass(owner, tuple) and "_field_defaults" in vars(owner)
    made = _MADE if is_named_tuple or isinstance(owner, enum.EnumMeta) else ()
    return frozenset(key for key, item in vars(owner).items() if key in made or _is_about_class(key, item))


def _is_about_class(key: str, item: Any) -> bool:
    """Whether an entry of a class is Python's own."""
    return key in _ABOUT_CLASSES or isinstance(item, _FIELDS)


def slots(owner: Any) -> tuple[str, ...]:
    """The attributes of an object that are not in its `__dict__`."""
    found: list[str] = []
    for base in owner.__mro__:
        if "__slots__" in vars(base):  # else they are those of a class written in C
            found += (name for name, item in vars(base).items() if isinstance(item, types.MemberDescriptorType))
    return tuple(found)
