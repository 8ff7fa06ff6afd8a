"""Tensors of a trace that are on another device than its inputs, which no kernel may read or return as its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch

from autogen.errors import UnsupportedOpError
from autogen.torch_step import TorchStep
from autogen.tracing.domain.ahead import ancestors

aten = torch.ops.aten


def copy_to_device(tensor: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """A copy on another device, such as one for a log: a step of torch, whatever kernels have of casts."""
    copy: torch.Tensor = aten._to_copy.default(tensor, **kwargs)
    return copy


class Devices:
    """Where the tensors of a trace are; of nodes whose tensor is not where the first input is, `meta["elsewhere"]`."""

    def __init__(self) -> None:
        self._main: torch.device | None = None

    def note(self, node: torch.fx.Node, tensor: torch.Tensor) -> None:
        """Where the tensor of a node is."""
        if self._main is None:
            self._main = tensor.device
        elif self.is_elsewhere(tensor):
            node.meta["elsewhere"] = tensor.device

    def is_elsewhere(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is elsewhere."""
        return tensor.device != self._main


def refuse_elsewhere(results: Iterable[torch.fx.Node]) -> None:
    """Raise if kernels would read or return a tensor that is elsewhere. A result may be a copy, which torch makes; what
    results are made of may be a constant, which kernels write out.

    Raises:
        UnsupportedOpError: something is computed, found, returned or expected there.
    """
    results = set(results)
    for node in ancestors(*results):
        if "elsewhere" not in node.meta or (node.target is copy_to_device and not node.users):
            continue
        if node in results or any(each.op == "placeholder" for each in ancestors(node)):
            refuse(node)


def refuse(node: torch.fx.Node) -> NoReturn:
    """Raise, as the tensor of a node is elsewhere.

    Raises:
        UnsupportedOpError: in any case.
    """
    name = "a tensor" if node.op == "placeholder" else TorchStep.name_of(node.target)
    raise UnsupportedOpError(f"{name} on the device {node.meta['elsewhere']}", where=node.meta.get("origin"))
