"""The README's code runs as written, and prints what the README says."""

import re
from pathlib import Path

import pytest
import torch

from examples import beyond, coverage
from examples.demo.cases import cases
from examples.refresh_readme import BEYOND, COVERAGE, README, blocks, consoles, outputs, with_printed

TEXT = README.read_text(encoding="utf-8")
REMEDY = "run `python -m examples.refresh_readme --skip-demo`"


def test_outputs_are_current() -> None:
    with torch.random.fork_rng():
        printed = list(outputs(blocks(TEXT)))
    if f"torch {torch.__version__.split('+')[0]}" not in TEXT:
        pytest.skip("kernels quote torch's source, and this is another torch than the README's")
    assert printed == [block.output or "" for block in blocks(TEXT)], REMEDY


@pytest.mark.filterwarnings("ignore")
def test_commands_print_what_they_do() -> None:
    found = consoles(TEXT)
    assert found and all(block.startswith("$ autogen ") for block in found)
    if f"torch {torch.__version__.split('+')[0]}" not in TEXT:
        pytest.skip("this is another torch than the README's")
    printed = [with_printed(block) for block in found]
    number = re.compile(r"\d\.\d\de[-+]\d\d")  # an error of torch's is that of the processor's instructions
    assert [number.sub("error", each) for each in printed] == [number.sub("error", each) for each in found], REMEDY


@pytest.mark.filterwarnings("ignore")
def test_coverage_is_current() -> None:
    if f"torch {torch.__version__.split('+')[0]}" not in TEXT:
        pytest.skip("this is another torch than the README's")
    (found,) = COVERAGE.findall(TEXT)
    assert found == coverage.table(), REMEDY


def test_table_of_losses_beyond_torch_is_current() -> None:
    (found,) = BEYOND.findall(TEXT)
    assert found == beyond.table(), REMEDY
    from autogen import losses

    names = re.findall(r"^\| (\w+)", found, re.MULTILINE)[1:]
    assert set(names) == {name for name in losses.__all__ if not hasattr(torch.nn, name)}


def test_table_has_every_case() -> None:
    rows = re.findall(r"^\| (\w+) \| (.*?) \| (\w+) \| (\d \+ \d) \|", TEXT, re.MULTILINE)
    assert rows == [(case.loss, case.description, "generated", "1 + 1") for case in cases(64)]


@pytest.mark.parametrize("page", [README, *sorted((README.parent / "docs").glob("*.md"))], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = "".join(page.read_text(encoding="utf-8").split("```")[::2])  # without code, where `](` is no link
    for target, heading in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}, heading


def test_folders_exist() -> None:
    for folder in re.findall(r"^\| `(\w+)/` \|", TEXT, re.MULTILINE):
        assert (README.parent / Path(folder)).is_dir(), folder
