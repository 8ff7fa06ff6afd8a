"""Kernels of sequences of many lengths, compiled for a real target: nothing spills, and one launch each way."""

from __future__ import annotations

import pytest
import torch

from autogen import autogen_loss, ragged
from bench.static import facts
from tests.interpret import lengths

FORMS = {"packed": lengths.packed, "jagged": lengths.jagged, "padded": lengths.padded}


@pytest.mark.parametrize(("form", "count"), [("packed", 1024), ("jagged", 64), ("padded", 64)])
def test_fits_on_chip(form: str, count: int) -> None:
    sizes = torch.full((count,), 2 if count == 1024 else 500)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    p, t = torch.rand(int(offsets[-1]), 4, requires_grad=True), torch.rand(int(offsets[-1]), 4)
    given = {
        "packed": (p, t, offsets),
        "jagged": (ragged(p, offsets), ragged(t, offsets)),
        "padded": (p.detach().reshape(count, -1, 4).requires_grad_(), t.reshape(count, -1, 4), sizes),
    }
    loss = autogen_loss(lambda *arguments: FORMS[form]("giou", *arguments))
    for direction in facts(loss, given[form]):
        assert direction.launches == 1 and direction.spilled == 0 and direction.shared <= 32768
