"""Import the loss that is named on the command line, and construct it."""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from autogen.cli import shapes
from autogen.cli.usage import UsageError
from autogen.errors import AutogenError
from autogen.settings.policies import resolve


@dataclass(frozen=True)
class Target:
    """A loss and the inputs of a call of it."""

    name: str
    loss: Any
    inputs: list[shapes.Input]
    options: Mapping[str, Any]

    def arguments(self, device: str, seed: int = 0, *, matters: bool = True) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, which fit the loss's signature; see `shapes.draw`."""
        args, named = shapes.draw(self.inputs, device, seed, matters=matters)
        try:
            self.signature.bind(*args, **named, **self.options)
        except TypeError as error:
            raise UsageError(f"--shapes gives other inputs than {self.name}{self.signature} takes: {error}") from None
        return args, {**named, **self.options}

    @property
    def signature(self) -> inspect.Signature:
        """What a call of the loss takes."""
        return inspect.signature(getattr(self.loss, "forward", self.loss))

    def in_order(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments of a call by position alone.

        Raises:
            UsageError: the loss takes some by name alone.
        """
        bound = self.signature.bind(*args, **named)
        if bound.kwargs:  # as where one that is left out comes first
            bound.apply_defaults()
        if bound.kwargs:
            raise UsageError(
                f"{self.name}{self.signature} takes {', '.join(bound.kwargs)} by name; give it by position"
            )
        return bound.args


def add_call(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which call of which loss."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = shapes.GRAMMAR
    parser.add_argument(
        "loss",
        metavar="MODULE:LOSS",
        help="a class, an object or a function, such as autogen.losses:CTCLoss or losses.py:my_loss",
    )
    parser.add_argument(
        "--shapes", required=True, help="the inputs of a call, such as 8x128256:bf16,8:int64; see below"
    )
    parser.add_argument(
        "--with",
        dest="options",
        metavar="NAME=VALUE,...",
        default="",
        help="arguments of the class's constructor, or further ones of the function, such as reduction=sum",
    )
    parser.add_argument("--device", help="the device of the inputs; by default a GPU if there is one, else the CPU")


def target_of(options: argparse.Namespace) -> Target:
    """The loss that the arguments name, made with its options.

    Raises:
        UsageError: it cannot be imported or made, or the inputs are not understood.
    """
    import torch

    try:
        resolve()
    except ValueError as error:  # in the environment
        raise UsageError(str(error)) from None
    inputs, given = shapes.parse(options.shapes), _options(options.options)
    found = load(options.loss)
    name = getattr(found, "__name__", type(found).__name__)
    if isinstance(found, type):
        if not issubclass(found, torch.nn.Module):
            raise UsageError(f"{name} is no class of modules; name one, or an instance, or a function")
        try:
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(0)  # parameters are the same in each run
                return Target(name, found(**given), inputs, {})
        except (TypeError, ValueError) as error:
            raise UsageError(f"{name}{inspect.signature(found)} cannot be made by --with: {error}") from None
    if not callable(found):
        raise UsageError(f"{options.loss} is no loss but a {type(found).__name__}")
    if given and isinstance(found, torch.nn.Module):
        raise UsageError(f"{options.loss} is made already; --with is for classes and functions")
    return Target(name, found, inputs, given)


def device_of(options: argparse.Namespace) -> str:
    """The device that was asked for, or the one that there is.

    Raises:
        UsageError: there is no such device.
    """
    import torch

    asked = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=asked)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"--device {asked}: {str(error).splitlines()[0]}") from None
    return str(asked)


@contextmanager
def calling(target: Target) -> Iterator[None]:
    """A block that calls the loss: what that raises of its inputs becomes a sentence."""
    try:
        yield
    except AutogenError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise UsageError(f"{target.name} does not take these inputs: {error}") from error


def load(text: str) -> Any:
    """What `module:attribute` or `file.py:attribute` names.

    Raises:
        UsageError: there is no such thing.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(f"{text!r} names no loss; write module:Loss or file.py:Loss")
    module = _file(Path(place)) if place.endswith(".py") else _module(place)
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:
        near = difflib.get_close_matches(name, dir(module), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"{place} has no {name}{hint}") from None


def _module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(f"there is no module {name}, neither installed nor in this folder") from None
        raise UsageError(f"{name} cannot be imported: {error}") from error


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    sys.path.insert(0, str(path.parent.absolute()))  # as Python does for a script
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # where dataclasses and pickle look
    spec.loader.exec_module(module)
    return module


def _options(text: str) -> dict[str, Any]:
    """What `reduction=sum,margin=0.5` says; a value that is none of Python's is text."""
    found: dict[str, Any] = {}
    for item in filter(None, shapes.items_of(text)):
        name, equals, value = item.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--with {item!r} gives no argument; write --with reduction=sum,margin=0.5")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
