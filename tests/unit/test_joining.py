"""Joins and writes at places: what they read is what torch reads, and nothing where sizes decide."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import ir
from autogen.ir import Axis
from autogen.lowering.entries import both, is_below, is_within
from tests.unit.pipeline import Loss, check, floats, program_of

N_SIZE, C_SIZE = sympy.symbols("N C", integer=True, positive=True)
N, C = Axis("n", N_SIZE), Axis("c", C_SIZE)


class TestEntries:
    @pytest.mark.parametrize(
        ("entry", "bound", "expected"),
        [
            (C, C_SIZE, True),
            (C, C_SIZE - 1, None),
            (C + C_SIZE, C_SIZE, False),
            (C - 1, C_SIZE - 1, True),
            (N * C_SIZE + C, N_SIZE * C_SIZE, True),
            (C_SIZE - 1 - C, C_SIZE, True),
            (C * N, C_SIZE * N_SIZE, None),
            (sympy.Integer(2), sympy.Integer(3), True),
            (sympy.Integer(3), sympy.Integer(3), False),
            (C, N_SIZE, None),
        ],
        ids=str,
    )
    def test_what_sizes_decide(self, entry: sympy.Expr, bound: sympy.Expr, expected: bool | None) -> None:
        found = is_below(entry, bound)
        assert found is expected if expected is not None else isinstance(found, ir.Node)

    def test_a_computed_entry_is_never_decided(self) -> None:
        assert isinstance(is_below(ir.index(C), C_SIZE), ir.Node)
        assert is_within(C, C_SIZE) is True and is_within(C - C_SIZE, C_SIZE) is False

    def test_both(self) -> None:
        question = ir.apply("lt", ir.index(C), ir.index(N))
        assert both(True, question) is question and both(question, False) is False and both(True, True) is True


LOSSES: dict[str, Loss] = {
    "cat of pieces": lambda x, y: torch.cat([x[:, 1:], y, x[:, :1]], 1),
    "cat of cats": lambda x, y: torch.cat([torch.cat([x, y], 0), y * 2], 0).exp(),
    "cat, flattened": lambda x, y: torch.cat([x, y], 1).flatten() ** 2,
    "cat, in other rows": lambda x, y: torch.cat([x[:3, :2], y[:3, :1]], 1).view(1, 9)[:, :7].exp(),
    "cat, flipped": lambda x, y: torch.cat([x, y], 0).flip(0).exp(),
    "cat with nothing": lambda x, y: torch.cat([torch.empty(0), x, y], 1),
    "stack, reshaped": lambda x, y: torch.stack([x, y], 1).reshape(3, -1),
    "stack, reduced": lambda x, y: torch.stack([x, y, x * y], 1).amax((1, 2)) + torch.stack([x, y], 2).sum((0, 1, 2)),
    "stack, standardised": lambda x, y: torch.stack([x, y, x + y], 0).std(0),
    "split of a stack": lambda x, y: torch.stack([x, y], 0).split(1, 0)[1].squeeze(0),
    "padded and reshaped": lambda x, y: F.pad(x, (1, 1)).reshape(-1) * F.pad(y, (0, 2)).flatten(),
    "flipped slices": lambda x, y: x[:, ::2].flip(1).flatten() * y.flip(0)[:, 1::2].flatten(),
    "windows": lambda x, y: x.detach().unfold(1, 2, 1).reshape(3, -1) * y[:, :1],
    "diagonals of diagonals": lambda x, y: torch.diag_embed(x.diagonal(-1)) + torch.diag_embed(y.diagonal(1)[:2], 0),
    "products": lambda x, y: (x[:, :3] * y[:, 1:]).prod(1) + x[:, :2].cumprod(1).sum(1),
    "gradients of strided slices": lambda x, y: x[:, 1::2].reshape(-1) * y[:, ::2].reshape(-1),
    "rows of a slice": lambda x, y: (x[1:].reshape(-1, 2) * y[:-1].reshape(-1, 2)).sum(1),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_joins(name: str) -> None:
    check(LOSSES[name], floats(3, 4), floats(3, 4, seed=1))


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y: torch.cat([x, y], 1)[:, x.shape[1] :],
        lambda x, y: torch.cat([x, y], 0)[x.shape[0] :],
        lambda x, y: torch.stack([x, y])[1],
        lambda x, y: torch.stack([x, y], -1).unbind(-1)[1],
        lambda x, y: torch.cat([x, y], 1).split([x.shape[1], y.shape[1]], 1)[1],
    ],
    ids=["columns", "rows", "stack", "unbind", "split"],
)
def test_a_piece_is_read_alone(loss: Loss) -> None:
    program, _ = program_of(loss, floats(3, 4, grad=False), floats(3, 4, grad=False))
    (load,) = (node for node in ir.topological([program.outputs[0].node]) if node.op == "load")
    assert load.attrs[0].name == "y" and load is program.outputs[0].node


def write(x: Tensor, places: Any, value: Tensor, accumulate: bool = False) -> Tensor:
    return torch.ops.aten.index_put(x, places, value, accumulate)


class TestWrites:
    @pytest.mark.parametrize("accumulate", [False, True])
    def test_one_place_per_row(self, accumulate: bool) -> None:
        y = torch.tensor([2, 0, 3])
        check(lambda x, y: write(x, (torch.arange(3), y), x[:, 0] * 2, accumulate) ** 2, floats(3, 4), y)
        check(lambda x, y: write(x, (torch.arange(3), y - 4), x[:, 0] * 2, accumulate) ** 2, floats(3, 4), y)

    def test_places_in_steps(self) -> None:
        check(lambda x: write(x, (None, torch.arange(1, 6, 2)), x[:, :3], True) ** 2, floats(3, 7))
        check(lambda x: write(x, (torch.arange(2) + 1,), x[:2]) ** 2, floats(4, 3))
        check(lambda x: write(x, (torch.arange(2) - 3,), x[:2]) ** 2, floats(4, 3))

    def test_by_a_mask(self) -> None:
        check(lambda x: write(x, (x > 0,), torch.tensor(7.0, dtype=x.dtype)) ** 2, floats(3, 4))
        check(lambda x: write(x, (None, x[0] > 0), torch.tensor(7.0, dtype=x.dtype), True) ** 2, floats(3, 4))

    def test_to_dimensions_that_are_apart(self) -> None:
        x, y = floats(3, 2, 4), torch.tensor([2, 0, 3])
        check(lambda x, y: x[torch.arange(3), :, y].exp(), x, y)
        check(lambda x, y: x[:, 0][torch.arange(3), y].exp(), x, y)


@pytest.mark.slow
def test_many_parts() -> None:
    """The gradient of one joins zeros for all others, which are one choice."""

    def first(x: Tensor) -> Tensor:
        return x.unbind(-1)[0] * 2

    program, _ = program_of(first, floats(2, 96))
    assert sum(node.op == "where" for node in ir.topological([program.gradients[0].node])) == 1
    check(first, floats(2, 96))
