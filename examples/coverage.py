"""`python -m examples.coverage`: list on which path every loss of torch runs, for which dtypes and options.

It prints what `autogen.supported_losses` finds, as Markdown.
"""

from __future__ import annotations

import os

import autogen


def table() -> str:
    """The table as Markdown."""
    lines = ["| loss | path | launches | dtypes | options | runs in torch |", "|---|---|---|---|---|---|"]
    for each in autogen.supported_losses(*_names(), dtypes=("fp16", "bf16", "fp32", "fp64")).values():
        launches = " + ".join(map(str, each.launches))
        options = ", ".join(f"`{option}`" for option in each.options)
        lines.append(
            f"| {' | '.join([each.name, each.path, launches, ' '.join(each.dtypes), options, each.falls_back])} |"
        )
    return "\n".join([*lines, ""])


def _names() -> list[str]:
    from torch import nn

    from autogen import losses

    return [name for name in losses.__all__ if hasattr(nn, name)]


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    print(table())
