"""Lowering: whatever torch computes, the IR computes too, for results and gradients alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import ir
from autogen.lowering import decompositions, lowered_ops
from autogen.lowering.registry import LOWERINGS
from autogen.lowering.values import Value
from tests import tiers
from tests.unit.pipeline import Reference, check, floats, plan_of, program_of


def labels(*shape: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(seed))


OWN_OPS = {"masked_read", "masked_write"}  # of tracing


class TestRegistry:
    @pytest.mark.parametrize("name", sorted(LOWERINGS.keys() - OWN_OPS))
    def test_every_entry_is_an_overload_of_aten(self, name: str) -> None:
        base, overload = name.split(".")
        assert overload in getattr(torch.ops.aten, base).overloads()

    def test_what_is_lowered_is_not_decomposed(self) -> None:
        own = lowered_ops()
        assert len(own) == len(LOWERINGS.keys() - OWN_OPS)
        aten = torch.ops.aten  # of lengths alone, these are decomposed
        assert own & set(decompositions()) == {aten.segment_reduce.default, aten._segment_reduce_backward.default}

    def test_what_is_not_lowered_is_decomposed(self) -> None:
        assert torch.ops.aten.softplus.default in decompositions()


class TestNumbers:
    """Numbers that no tensor decides are computed on the host; sizes stay integers."""

    @staticmethod
    def leaves(loss: Callable[..., Tensor]) -> list[str]:
        program, _ = program_of(loss, torch.ones(5, 4))
        nodes = ir.topological(root.node for root in program.outputs)
        return sorted(f"{node.op} {node.attrs[0]}" for node in nodes if node.op in ("scalar", "index"))

    def test_a_number_is_one_leaf(self) -> None:
        assert self.leaves(lambda x: x * (1 - 1 / x.shape[0]) ** x.shape[1]) == [
            "scalar FloatPow(1.0 - (IntTrueDiv(1, N)), ToFloat(C))"
        ]

    def test_a_size_is_an_integer(self) -> None:
        assert self.leaves(lambda x: x.mean() + x.shape[0] * x.shape[1] + torch.sym_float(x.shape[0])) == [
            "index C*N",
            "index N",
        ]

    def test_with_a_number_that_is_read_the_known_ones_are_one(self) -> None:
        leaves = self.leaves(lambda x: x * (x.sum().item() * (1 / x.shape[1] - 1 / x.shape[0])))
        assert leaves == ["scalar (IntTrueDiv(1, C)) - (IntTrueDiv(1, N))"]
        leaves = self.leaves(lambda x: x * (x.shape[0] + (x > 0).sum().item() + x.shape[1]))
        assert leaves == ["index C + N"]


# Pointwise ops.

ALL_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
DTYPES = ALL_DTYPES if tiers.every else ALL_DTYPES[::3]
BINARY: dict[str, Callable[[Any, Any], Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "maximum": torch.maximum,
    "less": lambda a, b: a < b,
    "equal": lambda a, b: a == b,
    "where": lambda a, b: torch.where(a != 0, a, b),
    "logical and": torch.logical_and,
    "rounded division": lambda a, b: torch.div(a, b, rounding_mode="floor"),
}


def _defined(op: Callable[..., Tensor], *args: Any) -> bool:
    try:
        op(*args)
    except (RuntimeError, TypeError):
        return False
    return True


class TestPromotion:
    """Every dtype with every other, in one trace for each op: torch decides what the result is."""

    @pytest.mark.parametrize("op", BINARY)
    def test_of_two_tensors_is_torchs(self, op: str) -> None:
        vectors = [torch.tensor([1.0, 2.0, 3.0]).to(dtype) for dtype in DTYPES]
        others = [torch.tensor([3.0, 2.0, 1.0]).to(dtype) for dtype in DTYPES]
        # Of a tensor without dimensions, torch looks at the category, and at the dtype within it.
        scalars = [torch.tensor(2.0).to(dtype) for dtype in (torch.bool, torch.int64, torch.float16, torch.float64)]
        self.compare(BINARY[op], vectors, others)
        self.compare(BINARY[op], vectors, scalars)

    @pytest.mark.parametrize("op", sorted(set(BINARY) - {"maximum", "logical and"}))
    def test_of_a_tensor_and_a_number_is_torchs(self, op: str) -> None:
        vectors = [torch.tensor([1.0, 2.0, 3.0]).to(dtype) for dtype in DTYPES]
        for number in (True, 2, 0.5):
            self.compare(lambda a, _, number=number: BINARY[op](a, number), vectors, vectors[:1])

    @pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
    def test_of_a_tensor_and_a_size_is_torchs(self, op: str) -> None:
        vectors = [torch.tensor([1.0, 2.0, 3.0]).to(dtype) for dtype in DTYPES]
        self.compare(lambda a, b: BINARY[op](a, b.shape[0]), vectors, vectors[:1])

    def test_a_comparison_with_a_size_is_torchs(self) -> None:
        vectors = [torch.tensor([1.0, 2.0, 4.0]).to(dtype) for dtype in DTYPES]
        self.compare(lambda a, b: a < b.shape[0], vectors, vectors[:1])

    @staticmethod
    def compare(op: Callable[..., Tensor], first: list[Tensor], second: list[Tensor]) -> None:
        pairs = [(a, b) for a in range(len(first)) for b in range(len(second)) if _defined(op, first[a], second[b])]
        # torch subtracts no bool at all
        if pairs:
            check(lambda first, second: [op(first[a], second[b]) for a, b in pairs], first, second)


UNARY = {
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp from below": lambda x: x.clamp_min(0.1),
    "clamp by tensors": lambda x: x.clamp(x.detach() * 2, x.detach().abs()),
    "small powers": lambda x: x**2 + x**3 + 1 / x + x.abs() ** 0.5 + x.abs() ** -0.5 + x**-2,
    "real power": lambda x: x.abs() ** 1.7,
    "power of a number": lambda x: 2.0**x,
    "power of tensors": lambda x: x.abs() ** x,
    "alpha": lambda x: torch.add(x, x.exp(), alpha=3) - torch.sub(x, 1, alpha=2),
    "rsub": lambda x: 1 - x,
    "masked_fill": lambda x: x.masked_fill(x > 0, 7.0),
    "factories": lambda x: x * torch.ones_like(x) + torch.full_like(x, 2.0) + x.new_zeros(x.shape) + torch.zeros(4),
    "arange": lambda x: x * torch.arange(4) + torch.arange(1.0, 5.0) + torch.arange(8, 0, -2),
    "sizes as numbers": lambda x: x * x.shape[0] + x / x.numel() + x * (0.1 / x.shape[1]),
    "log_sigmoid": lambda x: F.logsigmoid(x),
    "sigmoid": lambda x: x.sigmoid() * x.tanh(),
    "relu": lambda x: x.relu() + F.leaky_relu(x, 0.1) + F.elu(x) + F.hardtanh(x),
    "softplus": lambda x: F.softplus(x),
    "gelu": lambda x: F.gelu(x) + F.silu(x) + F.mish(x) + F.hardswish(x),
    "copy": lambda x: x.float().double() + x.to(torch.float64),
    "special": lambda x: x.abs().lgamma() + torch.xlogy(x, x.abs()) + torch.special.xlog1py(x, x.abs()),
    "comparisons": lambda x: x * (x > 0) + x * ~(x > 0.5) + x * ((x > 0) & (x < 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_pointwise(name: str) -> None:
    check(UNARY[name], floats(3, 4))


def test_ties_have_torchs_gradient() -> None:
    x = torch.tensor([0.0, 1.0, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.0, 1.0, 1.0, 0.5], dtype=torch.float64, requires_grad=True)
    for op in (torch.maximum, torch.minimum):
        check(lambda a, b, op=op: op(a, b), x, y)
    check(lambda a, b: (a - b).abs() + a.clamp(0.0, 1.0) * b, x, y)
    check(lambda a: a.relu() + a.sign() * a + a.abs(), x)


# Reductions.

REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "amax": torch.amax,
    "amin": torch.amin,
    "logsumexp": torch.logsumexp,
    "any": lambda x, dim, keepdim: (x > 1).any(dim, keepdim=keepdim),
    "all": lambda x, dim, keepdim: (x > -1).all(dim, keepdim=keepdim),
}


class TestReductions:
    @pytest.mark.parametrize("kind", REDUCTIONS)
    @pytest.mark.parametrize("keepdim", [False, True])
    @pytest.mark.parametrize("dim", [0, -1, (0, 2), (0, 1, 2)])
    def test_over_dimensions(self, kind: str, dim: Any, keepdim: bool) -> None:
        check(lambda x: REDUCTIONS[kind](x, dim, keepdim=keepdim), floats(3, 2, 4))

    @pytest.mark.parametrize("ord", [0, 1, 2, 3, 0.5, math.inf, -math.inf])
    def test_norms(self, ord: float) -> None:
        x = floats(3, 4).detach()
        x[1, 2] = 0
        check(lambda x: torch.linalg.vector_norm(x, ord, dim=1) + x.norm(ord, dim=0).sum(), x.requires_grad_())

    @pytest.mark.parametrize("size", [3, 12])  # term by term, and not
    def test_products(self, size: int) -> None:
        x = floats(4, size).detach()
        x[1, 2] = x[3, 0] = x[3, 1] = 0
        check(lambda x: x.prod(1) + x.prod(0, keepdim=True).sum(), x.requires_grad_())
        check(lambda x: (x > 0).prod(1) * x.sum(1), x)

    @pytest.mark.cases(6)
    @pytest.mark.parametrize("size", [3, 12])
    @pytest.mark.parametrize("scan", [torch.cumsum, torch.cumprod, torch.logcumsumexp])
    def test_scans(self, scan: Callable[..., Tensor], size: int) -> None:
        x = floats(4, size).detach()
        x[1, 2] = 0
        check(lambda x: scan(x, 1) * x + scan(x.flip(0), 0).flip(0), x.requires_grad_())

    def test_a_count_so_far(self) -> None:
        check(lambda x: (x > 0).cumsum(1) * x, floats(4, 3))

    def test_of_everything(self) -> None:
        check(lambda x: x.sum() + x.mean() * x.max() - x.min() + x.norm(), floats(3, 4))

    def test_of_a_scalar(self) -> None:
        check(lambda x: x.sum() + x.mean() + x.softmax(0) + x.max(), floats())

    def test_of_a_scalar_over_its_dimension(self) -> None:
        check(lambda x: x.sum(0) + x.logsumexp(-1), floats())

    def test_of_integers_and_bools_widen(self) -> None:
        check(lambda x: x.sum(1), torch.arange(6, dtype=torch.uint8).reshape(2, 3))
        check(lambda x: (x > 0).sum(), floats(3, 4, grad=False))
        check(lambda x: x.mean(0, dtype=torch.float64), torch.arange(6).reshape(2, 3).float())

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
    def test_of_nothing(self, shape: tuple[int, int]) -> None:
        check(lambda x: x.sum(0).sum(), floats(*shape))
        check(lambda x: x.mean(), floats(*shape))

    @pytest.mark.parametrize("dim", [0, 1, -1])
    def test_softmax(self, dim: int) -> None:
        check(lambda x: x.softmax(dim), floats(2, 3, 4))
        check(lambda x: x.log_softmax(dim) * x, floats(2, 3, 4))

    def test_infinities_and_nan_pass_as_in_torch(self) -> None:
        rows = [[0.0, math.inf], [-math.inf, -math.inf], [math.nan, 1.0], [-math.inf, 2.0]]
        x = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
        for kind in ("sum", "amax", "amin", "logsumexp"):
            check(lambda x, kind=kind: REDUCTIONS[kind](x, 1), x)
        check(lambda x: x.log_softmax(1), x)

    def test_nested(self) -> None:
        check(lambda x: ((x - x.mean(1, keepdim=True)) ** 2).sum(1).sqrt().mean(), floats(3, 4))
        check(lambda x: 1 - 2 * (x.sigmoid().sum() / (x.exp().sum() + 1)), floats(3, 4))


# Gather and scatter.


class TestIndexing:
    @pytest.mark.parametrize("dim", [0, 1, -1])
    def test_gather(self, dim: int) -> None:
        shape = [3, 4]
        places = labels(*shape, classes=shape[dim])
        check(lambda x, places: x.gather(dim, places), floats(3, 4, grad=False), places)

    def test_gather_of_one_place_per_row(self) -> None:
        check(lambda x, y: x.gather(1, y.unsqueeze(1)).squeeze(1) ** 2, floats(5, 4), labels(5, classes=4))

    def test_index_with_tensors(self) -> None:
        y = labels(5, classes=4)
        check(lambda weight, y: weight[y], floats(4, grad=False), y)
        check(lambda weight, y: weight[y - 4], floats(4, grad=False), y)  # from the end
        check(lambda x, y: x[torch.arange(5), y], floats(5, 4, grad=False), y)
        check(lambda x, y: x.index_select(0, y) + x[y], floats(4, 3, grad=False), y)

    def test_scatter_one_place_per_row(self) -> None:
        y = labels(5, classes=4)
        x = floats(5, 4)
        check(lambda x, y: (x[:, 0] * y).sum() + x.scatter(1, y.unsqueeze(1), 2.0) * x, x, y)
        x = floats(5, 4, grad=False)
        check(lambda x, y: y.sum() + torch.zeros_like(x).scatter(1, (x[:, 0] * y).long()[:, None], x[:, :1]), x, y * 0)
        check(lambda x, y: (x[:, 0] * y).sum() + x.scatter_add(1, y.unsqueeze(1), x[:, :1]), x, y)

    def test_scatter_to_several_places_per_row_is_torchs(self) -> None:
        program, _ = program_of(
            lambda x, y: x.scatter(1, y, 2.0) * 2, floats(5, 4, grad=False), labels(5, 2, classes=4)
        )
        assert [step.name for step in program.steps] == ["scatter"]

    def test_one_hot_by_comparison(self) -> None:
        check(lambda x, y: (x * (torch.arange(4) == y.unsqueeze(1))).sum(1), floats(5, 4), labels(5, classes=4))


class TestDepth:
    """Hundreds of ops before an index that is not their own: more than Python's stack would hold of calls."""

    @staticmethod
    def long(x: Tensor) -> Tensor:
        for k in range(250):
            x = x * 1.01 - 0.1 * k if k % 2 else x.tanh()
        return x.log_softmax(-1)

    @pytest.mark.slow
    def test_a_gather(self) -> None:
        check(lambda x, y: self.long(x).gather(1, y[:, None]).mean(), floats(6, 7, grad=False), labels(6, classes=7))

    @pytest.mark.slow
    def test_a_slice(self) -> None:
        check(lambda x: (self.long(x)[:, 1:] - x[:, :-1]).mean(), floats(6, 7, grad=False))

    @pytest.mark.parametrize("length", range(21, 30))
    def test_what_is_made_in_between(self, length: int) -> None:
        """Wherever the asking is cut off, all that is asked has been made before, or is made again."""

        def chain(x: Tensor) -> Tensor:
            for k in range(length):
                x = x * 1.01 - 0.1 * k if k % 2 else x.tanh()
            return x

        check(lambda x: chain(x / x.std(1, keepdim=True)).flip(0).sum(), floats(3, 4, grad=False))
        check(lambda x, y: chain(x.exp().sum(0)[y]).flip(0).sum(), floats(40, 4, grad=False), labels(70, classes=4))

    def test_values_that_are_made_anew_whenever_they_are_asked(self) -> None:
        one = ir.const(1.0, torch.float32)

        def deep(n: int) -> Value:
            return Value((), torch.float32, lambda index: deep(n - 1).at(index) if n else one)

        assert deep(140).at(()) is one

    @pytest.mark.slow
    def test_sums_of_a_quotient_that_become_an_integer(self) -> None:
        """Each is looked at once, however many ways lead to it."""

        def doubled(x: Tensor, y: Tensor) -> Tensor:
            total = x / y
            for _ in range(200):
                total = (total + total) * 0.5
            return (x * total.floor()).sum()

        check(doubled, floats(6, 7), torch.full((6, 7), 3.0))

    @pytest.mark.slow
    def test_what_torch_computes_of_it(self) -> None:
        def loss(x: Tensor) -> Tensor:
            return self.long(x).flip(0).cumprod(1).mean()

        plan, sizes = plan_of(loss, floats(6, 7))  # as some versions of torch's formula are stored in between
        Reference(loss, floats(6, 7)).check_plan(plan, sizes)
