"""The device of the GPU tests: a GPU, or with `--emulate` an emulated one on tensors of the CPU."""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
