"""Torch's settings, which a loss may change for all that comes after it: no kernel does that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from autogen.availability import default_device
from autogen.errors import StateChangeError

# How each is read, and how it is set again.
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "grad mode": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (default_device, torch.set_default_device),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "choice of deterministic algorithms": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "detection of anomalies": (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda modes: torch.set_anomaly_enabled(*modes),
    ),
    "autocast on CPUs": (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    "autocast on GPUs": (lambda: torch.is_autocast_enabled("cuda"), lambda on: torch.set_autocast_enabled("cuda", on)),
}


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """What runs here may change a setting of torch only for a while.

    Raises:
        StateChangeError: one is another afterwards; it is set back.
    """
    before = {name: read() for name, (read, _) in _SETTINGS.items()}
    changed: list[str] = []
    try:
        yield
    finally:
        changed += (name for name, (read, _) in _SETTINGS.items() if read() != before[name])
        for name in changed:
            _SETTINGS[name][1](before[name])
    if changed:
        raise StateChangeError(f"torch's {changed[0]}", remedy="Change it outside of the loss.")
