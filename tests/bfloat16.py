"""Conversions to and from bfloat16 as hardware does them.

Triton's interpreter cuts bits off where hardware rounds to the nearest, and takes denormals for other numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert so in the interpreter, from now on."""
    convert = interpreter._convert_float

    def converted(input: np.ndarray, input_dtype: tl.dtype, output_dtype: tl.dtype, rounding: Any) -> np.ndarray:
        match input_dtype, output_dtype:
            case tl.float32, tl.bfloat16:
                return torch.from_numpy(np.asarray(input, np.float32)).bfloat16().view(torch.uint16).numpy()
            case tl.bfloat16, tl.float32:
                return np.asarray(input, np.uint16).astype(np.uint32) << 16
        return convert(input, input_dtype, output_dtype, rounding)

    monkeypatch.setattr(interpreter, "_convert_float", converted)
