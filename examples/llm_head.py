"""Train a language model whose head and loss are one decorated function, with logits for a few tokens at a time.

    TRITON_INTERPRET=1 python -m examples.llm_head    # on a GPU without TRITON_INTERPRET

A small Llama learns the first words of the licence of this package by heart, once with the loss in torch and once on
kernels, in chunks of tokens. Both learn the same; what the head allocates differs. Curves and memory are drawn in
build/llm_head.html.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen

ROOT = Path(__file__).parents[1]
WIDTH, SEQUENCES, LENGTH, BATCHES, STEPS = 32, 4, 16, 2, 20
CHUNK = 16  # of the 64 tokens of a batch; of large vocabularies the default is right

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def next_word(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the logits of each token."""
    return F.cross_entropy(hidden @ weight.t(), labels)


in_chunks: Loss = autogen.autogen_loss(next_word, chunk=CHUNK)


@dataclass(frozen=True)
class Model:
    """What is trained: `hidden` makes hidden states of tokens, and `weight` is that of the head."""

    module: nn.Module
    hidden: Callable[[Tensor], Tensor]
    weight: Tensor


@dataclass(frozen=True)
class Run:
    """The loss of each step, and the bytes that head and loss of one allocate at most."""

    losses: list[float]
    peak: int


@dataclass(frozen=True)
class Heads:
    """One model, trained with the loss in torch and in chunks."""

    torch: Run
    chunks: Run

    @property
    def agrees(self) -> bool:
        """Whether both learnt the same, and the chunks took less memory."""
        pairs = zip(self.torch.losses, self.chunks.losses, strict=True)
        return all(abs(a - b) <= 1e-4 * abs(a) for a, b in pairs) and self.chunks.peak < self.torch.peak

    @property
    def statement(self) -> str:
        """The finding, in a sentence."""
        share = 100 * self.chunks.peak / self.torch.peak
        found = f"{'agree' if self.agrees else 'DO NOT agree'} at each of the {len(self.torch.losses)} steps"
        return f"Head and loss {found}, in chunks with {share:.0f} % of the memory"


def words(device: torch.device) -> tuple[Tensor, int]:
    """The words of the licence as numbers, in rows of `LENGTH` and the next, and how many there are."""
    text = re.findall(r"\w+|[^\w\s]", (ROOT / "LICENSE").read_text(encoding="utf-8").lower())
    numbers = {word: number for number, word in enumerate(dict.fromkeys(text))}
    tokens = torch.tensor([numbers[word] for word in text], device=device)
    return tokens.unfold(0, LENGTH + 1, LENGTH), len(numbers)


def train(
    make: Callable[[int], Model], loss: Loss, device: torch.device, steps: int, on_step: Callable[[], None]
) -> Run:
    """Train for some steps, and measure the memory of one more."""
    from examples.demo.counting import peak_bytes

    torch.manual_seed(0)
    rows, count = words(device)
    model = make(count)
    model.module.to(device)
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        batch = rows.split(SEQUENCES)[step % BATCHES]
        value = loss(model.hidden(batch[:, :-1]).flatten(0, 1), model.weight, batch[:, 1:].flatten())
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
        on_step()
    hidden, labels = model.hidden(batch[:, :-1]).flatten(0, 1).detach().requires_grad_(), batch[:, 1:].flatten()
    return Run(losses, peak_bytes(device, lambda: loss(hidden, model.weight, labels).backward()))


def compare(
    make: Callable[[int], Model], device: torch.device, steps: int, on_step: Callable[[], None] = lambda: None
) -> Heads:
    """Train the same model with the loss in torch and on kernels."""
    in_torch = train(make, next_word, device, steps, on_step)
    with autogen.policy("mandatory"):  # a loss that cannot run on kernels is an error
        return Heads(in_torch, train(make, in_chunks, device, steps, on_step))


def llama(vocabulary: int) -> Model:
    """A small Llama of Hugging Face's."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=LENGTH,
        )
    )
    return Model(model, lambda tokens: model.model(tokens).last_hidden_state, model.lm_head.weight)


def main() -> None:
    """Train twice, compare, and draw."""
    from examples.demo.heads import page_of_heads

    heads = compare(llama, torch.device("cuda" if torch.cuda.is_available() else "cpu"), STEPS)
    for name, run in (("torch", heads.torch), ("in chunks", heads.chunks)):
        curve = f"loss {run.losses[0]:.4f} at first, {run.losses[-1]:.4f} after {len(run.losses)} steps"
        print(f"{name}: {curve}; head and loss allocate {run.peak / 1000:.0f} kB at most")
    assert heads.agrees and heads.chunks.losses[-1] < heads.chunks.losses[0], heads.statement
    path = ROOT / "build" / "llm_head.html"
    path.parent.mkdir(exist_ok=True)
    path.write_text(page_of_heads(heads), encoding="utf-8")


if __name__ == "__main__":
    main()
