"""What differs from call to call: floats become arguments of kernels, and nothing is compiled without end."""

from __future__ import annotations

import copy
import math
import pickle
import re
from typing import Any

import autogen.dispatch.compilations
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen.compiler
import autogen.scheduling.kernel
from autogen import autogen_loss, explain, policy, trace_count
from autogen.errors import RecompileLimitError as TooManyTracesError
from tests.interpret.agreement import draw

X, Y = draw("real", 6, 5), draw("real", 6, 5, seed=1).detach()


class Annealed(nn.Module):
    """A weight in an attribute, another as an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = 0.1

    def forward(self, x: Tensor, y: Tensor, temperature: float = 1.0) -> Tensor:
        error = (x - y) / temperature
        mixed = self.weight * error.abs() + (1 - self.weight) * error**2
        return mixed.mean() / (1 + self.weight) + error.clamp(min=self.weight).sum() * temperature**2


def gradient(loss: Any, x: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    value = loss(x, *args)
    return value.detach(), torch.autograd.grad(value, x)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_float_that_changes_is_compiled_three_times_at_most(compiled: list[str], dtype: torch.dtype) -> None:
    ours, theirs = autogen_loss(Annealed()), Annealed()
    for step in range(10):
        ours.weight = theirs.weight = 0.1 + 0.07 * step
        inputs = (X if dtype == torch.float32 else X.to(dtype), Y.to(dtype), 1 + step / 10)
        for own, their in zip(gradient(ours, *inputs), gradient(theirs, *inputs), strict=True):
            near = {"rtol": 2e-6, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.02}
            torch.testing.assert_close(own, their, **near)
    assert len(compiled) == 3


# What kernels call their own variables, and what they call a loss's values.
TAKEN = re.findall(
    r"\w+",
    """
    program start is_full mask row row_mask col col_mask row_tiles first_col first partial arrived offsets outer
    first_lane lane skew place row_start tile_start first_of_group overlapping inside is_last
    n_elements n_rows n_cols n_outer col_tiles row_tile part chunk chunks share counter_ptr BLOCK ROWS COLS ALIGN
    CHUNKS PARTIALS N_TILE n_mask max_over exp log tl triton N C n c size_1 size_3 x_ptr prob x_max
    """,
)


class Taken(nn.Module):
    """Numbers that are called as kernels call what is their own."""

    def __init__(self) -> None:
        super().__init__()
        for name in TAKEN:
            setattr(self, name, 1.0)

    def scale(self) -> Any:
        return math.prod(getattr(self, name) for name in TAKEN)


class TakenInBlocks(Taken):
    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale()).exp().mean()


class TakenInRows(Taken):
    def forward(self, x: Tensor) -> Tensor:
        prob = x.softmax(1) * self.scale()
        return (prob.sum(2).log() * self.scale()).exp().mean() * self.row


@pytest.mark.parametrize("limit", [1, 64, 1 << 14])
@pytest.mark.parametrize("loss", [TakenInBlocks, TakenInRows])
def test_numbers_called_as_kernels_call_their_own(
    loss: type[Taken], limit: int, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autogen.scheduling.kernel, "MAX_IN_ONE_PROGRAM", limit)
    x = draw("real", 2, 4, 30)
    ours, theirs = autogen_loss(loss()), loss()
    for step in range(4):
        for position, name in enumerate(TAKEN):
            value = 1 + 0.01 * math.sin(step + position)
            setattr(ours, name, value)
            setattr(theirs, name, value)
        for own, their in zip(gradient(ours, x), gradient(theirs, x), strict=True):
            torch.testing.assert_close(own, their, rtol=1e-5, atol=1e-6)
    assert len(compiled) <= 3


def test_an_attribute_that_changes_once_is_honoured(compiled: list[str]) -> None:
    ours, theirs = autogen_loss(Annealed()), Annealed()
    for weight in (0.1, 0.1, 0.7, 0.7):
        ours.weight = theirs.weight = weight
        torch.testing.assert_close(gradient(ours, X, Y), gradient(theirs, X, Y))
    assert len(compiled) == 2


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 1e-30, 0.1 + 0.2])
def test_odd_numbers_after_many_others(compiled: list[str], value: float) -> None:
    def loss(x: Tensor, y: Tensor, scale: float) -> Tensor:
        return (x * scale - y).abs().sum() + (x.abs() > scale).sum()

    ours = autogen_loss(loss)
    for scale in (1.5, 2.5, 3.5, 4.5, value):
        torch.testing.assert_close(gradient(ours, X, Y, scale), gradient(loss, X, Y, scale), equal_nan=True)


def test_a_branch_on_a_float_that_varies(compiled: list[str]) -> None:
    def loss(x: Tensor, y: Tensor, scale: float) -> Tensor:
        return (x * scale - y).abs().sum() if scale > 0.5 else (x - y).pow(2).sum() * scale

    ours = autogen_loss(loss)
    for scale in (0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.5, 0.51):
        torch.testing.assert_close(gradient(ours, X, Y, scale), gradient(loss, X, Y, scale))
    assert len(compiled) <= 5


def test_an_upstream_gradient_with_strides_of_its_own(compiled: list[str]) -> None:
    def loss(x: Tensor, scale: float) -> Tensor:
        return x * scale

    ours, upstream = autogen_loss(loss, policy="mandatory"), draw("real", 5, 6).detach().t()
    for scale in (0.5, 0.25, 0.125, 0.75, 0.375):  # from the third on an argument of the kernels
        (found,) = torch.autograd.grad(ours(X, scale), X, upstream)
        torch.testing.assert_close(found, upstream * scale)


def test_doubles_are_exact(compiled: list[str]) -> None:
    def loss(x: Tensor, scale: float) -> Tensor:
        return (x.double() * scale).sum()

    ours = autogen_loss(lambda x, scale: (x * scale).sum())
    for scale in (0.1, 0.2, 0.3, 0.4, 0.7):
        torch.testing.assert_close(ours(X.double(), scale), loss(X, scale), rtol=1e-15, atol=0)


# What Python computes in double precision, with floats that are about to vary.
OF_FLOATS: dict[str, tuple[Any, list[float]]] = {
    "x * (1 - s)": (lambda x, s: x * (1 - s), [0.9999 + 1e-5 * k for k in range(5)]),
    "x / (1 - s**5)": (lambda x, s: x / (1 - s**5), [0.99999 + 1e-6 * k for k in range(5)]),
    "x * (s - 1)": (lambda x, s: x * (s - 1), [1 + 1e-9 * k for k in range(1, 6)]),
    "x * (s / 1e39)": (lambda x, s: x * (s / 1e39), [1e35 * k for k in range(1, 6)]),
    "x * (s - 0.1234567890123456)": (
        lambda x, s: x * (s - 0.1234567890123456),
        [0.1234567890123457 + 1e-15 * k for k in range(5)],
    ),
    "x * (s / 2)": (lambda x, s: x * (s / 2), [2.0, 32.0, 3.0, 64.0, 2.0, 1.0]),
    "x * math.floor(s)": (lambda x, s: x * math.floor(s), [1.5, 16.5, 3.5, 64.5, 1.5, 3e9]),
    "x * abs(s - 2)": (lambda x, s: x * abs(s - 2), [1.9999999, 2.00000003, 2.5, 1.5, 2.00000001]),
    "x * (x.max().item() * 1e-7 + s - 1)": (
        lambda x, s: x * (x.max().item() * 1e-7 + s - 1),
        [1 + 1e-7 * k for k in range(1, 6)],
    ),
    "x * (x.max().item() * (s - 1))": (
        lambda x, s: x * (x.max().item() * (s - 1)),
        [1 + 1e-9 * k for k in range(1, 6)],
    ),
    "x * N * (1 - s)": (lambda x, s: x * (x.shape[0] * (1 - s)), [0.9999 + 1e-5 * k for k in range(5)]),
    "x * (s % 0.7)": (lambda x, s: x * (s % 0.7), [1.5, 2.25, -0.125, 0.5, 3.0]),
    "x * (N % s)": (lambda x, s: x * (x.shape[0] % s), [1.1, 2.25, -0.7, 0.7, 2.0]),
    "x.long() * math.floor(s)": (lambda x, s: x * (x.long() * math.floor(s)), [1.5, 16.5, 3.5, 64.5, 1.5, 3e9]),
    "x.double() * (1 - s)": (lambda x, s: (x.double() * (1 - s)).float(), [0.9999 + 1e-5 * k for k in range(5)]),
}


@pytest.mark.parametrize("case", OF_FLOATS)
def test_arithmetic_on_floats_that_vary_is_that_of_python(case: str, compiled: list[str]) -> None:
    formula, values = OF_FLOATS[case]
    ours, x = autogen_loss(lambda x, s: formula(x, s).sum()), torch.ones(3, requires_grad=True)
    for value in values:
        expected = gradient(lambda x, s: formula(x, s).sum(), x.detach().double().requires_grad_(), value)
        for own, their in zip(gradient(ours, x, value), expected, strict=True):
            torch.testing.assert_close(own.double(), their.double(), rtol=3e-7, atol=0)
    assert len(compiled) <= 3


# What Python computes in double precision, with sizes.
OF_SIZES: dict[str, Any] = {
    "(1 - 1/N) ** N": lambda n: (1 - 1 / n) ** n,
    "N / (N - 1) - 1": lambda n: n / (n - 1) - 1,
    "1 / (1 - 0.999 ** (1/N))": lambda n: 1 / (1 - 0.999 ** (1 / n)),
    "1 / N**4": lambda n: 1 / n**4,
    "N / 2": lambda n: n / 2,
    "0.0 * N + 0.0": lambda n: 0.0 * n + 0.0,
    "max(N, 7) % 4 / N // 3": lambda n: max(n, 7) % 4 / (n // 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", OF_SIZES)
def test_arithmetic_on_sizes_is_that_of_python(case: str, dtype: torch.dtype, compiled: list[str]) -> None:
    formula = OF_SIZES[case]
    ours = autogen_loss(lambda x: x.sum() * formula(x.shape[0]))
    for size in (8, 70000, 32, 33, 8):
        x = torch.zeros(size, dtype=dtype)
        x[0] = 1
        rtol = 2e-7 if dtype == torch.float32 else 1e-15
        torch.testing.assert_close(ours(x).item(), formula(size), rtol=rtol, atol=0)
    assert len(compiled) <= 2


@pytest.mark.parametrize("option", [{}, {"label_smoothing": 0.1}, {"reduction": "none"}])
def test_a_size_as_the_class_to_ignore(option: dict[str, Any], compiled: list[str]) -> None:
    def loss(x: Tensor, label: Tensor) -> Tensor:
        classes = x.shape[1]
        return F.cross_entropy(x, label.clamp(0, classes), ignore_index=classes, **option).sum()

    ours = autogen_loss(loss)
    for rows, classes in ((6, 5), (6, 9), (4, 3)):
        x, label = draw("real", rows, classes), torch.arange(rows) % (classes + 2)
        for own, their in zip(gradient(ours, x, label), gradient(loss, x, label), strict=True):
            torch.testing.assert_close(own, their)
    assert len(compiled) == 1
    assert explain(ours, x, label).path == "generated"


def test_of_a_number_in_both_precisions_a_launch_of_several_parts_has_one(compiled: list[str]) -> None:
    def loss(x: Tensor, y: Tensor, s: float) -> Tensor:
        return (x * (1 - s)).sum() + (y * (1 - 2 * s)).sum() * (2 - s) + (y.double() * (1 - s)).sum()

    ours, y = autogen_loss(loss), torch.ones(3, 2)
    for value in [0.9999 + 1e-5 * k for k in range(5)]:
        expected = loss(X.detach().double(), y.double(), value)
        torch.testing.assert_close(ours(X.detach(), y, value), expected, rtol=1e-7, atol=0)
    forward = explain(ours, X.detach(), y, 0.5).forward
    assert forward.launches == 1 and forward.source.count(": tl.float64,") == 1


def test_variables_called_as_arguments_are(compiled: list[str]) -> None:
    def loss(x: Tensor, s: float) -> Tensor:
        size = (x * (1 - s)).exp()
        size_1 = size.sum()
        size = size.square().sum() + size_1
        number = (x * (1 + s)).exp()
        number_2 = number.sum()
        number = number.square().sum() - number_2
        return size * number_2 + number * size_1

    ours = autogen_loss(loss)
    for value in (0.1, 0.2, 0.3, 0.4):
        torch.testing.assert_close(gradient(ours, X, value), gradient(loss, X, value), rtol=1e-5, atol=1e-5)


def test_what_python_cannot_compute_is_its_error(compiled: list[str]) -> None:
    ours = autogen_loss(lambda x, s: (x * (1 / s)).sum() + x.mean() * (s * 1e300) ** 2)
    for value in (1e-300, 2e-300, 4e-300, 5e-300):
        torch.testing.assert_close(ours(X * 1e-30, value).isfinite(), torch.tensor(False))
    with pytest.raises(ZeroDivisionError):
        ours(X, 0.0)
    with pytest.raises(OverflowError):
        ours(X, 2.0)


def test_fifty_batch_sizes(compiled: list[str]) -> None:
    ours = autogen_loss(Annealed())
    for size in range(2, 52):
        ours(draw("real", size, 5), torch.zeros(size, 5))
    assert len(compiled) == 1


def test_what_changes_with_every_call_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autogen.dispatch.compilations, "MOST_TRACES", 3)

    def loss(x: Tensor, count: Tensor) -> Tensor:
        return torch.stack([x.exp().sum() * k for k in range(count.item() + 1)]).sum()

    ours = autogen_loss(loss)
    for count in (1, 2, 3, 4, 5, 1, 2):
        torch.testing.assert_close(ours(X, torch.tensor(count)), loss(X, torch.tensor(count)))
    assert explain(ours, X, torch.tensor(3)).path == "generated"
    assert explain(ours, X, torch.tensor(6)).path == "eager"
    with policy("mandatory"), pytest.raises(TooManyTracesError):
        ours(X, torch.tensor(6))


class Called(nn.Module):
    """A loss in `__call__`."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0]))

    def __call__(self, x: Tensor) -> Tensor:
        return (x * self.scale).pow(2).sum()


