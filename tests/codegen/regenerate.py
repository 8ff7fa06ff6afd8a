"""`python -m tests.codegen.regenerate`: write the golden modules and the type stub of the losses anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from autogen import losses
from autogen.aot import SpecializedKernel, kernels_of
from tests.codegen import stub

FOLDER = Path(__file__).parent / "golden"


def _kernels() -> Iterator[SpecializedKernel]:
    """Of a loss per element, one that reduces classes on chip, and one that reduces distances."""

    def real(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, requires_grad=True)

    yield from kernels_of(losses.BCEWithLogitsLoss(), real(64, 1000), torch.zeros(64, 1000))
    yield from kernels_of(losses.CrossEntropyLoss(), real(64, 1000), torch.zeros(64, dtype=torch.long))
    yield from kernels_of(losses.TripletMarginLoss(), *(real(256, 128) for _ in range(3)))


def modules() -> dict[str, str]:
    """The text of every golden file, by its name."""
    return {f"{kernel.name}.py": kernel.text for kernel in _kernels()}


def main() -> None:
    """Write the files, and remove what is none of them any more."""
    FOLDER.mkdir(exist_ok=True)
    texts = modules()
    for stale in {path.name for path in FOLDER.glob("*.py")} - texts.keys():
        (FOLDER / stale).unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    stub.FILE.write_text(stub.text(), encoding="utf-8")
    print(f"wrote {len(texts)} files to {FOLDER.relative_to(Path.cwd())}, and {stub.FILE.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
