"""Run the demo: generate, compile in the background, train, and run every loss."""

from __future__ import annotations

import torch

from autogen import AutogenError
from autogen.aot import TARGETS, SpecializedKernel, kernels_of
from examples.demo import console
from examples.demo.cases import Case, cases
from examples.demo.compiling import Compilation
from examples.demo.findings import Findings
from examples.demo.heads import recurrent
from examples.demo.training import load_digits, train
from examples.demo.walking import examine
from examples.llm_head import compare

QUICK_TARGETS = ("sm_90",)
HEAD_STEPS, QUICK_HEAD_STEPS = 8, 4


def explore(device: torch.device, steps: int, quick: bool) -> Findings:
    """Run everything, with a progress bar."""
    walk = cases(_batch(device, quick))
    data = load_digits(device)
    with console.progress() as progress:
        tracked = progress.track(walk, description="Generating kernels")
        kernels = {number: _kernels(case, device) for number, case in enumerate(tracked)}
        with Compilation(kernels, QUICK_TARGETS if quick else tuple(TARGETS)) as compilation:
            compiling = progress.add_task(f"Compiling for {', '.join(compilation.targets)}", total=compilation.total)
            learning = progress.add_task("Training on handwritten digits", total=steps)

            def tick(steps_done: int) -> None:
                progress.update(learning, completed=steps_done)
                progress.update(compiling, completed=compilation.done)

            training = train(data, steps, tick)
            head_steps = QUICK_HEAD_STEPS if quick else HEAD_STEPS
            speaking = progress.add_task("Training a language model's head", total=2 * head_steps)
            heads = compare(recurrent, device, head_steps, lambda: progress.advance(speaking))
            rows = []
            for case in progress.track(walk, description="Running every loss"):
                rows.append(examine(case, device))
                tick(steps)
            while compilation.is_alive():
                compilation.join(0.2)
                tick(steps)
    return Findings(device, training, heads, rows, [compilation.verdicts(number) for number in range(len(walk))])


def _batch(device: torch.device, quick: bool) -> int:
    """Rows per loss: enough to time on a GPU, few enough to interpret elsewhere."""
    return 16384 if device.type == "cuda" else 16 if quick else 64


def _kernels(case: Case, device: torch.device) -> tuple[SpecializedKernel, ...]:
    options, arguments = case.draw(device)
    try:
        return kernels_of(case.generated(options), *arguments)
    except AutogenError:
        return ()  # the walk shows the reason
