"""The device of these tests: a GPU; with `--emulate`, one that is emulated, for whose tensors those of the CPU pass."""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