def test_a_module_with_a_call_of_its_own(compiled: list[str]) -> None:
    plain, ours = Called(), autogen_loss(Called())
    assert isinstance(ours, Called) and explain(ours, X).path == explain(plain, X).path == "generated"
    for each in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        before = len(compiled)
        value = each(X)
        torch.testing.assert_close(value, plain(X))
        torch.testing.assert_close(*(torch.autograd.grad(m(X), m.scale) for m in (each, plain)))
        assert (each is ours) == (len(compiled) == before) and explain(each, X).path == "generated"


def test_a_class_with_a_call_of_its_own(compiled: list[str]) -> None:
    decorated = autogen_loss(type("Decorated", (Called,), {}))
    torch.testing.assert_close(decorated()(X), Called()(X))
    assert explain(decorated(), X).path == "generated"
    assert explain(decorated(use_autogen=False), X).path == "eager"


def test_an_instance_with_a_forward_of_its_own(compiled: list[str]) -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = 2.0
            self.forward = self.doubled

        def doubled(self, x: Tensor) -> Tensor:
            return (x * self.factor).exp().mean()

    torch.testing.assert_close(autogen_loss(Chooses())(X), Chooses()(X))
    assert explain(autogen_loss(Chooses()), X).path == "generated"


def test_a_loop_over_many_elements_is_not_compiled() -> None:
    def loss(x: Tensor) -> Tensor:
        total = x.sum() * 0
        for _ in range(2000):
            total = total * 0.5 + x.mean()
        return total

    reason = explain(autogen_loss(loss), X).reason
    assert "more than 2500 operations" in reason and "total = total * 0.5 + x.mean()" in reason
    torch.testing.assert_close(autogen_loss(loss)(X), loss(X))


