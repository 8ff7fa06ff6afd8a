"""What cannot run as a kernel: faults of the call raise what torch raises, the rest runs as torch or says why not."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import autogen
import autogen.losses
from autogen import autogen_loss, explain, policy
from tests.interpret.launches import Launches

X, T = torch.randn(5, 7), torch.rand(5, 7)
LABEL = torch.arange(5)
# A loss, its options, and inputs that torch refuses.
REFUSED: list[tuple[str, dict[str, Any], tuple[Any, ...]]] = [
    ("L1Loss", {}, (X, torch.rand(4, 7))),
    ("MSELoss", {}, (X, torch.rand(5, 3))),
    ("SmoothL1Loss", {"beta": -1.0}, (X, T)),
    ("HuberLoss", {"delta": 0.0}, (X, T)),
    ("HuberLoss", {"delta": -1.0}, (X, T)),
    ("L1Loss", {"reduction": "median"}, (X, T)),
    ("BCELoss", {}, (T, torch.rand(5, 6))),
    ("BCELoss", {}, (T, torch.rand(5, 7).double())),
    ("BCELoss", {"weight": torch.rand(3)}, (T, T)),
    ("BCELoss", {}, (T + 1, T)),
    ("BCELoss", {}, (T, T + 1)),
    ("BCELoss", {}, (T, -T)),
    ("BCELoss", {}, (T, LABEL)),
    ("BCEWithLogitsLoss", {}, (X, torch.rand(5, 6))),
    ("BCEWithLogitsLoss", {"weight": torch.rand(3)}, (X, T)),
    ("BCEWithLogitsLoss", {"pos_weight": torch.rand(3)}, (X, T)),
    ("PoissonNLLLoss", {}, (X, torch.rand(3))),
    ("GaussianNLLLoss", {}, (X, X, -T)),
    ("GaussianNLLLoss", {}, (X, X, torch.rand(5, 3))),
    ("HingeEmbeddingLoss", {}, (X, torch.ones(3))),
    ("SoftMarginLoss", {}, (X, torch.ones(5, 3))),
    ("KLDivLoss", {}, (X, torch.rand(3))),
    ("MarginRankingLoss", {}, (X, X, torch.ones(5))),
    ("CrossEntropyLoss", {}, (X, LABEL[:3])),
    ("CrossEntropyLoss", {}, (X, T[:, :5])),
    ("CrossEntropyLoss", {}, (X, LABEL.float())),
    ("CrossEntropyLoss", {}, (X, LABEL.int())),
    ("CrossEntropyLoss", {"weight": torch.rand(3)}, (X, LABEL)),
    ("CrossEntropyLoss", {"weight": torch.rand(7).double()}, (X, LABEL)),
    ("CrossEntropyLoss", {"label_smoothing": 1.5}, (X, LABEL)),
    ("CrossEntropyLoss", {"ignore_index": 2}, (X, T)),
    ("CrossEntropyLoss", {}, (torch.randn(5, 7, 3), torch.zeros(5, 4, dtype=torch.long))),
    ("CrossEntropyLoss", {}, (torch.tensor(1.0), torch.tensor(0))),
    ("NLLLoss", {}, (X, LABEL[:3])),
    ("NLLLoss", {}, (X, T)),
    ("NLLLoss", {"weight": torch.rand(3)}, (X, LABEL)),
    ("MultiMarginLoss", {}, (X, LABEL[:3])),
    ("MultiMarginLoss", {"weight": torch.rand(3)}, (X, LABEL)),
    ("MultiMarginLoss", {}, (torch.randn(5, 7, 2), LABEL)),
    ("MultiMarginLoss", {}, (X, LABEL.float())),
    ("MultiLabelSoftMarginLoss", {}, (X, torch.rand(5, 6))),
    ("MultiLabelSoftMarginLoss", {"weight": torch.rand(3)}, (X, T)),
    ("TripletMarginLoss", {}, (X, X, torch.rand(5, 3))),
    ("TripletMarginLoss", {}, (X, X, torch.rand(7))),
    ("TripletMarginWithDistanceLoss", {}, (X, X, torch.rand(5, 3))),
    ("TripletMarginWithDistanceLoss", {"distance_function": lambda a, b: None}, (X, X, X)),
    ("MSELoss", {}, (X, None)),
    ("MSELoss", {}, (X,)),
    ("MSELoss", {}, (X, T, T)),
    ("CrossEntropyLoss", {}, (X, [1, 2, 3, 4, 5])),
]


def raised(function: Callable[[], object]) -> Exception | None:
    try:
        function()
    except Exception as error:
        return error
    return None


def name_of(value: Any) -> str | None:
    return value if isinstance(value, str) else ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", ["default", "mandatory"])
@pytest.mark.parametrize(("name", "options", "inputs"), REFUSED, ids=name_of)
def test_torch_error(
    name: str, options: dict[str, Any], inputs: tuple[Any, ...], level: str, launches: Launches
) -> None:
    """The type that torch raises, its message, and no launch."""
    theirs = raised(lambda: getattr(nn, name)(**options)(*inputs))
    if theirs is None:
        pytest.skip("torch accepts it")
    with policy(level):
        ours = raised(lambda: getattr(autogen.losses, name)(**options)(*inputs))
    assert type(ours) is type(theirs), f"torch {theirs!r}, we {ours!r}"
    assert str(ours) == str(theirs)
    assert launches.take() == 0


def test_every_refused_call_is_refused_by_torch() -> None:
    accepted = [row for row in REFUSED if raised(lambda row=row: getattr(nn, row[0])(**row[1])(*row[2])) is None]
    assert not accepted


def drawn_loss(x: Tensor, t: Tensor) -> Tensor:
    kept = torch.rand_like(x).gt(0.5).nonzero()  # here
    return x[kept[:, 0]].mean() + t.mean()


def number_loss(x: Tensor, t: Tensor) -> Tensor:
    scale = math.hypot(t.max().item(), 1.0)  # here
    return (x * scale).mean()


def converted_loss(x: Tensor, t: Tensor) -> Tensor:
    return x.mean() * sum(sorted(t.flatten()[:2], key=float))  # here


def formatting_loss(x: Tensor, t: Tensor) -> Tensor:
    error = (x - t).abs().mean()
    assert f"{error.item():.3f}"  # here
    return error


def array_loss(x: Tensor, t: Tensor) -> Tensor:
    return x.mean() * float(np.asarray(t).max())  # here


def kept_loss(x: Tensor, t: Tensor) -> Tensor:
    HISTORY.append(x)
    assert HISTORY[-1] is x
    return (x - t).abs().mean()


def numpy_loss(x: Tensor, t: Tensor) -> Tensor:
    scale = float(t.detach().numpy().sum())  # here
    return (x * scale).mean()


HISTORY: list[Tensor] = []
UNSUPPORTED = {
    drawn_loss: "a value that random draws decide",
    number_loss: "by a function that takes Python's own numbers alone, such as math.hypot() or numpy.interp()",
    converted_loss: "by a function that takes Python's own numbers alone, such as math.hypot() or numpy.interp()",
    numpy_loss: "takes a tensor's value into Python by making a numpy array of a tensor",
    array_loss: "takes a tensor's value into Python by making a numpy array of a tensor",
    formatting_loss: 'takes a tensor\'s value into Python by formatting a number, as in f"{loss.item():.3f}"',
}


def line_of(function: Callable[..., Any]) -> tuple[str, int]:
    lines, start = inspect.getsourcelines(function)
    number, line = next((k, line) for k, line in enumerate(lines) if "# here" in line)
    return line.partition("#")[0].strip(), start + number


@pytest.mark.parametrize("function", UNSUPPORTED, ids=lambda function: function.__name__)
def test_unsupported_runs_as_torch(function: Callable[..., Tensor], launches: Launches) -> None:
    """Under the default policy the loss gives what torch gives, and `explain` names the op and the line."""
    loss = autogen_loss(function)
    torch.manual_seed(0)
    expected = function(X.clone(), T)
    torch.manual_seed(0)
    assert loss(X.clone(), T).equal(expected)
    assert launches.take() == 0
    report = explain(loss, X.clone(), T)
    code, number = line_of(function)
    assert report.path == "eager"
    for part in (UNSUPPORTED[function].removeprefix("aten."), code, f"{__file__}:{number}"):
        assert part in report.reason, report.reason
    assert "eager" in str(report) and code in str(report)


@pytest.mark.parametrize("function", UNSUPPORTED, ids=lambda function: function.__name__)
def test_unsupported_raises_when_mandatory(function: Callable[..., Tensor], launches: Launches) -> None:
    loss = autogen_loss(function, policy="mandatory")
    with pytest.raises(autogen.AutogenError) as caught:
        loss(X.clone(), T)
    code, _ = line_of(function)
    assert code in str(caught.value) and UNSUPPORTED[function].removeprefix("aten.") in str(caught.value)
    assert caught.value.remedy
    assert launches.take() == 0


def test_a_size_that_is_formatted_is_known(launches: Launches) -> None:
    def loss(x: Tensor) -> Tensor:
        assert len(f"{x.shape[0] / 2:.1f}") == 3
        return x.exp().sum()

    decorated = autogen_loss(loss, policy="mandatory")
    torch.testing.assert_close(decorated(X), loss(X))
    assert launches.take() == 1


def test_a_loss_that_keeps_something_runs_as_torch(launches: Launches) -> None:
    loss = autogen_loss(kept_loss)
    for calls in (1, 2):
        assert loss(X, T).equal(kept_loss(X, T)) and launches.take() == 0
        assert len(HISTORY) == 2 * calls and all(each is X for each in HISTORY)
    assert "HISTORY" in explain(loss, X, T).reason or "a list" in explain(loss, X, T).reason
    with pytest.raises(autogen.StateChangeError), policy("mandatory"):
        loss(X, T)
    assert all(each is X for each in HISTORY)


class Branch(nn.Module):
    """Another formula where the mean is positive."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        if x.mean() > 0:
            return (x - t).abs().mean()
        return ((x - t) ** 2).sum()


