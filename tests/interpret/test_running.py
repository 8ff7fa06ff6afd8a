"""Reductions that wait for no other of their row: those that follow running maxima, and those taken apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss, explain
from autogen.scheduling.launches import kernel, split_rows
from tests.interpret.agreement import agree
from tests.interpret.long_rows import SPECIAL, STEP, C, N, inf, logits, nan
from tests.interpret.samples import Samples
from tests.unit.pipeline import plan_of

Loss = Callable[..., Tensor]


def entropy(x: Tensor) -> Tensor:
    return -(x.softmax(1) * x.log_softmax(1)).sum(1)


def surprisal(x: Tensor) -> Tensor:
    """The variance of `-log(p)`."""
    log = x.log_softmax(1)
    return (log.exp() * (log + entropy(x)[:, None]).square()).sum(1)


def divergence(x: Tensor, y: Tensor) -> Tensor:
    return F.kl_div(x.log_softmax(1), y.log_softmax(1), reduction="none", log_target=True).sum(1)


def distillation(x: Tensor, y: Tensor) -> Tensor:
    return F.kl_div((x / 2).log_softmax(1), (y / 2).softmax(1), reduction="batchmean") * 4


def with_accuracy(x: Tensor) -> Tensor:
    return x.logsumexp(1) + (x.argmax(1) == 3)


SOFTMAXES: dict[str, Loss] = {
    "logsumexp": lambda x: x.logsumexp(1),
    "cross entropy and z": lambda x: F.cross_entropy(x, torch.arange(N)) + x.logsumexp(1).square().mean(),
    "two shifts of one maximum": lambda x: x.logsumexp(1) - (x.softmax(1) * x.nan_to_num(0, 0, 0)).sum(1),
    "entropy": entropy,
    "a square": surprisal,
    "place": with_accuracy,
    "places of both ends": lambda x: x.logsumexp(1) + x.argmax(1) - x.argmin(1),
    "ties": lambda x: x.round().amax(1),
    "weights of all rows": lambda x: F.cross_entropy(
        x, torch.arange(N), weight=(torch.arange(x.shape[1]) / x.shape[1] + 0.5).to(x.dtype), label_smoothing=0.1
    ),
}

OF_TWO: dict[str, Loss] = {"divergence": divergence, "distillation": distillation}


def walks(loss: Loss, *tensors: Tensor) -> tuple[int, int]:
    """How often the kernels of forward and backward walk their rows in steps, in a call."""
    autogen_loss(loss)(*tensors)
    report = explain(autogen_loss(loss), *tensors)
    assert report.forward is not None and report.backward is not None
    loops = ("for first_col in", "for first_lane in")
    forward, backward = (sum(map(each.source.count, loops)) for each in (report.forward, report.backward))
    return forward, backward


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("form", SOFTMAXES)
def test_softmaxes(special: str, form: str) -> None:
    agree(SOFTMAXES[form], logits(special).requires_grad_(), as_torch=2)


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("form", OF_TWO)
def test_two_softmaxes(special: str, form: str) -> None:
    """Where they nearly cancel, torch's greatest error in three rows is a matter of luck."""
    one, other = logits("plain").requires_grad_(), logits(special).flip(1).requires_grad_()
    agree(OF_TWO[form], one, other, as_torch=2 if special == "plain" else 8)


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("form", SOFTMAXES)
def test_one_walk(form: str) -> None:
    assert walks(SOFTMAXES[form], logits("plain").requires_grad_())[0] == 1


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("form", OF_TWO)
def test_one_walk_of_two(form: str) -> None:
    assert walks(OF_TWO[form], logits("plain").requires_grad_(), logits("huge").requires_grad_())[0] == 1


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", [*SOFTMAXES, *OF_TWO])
def test_dtypes(dtype: torch.dtype, form: str) -> None:
    tensors = [logits("plain", dtype).requires_grad_(), logits("falling").flip(0).to(dtype).requires_grad_()]
    agree((SOFTMAXES | OF_TWO)[form], *tensors[: 1 + (form in OF_TWO)], as_torch=2)


def signal_to_distortion(x: Tensor, y: Tensor) -> Tensor:
    """In dB, whatever the scale (Le Roux and others, 2019)."""
    x, y = (each - each.mean(1, keepdim=True) for each in (x, y))
    scale = ((x * y).sum(1, keepdim=True) + 1e-8) / (y.square().sum(1, keepdim=True) + 1e-8)
    rest = x - scale * y
    return 10 * (((scale * y).square().sum(1) + 1e-8) / (rest.square().sum(1) + 1e-8)).log10()


def covariance(x: Tensor, y: Tensor) -> Tensor:
    return ((x - x.mean(1, keepdim=True)) * (y - y.mean(1, keepdim=True))).sum(1)


