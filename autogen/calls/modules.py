"""Modules of torch: what they keep that is not the user's."""

from __future__ import annotations

import torch

SHORTCUTS = "_autogen_shortcuts"  # an attribute of modules that keep their own

_INTERNALS = frozenset({*vars(torch.nn.Module()), SHORTCUTS}) - {"training"}
_OF_DISTRIBUTED = "__composable_api_state_key"  # so begins what `fully_shard` and its like put there

# What runs where a module is called: of each, and of all modules.
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
HOOKS_OF_ALL = (
    *("_global_forward_pre_hooks", "_global_forward_hooks"),
    *("_global_backward_pre_hooks", "_global_backward_hooks"),
)


def torchs_own(module: torch.nn.Module) -> frozenset[str]:
    """The attributes of a module that are kept for torch's use, and ours."""
    return _INTERNALS.union(key for key in vars(module) if key.startswith(_OF_DISTRIBUTED))
