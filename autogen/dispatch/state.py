"""What a loss changes that outlives its call: made when its kernels have run, as torch would have made it.

A trace says what there is to do (`autogen.calls.changes`). A tensor that is written in place belongs to somebody else,
and a tensor that is saved for backward has to stay as it was: kernels, and replays of the loss, work on a copy of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autogen.calls.binding import Binding, Replay
from autogen.calls.changes import Assigned, Computed, Formatted, Input, Output, Returned, Said, State
from autogen.calls.spots import Place
from autogen.calls.surroundings import Change
from autogen.dynamo import graphs
from autogen.locks import replaced
from autogen.runtime.replays import Replayed


def shared_container(state: State, binding: Binding) -> str | None:
    """Which dictionary that is changed is given twice, or kept elsewhere, too, where the change would be seen."""
    containers = [place.container for place in binding.given]
    for own in [containers[k] for k in state.given]:
        if sum(each is own for each in containers) > 1 or binding.state.knows(own):
            return f"a {type(own).__name__} that it is given, and finds elsewhere, too"
    return None


def shared_memory(state: State, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> str | None:
    """Which tensors share memory that is written to, if there are any: then a write to one changes the other."""
    if not state.written:
        return None
    memory = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    for each in state.written:
        if _overlaps_itself(tensors[each.position]):
            return f"the memory that elements of {names[each.position]} share"
        own = memory[each.position]
        if own and memory.count(own) > 1:
            other = next(k for k, its in enumerate(memory) if its == own and k != each.position)
            return f"the memory that {names[each.position]} and {names[other]} share"
    return None


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether several elements may have one place in memory."""
    if tensor.is_contiguous():
        return False
    last = 0  # element that the dimensions so far reach
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= last:
            return True
        last += (size - 1) * stride
    return False


def apart(state: State, tensors: Sequence[torch.Tensor], own: int) -> list[torch.Tensor]:
    """The tensors of a call, with copies of those that are written; what follows the `own` ones was found ahead."""
    if not state.written:
        return list(tensors)
    positions = {each.position for each in state.written}
    return [copy_of(tensor) if k in positions or k >= own else tensor for k, tensor in enumerate(tensors)]


def unheard(state: State) -> contextlib.AbstractContextManager[None]:
    """For a replay: what the loss says has been said."""
    if not state.said:
        return contextlib.nullcontext()
    from autogen.tracing.python import said

    return said.unheard()


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, with a graph of its own."""
    copy = tensor.clone()
    if copy.stride() == tensor.stride():  # not if there is memory between its elements
        return copy
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)


def keep(
    state: State,
    places: Sequence[Place],
    given: Sequence[Place],
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    sizes: Mapping[str, Any],
    result: Any,
    connect: Callable[[Assigned, int, torch.Tensor], torch.Tensor] | None = None,
) -> None:
    """Make the changes of one call that gives a `result`, to its `tensors` and `places`, and what it is `given`.

    `connect` gives a tensor, a leaf of what is assigned, its graph, which none has without.
    """
    connected: dict[int, torch.Tensor] = {}
    if state.read:
        sizes = _Numbers(sizes, state, outputs)

    def made(each: Assigned | Said, k: int) -> Any:
        leaf = each.leaves[k]
        if isinstance(leaf, Returned):
            return pytree.key_get(result, leaf.path)
        if isinstance(leaf, Formatted):
            return leaf.each(lambda number: number.value(sizes)).text()
        if isinstance(leaf, Input):
            tensor = tensors[leaf.position]
        elif isinstance(leaf, Output):
            tensor = connected.get(leaf.position, outputs[leaf.position])
            if leaf.inputs and connect is not None and leaf.position not in connected and isinstance(each, Assigned):
                tensor = connected[leaf.position] = connect(each, k, tensor)
        else:
            return leaf.value(sizes) if isinstance(leaf, Computed) else leaf
        return tensor.detach() if leaf.is_detached else tensor

    values = [each.value([made(each, k) for k in range(len(each.leaves))]) for each in state.assigned]
    for write in state.written:
        tensor, new = tensors[write.position], outputs[write.output]
        if write.is_replaced:
            tensor.data = new
        elif write.is_unseen:
            tensor.data.copy_(new)
        else:  # what is detached has the same version
            (tensor.detach() if tensor.requires_grad else tensor).copy_(new)
    replaced.settled()  # what is assigned while another thread replays would be taken out again
    for each, value in zip(state.assigned, values, strict=True):
        (given if each.is_given else places)[each.place].assign(each.key, value)
    for said in state.said:
        if said.is_wanted():
            said.say([made(said, k) for k in range(len(said.leaves))])


class _Numbers(dict[str, Any]):
    """The sizes of a call, and the numbers that the loss has read, of which none is waited for that nobody asks for."""

    def __init__(self, sizes: Mapping[str, Any], state: State, outputs: Sequence[torch.Tensor]) -> None:
        super().__init__(sizes)
        self._read, self._outputs = state.read, outputs

    def __missing__(self, name: str) -> Any:
        self[name] = number = self._outputs[self._read[name]].item()
        return number


class Connector:
    """Gives tensors that a loss has assigned the graph that they have in torch; nothing runs until it is asked for.

    Args:
        replay: the loss, on other tensors.
        stream: where torch's random stream was when it ran.
        tensors: what it ran on.
    """

    def __init__(self, replay: Replay, stream: torch.Tensor | None, tensors: Sequence[torch.Tensor]) -> None:
        self._replay, self._stream, self._tensors = replay, stream, tensors

    def __call__(self, each: Assigned, leaf: int, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that is a leaf of what was assigned, with its graph."""
        from autogen.tracing.results import flattened

        inputs, replay = each.leaves[leaf].inputs, self._replay

        def assigned(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            def then(returned: Any, changed: Callable[[], list[Change]]) -> list[torch.Tensor]:
                own = each.place, each.is_given, each.key
                now = (c.difference.now for c in changed() if (c.place, c.is_given, c.difference.key) == own)
                return [flattened(value)[0][leaf] for value in now]

            found: list[torch.Tensor] = replay(tensors, then)
            return found

        # Others must not be kept connected: it may be what was assigned by the call before, and so on.
        tensors = [own if k in inputs else own.detach() for k, own in enumerate(self._tensors)]
        connected: torch.Tensor = _Connected.apply(Replayed(assigned, self._stream), tensor, *tensors)
        return connected


class _Connected(torch.autograd.Function):
    """A tensor that kernels have computed, whose gradient torch's formula gives."""

    @staticmethod
    def forward(ctx: Any, replayed: Replayed, value: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.replayed = replayed
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        return value.detach()

    @staticmethod
    @graphs.unseen
    def backward(ctx: Any, upstream: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if upstream is None:  # what follows has handed over no gradient
            return (None,) * len(ctx.needs_input_grad)
        return None, None, *ctx.replayed.gradients(ctx.saved_tensors, ctx.needs_input_grad[2:], [upstream])
