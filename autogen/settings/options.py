"""The options of one loss, which are the arguments of `autogen_loss`."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from autogen.settings.policies import Policy

Gradient = Literal["backward", "forward"]
"""Which kernel computes the gradient."""

Retrace = Literal["changes", "every"]
"""At which calls a loss that has been traced is traced again."""

Tune = bool | Literal["profile", "first_valid"]
"""How the configurations of kernels are chosen: False is by sizes alone, True is "profile"."""

Tuning = Literal["profile", "first_valid"]
"""How they are chosen where it is not by sizes alone."""

Cpu = Literal["eager", "inductor"]
"""What runs a loss of tensors on the CPU, where Triton's interpreter is off."""

Reads = Literal["anything", "arguments"]
"""What a loss may look at: anything, which torch finds out, or its arguments and the attributes of its module alone."""

Sums = Literal["float32", "weight"]
"""In which precision gradients of weights in half precision are added up from chunk to chunk."""

DIRECTIONS = ("forward", "backward")
"""What a loss has kernels for."""

RETRACE_VARIABLE = "AUTOGEN_RETRACE"
"""Set to 1 when a loss is decorated, every call of it is traced."""

CPU_VARIABLE = "AUTOGEN_CPU"
"""What runs losses of tensors on the CPU: "eager", or "inductor", torch's own compiler, if their `cpu` says nothing."""

TUNE_VARIABLE = "AUTOGEN_TUNE"
"""Set to 1 ("profile") or "first_valid" when a loss is decorated, it is tuned unless its own `tune` says how."""

_TUNED_BY: dict[Any, Tuning] = {True: "profile", "1": "profile", "profile": "profile", "first_valid": "first_valid"}


def _asked_for(variable: str, *meanings: str) -> str:
    """What an environment variable asks for; one that is not set is "".

    Raises:
        ValueError: it is not understood.
    """
    text = os.environ.get(variable, "")
    if text and text not in meanings:
        choice = ", ".join(meanings)
        raise ValueError(f"environment variable {variable}: {text!r} is not understood; choose from {choice}")
    return text


_CHOICES: dict[str, tuple[tuple[Any, ...], str]] = {
    "gradient": (get_args(Gradient), 'gradient is computed in "backward" or in "forward", not in'),
    "static_graph": ((False, True), "static_graph is True or False, not"),
    "retrace": (get_args(Retrace), 'a loss is retraced at "changes" or at "every" call, not at'),
    "tune": (
        (None, False, True, *get_args(Tuning)),
        'a loss is tuned by "profile" (True), by "first_valid" or not (False), not by',
    ),
    "cpu": ((None, *get_args(Cpu)), 'a loss on the CPU runs by "eager" or by "inductor", not by'),
    "sums": (get_args(Sums), 'gradients of chunks are summed up in "float32", or as the "weight" is, not in'),
    "reads": (get_args(Reads), 'a loss reads "anything" or its "arguments", not'),
}
"""The values of each option, and what to say of another."""


class LaunchConfig(dict[str, Any]):
    """Launch parameters that the user has set for a loss; `admitted` names its kernels that had them for some sizes."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.admitted: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return LaunchConfig, (dict(self),)


def _checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of what is to be set, if it can be such.

    Raises:
        ValueError: it is no mapping of names to positive integers, or of directions to such.
    """
    if isinstance(config, Mapping) and config and not config.keys() - set(DIRECTIONS):
        return {which: _checked(each) for which, each in config.items()}
    is_plain = isinstance(config, Mapping) and all(
        isinstance(name, str) and name not in DIRECTIONS and type(size) is int and size > 0
        for name, size in config.items()
    )
    if not is_plain:
        raise ValueError(
            'config is a mapping such as {"BLOCK": 1024, "num_warps": 8}, or of two such for "forward" and "backward"; '
            f"got {config!r}"
        )
    return dict(config)


@dataclass(frozen=True)
class Options:
    """How a loss is to run; see `autogen_loss`.

    `handwritten` makes an `autogen.runtime.handwritten.Handwritten`. `fault` says what in the environment is not
    understood. Calls report it, so that it does not keep the package from being imported.

    Raises:
        ValueError: another value than those of the type.
    """

    policy: Policy | None = None
    gradient: Gradient = "backward"
    static_graph: bool = False
    retrace: Retrace = "changes"
    handwritten: Callable[[], Any] | None = None
    tune: Tune | None = None
    cpu: Cpu | None = None
    reads: Reads = "anything"
    config: LaunchConfig | Mapping[str, Any] | None = None
    chunk: int | None = None
    sums: Sums = "float32"
    fault: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        if not (self.handwritten is None or callable(self.handwritten)):
            raise ValueError(f"handwritten is a function that makes kernels, not {self.handwritten!r}")
        for name, (choices, problem) in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{problem} {getattr(self, name)!r}")
        if self.config is not None:
            self._check_config(self.config)
        if self.chunk is not None and (type(self.chunk) is not int or self.chunk < 1):
            raise ValueError(f"chunk is a number of rows, at least 1, not {self.chunk!r}")
        try:  # read once: what is compiled depends on it
            if self.cpu is None:
                object.__setattr__(self, "cpu", _asked_for(CPU_VARIABLE, "eager", "inductor") or "eager")
            if self.tune is None:
                tune = _TUNED_BY.get(_asked_for(TUNE_VARIABLE, "0", "1", "profile", "first_valid"))
                object.__setattr__(self, "tune", tune)
            if _asked_for(RETRACE_VARIABLE, "0", "1") == "1":
                object.__setattr__(self, "retrace", "every")
        except ValueError as error:
            object.__setattr__(self, "fault", str(error))

    def _check_config(self, config: Mapping[str, Any]) -> None:
        if self.handwritten is not None:
            raise ValueError("config is for generated kernels; this loss has handwritten ones, which set their own")
        if self.tune:
            raise ValueError("a loss is tuned, or launched as its config says, not both")
        object.__setattr__(self, "config", LaunchConfig(_checked(config)))

    @property
    def tuning(self) -> Tuning | None:
        """How configurations are chosen; None is by sizes alone."""
        return None if self.config is not None else _TUNED_BY.get(self.tune)

    @property
    def retraces(self) -> bool:
        """Whether every call is traced."""
        return self.retrace == "every" or _open_blocks.count > 0


class _OpenBlocks(threading.local):
    """How many blocks of `retracing` this thread is in."""

    count = 0


_open_blocks = _OpenBlocks()


@contextlib.contextmanager
def retracing() -> Iterator[None]:
    """Capture every call of every loss anew in a block, as in `with retracing():`, in this thread.

    That is what `autogen_loss(retrace="every")` does for one loss; it costs hundreds of ms a call.
    """
    _open_blocks.count += 1
    try:
        yield
    finally:
        _open_blocks.count -= 1


PLAIN = Options()
