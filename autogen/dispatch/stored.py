"""Plans on disk: what was compiled of a loss, for the next process.

Where Triton has a kernel in its cache, a trace takes most of the time of a first call. So a loss that runs on kernels
alone is kept as it was compiled, in the cache folder: below `plans`, a folder for each digest of its key, and in it a
file for each trace. The digest covers what the key says of a call, the versions of all that had a part in compiling,
and our own files. What a loss asks of its process is in no key, so one that may ask is not kept
(`autogen.calls.digest`). A file is written whole or not at all, and begins with a checksum: one that is damaged is as
good as none.

`AUTOGEN_PLANS=0` keeps nothing, and looks for nothing. What a loss prints when it is traced, it does not print when its
plan is found; one that warns is never kept.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import logging
import os
import pickle
import warnings
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.utils import _pytree as pytree

from autogen import ir
from autogen.calls.digest import UnstableKeyError, digest
from autogen.calls.libraries import is_foreign
from autogen.options import Options, keeps_plans
from autogen.runtime import build
from autogen.runtime.versions import versions

if TYPE_CHECKING:
    from autogen.calls.binding import Binding, Bound
    from autogen.runtime.compiled import CompiledLoss

logger = logging.getLogger("autogen")

MOST_PLANS = 8  # of one digest; they differ by relations between sizes


class Shelf:
    """Where the plans of one kind of call are, on disk; nowhere if there is no `folder`."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, binding: Binding) -> tuple[CompiledLoss, Bound] | None:
        """The kernels of an earlier process that are made for the call, and the call on them."""
        for file in self._files():
            try:
                content = _pickled(file.read_bytes())
            except OSError:  # another user's, or this process has too many open, or another one clears the cache now
                continue
            if content is None:
                with contextlib.suppress(OSError):
                    file.unlink()
                continue
            try:
                found: CompiledLoss = pickle.loads(content)[-1]
            except Exception as error:
                # A class of what the loss returns is not there in this process, or is another version of itself: its
                # own code makes it again, and may raise anything.
                logger.debug("the plan %s is of no use here: %r", file, error)
                continue
            found.kept_as = self._name_of(content)
            bound = found.bind(binding.tensors, tuple(binding.numbers.values()))
            if bound is not None:
                return found, bound
        return None

    def keep(self, compiled: CompiledLoss) -> None:
        """Store what was compiled, if it can be."""
        if self._folder is None or not compiled.is_portable or len(self._files()) >= MOST_PLANS:
            return
        buffer = io.BytesIO()
        for launcher in compiled.launchers:
            launcher.note_keys()
        try:
            # Every node before those that are made of it, so that the pickler need not go deep.
            _Pickler(buffer, compiled).dump((*compiled.nodes(), compiled))
        except (pickle.PicklingError, AttributeError, TypeError) as error:  # something that the loss returns
            logger.debug("%s is not kept on disk: %s", compiled.plan.name, error)
            return
        file = self._folder / f"{digest(compiled.trace.domain.key)[:16]}{build.PLAN}"
        content = buffer.getvalue()
        compiled.kept_as = self._name_of(content)
        if file.exists() and not os.access(file, os.R_OK):  # another user's, who would not read ours either
            return
        with contextlib.suppress(OSError):  # a full disk; another process that clears the cache
            build.write_whole(file, hashlib.sha256(content).digest() + content)

    def _name_of(self, content: bytes) -> str:
        """What tells a plan from all others: those of equal content, of another loss, have another formula."""
        assert self._folder is not None, "there is a plan"
        return hashlib.sha256(self._folder.name.encode() + content).hexdigest()[:32]

    def _files(self) -> list[Path]:
        return [] if self._folder is None else build.plans_in(self._folder)


def _pickled(content: bytes) -> bytes | None:
    """What was pickled, if it is all there."""
    size = hashlib.sha256().digest_size
    return content[size:] if hashlib.sha256(content[size:]).digest() == content[:size] else None


def shelf_of(name: str, key: tuple[Hashable, ...], binding: Binding, options: Options) -> Shelf:
    """Where plans of calls like this one are kept, if they are to be.

    Raises:
        ValueError: the environment variable is not understood.
    """
    state = binding.state
    is_wanted = keeps_plans() and not (options.retraces or options.static_graph)
    if not is_wanted or state.is_wide or state.is_endless or state.executed or _is_patched():
        return Shelf(None)
    try:
        process = versions(), torch.get_default_device()
        found = digest((process, name, key, tuple(binding.numbers), options.gradient, options.tuning))
    except UnstableKeyError:
        return Shelf(None)
    return Shelf(build.cache_folder() / build.PLANS / found[:32])


def _is_patched() -> bool:
    """Whether functions of torch have been replaced: losses of torch call them, and their keys do not say so."""
    return any(is_foreign(each) for home in (torch, torch.nn.functional, torch.Tensor) for each in vars(home).values())


@contextlib.contextmanager
def warnings_noted() -> Iterator[list[str]]:
    """The warnings that Python code gives meanwhile, whether they are shown or not."""
    given: list[str] = []
    warn: Any = warnings.warn

    def note(message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **more: Any) -> None:
        given.append(str(message))
        warn(message, category, stacklevel + 1, source, **more)

    warnings.warn = note
    try:
        yield given
    finally:
        warnings.warn = warn


class _Pickler(pickle.Pickler):
    """Writes a compiled loss, and of its trace's graph only what decides whether a call is one of the trace's."""

    def __init__(self, file: io.BytesIO, compiled: CompiledLoss) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        domain = compiled.trace.domain
        self._nodes = {*domain.inputs, *(node for entry in domain.ahead for node in entry.order)}

    def reducer_override(self, value: Any) -> Any:
        """How what is not pickled as it is, is made again."""
        if isinstance(value, ir.Node):
            return ir.intern, (value.op, value.args, value.dtype, value.attrs)
        if isinstance(value, ir.Axis):
            return ir.Axis, (value.name, value.size)
        if isinstance(value, sympy.Symbol) and type(value) is not sympy.Symbol:
            raise pickle.PicklingError(f"{value} belongs to its trace")
        if isinstance(value, torch.fx.Graph):
            return torch.fx.Graph, ()
        if isinstance(value, torch.fx.Node):
            parts = (value.graph, value.op, value.target, value.args, value.kwargs)
            return (_node, parts) if value in self._nodes else (_nothing, ())
        if isinstance(value, torch._ops.OpOverload):
            return _operation, (str(value),)
        if isinstance(value, pytree.TreeSpec) and value.is_leaf():
            return pytree.tree_structure, (0,)  # pickling torch's own makes it warn
        return NotImplemented


def _node(graph: torch.fx.Graph, *parts: Any) -> torch.fx.Node:
    return graph.create_node(*parts)


def _operation(name: str) -> Any:
    return functools.reduce(getattr, name.split("."), torch.ops)


def _nothing() -> None:
    """What is left of all other nodes."""
