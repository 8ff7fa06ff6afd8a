"""Who may run a generated kernel: per object, in a `with` block, per process, by the environment."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from enum import Enum

ENVIRONMENT_VARIABLE = "AUTOGEN_POLICY"


class Policy(str, Enum):
    """How far generated kernels take the place of torch."""

    DISABLED = "disabled"
    """Torch only."""

    DEFAULT = "default"
    """The best known path, quietly falling back to torch."""

    AGGRESSIVE = "aggressive"
    """A generated kernel even where a handwritten one exists."""

    MANDATORY = "mandatory"
    """An `AutogenError` in the place of every fallback to torch."""

    __str__ = str.__str__

    @classmethod
    def _missing_(cls, value: object) -> Policy:
        raise ValueError(f"{value!r} is not a policy; choose from {', '.join(cls)}")


class _OpenBlocks(threading.local):
    """The policies of this thread's open `with` blocks, innermost last."""

    # `torch.compile` traces and guards an attribute of a thread-local object that is set here in every
    # thread. It breaks the graph at a ContextVar, and misses the change of a default in the class body.
    def __init__(self) -> None:
        self.policies: tuple[Policy, ...] = ()


_open_blocks = _OpenBlocks()


class policy:
    """`with policy("mandatory"):` sets the policy of the block, for this thread as `torch.no_grad` does.

    One object may be used many times, and blocks may be nested.
    """

    def __init__(self, level: Policy | str) -> None:
        self.level = Policy(level)

    def __enter__(self) -> None:
        _open_blocks.policies = (*_open_blocks.policies, self.level)

    def __exit__(self, *exception: object) -> None:
        _open_blocks.policies = _open_blocks.policies[:-1]


# None while the environment holds an unknown value.
_process_policy: Policy | None = None


def set_policy(level: Policy | str | None) -> None:
    """Set the policy of the process; `None` returns to that of the environment, which is read again."""
    global _process_policy
    _process_policy = _environment_policy() if level is None else Policy(level)


def resolve(object_policy: Policy | str | None = None) -> Policy:
    """The policy in force for an object that was given `object_policy`, or none.

    The first of these that is set: the object's own, the innermost `with` block, `set_policy`, the
    environment variable `AUTOGEN_POLICY` as it was when this module was imported, and `Policy.DEFAULT`.
    """
    if object_policy is not None:
        return Policy(object_policy)
    if policies := _open_blocks.policies:
        return policies[-1]
    return _process_policy or _environment_policy()


def _environment_policy() -> Policy:
    text = os.environ.get(ENVIRONMENT_VARIABLE)
    try:
        return Policy(text) if text else Policy.DEFAULT
    except ValueError as error:
        raise ValueError(f"environment variable {ENVIRONMENT_VARIABLE}: {error}") from None


# The environment is read here and not at the first call: `os.environ` is too slow for every call, and a
# global that changes inside the first compiled call would make torch compile that call twice. An unknown
# value is reported by `resolve`, so that it does not keep the package from being imported.
with suppress(ValueError):
    set_policy(None)
