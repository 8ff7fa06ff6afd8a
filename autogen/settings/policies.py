"""The policy, which says whether generated kernels may run: per loss, block, process, environment or file."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

ENVIRONMENT_VARIABLE = "AUTOGEN_POLICY"
FILE_VARIABLE = "AUTOGEN_RUNCONFIG"
KEY = "autogen_policy"


class Policy(str, Enum):
    """Whether losses run on kernels or in torch; a string as well, as in `Policy("default") == "default"`."""

    DISABLED = "disabled"
    """Torch only."""

    DEFAULT = "default"
    """Handwritten or generated kernels where there are some, else torch."""

    AGGRESSIVE = "aggressive"
    """A generated kernel even where a handwritten one exists."""

    MANDATORY = "mandatory"
    """Kernels, or an `AutogenError` where the loss would fall back to torch."""

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
    """Set the policy of a block, for this thread, as in `with policy("mandatory"):`.

    The innermost block counts; one object may be used for many blocks. A loss with a policy of its own keeps that.

    Args:
        level: a `Policy`, or "disabled", "default", "aggressive" or "mandatory".

    Raises:
        ValueError: another text.
    """

    def __init__(self, level: Policy | str) -> None:
        self.level = Policy(level)

    def __enter__(self) -> None:
        _open_blocks.policies = (*_open_blocks.policies, self.level)

    def __exit__(self, *exception: object) -> None:
        _open_blocks.policies = _open_blocks.policies[:-1]


def in_torch(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function in a block of the policy "disabled": what it calls runs in torch, but for its own policy."""
    before = _open_blocks.policies
    _open_blocks.policies = (*before, Policy.DISABLED)
    try:
        return function(*args, **kwargs)
    finally:
        _open_blocks.policies = before


# What `set_policy` and `load_runconfig` were told.
_set_policy: Policy | None = None
_file_policy: Policy | None = None

# What holds outside of all blocks; None while the environment holds something that is not understood.
_process_policy: Policy | None = None


def set_policy(level: Policy | str | None) -> None:
    """Set the policy of the process, which holds outside of `with policy(...)` blocks, in all threads.

    Args:
        level: a `Policy`, or its name; None returns to `AUTOGEN_POLICY`, which is read again, and to policies of files.

    Raises:
        ValueError: an unknown name, or one in the environment.
    """
    global _set_policy
    _set_policy = None if level is None else Policy(level)
    _update()


def load_runconfig(path: str | os.PathLike[str]) -> None:
    """Read the policy of the process from a file; `set_policy` and `AUTOGEN_POLICY` come before it.

    Args:
        path: a YAML file, or a TOML file if its name ends in `.toml`, with the key `autogen_policy` under `runconfig`,
            such as `runconfig: {autogen_policy: mandatory}`; keys of other programs are ignored. The file that the
            environment variable `AUTOGEN_RUNCONFIG` names is read when autogen is imported.

    Raises:
        ValueError: the file cannot be read or parsed, has no such key, an unknown policy, or another key that begins
            with `autogen_`. The policy is then as it was.
    """
    global _file_policy
    _file_policy = _policy_in(path)
    _update()


def resolve(object_policy: Policy | str | None = None) -> Policy:
    """The policy in force for an object that was given `object_policy`, or none.

    The first of these that is set: the object's own, the innermost `with` block, `set_policy`, the environment variable
    `AUTOGEN_POLICY` as it was when this module was imported, `load_runconfig`, the file `AUTOGEN_RUNCONFIG` likewise,
    and `Policy.DEFAULT`.
    """
    if object_policy is not None:
        return Policy(object_policy)
    if policies := _open_blocks.policies:
        return policies[-1]
    return _process_policy or _outside_of_blocks()


def _update() -> None:
    global _process_policy
    _process_policy = None
    _process_policy = _outside_of_blocks()


def _outside_of_blocks() -> Policy:
    return _set_policy or _environment_policy() or _file_policy or _environment_file_policy() or Policy.DEFAULT


def _environment_policy() -> Policy | None:
    text = os.environ.get(ENVIRONMENT_VARIABLE)
    try:
        return Policy(text) if text else None
    except ValueError as error:
        raise ValueError(f"environment variable {ENVIRONMENT_VARIABLE}: {error}") from None


def _environment_file_policy() -> Policy | None:
    path = os.environ.get(FILE_VARIABLE)
    try:
        return _policy_in(path) if path else None
    except ValueError as error:
        raise ValueError(f"environment variable {FILE_VARIABLE}: {error}") from None


def _policy_in(path: str | os.PathLike[str]) -> Policy:
    """The policy that a file names; see `load_runconfig`."""
    own = _read(Path(path)).get("runconfig")
    names = [name for name in own if str(name).startswith("autogen_")] if isinstance(own, dict) else []
    for name in names:
        if name != KEY:
            raise ValueError(f"{path}: {name} is no key of autogen's; it knows {KEY}")
    if not isinstance(own, dict) or not names:
        raise ValueError(f"{path}: there is no {KEY} under runconfig; write it as `runconfig: {{{KEY}: disabled}}`")
    try:
        return Policy(own[KEY])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    """What is in a YAML or TOML file.

    Raises:
        ValueError: it cannot be read, or is neither.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: the file cannot be read ({error})") from None
    # Imported here, as few programs have such a file.
    if path.suffix.lower() == ".toml":
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path}: it is no TOML ({error})") from None
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: it is no YAML ({' '.join(str(error).split())})") from None
    return found if isinstance(found, dict) else {}


# The environment is read here and not at the first call: `os.environ` is too slow for every call, and a
# global that changes inside the first compiled call would make torch compile that call twice. What is not
# understood is reported by `resolve`, so that it does not keep the package from being imported.
with suppress(ValueError):
    _update()
