"""Modules of torch: what they keep that is not the user's."""

from __future__ import annotations

from typing import Any

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


def scripted(module: torch.jit.ScriptModule) -> dict[str, Any]:
    """The attributes of a module of TorchScript, which gives them by name alone, but for its tensors."""
    known = vars(module).get("_concrete_type")
    names = () if known is None else sorted(known.get_attributes().keys() - module._parameters.keys())
    values = {name: _as_tuples(getattr(module, name)) for name in names}
    return {name: value for name, value in values.items() if not isinstance(value, torch.Tensor)}


def _as_tuples(value: Any) -> Any:
    """A copy of a container, as TorchScript gives it, which shows that nothing can be put there."""
    if isinstance(value, dict):
        value = tuple(value.items())
    return tuple(map(_as_tuples, value)) if isinstance(value, (list, tuple)) else value
