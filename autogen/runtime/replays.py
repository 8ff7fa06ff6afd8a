"""Torch's own gradients for a call that ran on kernels, by eager recomputation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from autogen import compat
from autogen.runtime.availability import default_device, is_functional, is_of_functions


def stream_of(device: torch.device) -> torch.Tensor:
    """Where torch's random stream on a device is; empty while a CUDA graph is captured, as nobody may ask then."""
    if device.type != "cuda":
        return torch.get_rng_state()
    if torch.cuda.is_current_stream_capturing():
        return torch.empty(0, device="cpu")
    return torch.cuda.get_rng_state(device)


@contextlib.contextmanager
def _at(stream: torch.Tensor | None, device: torch.device) -> Iterator[None]:
    """Draw random numbers from where a stream was, and leave the stream where it is.

    Raises:
        RuntimeError: that was in a CUDA graph.
    """
    if stream is None:
        yield
        return
    if not stream.numel():
        raise RuntimeError("what a loss has drawn in a CUDA graph cannot be drawn again, as second derivatives need it")
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []), compat.drawing_once():
        if on_gpu:
            torch.cuda.set_rng_state(stream, device)
        else:
            torch.set_rng_state(stream)
        yield


def _apart(tensor: torch.Tensor, is_wanted: bool) -> torch.Tensor:
    """A tensor with a graph that is its own, if a gradient is wanted."""
    if not is_wanted:
        return tensor.detach()
    # Where torch.func is at work, `requires_grad_` is not allowed.
    return tensor.view_as(tensor) if is_functional() else tensor.detach().requires_grad_()


def read_autocast() -> tuple[tuple[str, torch.dtype, bool], ...]:
    """Autocast on each kind of device: its dtype, and whether it is on."""
    return tuple((kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in ("cpu", "cuda"))


@dataclass(frozen=True)
class Settings:
    """Torch's settings that decide what a loss computes."""

    autocast: tuple[tuple[str, torch.dtype, bool], ...] = field(default_factory=read_autocast)
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    default_device: torch.device | None = field(default_factory=default_device)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """While torch has these again."""
        now = Settings()
        with contextlib.ExitStack() as stack:
            for each in set(self.autocast) - set(now.autocast):
                stack.enter_context(torch.autocast(*each))
            if self.default_dtype != now.default_dtype:
                torch.set_default_dtype(self.default_dtype)
                stack.callback(torch.set_default_dtype, now.default_dtype)
            if self.default_device != now.default_device:
                stack.enter_context(self.default_device or torch.device("cpu"))
            yield


@dataclass(frozen=True)
class Replayed:
    """A loss that torch can run again: `results` gives its tensors for those of the call, drawing from `stream` on.

    `settings` are those of the call.
    """

    results: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    stream: torch.Tensor | None
    settings: Settings = field(default_factory=Settings)

    def gradients(
        self, tensors: Sequence[torch.Tensor], wanted: Sequence[bool], upstream: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """The gradients of the wanted tensors; they can be differentiated again where gradients are enabled.

        `upstream` are the gradients of the first of the results; torch does not go through those that have none.
        """
        if is_of_functions(upstream):
            return self._pulled_back(tensors, wanted, upstream)
        if torch.is_grad_enabled():
            # One may be made of another, or be the same: then torch would go from it through the graph to the other.
            views = [t.view_as(t) if needs else t for t, needs in zip(tensors, wanted, strict=True)]
            return self._gradients(views, wanted, upstream, again=True)
        with torch.enable_grad():
            leaves = [_apart(tensor, needs) for tensor, needs in zip(tensors, wanted, strict=True)]
            return self._gradients(leaves, wanted, upstream, again=False)

    def _pulled_back(
        self, tensors: Sequence[torch.Tensor], wanted: Sequence[bool], upstream: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """The gradients where `torch.func` differentiates by the upstream ones: what it has wrapped is no leaf."""
        chosen = [k for k, is_wanted in enumerate(wanted) if is_wanted]
        arrived = [k for k, each in enumerate(upstream) if each is not None]

        def results(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            replaced = dict(zip(chosen, given, strict=True))
            found = self.results([replaced.get(k, tensor) for k, tensor in enumerate(tensors)])
            return tuple([found[k] for k in arrived])

        with _at(self.stream, tensors[0].device), self.settings.restored():
            pull_back: Any = torch.func.vjp(results, *[tensors[k] for k in chosen])[1]
        found = pull_back(tuple([each for each in upstream if each is not None]))
        gradients = dict(zip(chosen, found, strict=True))
        return [gradients.get(k) for k in range(len(tensors))]

    def _gradients(
        self,
        tensors: Sequence[torch.Tensor],
        wanted: Sequence[bool],
        upstream: Sequence[torch.Tensor | None],
        *,
        again: bool,
    ) -> list[torch.Tensor | None]:
        with _at(self.stream, tensors[0].device), self.settings.restored():
            results = self.results(tensors)
        pairs = [(r, u) for r, u in zip(results, upstream, strict=False) if u is not None and r.requires_grad]
        chosen = [k for k, is_wanted in enumerate(wanted) if is_wanted]
        found = torch.autograd.grad(
            [r for r, _ in pairs],
            [tensors[k] for k in chosen],
            [u for _, u in pairs],
            create_graph=again,
            allow_unused=True,
        )
        given: list[torch.Tensor | None] = [None] * len(tensors)
        for k, gradient in zip(chosen, found, strict=True):
            given[k] = gradient
        return given
