"""Train with Hugging Face's Trainer: the model's own loss on kernels by `patch`, and a custom loss.

    TRITON_INTERPRET=1 python -m examples.huggingface    # on a GPU without TRITON_INTERPRET

A small Llama learns to count. First torch computes its loss; then `autogen.patch(model)` gives the model a loss on
kernels, `autogen.patch()` gives torch.nn.functional ones for a model that calls it, and last, Trainer is handed a
decorated function as `compute_loss_func`. All four train the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments, set_seed

import autogen

VOCABULARY, LENGTH = 64, 12
CONFIG = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=LENGTH,
)


@autogen.autogen_loss
def next_token(logits: torch.Tensor, labels: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each token but the first, given those before it: one kernel forward and one backward."""
    logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return F.cross_entropy(logits.float(), labels, reduction="sum") / count


def compute_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor) -> torch.Tensor:
    """What Trainer calls instead of the model's own loss."""
    return next_token(outputs.logits, labels, num_items_in_batch)


def train(model: LlamaForCausalLM, loss: Callable[..., torch.Tensor] | None = None) -> torch.Tensor:
    """Train for some steps; returns the losses that Trainer logs."""
    counting = (torch.arange(16).unsqueeze(1) + torch.arange(LENGTH)) % VOCABULARY
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=8,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        data = [{"input_ids": row, "labels": row} for row in counting]
        trainer = Trainer(model, arguments, train_dataset=data, compute_loss_func=loss)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return torch.tensor([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])


def new_model() -> LlamaForCausalLM:
    """The same model each time."""
    set_seed(0)
    return LlamaForCausalLM(CONFIG)


def main() -> None:
    """Train four times, and compare."""
    curves = {"torch": train(new_model())}
    with autogen.policy("mandatory"):  # a loss that cannot run on kernels is an error
        model = new_model()
        with autogen.patch(model):
            curves["autogen.patch(model)"] = train(model)
            assert autogen.trace_count(model.loss_function)  # torch has captured it
        with autogen.patch():
            curves["autogen.patch()"] = train(new_model())
            assert autogen.trace_count(F.cross_entropy)
        curves["compute_loss_func"] = train(new_model(), compute_loss)
    for name, curve in curves.items():
        print(f"{name}: loss {curve[0]:.4f} at first, {curve[-1]:.4f} after {len(curve)} steps")
        torch.testing.assert_close(curve, curves["torch"], rtol=1e-3, atol=1e-3)
    assert curves["torch"][-1] < curves["torch"][0]


if __name__ == "__main__":
    main()
