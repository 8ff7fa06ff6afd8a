"""`python -m examples.beyond`: list the losses beyond torch, with their paths and launches.

It prints what `autogen.supported_losses` finds, as Markdown.
"""

from __future__ import annotations

import os

import autogen
from autogen.report.samples import EVEN, ODD, SMALL
from autogen.report.samples import calls_beyond_torch as calls

__all__ = ["EVEN", "ODD", "SMALL", "calls", "table"]


def table() -> str:
    """The table as Markdown."""
    from torch import nn

    from autogen import losses

    lines = ["| loss | path | launches | torch runs |", "|---|---|---|---|"]
    for each in autogen.supported_losses(*(name for name in losses.__all__ if not hasattr(nn, name))).values():
        launches = " + ".join(map(str, each.launches))
        lines.append(f"| {' | '.join([each.name, each.path, launches, ', '.join(each.torch_steps)])} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    print(table())
