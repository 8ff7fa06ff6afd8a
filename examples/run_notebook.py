"""`python -m examples.run_notebook`: run `examples/notebook.ipynb`, and update its outputs."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent / "notebook.ipynb"


def executed() -> nbformat.NotebookNode:
    """The notebook after a run on the CPU.

    Raises:
        CellExecutionError: a cell has raised an error.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = {"metadata": {"path": str(NOTEBOOK.parents[1])}}
    return NotebookClient(notebook, timeout=120, record_timing=False, coalesce_streams=True, resources=folder).execute()


if __name__ == "__main__":
    run = executed()
    run.metadata = {"kernelspec": run.metadata.kernelspec, "language_info": {"name": "python"}}
    nbformat.write(run, NOTEBOOK)
