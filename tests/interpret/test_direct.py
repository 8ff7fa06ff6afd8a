"""Calls in any order, of any geometry: what is launched directly is given the memory and the numbers of its call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import autogen.losses
from autogen import autogen_loss, policy
from tests.interpret.direct import DIRECT
from tests.tiers import examples


def rows(x: Tensor, y: Tensor) -> Tensor:
    """Backward needs several numbers of each row, which are packed."""
    return (x.log_softmax(-1) * y.softmax(-1)).sum(-1).square().mean()


def several(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs of other shapes and dtypes, one of which has no gradient."""
    distance = (x - y).abs()
    return distance.sum(-1), distance.mean(), (distance > 1).sum()


def parts(x: Tensor, y: Tensor) -> Tensor:
    """Groups of rows that have nothing to do with each other, in one launch."""
    return F.mse_loss(x, y) + x.logsumexp(0).mean() + y.softmax(-1).square().sum()


def steps(x: Tensor, y: Tensor) -> Tensor:
    """Steps of torch between launches."""
    return ((x * 2).sort(0).values - (y + 1).t().cumsum(0).t()).tanh().mean()  # smooth, as scans round


def constant(x: Tensor, y: Tensor) -> Tensor:
    """Reads a tensor that is built from numbers."""
    return (x.unsqueeze(-1) * torch.tensor([1.0, -2.0, 3.0], dtype=x.dtype) - y.unsqueeze(-1)).square().mean()


def unreduced(x: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none")


class Cosine(autogen.losses.CosineEmbeddingLoss):
    """Kernels that are handwritten."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x, y, torch.ones(len(x)))


LOSSES = (rows, several, parts, steps, constant, unreduced)


class Call(NamedTuple):
    """Sizes, where in memory the tensors begin, how they lie there, their type, and which are differentiated."""

    shape: tuple[int, int]
    offsets: tuple[int, int]
    layout: str
    dtype: torch.dtype
    wanted: tuple[bool, bool]

    def tensors(self, seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [self._tensor(generator, *each) for each in zip(self.offsets, self.wanted, strict=True)]

    def _tensor(self, generator: torch.Generator, offset: int, is_wanted: bool) -> Tensor:
        n = self.shape[0] * self.shape[1]
        flat = torch.randn(2 * n + offset, generator=generator, dtype=torch.float64).to(self.dtype)[offset:]
        tensor = {
            "dense": lambda: flat[:n].view(self.shape),
            "strided": lambda: flat[::2].view(self.shape),
            "transposed": lambda: flat[:n].view(self.shape[::-1]).t(),
            "expanded": lambda: flat[: self.shape[1]].expand(self.shape),
        }[self.layout]()
        return tensor.requires_grad_(is_wanted)


_SHAPES = st.tuples(st.sampled_from([1, 2, 3, 16, 33]), st.sampled_from([1, 4, 5, 16, 40]))
_OFFSETS = st.tuples(*[st.sampled_from([0, 0, 1, 4])] * 2)
_LAYOUTS = st.sampled_from(["dense", "dense", "strided", "transposed", "expanded"])
_DTYPES = st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float64])
_WANTED = st.sampled_from([(True, True), (True, False), (False, True), (False, False)])


@st.composite
def sequences(draw: st.DrawFn) -> list[Call]:
    """Calls that differ from each other in one or two things, or in none."""

    def few(choices: st.SearchStrategy[Any], most: int = 2) -> st.SearchStrategy[Any]:
        return st.sampled_from(draw(st.lists(choices, min_size=1, max_size=most)))

    call = st.builds(Call, few(_SHAPES, 3), few(_OFFSETS), few(_LAYOUTS), few(_DTYPES), few(_WANTED))
    return draw(st.lists(call, min_size=4, max_size=8))


def _outputs(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


def _gradients(value: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    outputs = [each for each in _outputs(value) if each.requires_grad]
    wanted = [each for each in tensors if each.requires_grad]
    if not outputs:
        return []
    upstream = [torch.linspace(-1, 1, each.numel(), dtype=each.dtype).view_as(each) for each in outputs]
    return list(torch.autograd.grad(outputs, wanted, upstream))


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


def _compare(ours: Callable[..., Any], theirs: Callable[..., Any], sequence: Sequence[Call]) -> None:
    """All calls, and then backward of each, from the last to the first."""
    begun = []
    for k, call in enumerate(sequence):
        tensors = call.tensors(k)
        begun.append((tensors, ours(*tensors)))
    for tensors, value in reversed(begun):
        exact = [_double(each) for each in tensors]
        expected = theirs(*exact)
        tolerance = {torch.float64: 1e-10, torch.float32: 2e-4, torch.bfloat16: 0.1}[tensors[0].dtype]
        found = [*_outputs(value), *_gradients(value, tensors)]
        for own, true in zip(found, [*_outputs(expected), *_gradients(expected, exact)], strict=True):
            torch.testing.assert_close(own.double(), true.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.interpreted  # it counts what the interpreter's launcher is given
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
@settings(max_examples=examples(10), suppress_health_check=list(HealthCheck))
@given(sequence=sequences())
def test_sequences(loss: Callable[..., Any], sequence: list[Call]) -> None:
    DIRECT.take()
    with policy("mandatory"):
        _compare(autogen_loss(loss), loss, sequence)
    if max(map(sequence.count, sequence)) > 3:
        assert DIRECT.take()


@pytest.mark.interpreted  # it counts what the interpreter's launcher is given
@settings(max_examples=examples(10), suppress_health_check=list(HealthCheck))
@given(sequence=sequences())
def test_sequences_on_handwritten_kernels(sequence: list[Call]) -> None:
    DIRECT.take()
    with policy("mandatory"):
        _compare(Cosine(margin=0.1), Cosine(margin=0.1, use_autogen=False), sequence)
    if max(map(sequence.count, sequence)) > 3:
        assert DIRECT.take()
