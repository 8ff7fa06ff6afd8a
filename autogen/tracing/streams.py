"""Torch's random streams while a loss is traced: fake tensors draw nothing, so only the loss can move them."""

from __future__ import annotations

import torch


class Streams:
    """Where the streams of the host and of a device are when a trace begins."""

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._states = self._now()

    def _now(self) -> list[torch.Tensor]:
        with torch.utils._python_dispatch._disable_current_modes():
            states = [torch.get_rng_state()]
            if self._device is not None and not torch.cuda.is_current_stream_capturing():
                states.append(torch.cuda.get_rng_state(self._device))
            return states

    def have_moved(self) -> bool:
        """Whether the loss has seeded one of them."""
        with torch.utils._python_dispatch._disable_current_modes():
            return not all(map(torch.equal, self._states, self._now()))

    def put_back(self) -> None:
        """Have them where they were."""
        with torch.utils._python_dispatch._disable_current_modes():
            torch.set_rng_state(self._states[0])
            for state in self._states[1:]:
                torch.cuda.set_rng_state(state, self._device)  # type: ignore[arg-type]
