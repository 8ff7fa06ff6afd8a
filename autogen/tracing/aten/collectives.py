"""Communication with other processes, which no trace may make.

All processes make a collective together, once per call. A trace that made one would leave it out of all calls to come,
and as each process traces when it has to, another would take it for one of its own.
"""

from __future__ import annotations

import os
import traceback
from typing import Any

import torch

from autogen.tracing.source import is_users

_NAMESPACES = frozenset({
    "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d", "c10d_functional", "symm_mem",
})  # fmt: skip
_FOLDER = os.path.join(torch.__path__[0], "distributed", "")


def is_collective(op: Any) -> bool:
    """Whether an op is torch's for communication; their schemas do not always say that they write."""
    return op.namespace in _NAMESPACES


def function_that_raised(error: BaseException) -> str | None:
    """The function of `torch.distributed` that an exception has come from, None if there is none.

    Those that send objects may fail on stand-ins for tensors before they come to an op.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    name: str | None = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if is_users(code.co_filename):
            name = None
        elif name is None and code.co_filename.startswith(_FOLDER) and code.co_name != "wrapper":  # of all of them
            name = f"torch.distributed.{code.co_name}"
    return name
