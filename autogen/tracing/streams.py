"""Torch's random streams while a loss is traced: fake tensors draw nothing, so a loss can only seed them."""

from __future__ import annotations

import torch

from autogen.errors import SourceLine, StateChangeError


class Streams:
    """Where the streams of the host and of a device are when a trace begins."""

    def __init__(self, device: torch.device) -> None:
        self._generators = [torch.default_generator]
        if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            self._generators.append(torch.cuda.default_generators[device.index or 0])
        with torch.utils._python_dispatch._disable_current_modes():
            self._before = [(each.initial_seed(), each.get_state()) for each in self._generators]

    def put_back(self) -> bool:
        """Have those that the loss has seeded where they were; whether there is one."""
        with torch.utils._python_dispatch._disable_current_modes():
            seeded = [
                (generator, before[1])
                for generator, before in zip(self._generators, self._before, strict=True)
                if _is_seeded(generator, *before)
            ]
            for generator, state in seeded:
                generator.set_state(state)
        return bool(seeded)

    def refuse_seeds(self, where: SourceLine | None = None) -> None:
        """`put_back`.

        Raises:
            StateChangeError: the loss has seeded one.
        """
        if self.put_back():
            raise StateChangeError("the state of torch's random stream", where=where)


def _is_seeded(generator: torch.Generator, seed_before: int, state_before: torch.Tensor) -> bool:
    """Whether a stream has begun anew; what other threads draw only moves it."""
    seed, state = generator.initial_seed(), generator.get_state()
    if torch.equal(state, state_before):
        return False
    return seed != seed_before or torch.equal(state, torch.Generator(generator.device).manual_seed(seed).get_state())
