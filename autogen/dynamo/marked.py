"""Losses with handwritten kernels, as `torch.compile` traces them: their arguments are marked in the graph.

A graph of torch's functions says what a loss computes; which handwritten kernels it has follows from what it is given.
So one node, a *mark*, has all arguments by name, tensors and options. It computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from autogen.dynamo import graphs
from autogen.frozen import frozen


@frozen
class Number:
    """An input of a graph that is a number. A float comes as a tensor, which the graph reads by `item`."""

    value: float
    is_tensor: bool

    def item(self) -> float:
        """The number."""
        return self.value


@frozen
class Marked:
    """What a mark says: the names of the arguments that are inputs of the graph, and the `options` beside them."""

    names: Mapping[Node, str]
    options: Mapping[str, Any]


def mark(**arguments: Any) -> Any:
    """The first argument; in a graph, this says what the others are."""
    return next(iter(arguments.values()))


def arguments_of(
    loss: str, names: Sequence[str], module: torch.nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`args` and `kwargs` of a call, for parameters of these names; marked, if handwritten kernels may be for it.

    A method has a `module` for its first parameter.

    Dynamo runs through this. What is marked as constant it calls for real.
    """
    names = names if module is None else names[1:]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if names[0] not in given or (module is not None and _is_changed(module)):
        return args, kwargs
    arguments = {
        name: given[name] if name in given else getattr(module, name, default) for name, default in _defaults_of(loss)
    }
    if not all([each is None or isinstance(each, (torch.Tensor, int, float, str)) for each in arguments.values()]):
        return args, kwargs
    first = mark(**arguments)
    return ((first, *args[1:]), kwargs) if args else (args, {**kwargs, names[0]: first})


def _defaults_of(loss: str) -> tuple[tuple[str, Any], ...]:
    """The arguments of a loss's handwritten kernels, and their defaults; None for those that have to be given."""
    from autogen.runtime.handwritten import REQUIRED

    make = graphs.options_of(loss).handwritten
    assert make is not None
    return tuple([(name, None if default is REQUIRED else default) for name, default in make().defaults.items()])


def _is_changed(module: torch.nn.Module) -> bool:
    """Whether a module computes something else than the loss whose `forward` it has."""
    methods, changed = _methods_of(type(module))
    return bool(changed) or any([name in module.__dict__ for name in methods])


def _methods_of(kind: type[torch.nn.Module]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    from autogen.runtime.handwritten import methods_of

    return methods_of(kind)


_constant: tuple[Any, ...] = (_defaults_of, _methods_of)
for _each in _constant:
    _each._dynamo_marked_constant = True


def marked(graph: GraphModule, inputs: Mapping[Node, Any]) -> Marked | None:
    """What a graph's mark says, if it has one for all tensors among its `inputs`, each of which is one argument."""
    found = graph.graph.find_nodes(op="call_function", target=mark)
    if len(found) != 1:
        return None
    names: dict[Node, str] = {}
    options: dict[str, Any] = {}
    for name, each in found[0].kwargs.items():
        read = each.args[0] if isinstance(each, Node) and each.op == "call_method" and each.target == "item" else each
        value = inputs.get(read) if isinstance(read, Node) else read
        if isinstance(value, Number):
            options[name] = value.value
        elif not isinstance(read, Node):
            options[name] = value
        elif isinstance(value, int) and read not in names:
            names[read] = name
        else:
            return None
    return Marked(names, options) if len(names) == sum(isinstance(each, int) for each in inputs.values()) else None