def masked(x: Tensor, y: Tensor) -> Tensor:
    """The variance of the elements that y chooses; the others are nan."""
    chosen = y > -300
    count = chosen.sum(1)
    mean = x.where(chosen, 0).sum(1) / count
    return (x.where(chosen, nan) - mean[:, None]).square().where(chosen, 0).sum(1) / count


MOMENTS: dict[str, Loss] = {
    "variance of some": masked,
    "variance": lambda x, y: x.var(1),
    "deviation": lambda x, y: (1 - (x.var(1) + 1e-4).sqrt()).relu(),
    "covariance": covariance,
    "skewness": lambda x, y: ((x - x.mean(1, keepdim=True)) ** 3).mean(1),
    "signal to distortion": signal_to_distortion,
    "standardized": lambda x, y: ((x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1) - y).square().mean(1),
}


def signal(special: str) -> tuple[Tensor, Tensor]:
    """Rows that are hard on sums of squares."""
    s = Samples(torch.float64)
    x, y = s.real(N, C), s.real(N, C)
    match special:
        case "far from 0":
            x, y = x + 1000, y - 300
        case "almost the same":
            x = y + 1e-2 * x
        case "constant":
            x[0] = 0.1
        case "silent at first":
            x[:, : 2 * STEP + 5], y[:, : 2 * STEP + 5] = 0, 0
        case "large":
            x, y = x * 1e10, y * 1e10
        case "+inf":
            x[0, 5] = inf
        case "nan":
            x[1, C - 1] = nan
    return x.float().requires_grad_(), y.float()


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize(
    "special", ["plain", "far from 0", "almost the same", "constant", "silent at first", "large", "+inf", "nan"]
)
@pytest.mark.parametrize("form", MOMENTS)
def test_moments(special: str, form: str) -> None:
    agree(MOMENTS[form], *signal(special), as_torch=2)


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("form", MOMENTS)
def test_one_walk_of_moments(form: str) -> None:
    assert walks(MOMENTS[form], *signal("plain"))[0] == 1


@pytest.mark.usefixtures("short_of_room")
def test_double_precision_waits() -> None:
    """There is nothing more exact to add up what nearly cancels."""
    x, y = signal("far from 0")
    assert walks(MOMENTS["variance"], x.detach().double().requires_grad_(), y.double())[0] == 2


@pytest.fixture
def few_and_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows leave a device idle, and a program has STEP columns of one."""
    monkeypatch.setattr(kernel, "LONG_WALK", STEP)
    monkeypatch.setattr(split_rows, "COLUMNS", (STEP,))


@pytest.mark.usefixtures("few_and_long")
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("form", SOFTMAXES)
def test_several_programs_for_a_row(special: str, form: str) -> None:
    x = logits(special).requires_grad_()
    agree(SOFTMAXES[form], x, as_torch=2)
    (step,) = plan_of(SOFTMAXES[form], x)[0].forward
    assert isinstance(step, kernel.Kernel) and step.ends is not None


@pytest.mark.usefixtures("few_and_long")
@pytest.mark.parametrize("special", ["plain", "far from 0", "silent at first", "nan"])
@pytest.mark.parametrize("form", MOMENTS)
def test_several_programs_for_moments(special: str, form: str) -> None:
    tensors = signal(special)
    agree(MOMENTS[form], *tensors, as_torch=2)
    (step,) = plan_of(MOMENTS[form], *tensors)[0].forward
    assert isinstance(step, kernel.Kernel) and step.last_block is not None


@pytest.mark.usefixtures("few_and_long")
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("form", OF_TWO)
def test_several_programs_for_two_softmaxes(special: str, form: str) -> None:
    one, other = logits("plain").requires_grad_(), logits(special).flip(1).requires_grad_()
    agree(OF_TWO[form], one, other, as_torch=2 if special == "plain" else 8)


@pytest.mark.parametrize("columns", [1, 200_001])
@pytest.mark.parametrize("form", ["logsumexp", "entropy", "place", "variance"])
def test_lengths(form: str, columns: int) -> None:
    x = Samples(torch.float64).real(2, columns).float().requires_grad_()
    loss = SOFTMAXES.get(form) or (lambda x: MOMENTS["variance"](x, x).nansum())
    agree(loss, x, as_torch=2)


ONE_ROW: dict[str, Loss] = {
    "logsumexp": lambda x: x.logsumexp(0),
    "entropy": lambda x: -(x.softmax(0) * x.log_softmax(0)).sum(),
    "variance": lambda x: x.var(),
    "deviation of a matrix": lambda x: x.view(-1, 500).std(),
    "place": lambda x: x.logsumexp(0) + x.argmax(0),
}


@pytest.mark.parametrize("form", ONE_ROW)
def test_one_long_row_of_several_programs(form: str) -> None:
    agree(ONE_ROW[form], Samples(torch.float64).real(40_500).float().requires_grad_(), as_torch=2)