class Guard(nn.Module):
    """Raises where something is negative."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        if (t < 0).any():
            raise ValueError("negative")
        return (x - t).abs().mean()


@pytest.mark.parametrize("first", [1.0, -1.0])
def test_a_branch_on_a_value_is_never_baked_in(first: float) -> None:
    ours, theirs = autogen_loss(Branch()), Branch()
    for sign in (first, -first, first, first, -first):
        x = (X.abs() * sign).requires_grad_()
        own, their = ours(x, T), theirs(x, T)
        torch.testing.assert_close(own, their)
        torch.testing.assert_close(torch.autograd.grad(own, x), torch.autograd.grad(their, x))


@pytest.mark.parametrize("first", [1.0, -1.0])
def test_a_raise_on_a_value_is_neither_forgotten_nor_kept(first: float, launches: Launches) -> None:
    ours = autogen_loss(Guard())
    for sign in (first, -first, first, -first):
        launches.take()
        if sign < 0:
            with pytest.raises(ValueError, match="negative"):
                ours(X, -T)
            assert launches.take() == 0
        else:
            torch.testing.assert_close(ours(X, T), Guard()(X, T))
            assert launches.take() == 1


def by_size(x: Tensor) -> Tensor:
    """An unsupported op for large inputs only."""
    if x.shape[0] > 100:
        return x.mean() * float(x.detach().max().numpy())
    return x.abs().mean()


@pytest.mark.parametrize("shapes", [((5, 7), (200, 7)), ((200, 7), (5, 7))])
def test_a_shape_that_fails_does_not_poison_others(shapes: tuple[tuple[int, ...], ...], launches: Launches) -> None:
    loss = autogen_loss(by_size)
    for shape in shapes * 2:
        x = torch.randn(shape)
        torch.testing.assert_close(loss(x), by_size(x))
        assert launches.take() == (shape[0] < 100)


def test_a_call_that_fails_does_not_poison_others(launches: Launches) -> None:
    loss = autogen.losses.MSELoss()
    for good in (False, True, False, True):
        target = T if good else T[:, :5]
        with policy("mandatory"):
            assert (raised(lambda target=target: loss(X, target)) is None) == good
        assert launches.take() == good


@pytest.mark.parametrize("lost", ["torch.float16", "meta", "sparse", "complex", "quantized"])
def test_tensors_that_no_kernel_reads(lost: str) -> None:
    """As in torch, be it a value or an error."""
    change: dict[str, Callable[[Tensor], Tensor]] = {
        "torch.float16": lambda x: x.half(),
        "meta": lambda x: x.to("meta"),
        "sparse": lambda x: x.to_sparse(),
        "complex": lambda x: x + 1j,
        "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    }
    x, t = change[lost](X), change[lost](T)
    theirs, ours = raised(lambda: nn.L1Loss()(x, t)), raised(lambda: autogen.losses.L1Loss()(x, t))
    assert type(ours) is type(theirs)
    if theirs is None and not x.is_meta:
        torch.testing.assert_close(autogen.losses.L1Loss()(x, t), nn.L1Loss()(x, t))


def test_nested_tensors_that_no_kernel_reads() -> None:
    """Of torch's older layout: they have no sizes."""
    loss = autogen_loss(lambda x: x * x if x.is_nested else (x * x).sum())
    nested = torch.nested.nested_tensor([X[:2], X[2:]])
    for _ in range(3):
        torch.testing.assert_close(loss(nested).unbind()[0], X[:2].square())
        torch.testing.assert_close(loss(X), X.square().sum())


