"""Libraries: what is theirs is taken not to change while a program runs."""

from __future__ import annotations

import abc
import argparse
import builtins
import collections
import functools
import os
import sys
import sysconfig
import threading
import types
import weakref
from typing import Any

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE, of classes that are not written in C
_STANDARD_LIBRARY = (os.path.dirname(os.__file__), sysconfig.get_path("platstdlib"))
# The caches of SymPy and the records of pytest, whose functions are in what is asserted, a trace itself fills.
_OWN = {"torch", "autogen", "numpy", "sympy", "pytest", "_pytest", "typing_extensions"}
_LIBRARIES = frozenset({*_OWN, *sys.stdlib_module_names}) - {"__main__"}
# Where classes are said to be from that `exec`, `types.new_class`, `make_dataclass` and `ABCMeta` make.
_MAKERS = {"builtins": vars(builtins), "types": vars(types), "abc": vars(abc)}
_FIRST: dict[tuple[str, str], Any] = {}  # what libraries have under the names that losses mention


@functools.lru_cache(maxsize=4096)
def is_library(module: Any) -> bool:
    """Whether a module, given its name, does not change while a program runs. The classes of Cython 3.0 have no name
    there, but a descriptor; what `exec` makes may have none at all, and is the user's.
    """
    if not isinstance(module, str):
        return module is not None
    root = module.partition(".")[0]
    return root in _LIBRARIES and not (root in sys.stdlib_module_names and _is_namesake(module))


def _is_namesake(module: str) -> bool:
    """Whether a module that is named as one of Python's is another."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return isinstance(file, str) and (not file.startswith(_STANDARD_LIBRARY) or "site-packages" in file)


def is_of_library(owner: type) -> bool:
    """Whether a class is: one that is made by a call may be said to be of the module that makes classes."""
    makers = _MAKERS.get(owner.__module__)
    is_made = makers is not None and makers.get(owner.__name__) is not owner and bool(owner.__flags__ & _HEAP_TYPE)
    return is_library(owner.__module__) and not is_made


def is_foreign(value: Any) -> bool:
    """Whether someone has put a function, or a property, of their own into a library."""
    if isinstance(value, property):  # others may import a library when they are asked for `fget`
        value = value.fget
    return isinstance(value, types.FunctionType) and not is_library(value.__globals__.get("__name__"))


def rules_of_divergence() -> dict[Any, Any]:
    """Those of `torch.distributions.kl_divergence`, to which anybody may add some; none while it is not imported."""
    module: Any = sys.modules.get("torch.distributions.kl")
    return {} if module is None else module._KL_REGISTRY


def is_replaced(module: types.ModuleType, name: str) -> bool:
    """Whether something in a library is the user's, or not what it was."""
    value = vars(module)[name]
    return is_foreign(value) or _FIRST.setdefault((module.__name__, name), value) is not value


# Classes of Python's library whose objects hold nothing but what others put there, and modules of such classes.
OPEN: Any = (
    types.SimpleNamespace, argparse.Namespace, threading.local, collections.ChainMap, collections.UserDict,
    collections.UserList, collections.UserString, weakref.WeakKeyDictionary, weakref.WeakValueDictionary,
    threading.Event, functools.partialmethod, functools.singledispatchmethod,
)  # fmt: skip
_OPEN_MODULES = frozenset({"configparser", "optparse", "queue", "unittest.mock"})


def is_open(owner: type) -> bool:
    """Whether objects of a class of Python's library hold what others put there."""
    return owner in OPEN or owner.__module__ in _OPEN_MODULES


# The names that code finds without a scope, but for those that the user has put there.
BUILTINS = frozenset({
    "__debug__", "Ellipsis", "NotImplemented",
    *(name for name, value in vars(builtins).items() if is_library(getattr(value, "__module__", None))),
})  # fmt: skip