def test_what_is_too_long_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Knowing ahead what a mask chooses makes no loss shorter."""
    traces, trace = [], autogen.compiler.trace

    def traced(*args: Any, **kwargs: Any) -> Any:
        traces.append(kwargs["reads"])
        return trace(*args, **kwargs)

    def loss(x: Tensor) -> Tensor:
        total = x[x > 0].sum()
        for _ in range(2000):
            total = total * 0.5 + x.mean()
        return total

    monkeypatch.setattr(autogen.compiler, "trace", traced)
    assert "more than 2500 operations" in explain(autogen_loss(loss), X).reason
    assert len(traces) == 1


def test_instances_do_not_share_what_varies(compiled: list[str]) -> None:
    cls = autogen_loss(type("Shared", (Annealed,), {}))
    one, other = cls(), cls()
    for step in range(5):
        one.weight = 0.1 * step
        gradient(one, X, Y)
    count = len(compiled)
    other.weight = 0.9
    source = explain(other, X, Y).forward.source
    assert len(compiled) == count + 1 and "weight_number" not in source
    assert "weight_number" in explain(one, X, Y).forward.source


def test_callers_of_a_function_with_constants_of_their_own(compiled: list[str]) -> None:
    """They share what is known of its floats: one kernel serves them all in the end, with the numbers of each."""

    def scaled(x: Tensor, weight: float = 1.0, margin: float = 0.0) -> Tensor:
        loss = (x * weight - margin).relu().mean()
        return loss / weight if weight > 0.25 else loss * margin

    ours = autogen_loss(scaled)
    callers = [(0.3, 0.0), (0.7, 0.1), (1.0, -0.5), (0.1, 0.2)]
    for _ in range(3):
        for constants in callers:
            found, expected = gradient(ours, X, *constants), gradient(scaled, X, *constants)
            torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-7)
    assert len(compiled) <= 5  # twice with constants, then once for either side of the branch, and for the margin of 0


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, s: x[: math.floor(s)].exp().mean(),
        lambda x, s: x[: math.floor(s)].sort(0).values.cumsum(0).square().mean(),
        lambda x, s: x[: math.floor(s)] * 2,
    ],
    ids=["reduced", "steps", "returned"],
)
def test_floats_that_decide_sizes(loss: Any) -> None:
    """Also those of a launch: there are as many programs as the sizes ask for."""
    decorated, x = autogen_loss(loss), torch.randn(40_000)
    with policy("mandatory"):
        for s in (18.5, 19.5, 20.5, 21.5, 30_001.5, 30_002.5, 18.5):
            torch.testing.assert_close(decorated(x, s), loss(x, s), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, s: x.norm(p=s, dim=1).mean(),
        lambda x, s: torch.linalg.vector_norm(x, s),
        lambda x, s: x.var(correction=s),
        lambda x, s: x.std(dim=0, correction=s).sum(),
    ],
)
def test_options_that_vary(loss: Any) -> None:
    decorated = autogen_loss(loss)
    with policy("mandatory"):
        for s in (1.5, 1.25, 1.75, 1.6):
            torch.testing.assert_close(decorated(X, s), loss(X, s))


@pytest.mark.parametrize("how", ["operator", "function"])
def test_a_base_that_varies(how: str) -> None:
    """Its logarithm is in the gradient."""

    def loss(x: Tensor, base: float) -> Tensor:
        return (base**x).sum() if how == "operator" else torch.pow(base, x).mean()

    decorated = autogen_loss(loss, policy="mandatory")
    for base in (0.9, 0.8, 0.7, 0.6, 0.5):
        x = torch.linspace(0.1, 1, 4, requires_grad=True)
        values = decorated(x, base), loss(x, base)
        torch.testing.assert_close(*values)
        torch.testing.assert_close(*(torch.autograd.grad(value, x)[0] for value in values))
    assert trace_count(decorated) == 3


@pytest.mark.parametrize("loss", [lambda x, s: x / s, lambda x, s: torch.celu(x, s), lambda x, s: x.sum() * (s + 1)])
def test_zeros_among_floats_that_vary(loss: Any) -> None:
    """One has a sign; another is an error."""
    ours, x = autogen_loss(loss), torch.ones(3)
    for value in (0.5, 0.75, 0.25, -0.0, 0.3, 0.0, -0.0, 0.4):
        results = []
        for each in (ours, loss):
            try:
                results.append(each(x, value))
            except (RuntimeError, ZeroDivisionError) as error:
                results.append(torch.tensor([ord(letter) for letter in str(error)]))
        torch.testing.assert_close(*results)


def test_floats_of_numpy_are_not_pythons() -> None:
    def loss(x: Tensor, s: float) -> Tensor:
        return x * torch.tensor([s, 1 - s, 1.0])

    ours = autogen_loss(loss)
    for value in (0.5, 0.7, 0.9, 2.0, np.float64(2.0), np.float64(3.0), np.float64(4.0), 2.0):
        torch.testing.assert_close(ours(torch.ones(3), value), loss(torch.ones(3), value))
    scaled = autogen_loss(lambda x, s: x * s, policy="mandatory")
    for value in np.linspace(0.1, 0.9, 5):
        torch.testing.assert_close(scaled(torch.ones(3), value), torch.ones(3) * value)
