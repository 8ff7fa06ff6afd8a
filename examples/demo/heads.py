"""The head of a language model: a small one for the demo, and charts of what `examples.llm_head` measures."""

from __future__ import annotations

from markupsafe import Markup
from torch import Tensor, nn

from examples.demo.chart import GENERATED, TORCH, Bar, Line, bars, chart
from examples.llm_head import WIDTH, Heads, Model

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 460px; margin: 40px auto; }
svg { width: 100%; height: auto; }
"""


def recurrent(vocabulary: int) -> Model:
    """A small recurrent network, for where there are no packages of language models."""
    embedding, network = nn.Embedding(vocabulary, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
    head = nn.Linear(WIDTH, vocabulary, bias=False)

    def hidden(tokens: Tensor) -> Tensor:
        return network(embedding(tokens))[0]

    return Model(nn.ModuleList([embedding, network, head]), hidden, head.weight)


def curve_of(heads: Heads) -> Markup:
    """The losses of both runs."""
    lines = [Line("torch", TORCH, heads.torch.losses, 5), Line("in chunks", GENERATED, heads.chunks.losses)]
    return chart("loss", lines)


def memory_of(heads: Heads) -> Markup:
    """What head and loss of one step allocate, in both runs."""
    runs = (("torch", TORCH, heads.torch), ("in chunks", GENERATED, heads.chunks))
    return bars("kB, allocated at most", [Bar(name, color, run.peak / 1000) for name, color, run in runs])


def page_of_heads(heads: Heads) -> str:
    """A page of both drawings."""
    title = "A language model's head: torch, and in chunks on kernels"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    text = "<h2>Loss at every step</h2>{}<h2>Memory of head and loss, forward and backward</h2>{}"
    return f"{head}<h1>{title}</h1><p>{heads.statement}.</p>{text.format(curve_of(heads), memory_of(heads))}</html>\n"
