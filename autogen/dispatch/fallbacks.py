"""Warn, once for a loss and a reason, that a loss runs in torch although kernels were possible.

That is where no part of a loss has kernels, where a kernel turns out not to compile, and where further captures are
over. The warning comes after the call, at the line of the user's code. Where kernels cannot run at all, there is none.
"""

from __future__ import annotations

import sys
import warnings

from autogen.capture.source import is_users
from autogen.errors import FallbackWarning


class Fallbacks:
    """What is known of one loss, and has been said of it.

    While torch captures, nothing is said: a warning that the user has made an error of would be one of the capture.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self.pending: list[FallbackWarning] = []

    def note(self, loss: str, reason: str, *, further: bool = False) -> None:
        """Note a reason, to be said after the call; `further` where other calls of the loss run on kernels."""
        if reason not in self._known:
            self._known.add(reason)
            self.pending.append(FallbackWarning(loss, reason, further=further))

    def say(self) -> None:
        """Warn of what has been noted, at the line of the user's code that is at work."""
        frame = sys._getframe(1)
        while frame.f_back is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        registry = frame.f_globals.setdefault("__warningregistry__", {})
        pending, self.pending = self.pending, []  # another thread may say something at the same time
        for noted in pending:
            warnings.warn_explicit(noted, FallbackWarning, frame.f_code.co_filename, frame.f_lineno, registry=registry)
