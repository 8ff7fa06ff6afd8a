"""Losses that begin with a matrix product: as torch, with the cross entropy on kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen.functional
import autogen.losses
from autogen import explain, policy
from tests.interpret.launches import Launches

FEATURES, CLASSES, N = 12, 40, 30


def pair(name: str, *args: Any, **options: Any) -> tuple[nn.Module, nn.Module]:
    """Our loss and torch's, with the same parameters."""
    ours, theirs = getattr(autogen.losses, name)(*args, **options), getattr(nn, name)(*args, **options)
    theirs.load_state_dict(ours.state_dict())
    return ours.double(), theirs.double()


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, FEATURES, dtype=torch.float64).requires_grad_()


def labels(*shape: int) -> Tensor:
    return torch.randint(CLASSES, shape)


def compare(ours: nn.Module, theirs: nn.Module, *call: Tensor) -> None:
    found = []
    for loss in (ours, theirs):
        result = loss(*call)
        value = result if isinstance(result, Tensor) else result.loss + result.output.sum()
        found.append([value, *torch.autograd.grad(value.sum(), [call[0], *loss.parameters()], allow_unused=True)])
    torch.testing.assert_close(*found)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": True, "reduction": "sum"},
    {"reduction": "none", "ignore_index": 3},
    {"weight": torch.rand(CLASSES, dtype=torch.float64), "label_smoothing": 0.1},
]


@pytest.mark.skipif(not hasattr(nn, "LinearCrossEntropyLoss"), reason="torch has it since 2.12")
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_linear_cross_entropy(options: dict[str, Any], launches: Launches) -> None:
    ours, theirs = pair("LinearCrossEntropyLoss", FEATURES, CLASSES, **options)
    with policy("mandatory"):
        compare(ours, theirs, inputs(N), labels(N))
        assert launches.take() == 2
        compare(ours, theirs, inputs(), labels())
    if "ignore_index" not in options:
        compare(ours, theirs, inputs(N), torch.rand(N, CLASSES, dtype=torch.float64).softmax(1))
    assert explain(ours, inputs(N), labels(N)).path == "partial"


@pytest.mark.skipif(not hasattr(nn, "LinearCrossEntropyLoss"), reason="torch has it since 2.12")
def test_linear_cross_entropy_errors() -> None:
    ours, theirs = pair("LinearCrossEntropyLoss", FEATURES, CLASSES)
    for call in ((inputs(N)[:, 1:], labels(N)), (inputs(2, 3), labels(2, 3)), (inputs(N), labels(N + 1))):
        with pytest.raises(Exception) as expected:
            theirs(*call)
        with pytest.raises(expected.type) as found:
            ours(*call)
        assert str(found.value) == str(expected.value)


@pytest.mark.skipif(not hasattr(nn, "LinearCrossEntropyLoss"), reason="torch has it since 2.12")
def test_wrong_arguments_are_those_of_the_public_function() -> None:
    for arguments, options in (((inputs(N),), {}), ((inputs(N), inputs(CLASSES), labels(N)), {"margin": 1})):
        with pytest.raises(TypeError, match=r"linear_cross_entropy\(\)"):
            autogen.functional.linear_cross_entropy(*arguments, **options)


@pytest.mark.skipif(not hasattr(nn, "LinearCrossEntropyLoss"), reason="torch has it since 2.12")
@pytest.mark.filterwarnings("ignore:allow_retain_graph")
def test_in_chunks_of_torchs() -> None:
    ours, theirs = pair("LinearCrossEntropyLoss", FEATURES, CLASSES, options=nn.LinearCrossEntropyOptions())
    compare(ours, theirs, inputs(N), labels(N))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"div_value": 2.0, "head_bias": True}], ids=str)
