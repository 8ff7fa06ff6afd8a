"""What an op returns for fake tensors, and why it returns nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from autogen.errors import SourceLine, UnsupportedOpError, ValueBranchError
from autogen.tracing.aten.checks import within_first
from autogen.tracing.aten.probes import probed
from autogen.tracing.aten.shapes import shaped
from autogen.tracing.aten.twins import writes_each_element
from autogen.tracing.python.disguise import undisguised

aten = torch.ops.aten

# Draws, and their gradients, that have no fake implementation: a new tensor of the shape of the first.
_LIKE_FIRST = frozenset(
    {
        aten._dirichlet_grad.default,
        aten._sample_dirichlet.default,
        aten._standard_gamma.default,  # has one, but not with torch 2.11
        aten._standard_gamma_grad.default,
        aten.binomial.default,
    }
)


def result_of(func: Any, args: Any, kwargs: Any, where: Callable[[], SourceLine | None]) -> Any:
    """The result of an op, called in the user's line `where`.

    Raises:
        UnsupportedOpError: the op has no fake implementation.
        ValueBranchError: a size of the result depends on values.
    """
    if func is aten.squeeze_.dim:  # with sizes as symbols, torch's process dies where the size is not 1
        func, args = aten.squeeze_.dims, (args[0], [args[1]])
    try:
        # What a user's own op returns for fake tensors, the user's code says.
        with undisguised() if func.namespace == "aten" else contextlib.nullcontext():
            if writes_each_element(func):
                within_first(*args)  # a fake tensor would be resized
            found = probed(func, args, kwargs)
            if found is None and not kwargs:
                found = shaped(func, args)
            return func(*args, **kwargs) if found is None else found
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ValueBranchError(str(func), where=where()) from error
    except UnsupportedOperatorException as error:
        if func not in _LIKE_FIRST:
            raise UnsupportedOpError(str(func), where=where()) from error
        return torch.empty_like(args[0], memory_format=torch.contiguous_format)
    except ZeroDivisionError:
        # torch finds the shape of a loss's gradient by its formula, which divides by the number of elements.
        if not func._schema.name.endswith("_loss_backward"):
            raise
        return torch.empty_like(args[1])
