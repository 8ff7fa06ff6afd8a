"""Losses that compute the names of what they read, in a module that has little else, as they may read all of it."""

from __future__ import annotations

import importlib
import operator
import sys
import types
from typing import Any

from torch import Tensor, nn

CONFIG: Any = types.ModuleType("config_of_a_test")
KIND = "pos"
FACTOR = 2.0


def scaled(x: Tensor) -> Tensor:
    return x * FACTOR


class OfGlobals(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = globals()[self.name](x).mean()
        return result


class Computed(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        return x.mean() * float(getattr(CONFIG, f"{self.kind}_weight".upper()))


COMPUTED: dict[str, Any] = {
    "getattr": Computed("pos"),
    "vars": lambda x: x.mean() * sum(value for name, value in vars(CONFIG).items() if name.endswith("_WEIGHT")),
    "dir": lambda x: x.mean() * sum(getattr(CONFIG, name) for name in dir(CONFIG) if name.endswith("_WEIGHT")),
    "globals": lambda x: x.mean() * globals()[KIND.upper() + "_WEIGHT"],
    "attrgetter": lambda x: x.mean() * operator.attrgetter("CONFIG.POS_WEIGHT")(sys.modules[__name__]),
    "eval": lambda x: eval("x.mean() * CONFIG.POS_WEIGHT"),
    "__import__": lambda x: x.mean() * __import__("config_of_a_test").POS_WEIGHT,
    "import_module": lambda x: x.mean() * importlib.import_module("config_of_a_test").POS_WEIGHT,
}
