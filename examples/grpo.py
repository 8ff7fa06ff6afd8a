"""Train with TRL's GRPOTrainer, with its loss on kernels.

    TRITON_INTERPRET=1 python -m examples.grpo    # on a GPU without TRITON_INTERPRET

TRL computes the loss in one method, of some twenty operations on (sequences, tokens). A subclass calls
`autogen.losses.GRPOLoss` there: one kernel forward and one backward. A tiny model of random weights is rewarded for the
word "yes". Each batch is used twice, so that the second time the ratio of new and old probabilities is not 1.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

import autogen

WORDS = ["<pad>", "<eos>", "yes", "no", "maybe", "so", "is", "it"]


class KernelGRPOTrainer(GRPOTrainer):
    """GRPOTrainer, whose loss of type "grpo" runs on kernels."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        completions, mask = inputs["completion_ids"], inputs["completion_mask"]
        tokens = torch.cat([inputs["prompt_ids"], completions], 1)
        attended = torch.cat([inputs["prompt_mask"], mask], 1)
        now, *_ = self._get_per_token_logps_and_entropies(model, tokens, attended, completions.shape[1])
        old = inputs.get("old_per_token_logps")
        loss = autogen.losses.GRPOLoss(self.epsilon_low, self.epsilon_high)
        value: torch.Tensor = loss(now, now.detach() if old is None else old, inputs["advantages"], mask)
        return value / self.current_gradient_accumulation_steps


def count_yes(completions: list[str], **_: Any) -> list[float]:
    """How often each completion says yes."""
    return [float(completion.split().count("yes")) for completion in completions]


def train(trainer_class: type[GRPOTrainer]) -> list[dict[str, float]]:
    """Train for some steps; returns what the trainer logs."""
    set_seed(0)
    words = Tokenizer(WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            pad_token_id=0,
            eos_token_id=1,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            loss_type="grpo",
            max_steps=8,
            num_iterations=2,
            num_generations=8,
            per_device_train_batch_size=8,
            max_completion_length=8,
            learning_rate=2e-2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            bf16=False,
        )
        data = Dataset.from_dict({"prompt": ["is it so", "so is it", "it is", "is it"] * 4})
        trainer = trainer_class(model, count_yes, arguments, train_dataset=data, processing_class=tokenizer)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def main() -> None:
    """Train with TRL's loss and with ours, and compare."""
    expected = train(GRPOTrainer)
    with autogen.policy("mandatory"):  # a loss that cannot run on kernels is an error
        found = train(KernelGRPOTrainer)
    assert autogen.trace_count(autogen.losses.GRPOLoss)  # torch has captured it: TRL calls the method
    curves = {
        key: [torch.tensor([step[key] for step in log if key in step]) for log in (expected, found)]
        for key in ("loss", "grad_norm", "reward")
    }
    for k, name in enumerate(("TRL", "on kernels")):
        loss, reward = curves["loss"][k], curves["reward"][k]
        print(f"{name}: loss {loss[1]:.4f} in step 2, reward {reward[0]:.2f} at first, {reward[-1]:.2f} at last")
    for one, other in curves.values():
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-3)
    assert curves["reward"][1][-1] > curves["reward"][1][0]


if __name__ == "__main__":
    main()
