"""The reports of `explain`, as data, text and HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from autogen.report import html

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DirectionReport:
    """The forward or backward kernels of a loss, as `explain` reports them.

    Attributes:
        launches: the number of kernel launches per call.
        source: the source of the Triton modules.
        bytes_moved: bytes that the kernels read and write for the given sizes. A tensor counts once per pass over it,
            and once per program that reads it anew; a read at computed indices counts one element per index. For
            handwritten kernels, each tensor counts once.
        bytes_minimum: bytes of everything that must be read or written at least once.
        kernels: the names of the kernels.
        torch_steps: what torch runs before or between the kernels, each with the user's source line.
        cuts: for every kernel but the first, why the one before could not do its work, too.
        configs: for each generated kernel, its tiles and warps, and whether they are the default or tuned.
        passes: for kernels that walk rows more than once, what they read again, and which reduction waits for which.
        chunks: for matrix products computed in chunks, how many rows a chunk has. `launches`, `bytes_moved` and
            `bytes_minimum` are of all chunks.
    """

    launches: int
    source: str
    bytes_moved: int
    bytes_minimum: int
    kernels: tuple[str, ...]
    torch_steps: tuple[str, ...] = ()
    cuts: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    chunks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """How a call of a loss runs, as `explain` reports it; `str` of it is a text for people.

    Attributes:
        loss: the loss's name.
        path: "generated", "handwritten", "partial" (torch runs a part of it), "eager" or "inductor".
        reason: why the call takes this path, in one sentence, with the user's source line if one is the reason.
        forward: the forward kernels, None if the path is "eager" or "inductor".
        backward: the backward kernels, None if there are none.
        breaks: why torch ends a graph of the loss before the loss does, each with the user's source line.
        graphs: what AOTAutograd captured, a graph for each part of the loss that computes something. Each has forward
            and backward in one, or forward alone where nothing asks for a gradient; it takes the arguments and the
            upstream gradients, and returns the results and the gradients. Empty for handwritten kernels, and where
            torch was not asked. Neither compared, printed nor pickled.
    """

    loss: str
    path: str
    reason: str
    forward: DirectionReport | None = None
    backward: DirectionReport | None = None
    breaks: tuple[str, ...] = ()
    graphs: tuple[torch.fx.GraphModule, ...] = field(default=(), compare=False, repr=False)

    @property
    def graph(self) -> torch.fx.GraphModule | None:
        """The first of `graphs`, which for most losses is the only one; None if there is none."""
        return self.graphs[0] if self.graphs else None

    def to_dict(self) -> dict[str, Any]:
        """The report as dictionaries, lists, numbers and strings that JSON can hold; graphs are source."""
        return {
            "loss": self.loss,
            "path": self.path,
            "reason": self.reason,
            "forward": _listed(self.forward),
            "backward": _listed(self.backward),
            "breaks": list(self.breaks),
            "graphs": [each.print_readable(print_output=False) for each in self.graphs],
        }

    def _repr_html_(self) -> str:
        """The report for a notebook."""
        return html.section(self.to_dict())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "graphs": ()}

    @property
    def summary(self) -> str:
        """The report without the source of its kernels."""
        lines = [f"{self.loss}: {self.path}", f"  because {self.reason}"]
        lines += [f"  a graph ends, as {reason}" for reason in self.breaks]
        for name, direction in (("forward", self.forward), ("backward", self.backward)):
            if direction is not None:
                ratio = direction.bytes_moved / direction.bytes_minimum if direction.bytes_minimum else 1.0
                lines.append(
                    f"  {name}: {direction.launches} launch{'es' if direction.launches != 1 else ''} "
                    f"({', '.join(direction.kernels)}), {direction.bytes_moved:,} bytes moved, "
                    f"{ratio:.2f} times the minimum"
                )
                lines += [f"    {config}" for config in direction.configs]
                lines += [f"    {reason}" for reason in direction.passes]
                lines += [f"    torch runs {step}" for step in direction.torch_steps]
                lines += [f"    {text}" for text in direction.chunks]
                lines += [f"    cut, as {reason}" for reason in direction.cuts]
        return "\n".join(lines)

    def __str__(self) -> str:
        lines = [self.summary]
        for direction in (self.forward, self.backward):
            if direction is not None:
                lines += ["", direction.source.rstrip()]
        return "\n".join(lines)


def _listed(direction: DirectionReport | None) -> dict[str, Any] | None:
    """A direction as JSON has it."""
    if direction is None:
        return None
    fields: Mapping[str, Any] = asdict(direction)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
