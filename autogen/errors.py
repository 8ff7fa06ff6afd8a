"""What `autogen` raises when a loss cannot run as a generated kernel, one class per kind of cause.

Every error says what was wrong, on which line of the user's code where that is known, and what to do.
All of them pickle, so they survive the way back from a worker process.
"""

from __future__ import annotations

import contextlib
import copyreg
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_USE_DEFAULT_POLICY = 'Under the policy "default" the loss runs in torch instead.'


@dataclass(frozen=True)
class SourceLine:
    """One line of the user's code."""

    filename: str
    lineno: int
    code: str

    def __str__(self) -> str:
        return f"{self.filename}:{self.lineno}  {self.code.strip()}".rstrip()


class AutogenError(RuntimeError):
    """The base of all errors of this package.

    `reason` is one sentence that names the source line where there is one, `where` is that line, and
    `remedy` is what the user can do. The message is the reason, then the remedy on a line of its own.
    """

    def __init__(self, reason: str, *, remedy: str, where: SourceLine | None = None) -> None:
        self.reason = reason if where is None else f"{reason}, at {where}"
        self.remedy = remedy
        self.where = where
        super().__init__(f"{self.reason}\n{remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException would call the class with the message alone, which no subclass here accepts.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


def _summary(cause: BaseException) -> str:
    """The type of an exception and the first line of its message."""
    name = type(cause).__name__
    message = str(cause).strip()
    return f"{name}: {message.splitlines()[0].rstrip('.')}" if message else name


class UnsupportedOpError(AutogenError):
    """No kernel can be generated for `op`, a torch op or a use of one; `node` is its name in the graph."""

    def __init__(self, op: str, *, node: str | None = None, where: SourceLine | None = None) -> None:
        self.op = op
        self.node = node
        place = f" (graph node {node})" if node else ""
        super().__init__(
            f"no kernel can be generated for {op}{place}",
            remedy=f"Write this line with other operations. {_USE_DEFAULT_POLICY}",
            where=where,
        )


class ValueBranchError(AutogenError):
    """The loss needs the value of a tensor on the host, for an `operation` such as a size that depends on it."""

    def __init__(self, operation: str, *, where: SourceLine | None = None) -> None:
        self.operation = operation
        super().__init__(
            f"the loss needs a tensor's value on the host, for {operation}",
            remedy="Choose between values with torch.where, and keep what is computed from tensors in tensors. "
            f"{_USE_DEFAULT_POLICY}",
            where=where,
        )


class FallbackWarning(UserWarning):
    """The loss `loss` runs in torch although it could have kernels, for a `reason`.

    It is given once for a loss and a reason; if `further`, calls like earlier ones run on kernels, and others do not.
    """

    def __init__(self, loss: str, reason: str, further: bool = False) -> None:
        self.loss, self.reason, self.further = loss, reason, further
        super().__init__(loss, reason, further)

    def __str__(self) -> str:
        which = " for all other kinds of calls" if self.further else ""
        return (
            f"{self.loss} runs in torch{which}: {self.reason}\n"
            "autogen.explain says what runs where; filter autogen.FallbackWarning to silence this."
        )


class RecompileLimitError(AutogenError):
    """The loss `loss` has been captured as often as it may be, and no capture holds for a call, for a `reason`."""

    def __init__(self, loss: str, reason: str) -> None:
        self.loss = loss
        super().__init__(
            f"{loss} has no kernels for this call: {reason}",
            remedy="Pass what differs between calls as tensors or numbers, or compute it outside of the loss. "
            'Under the policy "default" torch runs such calls instead.',
        )


class GraphBreakError(AutogenError):
    """Torch cannot capture a loss in one graph, for a `reason` of its own."""

    def __init__(self, reason: str, *, where: SourceLine | None = None) -> None:
        super().__init__(
            f"torch cannot capture the loss in one graph: {reason}",
            remedy="Rewrite the loss so that torch.compile(fullgraph=True) accepts it. "
            'Under the policy "default" the loss runs as several graphs, or in torch.',
            where=where,
        )


class GraphChangedError(AutogenError):
    """With `static_graph=True`, a call of the loss `loss` has another graph than the first, by a `difference`."""

    def __init__(self, loss: str, difference: str) -> None:
        self.loss, self.difference = loss, difference
        super().__init__(
            f"the graph of {loss} has changed: {difference}",
            remedy="Keep the arguments and attributes that select its operations as in the first call, or leave out "
            "static_graph=True.",
        )


class ConfigError(AutogenError, ValueError):
    """The kernel named `kernel` cannot be launched as the `config` of its loss says, for a `reason`."""

    def __init__(self, kernel: str, reason: str, remedy: str) -> None:
        self.kernel = kernel
        super().__init__(f"config does not fit the kernel {kernel}: {reason}", remedy=remedy)


ASKED_FOR = (GraphChangedError, ConfigError)
"""Errors in what the user has asked for in so many words, under any policy."""


class DataError(AutogenError, ValueError):
    """Sequences or samples from which no batch can be made, for a `reason` that names the argument or the field."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy=remedy)


class ScheduleError(AutogenError):
    """The loss, or a part of it, fits none of the forms of kernels that can be generated, for a `reason`."""

    def __init__(self, reason: str, *, where: SourceLine | None = None) -> None:
        remedy = f"Split the loss into smaller losses and add their results. {_USE_DEFAULT_POLICY}"
        super().__init__(reason, remedy=remedy, where=where)


class UnavailableError(AutogenError):
    """No kernel can run here: Triton or a driver is missing, or the tensors are not on a GPU."""


class GraphError(AutogenError):
    """The loss `loss` cannot run on kernels inside a function that `torch.compile` compiles, because of `why`."""

    def __init__(self, loss: str, why: str) -> None:
        self.loss = loss
        super().__init__(
            f"{loss} has no kernels inside torch.compile: {why}",
            remedy=f"Call it outside of compiled code, or through torch.compiler.disable. {_USE_DEFAULT_POLICY}",
        )


class ExportError(AutogenError):
    """The loss `loss` cannot be written as code that does without autogen, because of `why`."""

    def __init__(self, loss: str, why: str, remedy: str) -> None:
        self.loss = loss
        super().__init__(f"{loss} cannot be exported: {why}", remedy=remedy)


class RefusedError(AutogenError):
    """The handwritten kernel of `loss` cannot be compiled for the GPU `target`."""

    def __init__(self, loss: str, target: str) -> None:
        self.loss = loss
        super().__init__(
            f"the handwritten kernel of {loss} is not made for {target}",
            remedy="Leave out this target: on such a GPU, the loss runs on generated kernels.",
        )


_REPORT = (
    "This is a bug in autogen: please report it, with the loss, at "
    f"https://github.com/autogen-loss/autogen-loss/issues. {_USE_DEFAULT_POLICY}"
)


class InternalError(AutogenError):
    """The compiler failed on `loss` with `cause`, which is chained to this error: a bug in autogen itself."""

    def __init__(self, loss: str, *, cause: BaseException) -> None:
        self.loss = loss
        super().__init__(f"autogen failed on {loss} ({_summary(cause)})", remedy=_REPORT)
        self.__cause__ = cause


@contextlib.contextmanager
def defects_of(loss: str) -> Iterator[None]:
    """Turn whatever the compiler raises that is no error of this package into an `InternalError`.

    A bug must not stop a training run: it is logged as what it is, and the loss runs in torch.
    """
    try:
        yield
    except AutogenError:
        raise
    except Exception as fault:
        raise InternalError(loss, cause=fault) from fault


class CompileError(AutogenError):
    """Triton refused the generated kernel named `kernel` with `cause`, which is chained to this error."""

    problem, remedy = "Triton could not compile the generated kernel", _REPORT

    def __init__(self, kernel: str, *, cause: BaseException) -> None:
        self.kernel = kernel
        super().__init__(f"{self.problem} {kernel} ({_summary(cause)})", remedy=self.remedy)
        self.__cause__ = cause


class StorageError(CompileError):
    """Triton could not read or write a file for the generated kernel named `kernel`: `cause`, chained to this error."""

    problem = "Triton could not read or write a file for the generated kernel"
    remedy = (
        "Make sure that Triton's cache (TRITON_CACHE_DIR) and the temporary folder have space and can be written. "
        f"{_USE_DEFAULT_POLICY}"
    )


class SharedCacheError(CompileError):
    """Other users may change what is in `folder` of the cache; `fault` says why."""

    def __init__(self, folder: str, fault: str) -> None:
        self.kernel = ""
        self.folder, self.fault = folder, fault
        AutogenError.__init__(
            self,
            f"the cache is not safe to use: {folder} {fault}",
            remedy=f"Delete the files in it that are not yours and run `chmod go-w {folder}`, or set AUTOGEN_CACHE_DIR "
            f"to another folder. {_USE_DEFAULT_POLICY}",
        )