def test_adaptive_log_softmax(options: dict[str, Any], launches: Launches) -> None:
    ours, theirs = pair("AdaptiveLogSoftmaxWithLoss", FEATURES, CLASSES, [10, 25], **options)
    with policy("mandatory"):
        compare(ours, theirs, inputs(N), labels(N))
        assert launches.take() == 2  # the head and two clusters at once
        compare(ours, theirs, inputs(N), torch.zeros(N, dtype=torch.long))  # no cluster
        assert launches.take() == 2
        compare(ours, theirs, inputs(), torch.tensor(30))
    x = inputs(N)
    torch.testing.assert_close(ours.log_prob(x), theirs.log_prob(x))
    torch.testing.assert_close(ours.predict(x), theirs.predict(x))
    assert explain(ours, inputs(N), labels(N)).path == "partial"


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_layers_that_hooks_change() -> None:
    """Torch calls them as they are: the weight is set anew with each call, and a hook gives another result."""
    for change in ("weight", "result"):
        ours, theirs = pair("AdaptiveLogSoftmaxWithLoss", FEATURES, CLASSES, [10, 25])
        for loss in (ours, theirs):
            if change == "weight":
                nn.utils.weight_norm(loss.head)
                with torch.no_grad():
                    loss.head.weight_g.mul_(3)
            else:
                loss.tail[0].register_forward_hook(lambda layer, given, result: 2 * result)
        compare(ours, theirs, inputs(N), labels(N))


def test_adaptive_log_softmax_errors() -> None:
    ours, theirs = pair("AdaptiveLogSoftmaxWithLoss", FEATURES, CLASSES, [10, 25])
    for call in ((inputs(N), labels(N) + CLASSES), (inputs(N), labels(3)), (inputs(2, 3), labels(2, 3))):
        with pytest.raises(RuntimeError) as expected:
            theirs(*call)
        with pytest.raises(RuntimeError) as found:
            ours(*call)
        assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("name", ["AdaptiveLogSoftmaxWithLoss", "LinearCrossEntropyLoss"])
def test_without_autogen(name: str, launches: Launches) -> None:
    if not hasattr(nn, name):
        pytest.skip("torch has it since 2.12")
    arguments = (FEATURES, CLASSES, [10, 25]) if name.startswith("Adaptive") else (FEATURES, CLASSES)
    ours = getattr(autogen.losses, name)(*arguments, use_autogen=False).double()
    result = ours(inputs(N), labels(N))
    assert launches.take() == 0 and repr(ours) == repr(getattr(nn, name)(*arguments))
    assert explain(ours, inputs(N), labels(N)).path == "eager"
    assert (result if isinstance(result, Tensor) else result.loss).requires_grad


@pytest.mark.parametrize("name", ["AdaptiveLogSoftmaxWithLoss", "LinearCrossEntropyLoss"])
def test_gradcheck(name: str) -> None:
    if not hasattr(nn, name):
        pytest.skip("torch has it since 2.12")
    arguments = (3, 7, [2, 5]) if name.startswith("Adaptive") else (3, 7)
    loss, target = getattr(autogen.losses, name)(*arguments).double(), torch.tensor([0, 6, 3, 1])

    def value(x: Tensor) -> Tensor:
        result = loss(x, target)
        return result if isinstance(result, Tensor) else result.loss

    x = torch.randn(4, 3, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(value, x) and torch.autograd.gradgradcheck(value, x)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8], ids=str)
def test_labels_of_other_dtypes(dtype: torch.dtype) -> None:
    """Whatever torch does with them."""
    found: list[object] = []
    for loss in pair("AdaptiveLogSoftmaxWithLoss", FEATURES, CLASSES, [8, 20]):
        x = torch.linspace(-1, 1, N * FEATURES, dtype=torch.float64).reshape(N, FEATURES)
        try:
            found.append(loss(x, (torch.arange(N) % CLASSES).to(dtype)).loss)
        except (RuntimeError, IndexError) as error:
            found.append((type(error), str(error)))
    if isinstance(found[1], tuple):
        assert found[0] == found[1]
    else:
        torch.testing.assert_close(*found)
