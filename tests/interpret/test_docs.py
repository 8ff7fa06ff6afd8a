"""The code of README.md and of the pages runs as written and prints what they say, and their links lead somewhere."""

import re
from pathlib import Path

import pytest
import torch

import autogen
from autogen import losses
from examples import beyond, coverage
from examples.demo.cases import cases
from examples.refresh_docs import PAGES, ROOT, renewed, versions_differ

TABLES = {"beyond", "coverage", "demo"}  # sections that take a minute each
LOSSES = (ROOT / "docs" / "losses" / "index.md").read_text(encoding="utf-8")
REMEDY = "run `python -m examples.refresh_docs --skip demo`"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def section(text: str, name: str) -> str:
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]


@pytest.mark.slow
def test_outputs_are_current() -> None:
    with torch.random.fork_rng():
        found = {name_of(page): renewed(page.read_text(encoding="utf-8"), TABLES)[1] for page in PAGES}
    if reason := versions_differ():
        pytest.skip(reason)
    assert not {name: changes for name, changes in found.items() if changes}, REMEDY


def test_outputs_that_have_changed_are_named() -> None:
    text = "```python\nprint(1)\n```\n\n```text\n2\n```\n\n<!-- other -->\n2\n<!-- /other -->\n"
    after, changes = renewed(text)
    assert after == text.replace("text\n2", "text\n1") and changes == ["line 1: the output of the block has changed"]
    assert renewed(after) == (after, [])
    shown = "```python\nthis_is_not_run()\n```\n"
    assert renewed(shown) == (shown, [])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_coverage_is_current() -> None:
    if reason := versions_differ():
        pytest.skip(reason)
    assert section(LOSSES, "coverage") == coverage.table(), REMEDY


@pytest.mark.slow
def test_table_of_losses_beyond_torch_is_current() -> None:
    found = section(LOSSES, "beyond")
    assert found == beyond.table(), REMEDY
    names = re.findall(r"^\| (\w+)", found, re.MULTILINE)[1:]
    assert set(names) == {name for name in losses.__all__ if not hasattr(torch.nn, name)}


def test_table_has_every_case() -> None:
    text = (ROOT / "docs" / "losses" / "checked.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| (.*?) \| (\w+) \| (\d \+ \d) \|", text, re.MULTILINE)
    assert rows == [(case.loss, case.description, "generated", "1 + 1") for case in cases(64)]


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        text = "".join(page.read_text(encoding="utf-8").split("```")[::2])  # without code, where `](` is no link
        for target, heading in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{name_of(page)} links to {target}"
            if heading:
                headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
                slugs = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
                assert heading in slugs, f"{name_of(page)} links to {target}#{heading}"


def test_reference_has_every_public_name() -> None:
    pages = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    documented = {name: re.findall(r"^::: autogen\S*\.(\w+)$", text, re.MULTILINE) for name, text in pages.items()}
    assert {"Mode", "__version__", *documented.pop("api.md")} == set(autogen.__all__)
    named = [name for names in documented.values() for name in names]
    assert sorted(named) == sorted(losses.__all__)


def test_folders_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE)
    assert folders and all((ROOT / folder).is_dir() for folder in folders)


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200
