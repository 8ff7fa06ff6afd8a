"""Losses of statements drawn at random, each of which torch can run after those before it, against torch."""

from __future__ import annotations

import linecache
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import autogen.scheduling.launches.kernel
from tests.interpret.agreement import agree
from tests.interpret.strategies import Draw, layouts
from tests.tiers import examples

EXAMPLES = 40
SIZES = (1, 2, 3, 5, 8, 17)
MOST_ELEMENTS, LARGEST = 3000, 30  # of what a statement gives

# Of tensors x and y, a dimension d, a mask m, and whether a dimension is kept, k. Numbers are compared with what no
# statement gives, so that a rounding of ours and another of torch do not part there.
ELEMENTWISE = """
    x.sigmoid()     x.abs() - 0.5       x.clamp(-0.7, 0.7)      F.softplus(x)           (x.abs() + 0.2).log()
    x * 0.5 + 1     x.square()          x.clamp(max=1).exp()    F.gelu(x)               (x.abs() + 0.2).rsqrt()
    x.detach()      1 - x               F.leaky_relu(x, 0.1)    x.sin() / 2             F.hardshrink(x)
    x + y           x - y               x * y                   x / (y.abs() + 0.5)     torch.where(y > 0.3, x, 2)
    x.maximum(y)    x.minimum(y)        torch.lerp(x, y, 0.3)   (x < 0.3).float() * y   x.masked_fill(y > 0.3, 0.7)
    x.logaddexp(y)  torch.hypot(x, y)   (x.abs() + 0.5) ** y.clamp(-2, 2)               torch.where(m, x, y)
    F.smooth_l1_loss(x, y, reduction="none")                    F.soft_margin_loss(x, y, reduction="none")
"""
REDUCED = """
    x.sum(d, k)     x.mean(d, k)        x.logsumexp(d, k)       x.norm(2, d, k) + 0.1   x - x.mean(d, True)
    x.amax(d, k)    x.softmax(d)        x.log_softmax(d)        F.normalize(x, dim=d)   F.cosine_similarity(x, y, d)
    x.cumsum(d)     x.amin(d, k)        x.var(d, False, k)      x.max(d, k).values      (x * m).sum() / (m.sum() + 1)
    x.masked_fill(m, -99.0).softmax(d)  x / x.abs().sum(d, True).clamp(min=0.2)         (x > 0.3).float().mean(d, k) * y
    F.cross_entropy(x.flatten(0, -2), x.flatten(0, -2).argmin(-1), reduction="none")    x.argmax(d, True) * y
"""
MOVED = """
    x.flatten()     x[..., 0]           x[:1]                   x[..., 1:]              x[..., ::2]
    x.unsqueeze(d)  x.transpose(0, -1)  x.flip(d)               x.roll(1, d)            F.pad(x, (1, 1))
    x.select(d, 0)  x.reshape(-1, x.shape[-1])                  torch.cat([x, y], d)    torch.stack([x, -y], d)
    x.unbind(d)[0]  x[..., None] - y[..., None, :]              x.expand(2, *x.shape)   x.diagonal(0, 0, -1)
    x.gather(d, y.argmin(d, True))      x.index_select(d, torch.tensor([0, 0]))         x.repeat_interleave(2, d)
"""
WRITTEN = """
    x.clone().index_put_((torch.tensor([0]),), y.mean())        torch.zeros_like(x).scatter(d, x.argmax(d, True), 1.0)
    x.clone().masked_fill_(m, 0.25)     x.mul(2).add_(y)        x.slice_scatter(x[..., :1] * 2, -1, 0, 1)
    masked(x, m)    pieces(x, d) * x
"""


def masked(x: Tensor, m: Tensor) -> Tensor:
    """What is written where a mask holds is what was read there."""
    written = x.clone()
    written[m] = x.softmax(-1)[m] - x[m].mean()
    return written


def pieces(x: Tensor, d: int) -> Tensor:
    """Pieces of a tensor without a gradient, written one by one."""
    x = x.detach().clone()
    for k, piece in enumerate(x.split(2, d)):
        piece.mul_(k).add_(x.narrow(d, 0, 1))
    return x


FUNCTIONS = {"torch": torch, "F": F, "masked": masked, "pieces": pieces}


def alternatives(table: str) -> list[str]:
    """The statements of a table, whose columns are two spaces apart."""
    return [each.strip() for each in re.split(r"\s{2,}", table) if each]


STATEMENTS = st.one_of([st.sampled_from(alternatives(t)) for t in (ELEMENTWISE, ELEMENTWISE, REDUCED, MOVED, WRITTEN)])


@st.composite
def inputs(draw: Draw) -> dict[str, Tensor]:
    """One to three tensors of random layouts that broadcast with each other, and a mask."""
    sizes = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3))
    tensors = {}
    for seed, name in enumerate(draw(st.sampled_from(("a", "ab", "abc")))):
        shape = [draw(st.sampled_from((size, size, 1))) if seed else size for size in sizes]
        normal = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        tensors[name] = draw(layouts(normal)).requires_grad_(draw(st.booleans()))
    return {**tensors, "m": torch.rand(sizes, generator=torch.Generator().manual_seed(9)) > 0.4}


@st.composite
def programs(draw: Draw) -> tuple[str, tuple[Tensor, ...]]:
    """The source of a loss, and its arguments."""
    arguments = draw(inputs())
    known, names, lines = {**FUNCTIONS, **arguments}, [*arguments][:-1], []
    for _ in range(draw(st.integers(1, 12))):
        words = {
            "x": draw(st.sampled_from(names[::-1])),
            "y": draw(st.sampled_from(names)),
            "d": str(draw(st.sampled_from((-1, 0, 1)))),
            "k": str(draw(st.booleans())),
        }
        value = draw(STATEMENTS)
        for letter, word in words.items():
            value = re.sub(rf"\b{letter}\b", word, value)
        found = result(value, known)
        if found is not None:
            names.append(f"v{len(lines)}")
            known[names[-1]] = found
            lines.append(f"    {names[-1]} = {value}\n")
    returned = draw(st.sampled_from(("{}.mean()", "{}.square().sum()", "{}"))).format(names[-1])
    return f"def loss({', '.join(arguments)}):\n{''.join(lines)}    return {returned}\n", tuple(arguments.values())


def result(value: str, known: dict[str, Any]) -> Tensor | None:
    """What torch gives for an expression; None if that is an error, or nothing to go on with."""
    try:
        found = eval(value, dict(known))
    except (IndexError, RuntimeError, TypeError, ValueError):
        return None
    is_fit = 0 < found.numel() <= MOST_ELEMENTS and bool(found.detach().abs().max() <= LARGEST)
    return found if is_fit else None


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=examples(EXAMPLES), suppress_health_check=list(HealthCheck))
@given(program=programs(), is_large=st.booleans())
def test_as_torch(program: tuple[str, tuple[Tensor, ...]], is_large: bool) -> None:
    source, arguments = program
    known: dict[str, Any] = {**FUNCTIONS}
    linecache.cache["<program>"] = len(source), None, source.splitlines(keepends=True), "<program>"
    exec(compile(source, "<program>", "exec"), known)
    with pytest.MonkeyPatch.context() as patch:
        if is_large:
            patch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", 0)
        agree(known["loss"], *arguments, launches=None)
