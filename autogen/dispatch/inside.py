"""Losses inside a function that the user compiles with `torch.compile`: one op forward, and one backward.

Dynamo traces the loss into a graph of its own, and puts an operator in the graph around it. What a backend makes of the
operator is decided here. Where AOTAutograd traces it, the graph is captured as that of any loss, and what is recorded
are the ops `autogen::forward` and `autogen::backward`, which launch its kernels; or, if there are none, the operations
of the graph, which the backend then fuses as if the loss were not decorated.

The operations of the graph are also what is recorded where the loss draws random numbers, returns numbers, needs a
prologue, calls collectives, or writes to its inputs. Under `torch.export` the loss is a part of the graph around it. If
it has no single graph, the one around it ends, and the loss is called between two; with `fullgraph=True` it is inlined,
unless kernels are mandatory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from autogen import compat
from autogen.capture.packing import packs
from autogen.dispatch.backend import Compilation
from autogen.dispatch.fallbacks import Fallbacks
from autogen.dispatch.ops import Ops, separated
from autogen.dispatch.site import Site
from autogen.errors import ASKED_FOR, AutogenError, GraphError, defects_of
from autogen.runtime.availability import PLAIN_TENSORS, is_functional, is_transformed, require
from autogen.runtime.locks import compiling
from autogen.settings.options import Options


def run_graph(
    graph: torch.fx.GraphModule, operands: Sequence[Any], name: str, options: Options, *, mandatory: bool
) -> Any:
    """Run, or record, the graph of a loss, given tensors, or what stands for them in a trace.

    Raises:
        AutogenError: there are no kernels, and they are mandatory.
    """
    if not is_transformed():  # a backend that runs the graph around the loss as it is
        site = graph.meta.get("autogen_site")
        if site is None:
            site = graph.meta["autogen_site"] = Site(graph.forward, name, options, Fallbacks(), mandatory=mandatory)
        return site(*operands)
    try:
        ops = _ops_of(graph, operands, name, options)
    except AutogenError as error:
        if mandatory or isinstance(error, ASKED_FOR):
            raise
        ops = None
    return graph(*operands) if ops is None else ops(operands)


def _ops_of(graph: torch.fx.GraphModule, operands: Sequence[Any], name: str, options: Options) -> Ops | None:
    """The ops for a graph and operands of a trace; None if torch is to run it.

    Raises:
        AutogenError: there are no kernels.
    """
    fakes = None if is_functional() else compat.fakes_of(operands)
    if fakes is None:
        return None
    tensors, numbers = separated(fakes)
    require(tensors, (*PLAIN_TENSORS, *map(type, tensors)))
    if not all(isinstance(each, (int, torch.SymInt)) for each in numbers):
        raise GraphError(name, "it takes a float that changes")
    if packs(graph):
        raise GraphError(name, "torch puts tensors of lists together before its kernels")
    wanted = [isinstance(each, Tensor) and each.requires_grad for each in operands]
    # AOTAutograd runs a graph more than once.
    geometry = [(each.dtype, each.device, tuple(each.shape), each.stride()) for each in tensors]
    known, key = graph.meta.setdefault("autogen_ops", {}), repr((geometry, wanted, torch.is_grad_enabled()))
    if key not in known:
        with compiling, compat.apart(fakes, wanted) as example, defects_of(name):
            runner, segment = Compilation(name, replace(options, gradient="backward"), graph).run(example)
        refusal = "it writes to what it reads, or returns a view" if runner is not segment else Ops.refusal(segment)
        if refusal:
            raise GraphError(name, refusal)
        known[key] = Ops(segment)
    found: Ops = known[key]
    return found