def test_a_fault_of_the_call_leaves_nothing_of_torchs_in_the_log() -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addHandler(handler)
    try:
        for loss in (autogen_loss(lambda x, y: (x - y).abs().mean()), autogen_loss(lambda x, y: (x.t() @ y).mean())):
            with pytest.raises(RuntimeError):
                loss(X, T[:4])
        log.error("for others")
    finally:
        log.removeHandler(handler)
    assert [record.getMessage() for record in records] == ["for others"]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda n: n**-1, "negative integer powers"),
        (lambda n: n // 0, "ZeroDivisionError"),
        (lambda n: n % 0, "ZeroDivisionError"),
        (lambda n: torch.fmod(n, 0), "ZeroDivisionError"),
    ],
)
def test_what_integers_cannot_be_is_torchs_error(
    loss: Callable[[Tensor], Tensor], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RuntimeError, match=message):
        autogen_loss(loss)(LABEL)
    assert "InternalError" not in caplog.text


@pytest.mark.parametrize("divide", [torch.floor_divide, torch.fmod, torch.remainder])
def test_divisions_of_no_integers(divide: Callable[[Tensor, Tensor], Tensor], launches: Launches) -> None:
    with policy("mandatory"):
        result = autogen_loss(lambda n, m: divide(n, m))(LABEL[:0, None], LABEL)
    assert result.shape == (0, 5) and launches.take() == 0


@pytest.mark.parametrize("result", [torch.fft.rfft, lambda x: (x.sum(), x.detach().to(torch.uint16))])
def test_results_that_no_kernel_writes(result: Callable[[Tensor], object]) -> None:
    loss = autogen_loss(lambda x: result(x))
    torch.testing.assert_close(loss(X.abs()), result(X.abs()))
    assert "a result of torch." in explain(loss, X.abs()).reason
