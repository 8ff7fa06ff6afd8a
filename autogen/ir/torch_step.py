"""Extern steps, which torch runs between kernels: matrix products, sorts, convolutions, random draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from autogen import compat, ir
from autogen.compat import pytree
from autogen.errors import SourceLine
from autogen.ir.sizes import Evaluator


@dataclass(frozen=True)
class Operand:
    """A tensor among the arguments of a step, by the name of its buffer."""

    name: str


@dataclass(frozen=True)
class SizeArgument:
    """A size among the arguments of a step."""

    expression: sympy.Expr


class TorchStep:
    """One ATen op on tensors in memory.

    Args:
        target: the op's overload, or a function of the package's that returns a tensor.
        arguments: its positional and keyword arguments, tensors as `Operand`, sizes as `SizeArgument`.
        results: a buffer for every tensor that the op returns, None where it returns something else.
        line: the user's source line.
        backward: whether autograd calls it.
    """

    def __init__(
        self,
        target: Any,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        results: Sequence[ir.Buffer | None],
        line: SourceLine | None,
        *,
        backward: bool,
    ) -> None:
        self.target, self.results, self.line, self.backward = target, tuple(results), line, backward
        self._leaves, self._structure = pytree.tree_flatten(arguments)
        sizes = [leaf.expression for leaf in self._leaves if isinstance(leaf, SizeArgument)]
        self._sizes = Evaluator(sizes)
        self._strides = [None if each is None else Evaluator(each.strides) for each in self.results]

    @staticmethod
    def name_of(target: Any) -> str:
        """An op's name without its library and overload, such as `mm`."""
        return (
            compat.schema_of(target).name.rpartition("::")[2].lstrip("_") if compat.is_op(target) else target.__name__
        )

    def calling(self, target: Callable[..., Any]) -> TorchStep:
        """The same with another function to call."""
        return TorchStep(target, self.arguments, self.results, self.line, backward=self.backward)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """The op's name, such as `mm`."""
        return self.name_of(self.target)

    @property
    def arguments(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Positional and keyword arguments, as they were given."""
        arguments: tuple[Sequence[Any], Mapping[str, Any]] = pytree.tree_unflatten(self._leaves, self._structure)
        return arguments

    @property
    def reads(self) -> tuple[str, ...]:
        """The buffers that it reads."""
        return tuple(dict.fromkeys(leaf.name for leaf in self._leaves if isinstance(leaf, Operand)))

    @property
    def writes(self) -> tuple[str, ...]:
        """The buffers that it makes."""
        return tuple(each.name for each in self.results if each is not None)

    @property
    def is_free(self) -> bool:
        """Whether it computes nothing: it looks at the same memory in another way, makes some with nothing in it, or
        waits for a collective.
        """
        makes_room = self.target is torch.ops.aten.new_empty_strided.default
        return is_view(self.target) or makes_room or (self.is_collective and self.name == "wait_tensor")

    @property
    def is_random(self) -> bool:
        """Whether it draws from torch's random stream."""
        return is_random(self.target)

    @property
    def is_collective(self) -> bool:
        """Whether other processes take part in it."""
        return is_collective(self.target)

    @property
    def is_ordered(self) -> bool:
        """Whether it runs in each call, once, and in the loss's own order."""
        return is_ordered(self.target)

    @property
    def is_op(self) -> bool:
        """Whether it is an op, and not a function of the package's, whose copy of a tensor is no op of ATen's."""
        return compat.is_op(self.target)

    @property
    def returns_tensor(self) -> bool:
        """Whether it returns one tensor, and not several, nor a list."""
        if not self.is_op:
            return len(self.results) == 1
        returns = compat.schema_of(self.target).returns
        return len(returns) == 1 and str(returns[0].type) == "Tensor"

    def numbers(self, sizes: Mapping[str, Any]) -> tuple[Any, ...]:
        """The sizes among its arguments, in their order."""
        return self._sizes(sizes)

    def __call__(self, tensors: dict[str, torch.Tensor], sizes: Mapping[str, int], device: torch.device) -> None:
        """Run it: read its operands from `tensors`, by name, and put its results there."""
        numbers = iter(self.numbers(sizes))

        def real(leaf: Any) -> Any:
            if isinstance(leaf, Operand):
                return tensors[leaf.name]
            return next(numbers) if isinstance(leaf, SizeArgument) else leaf

        args, kwargs = pytree.tree_unflatten([real(leaf) for leaf in self._leaves], self._structure)
        # The casts of autocast are steps of the trace already.
        with torch.no_grad(), compat.WithoutAutocast():
            returned = self.target(*args, **kwargs)
        parts = returned if isinstance(returned, (tuple, list)) else (returned,)
        for part, buffer, strides in zip(parts, self.results, self._strides, strict=True):
            if buffer is not None and strides is not None:
                # The fake op may have promised other strides than the real one has.
                tensors[buffer.name] = laid_out(part, strides(sizes))


class _Text(str):
    """Text that stands for itself in the text of a list."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def call_text(arguments: tuple[Sequence[Any], Mapping[str, Any]], written: Callable[[Any], str]) -> str:
    """The arguments of a call as Python writes them, each number and each tensor as it is to be `written`."""
    args, kwargs = pytree.tree_map(lambda leaf: _Text(written(leaf)), arguments)
    return ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])


def constant_text(value: Any, scope: dict[str, Any]) -> str:
    """A constant as Python writes it: a literal, or a name that the `scope` of the text gets for it."""
    if value is None or type(value) in (bool, int):
        return repr(value)
    name = f"constant_{len(scope)}"
    scope[name] = value
    return name


def laid_out(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """`tensor` with the strides that kernels expect."""
    agree = all(n == 1 or own == wanted for n, own, wanted in zip(tensor.shape, tensor.stride(), strides, strict=True))
    return tensor if agree or tensor.numel() == 0 else copied(tensor, strides)


def copied(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A copy with other strides, in memory that begins at a multiple of all that kernels ask for."""
    once = tensor[tuple([slice(None if stride else 1) for stride in strides])]
    copy = torch.empty_strided(once.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(once)
    return copy.expand_as(tensor)


def is_view(target: Any) -> bool:
    """Whether an op returns a view of its first argument."""
    schema = compat.schema_of(target)
    if schema is None:
        return False
    first = schema.arguments[0].alias_info if schema.arguments else None
    if first is None or first.is_write or len(schema.returns) != 1:
        return False
    return str(schema.returns[0].type) == "Tensor"


def is_random(target: Any) -> bool:
    """Whether an op draws from torch's random stream."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def is_collective(target: Any) -> bool:
    """Whether other processes take part in an op: one of the functional collectives of `torch.distributed`."""
    schema = compat.schema_of(target)
    return schema is not None and schema.name.startswith("_c10d_functional::")


def is_ordered(target: Any) -> bool:
    """Whether an op has to run in each call, once, and in the loss's own order.

    Draws move torch's random stream. Collectives meet those of other processes, in the order in which each process
    calls them; another process may have other sizes, or run the loss in torch.
    """
    return is_random(target) or is_collective(target)


def ancestors(*nodes: torch.fx.Node) -> set[torch.fx.Node]:
    """The nodes that some nodes depend on, these included."""
    found: set[torch.fx.Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return found
