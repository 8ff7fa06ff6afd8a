"""Functions that keep what they return (`functools.lru_cache`), in a trace: they must not keep what it is made of."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from autogen.calls.memos import MEMO
from autogen.calls.reachable import Reachable
from autogen.tracing.recorder import Recorder
from autogen.tracing.symbols import SYMBOLS

_TRACED = (torch.Tensor, *SYMBOLS)


def stand_in(memo: Any) -> Any:
    """What a trace calls in the place of a function that keeps what it returns, or of such a method of a class.

    A window or a table becomes part of the trace, as if nothing kept it. What is no tensor is what torch would find:
    the one configuration, a warning that is given once.
    """
    if isinstance(memo, (staticmethod, classmethod)):
        return type(memo)(stand_in(memo.__func__))
    if isinstance(memo, property):
        return property(stand_in(memo.fget), memo.fset, memo.fdel)
    if not isinstance(memo, MEMO):
        return memo

    @functools.wraps(memo)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = next((each for each in _get_current_dispatch_mode_stack() if isinstance(each, Recorder)), None)
        if recorder is None:  # another thread calls it, or what is no part of the trace
            return memo(*args, **kwargs)
        if not _reaches_tensors(memo, args, kwargs):
            with _disable_current_modes():
                kept = memo(*args, **kwargs)
            if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(kept)):
                return kept
        with recorder.recording.remembering:
            result = memo.__wrapped__(*args, **kwargs)
        recorder.recording.freeze(leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor))
        return result

    for name in ("cache_info", "cache_clear", "cache_parameters", "__wrapped__"):
        setattr(call, name, getattr(memo, name))
    return call


def _reaches_tensors(memo: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call may find anything that stands for a tensor, or a number, of the call that is traced."""
    if any(isinstance(leaf, _TRACED) for leaf in pytree.tree_leaves((args, kwargs))):
        return True
    walk = Reachable()
    for each in (memo.__wrapped__, *args, *kwargs.values()):
        walk.visit(each)
    walk.visit_rest()
    return walk.is_endless or any(isinstance(each.value, _TRACED) for each in walk.tensors)
