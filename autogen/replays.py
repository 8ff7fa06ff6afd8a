"""Torch's own gradients of a call that ran on kernels, by replaying the loss as it was then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from autogen.frozen import frozen


def stream_of(device: torch.device) -> torch.Tensor:
    """Where torch's random stream on a device is."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextlib.contextmanager
def _at(stream: torch.Tensor | None, device: torch.device) -> Iterator[None]:
    """Draw random numbers from where a stream was, and leave the stream where it is."""
    if stream is None:
        yield
        return
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        if on_gpu:
            torch.cuda.set_rng_state(stream, device)
        else:
            torch.set_rng_state(stream)
        yield


@frozen
class Replayed:
    """A loss that torch can run again: `results` gives its tensors for those of the call, drawing from `stream` on."""

    results: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    stream: torch.Tensor | None

    def gradients(
        self, tensors: Sequence[torch.Tensor], wanted: Sequence[bool], upstream: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """The gradients of the wanted tensors; they can be differentiated again where gradients are enabled.

        `upstream` are the gradients of the first of the results; torch does not go through those that have none.
        """
        if torch.is_grad_enabled():
            return self._differentiable(tensors, wanted, upstream)
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_(needs) for tensor, needs in zip(tensors, wanted, strict=True)]
            found = self._differentiable(leaves, wanted, upstream)
        return [None if gradient is None else gradient.detach() for gradient in found]

    def _differentiable(
        self, tensors: Sequence[torch.Tensor], wanted: Sequence[bool], upstream: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        with _at(self.stream, tensors[0].device):
            results = self.results(tensors)
        pairs = [(r, u) for r, u in zip(results, upstream, strict=False) if u is not None and r.requires_grad]
        chosen = [k for k, is_wanted in enumerate(wanted) if is_wanted]
        found = torch.autograd.grad(
            [r for r, _ in pairs],
            [tensors[k] for k in chosen],
            [u for _, u in pairs],
            create_graph=True,
            allow_unused=True,
        )
        given: list[torch.Tensor | None] = [None] * len(tensors)
        for k, gradient in zip(chosen, found, strict=True):
            given[k] = gradient
        return given
