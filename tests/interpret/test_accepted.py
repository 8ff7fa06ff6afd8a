"""Dtypes and numbers that torch's ops do not take, which fake tensors do not tell: the error is torch's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from autogen import autogen_loss, explain, losses, trace_count
from autogen.tracing.aten.accepted import require_accepted

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

REFUSED: dict[str, Loss] = {
    "a mask subtracted": lambda x, mask, count: (x - mask).mean(),
    "from a mask": lambda x, mask, count: (mask - x).mean(),
    "one less a mask": lambda x, mask, count: (x * (1 - mask)).mean(),
    "a truth less": lambda x, mask, count: ((x.shape[0] > 4) - x).mean(),
    "less a truth": lambda x, mask, count: (x - (x.shape[0] > 4)).mean(),
    "less what is read": lambda x, mask, count: (x - mask.any().item()).mean(),
    "in place": lambda x, mask, count: x.clone().sub_(mask).mean(),
    "a mask negated": lambda x, mask, count: (x * -mask).mean(),
    "l1 of a mask": lambda x, mask, count: functional.l1_loss(x, mask),
    "multilabel of a mask": lambda x, mask, count: functional.multilabel_soft_margin_loss(x, mask),
    "soft margin of a column": lambda x, mask, count: functional.soft_margin_loss(x, x.detach()[:, None].sign()),
    "bce by a column": lambda x, mask, count: functional.binary_cross_entropy(
        x.sigmoid(), x.detach().sigmoid(), x.detach()[:, None]
    ),
    "logits by a column": lambda x, mask, count: functional.binary_cross_entropy_with_logits(x, x, x.detach()[:, None]),
    "positive by a column": lambda x, mask, count: functional.binary_cross_entropy_with_logits(
        x, x, pos_weight=x.detach()[:, None], reduction="sum"
    ),
    "soft margin, backward": lambda x, mask, count: functional.soft_margin_loss(x, mask),
    "gelu of integers": lambda x, mask, count: (x + functional.gelu(count)).mean(),
    "softmax of integers": lambda x, mask, count: (x * count.softmax(-1)).mean(),
    "mean of integers": lambda x, mask, count: x.mean() * count.mean(),
    "deviation of integers": lambda x, mask, count: x.mean() * count.std(),
    "moments of integers": lambda x, mask, count: x.mean() * torch.var_mean(count)[0],
    "logarithms of integers": lambda x, mask, count: (x * count.logcumsumexp(0)).mean(),
    "logarithms of a mask": lambda x, mask, count: (x * mask.logcumsumexp(0)).mean(),
    "from a multiple of a mask": lambda x, mask, count: torch.rsub(mask, x, alpha=2).mean(),
    "floor of a mask": lambda x, mask, count: (x + mask.floor()).mean(),
    "integers divided": lambda x, mask, count: torch.addcdiv(count, count, count).sum() + x.mean(),
    "a layer of doubles": lambda x, mask, count: functional.linear(x[None].double(), x.new_ones(2, 6), x[:2]).mean(),
    "a matrix of doubles": lambda x, mask, count: (x.outer(x).double() @ x).mean(),
    "a batch of doubles": lambda x, mask, count: torch.baddbmm(x[:1], x[None, None].double(), x[None, :, None]).mean(),
    "between a double": lambda x, mask, count: torch.lerp(x, x.double(), 0.3).mean(),
    "between, by doubles": lambda x, mask, count: torch.lerp(x, x, x.double()).mean(),
    "doubles added": lambda x, mask, count: x.clone().index_add(0, count - 1, x.double()).mean(),
    "doubles added in place": lambda x, mask, count: x.clone().index_add_(0, count - 1, x.double()).mean(),
    "doubles copied": lambda x, mask, count: x.index_copy(0, count - 1, x.double()).mean(),
    "doubles put": lambda x, mask, count: x.index_put((count[:2],), x[:2].double()).mean(),
    "doubles assigned": lambda x, mask, count: (y := x.clone(), y.__setitem__(count - 1, x.double()))[0].mean(),
    "doubles where a mask is": lambda x, mask, count: (y := x.clone(), y.__setitem__(mask, x[mask].double()))[0].mean(),
    "a layer's weights": lambda x, mask, count: functional.layer_norm(x, (6,), x.double()).square().mean(),
    "a layer's bias": lambda x, mask, count: functional.layer_norm(x.view(2, 3), (3,), None, x[:3].double()).mean(),
    "a batch's weights": lambda x, mask, count: (
        functional.batch_norm(x.view(2, 3), None, None, x[:3].double(), x[:3].double(), training=True).square().mean()
    ),
    "a group's weights": lambda x, mask, count: functional.group_norm(x.view(1, 6), 2, x.double()).square().mean(),
    "an instance's weights": lambda x, mask, count: (
        functional.instance_norm(x.view(1, 2, 3), weight=x[:2].double()).square().mean()
    ),
    "chosen by integers": lambda x, mask, count: x.masked_select(count - 1).mean(),
    "filled where floats are": lambda x, mask, count: (x * count.float().masked_fill_(x.detach(), 2.0)).mean(),
    "written at floats": lambda x, mask, count: (x * count.float().index_put_((x.detach(),), x[0].detach())).mean(),
    "a cross product": lambda x, mask, count: torch.linalg.cross(x[:3], x[3:].double()).mean(),
    "beyond bytes": lambda x, mask, count: (x * count.to(torch.uint8).masked_fill(mask, 300)).mean(),
    "labels resized": lambda x, mask, count: (x[:4] * functional.interpolate(count[None, None], 4)).mean(),
    "labels between": lambda x, mask, count: (
        x[:4] * functional.interpolate(count.view(1, 1, 2, 3), (2, 2), mode="bilinear").flatten()
    ).mean(),
    "labels pooled": lambda x, mask, count: functional.adaptive_avg_pool2d(count.view(1, 1, 2, 3), 4).sum() * x.mean(),
    "bytes filled": lambda x, mask, count: (x * count.to(torch.int8).fill_(200)).mean(),
    "bytes made": lambda x, mask, count: (x * torch.full((6,), 300, dtype=torch.uint8)).mean(),
    "bytes chosen": lambda x, mask, count: (x * torch.where(mask, count.to(torch.int8), 1000)).mean(),
    "no integer": lambda x, mask, count: (x * torch.full_like(count, math.nan)).mean(),
    "beyond halves": lambda x, mask, count: x.half().masked_fill(mask, -1e9).float().mean(),
    "beyond halves, in place": lambda x, mask, count: x.half().masked_fill_(mask, -1e9).float().mean(),
    "clamped beyond halves": lambda x, mask, count: x.half().clamp(max=1e5).float().mean(),
    "filled beyond halves": lambda x, mask, count: (x + torch.full_like(x.half(), 1e5)).mean(),
    "padded beyond halves": lambda x, mask, count: functional.pad(x.half(), (1, 1), value=1e5).float().mean(),
}
TAKEN: dict[str, Loss] = {
    "a mask multiplied": lambda x, mask, count: (x * mask).mean(),
    "added at indices": lambda x, mask, count: x.index_add(0, count - 1, 2 * x).square().mean(),
    "assigned at indices": lambda x, mask, count: (y := x.clone(), y.__setitem__(count - 1, 2 * x))[0].square().mean(),
    "a double where a mask is": lambda x, mask, count: (
        (y := x * 1, y.__setitem__(mask, x[:1].detach().double()))[0].square().mean()
    ),
    "a number assigned": lambda x, mask, count: (y := x * 1, y.__setitem__(mask, 0.5))[0].square().mean(),
    "groups": lambda x, mask, count: functional.group_norm(x.view(1, 6), 2, x).square().mean(),
    "integers subtracted": lambda x, mask, count: (x - count).mean(),
    "less the greatest float": lambda x, mask, count: x.masked_fill(mask, -3e38).clamp(min=-2.0).mean(),
    "a sum beyond halves": lambda x, mask, count: (x.half() + 1e5).clamp(max=1.0).float().mean(),
    "halves chosen": lambda x, mask, count: torch.where(mask, x.half(), 1e9).clamp(max=1.0).float().mean(),
    "bytes chosen": lambda x, mask, count: (x * torch.where(mask, count.to(torch.uint8), 200)).mean(),
    "halves compared": lambda x, mask, count: (x * (x.half() < 1e5)).mean(),
    "sigmoid of integers": lambda x, mask, count: (x * count.sigmoid()).mean(),
}


def arguments() -> tuple[Tensor, Tensor, Tensor]:
    """Floats, a mask and counts, of shape (6,)."""
    x = torch.linspace(-1, 1, 6, requires_grad=True)
    return x, x.detach() > 0, torch.arange(1, 7)


@pytest.mark.parametrize("case", REFUSED)
def test_errors_are_torchs(case: str) -> None:
    loss = REFUSED[case]
    raised = []
    for each in (loss, autogen_loss(loss)):
        with pytest.raises((RuntimeError, IndexError)) as caught:
            each(*arguments()).backward()
        raised.append((type(caught.value), str(caught.value)))
    assert raised[0] == raised[1]
    report = explain(autogen_loss(loss), *arguments())
    assert report.path == "eager"
    assert "autogen failed" not in report.reason


@pytest.mark.parametrize("case", TAKEN)
def test_what_torch_takes_has_a_kernel(case: str) -> None:
    loss = TAKEN[case]
    results = []
    for each in (loss, autogen_loss(loss, policy="mandatory")):
        x, *others = arguments()
        value = each(x, *others)
        value.backward()
        results.append((value.detach(), x.grad))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("correction", [1, 0], ids=str)
def test_dimensions_are_no_numbers_that_are_tried(correction: int) -> None:
    """And a trial does not warn: of one element, which the loss has not, there is no variance."""
    loss = autogen_loss(lambda x: x.var(0, correction=correction).sum(), policy="mandatory")
    x = torch.linspace(-1, 1, 35).view(5, 7)
    torch.testing.assert_close(loss(x), x.var(0, correction=correction).sum())


FILLS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "filled": lambda x, s: x.masked_fill(x > 1, s).sum(),
    "made": lambda x, s: (torch.full_like(x, s) * x).sum(),
    "clamped": lambda x, s: x.clamp(max=s).sum(),
    "added": lambda x, s: (x + s).clamp(max=1.0).sum(),
}


@pytest.mark.parametrize("name", FILLS)
def test_a_float_that_varies_is_an_error_where_halves_cannot_hold_it(name: str) -> None:
    x = torch.tensor([0.5, 2.0, 3.0]).half()
    loss = autogen_loss(FILLS[name])
    for number in (1.0, 2.0, 3.0, 7e4, 4.0, -8e4, 5.0):
        try:
            expected = FILLS[name](x, number)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=re.escape(str(error))):
                loss(x, number)
        else:
            torch.testing.assert_close(loss(x, number), expected)
    assert explain(loss, x, 6.0).path == "generated"
    assert trace_count(loss) <= 5


def test_what_the_cpu_has_no_halves_for_is_no_error() -> None:
    """A GPU may have them; of integers, neither has."""
    require_accepted(torch.ops.aten.special_zeta.other_scalar, (torch.ones(2, dtype=torch.half), 0.0), {})
    with pytest.raises(NotImplementedError):
        require_accepted(torch.ops.aten.gelu.default, (torch.ones(2, dtype=torch.int64),), {})


@pytest.mark.parametrize(
    ("loss", "inputs"),
    [
        (losses.MultiMarginLoss(reduction="Mean"), (torch.ones(2, 3), torch.tensor([0, 1]))),
        (losses.MultiMarginLoss(), (torch.ones(2, 3), torch.tensor([0, 1], dtype=torch.int32))),
        (losses.MultiMarginLoss(), (torch.ones(2, 3, dtype=torch.int64), torch.tensor([0, 1]))),
        (losses.NLLLoss(torch.ones(1)), (torch.ones(2, 3, 4), torch.ones(2, 4, dtype=torch.int64))),
        (losses.CrossEntropyLoss(torch.ones(1)), (torch.ones(2, 3, 4), torch.ones(2, 4, dtype=torch.int64))),
    ],
    ids=["a reduction", "labels", "scores", "a weight", "a weight of logits"],
)
def test_what_else_torch_refuses(loss: losses.MultiMarginLoss, inputs: tuple[Tensor, Tensor]) -> None:
    raised = []
    for use_autogen in (True, False):
        loss.use_autogen = use_autogen
        with pytest.raises((RuntimeError, ValueError)) as caught:
            loss(*inputs)
        raised.append((type(caught.value), str(caught.value)))
    assert raised[0] == raised[1]
