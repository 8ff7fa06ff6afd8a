"""Run handwritten losses on a driver that does nothing, and print what Triton's launcher passes to it.

python -m tests.ptx.launching_handwritten libcuda.so.1
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import torch

from tests.ptx.launching import pretend

MOST = 10  # parameters to look at; no kernel has fewer


def main(library: str) -> None:
    pretend()
    driver = ctypes.CDLL(library)
    driver.noted_parameter.restype = driver.noted_stream.restype = ctypes.c_uint64
    from autogen import policy
    from autogen.losses import CosineEmbeddingLoss, CTCLoss, InfoNCELoss, MultiLabelMarginLoss
    from autogen.losses.handwritten.multilabel_margin import MultiLabelMargin
    from autogen.runtime.handwritten import Launch

    MultiLabelMargin.checks_values = False
    through_triton: list[str] = []
    original = Launch._through_triton

    def counted(self: Launch, device: torch.device) -> Any:
        through_triton.append(self.name)
        return original(self, device)

    Launch._through_triton = counted  # type: ignore[method-assign]

    def note(loss: str, pointers: list[torch.Tensor]) -> None:
        parameters = [driver.noted_parameter(k) for k in range(MOST)]
        found = {"parameters": parameters, "programs": driver.noted_programs(), "stream": driver.noted_stream()}
        found |= {"launches": driver.noted_launches(), "through_triton": len(through_triton)}
        print(json.dumps(found | {"loss": loss, "pointers": [each.data_ptr() for each in pointers]}))

    def run(loss: Any, x: torch.Tensor, *rest: Any, name: str = "") -> None:
        name = name or type(loss).__name__
        x = x.detach().requires_grad_()
        value = loss(x, *rest)
        note(name, [x, value.detach()])
        (gradient,) = torch.autograd.grad(value, x, torch.ones(()))
        note(name, [x, gradient])

    driver.noted_parameters(MOST)
    cosine, margin, ctc = CosineEmbeddingLoss(), MultiLabelMarginLoss(), CTCLoss()
    steps = torch.randn(7, 5, 30)
    with policy("mandatory"):
        for offset in (0, 0, 0, 0, 1, 1):
            run(cosine, torch.rand(21 * 33 + 1)[offset:][: 21 * 33].view(21, 33), torch.rand(21, 33), torch.ones(21))
        for _ in range(5):
            run(margin, torch.rand(21, 33), torch.zeros(21, 33, dtype=torch.int64))
        for _ in range(4):  # planned for each call anew, as its lengths are on the host
            run(ctc, steps.clone(), torch.ones(5, 2, dtype=torch.int64), [7] * 5, [2] * 5)
        for _ in range(4):
            run(InfoNCELoss(), torch.rand(21, 33), torch.rand(21, 33))
        for rows in (21, 22, 23, 48):
            run(cosine, torch.rand(rows, 33), torch.rand(rows, 33), torch.ones(rows), name="of other sizes")


if __name__ == "__main__":
    main(sys.argv[1])
