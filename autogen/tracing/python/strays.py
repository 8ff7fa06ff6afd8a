"""Fake tensors that outlive their trace, as the loss keeps them where no walk looks: nobody is to find them there."""

from __future__ import annotations

import collections
import contextlib
import gc
import traceback
import types
import weakref
from typing import Any

import torch

from autogen.errors import AutogenError, without_frames

Made = list["weakref.ref[torch.Tensor]"]
"""The tensors of traces, which are not kept alive by this."""


def remove(made: Made, error: AutogenError | None = None) -> bool:
    """Take out of everything what is still there of some traces, but for the `error` that ended the last one, which
    forgets its frames; whether it was anywhere.

    Most traces leave nothing behind, and then nothing is looked for.
    """
    if error is not None:
        traceback.clear_frames(error.__traceback__)  # those who log may have it
        without_frames(error)
    if not any(each() is not None for each in made):
        return False
    gc.collect(0)  # there may be circles; nothing older is part of them, as none is collected while a loss is compiled
    strays = tuple([each for each in [each() for each in made] if each is not None])
    return bool(strays) and _remove(strays)


def _remove(strays: tuple[Any, ...], looking: frozenset[int] = frozenset()) -> bool:
    """Take them out of what refers to them, but for what this search itself is `looking` with, by identity.

    They are a tuple, as a call with any other sequence makes one, which from Python 3.13 on refers to them, too.
    """
    own = {id(each) for each in strays}
    is_removed = False
    holders = gc.get_referrers(*strays)
    looking |= {id(strays), id(holders)}
    for holder in holders:
        if id(holder) in looking or isinstance(holder, types.FrameType):
            continue
        if isinstance(holder, tuple):
            is_removed |= _remove((holder,), looking)
            continue
        with contextlib.suppress(Exception):  # of which any may refuse
            is_removed |= _take_out(holder, own)
    return is_removed


def _take_out(holder: Any, own: set[int]) -> bool:
    """Take out of an object what has one of some ids."""
    if isinstance(holder, dict):
        keys = [key for key, value in dict.items(holder) if id(value) in own or id(key) in own]
        for key in keys:
            del holder[key]
        return bool(keys)
    if isinstance(holder, (list, collections.deque)):
        rest = [each for each in holder if id(each) not in own]
        holder.clear()
        holder.extend(rest)
    elif isinstance(holder, set):
        holder.difference_update([each for each in holder if id(each) in own])
    elif isinstance(holder, types.CellType):
        del holder.cell_contents
    elif hasattr(holder, "cache_clear"):
        holder.cache_clear()
    else:
        names = [name for name, value in getattr(holder, "__dict__", {}).items() if id(value) in own]
        for name in names:
            delattr(holder, name)
        return bool(names)
    return True
