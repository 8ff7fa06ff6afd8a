"""What torch and NumPy answer to a loss that asks how they are set.

Libraries are taken not to change, but for these settings of a process: flags, modes, whether distributions check what
they are given, and the group of processes. A loss whose code names one of the questions is known by the answer, and
asks again at each call. No other loss asks anything.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch

from autogen.calls.spots import Namer, Spot
from autogen.frozen import frozen

_HOMES = ("backends", "distributions")  # of torch, where all that there is asks the question of that name
_FLAGS = (
    "cudnn.allow_tf32",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "cudnn.enabled",
    "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_tf32",
    "cuda.matmul.fp32_precision",
    "fp32_precision",
    "mkldnn.allow_tf32",
    "mkldnn.deterministic",
    "mkldnn.enabled",
    "mkldnn.matmul.fp32_precision",
)


def _processes() -> Hashable:
    """This process among those of the default group."""
    group = torch.distributed
    if not (group.is_available() and group.is_initialized()):
        return None
    return group.get_rank(), group.get_world_size(), group.get_backend()


def _backends() -> Hashable:
    return tuple(map(_flag, _FLAGS))


def _flag(name: str) -> Hashable:
    try:
        flag: Hashable = attrgetter(name)(torch.backends)
    except (AttributeError, RuntimeError):  # not in every torch; set by torch's old names and its new ones
        return None
    return flag


def _numpy_errors() -> Hashable:
    numpy: Any = sys.modules["numpy"]
    return tuple(numpy.geterr().values())


# Of a question, by its name in code, what gives the answer. One that is long stands for all that it tells.
QUESTIONS: dict[str, Callable[[], Hashable]] = {
    **{
        name: getattr(torch, name)
        for name in (
            "are_deterministic_algorithms_enabled",
            "get_default_device",
            "get_deterministic_debug_mode",
            "get_float32_matmul_precision",
            "get_num_interop_threads",
            "get_num_threads",
            "is_anomaly_check_nan_enabled",
            "is_anomaly_enabled",
            "is_deterministic_algorithms_warn_only_enabled",
            "is_grad_enabled",
            "is_inference_mode_enabled",
            "is_warn_always_enabled",
        )
    },
    **dict.fromkeys(("WORLD", "get_backend", "get_rank", "get_world_size", "is_initialized"), _processes),
    "backends": _backends,
    "distributions": lambda: torch.distributions.Distribution._validate_args,  # which `torch.compile` turns off
    "geterr": _numpy_errors,
}


@functools.lru_cache(maxsize=4096)
def questions_in(code: types.CodeType) -> tuple[str, ...]:
    """The questions that code names, inner functions included."""
    # `import torch.backends.cudnn` is one name; a string may be for `getattr`.
    texts = (*code.co_names, *(each for each in code.co_consts if isinstance(each, str)))
    found = [part for text in texts for part in text.split(".") if part in QUESTIONS]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found += questions_in(inner)
    return tuple(dict.fromkeys(found))


def question_of(value: Any) -> str | None:
    """The question that something of a library is, by whatever name a loss has it."""
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return value.__name__ if value.__name__ in QUESTIONS else None
    kind = value if isinstance(value, type) else type(value)
    home = str(value.__name__ if isinstance(value, types.ModuleType) else kind.__module__)
    return next((each for each in _HOMES if home.startswith(f"torch.{each}")), None)


@frozen
class Answer(Spot):
    """The answer to a question. A replay of the loss is given the settings of its own time."""

    question: str
    before: Hashable

    @classmethod
    def to(cls, question: str) -> Answer:
        """The answer that it has now."""
        return cls(question, QUESTIONS[question]())

    def has_changed(self) -> bool:
        """Whether it has another answer now."""
        return QUESTIONS[self.question]() != self.before

    def conditions(self, name: Namer, kept: Collection[tuple[int, Any]]) -> Iterator[str]:
        yield f"{name(QUESTIONS[self.question])}() == {name(self.before)}"


class Answers:
    """Those to the questions that a loss names, each among the `spots` of a walk."""

    def __init__(self, spots: list[Spot]) -> None:
        self._spots = spots
        self._known: dict[str, Answer] = {}

    def to(self, questions: Sequence[str]) -> tuple[Hashable, ...]:
        """What torch answers to what code may ask."""
        for question in questions:
            if question not in self._known:
                self._known[question] = Answer.to(question)
                self._spots.append(self._known[question])
        return tuple((question, self._known[question].before) for question in questions)

    def known(self) -> list[Answer]:
        """All that have been asked for."""
        return list(self._known.values())
