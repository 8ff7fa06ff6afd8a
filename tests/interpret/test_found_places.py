"""Reads and writes at what `nonzero` has found, as losses of detectors have them: the gradient needs no `index_put`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss, explain

ROWS, COLUMNS = 9, 4
LABELS = torch.tensor([0, 3, 1, 1, 2, 0, 3, 2, 2])

Loss = Callable[[Tensor, Tensor], Tensor]


def places(mask: Tensor) -> Tensor:
    return mask.nonzero().squeeze(1)


def quality(x: Tensor, mask: Tensor) -> Tensor:
    """As quality focal loss has it."""
    found = places(mask)
    loss = F.binary_cross_entropy_with_logits(x, torch.zeros_like(x), reduction="none") * x.sigmoid().square()
    own = x[found, LABELS[found]]
    loss[found, LABELS[found]] = (1 - own.sigmoid()).square() * F.softplus(-own)
    return loss.sum() / max(len(found), 1)


def one_hot(x: Tensor, mask: Tensor) -> Tensor:
    found = places(mask)
    target = torch.zeros_like(x)
    target[found, LABELS[found]] = 1
    return F.binary_cross_entropy_with_logits(x, target)


def kept_rows(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[places(mask)] = x[places(mask)].softmax(1) * 3
    return (y * x).sum()


def added_rows(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[places(mask)] += 1
    return y.index_put((places(mask),), x.new_full((COLUMNS,), 2.0), accumulate=True).square().sum()


def columns(x: Tensor, mask: Tensor) -> Tensor:
    found = places(mask[:COLUMNS])
    return x[:, found].exp().sum() + x.t()[found].square().sum()


def elements(x: Tensor, mask: Tensor) -> Tensor:
    row, column = ((x > 0) & mask[:, None]).nonzero(as_tuple=True)
    return (x[row, column] * torch.arange(len(row))).sum() + x[row].square().sum() * 0.1


def of_numbers(x: Tensor, mask: Tensor) -> Tensor:
    return x[(LABELS * mask).nonzero()[:, 0]].logsumexp(1).sum()


IN_KERNELS: dict[str, Loss] = {
    "rows": lambda x, mask: F.smooth_l1_loss(x[places(mask)], x.detach()[places(mask)] * 2, reduction="sum"),
    "of its label": lambda x, mask: x[places(mask), LABELS[places(mask)]].exp().sum(),
    "cross entropy": lambda x, mask: F.cross_entropy(x[places(mask)], LABELS[places(mask)], reduction="sum"),
    "one column": lambda x, mask: x[places(mask), 2].square().sum(),
    "quality": quality,
    "one hot": one_hot,
    "kept rows": kept_rows,
    "added rows": added_rows,
    "of numbers": of_numbers,
}


def changed(x: Tensor, mask: Tensor) -> Tensor:
    found = places(mask).clone()
    found.clamp_(max=3)
    return x[found].square().sum()


def changed_in_place(x: Tensor, mask: Tensor) -> Tensor:
    found = places(mask)
    found.fill_(2)
    return x[found].square().sum()


def changed_mask(x: Tensor, mask: Tensor) -> Tensor:
    mask = mask.clone()
    found = places(mask)
    mask.logical_not_()
    return x[found].square().sum()


OTHERS: dict[str, Loss] = {
    "columns": columns,
    "elements": elements,
    "all twice": lambda x, mask: x[torch.cat([places(mask)] * 2)].square().sum(),
    "all but the first": lambda x, mask: x[places(mask)[1:]].square().sum(),
    "expanded": lambda x, mask: x[places(mask)[:1].expand(5)].square().sum(),
    "of a part": lambda x, mask: x[places(mask[:5])].square().sum(),
    "in pairs": lambda x, mask: x[places(mask)[:, None], torch.tensor([0, 2])].exp().sum(),
    "flipped": lambda x, mask: (x[places(mask).flip(0)] * torch.arange(COLUMNS)).exp().sum(),
    "changed": changed,
    "changed in place": changed_in_place,
    "changed mask": changed_mask,
}


@pytest.mark.parametrize("case", [*IN_KERNELS, *OTHERS])
def test_places(case: str) -> None:
    """Places that are none, one, two, some and all."""
    loss = IN_KERNELS.get(case) or OTHERS[case]
    ours = autogen_loss(loss)
    for call, chosen in enumerate((5, 0, 1, 2, ROWS, 7, 3, 0)):
        generator = torch.Generator().manual_seed(call)
        mask = torch.randperm(ROWS, generator=generator) < chosen
        x = torch.randn(ROWS, COLUMNS, generator=generator).requires_grad_()
        found: list[object] = []
        for each in (ours, loss):
            try:
                value = each(x, mask)
            except (IndexError, RuntimeError) as error:
                found.append(type(error))
                continue
            found.append((value.detach(), *torch.autograd.grad(value, x)))
        if isinstance(found[1], type):
            assert found[0] is found[1]
        else:
            torch.testing.assert_close(*found)


@pytest.mark.parametrize("case", IN_KERNELS)
def test_no_step_of_torch_after_forward(case: str) -> None:
    x = torch.randn(ROWS, COLUMNS, requires_grad=True)
    report = explain(autogen_loss(IN_KERNELS[case]), x, torch.arange(ROWS) % 2 > 0)
    assert report.backward is not None
    assert report.backward.torch_steps == ()
    assert report.backward.launches == 1
