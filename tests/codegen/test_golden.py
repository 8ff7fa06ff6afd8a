"""Three losses, whole: what a change of the generator changes for the reader.

After a change that is meant: `python -m tests.codegen.regenerate`, and read the difference.
"""

from __future__ import annotations

import pytest
import torch

from tests.codegen.regenerate import FOLDER, modules

# Comments quote torch's own functions, which other versions may write otherwise.
pytestmark = pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="written with torch 2.13")


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return modules()


def test_the_folder_holds_every_module_and_nothing_else(generated: dict[str, str]) -> None:
    assert {path.name for path in FOLDER.iterdir() if path.is_file()} == set(generated)


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.py")))
def test_the_text_is_the_golden_one(name: str, generated: dict[str, str]) -> None:
    assert generated[name].splitlines() == (FOLDER / name).read_text(encoding="utf-8").splitlines()
    assert generated[name] == (FOLDER / name).read_text(encoding="utf-8")
