"""Rows A16, A17 and A20 of the features: the policy from a file, what the package is for, and which losses it has."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import autogen
from autogen import Policy, policy
from autogen.settings import policies
from autogen.settings.policies import resolve
from examples.refresh_docs import renewed

ROOT = Path(__file__).parents[2]
YAML = "trainer:\n  max_steps: 3\nrunconfig:\n  max_steps: 3\n  autogen_policy: {}\n"
TOML = '[runconfig]\nautogen_policy = "{}"\n'


def write(path: Path, level: str) -> Path:
    """A file that names a policy."""
    path.write_text((TOML if path.suffix == ".toml" else YAML).format(level))
    return path


@pytest.fixture(autouse=True)
def no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without a policy of any kind; afterwards all is as it was."""
    monkeypatch.delenv("AUTOGEN_POLICY", raising=False)
    monkeypatch.delenv("AUTOGEN_RUNCONFIG", raising=False)
    for name in ("_set_policy", "_file_policy", "_process_policy"):
        monkeypatch.setattr(policies, name, None)
    policies._update()


def test_a16_the_first_that_is_set_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve() is Policy.DEFAULT
    monkeypatch.setenv("AUTOGEN_RUNCONFIG", str(write(tmp_path / "environment.yaml", "aggressive")))
    autogen.set_policy(None)
    assert resolve() is Policy.AGGRESSIVE
    for path in (tmp_path / "run.yaml", tmp_path / "run.toml"):
        autogen.load_runconfig(write(path, "disabled"))
        assert resolve() is Policy.DISABLED
        autogen.load_runconfig(write(path, "mandatory"))
        assert resolve() is Policy.MANDATORY
    monkeypatch.setenv("AUTOGEN_POLICY", "default")
    autogen.set_policy(None)
    assert resolve() is Policy.DEFAULT
    autogen.set_policy("disabled")
    assert resolve() is Policy.DISABLED
    with policy("aggressive"):
        assert resolve() is Policy.AGGRESSIVE
        assert resolve("mandatory") is Policy.MANDATORY
    autogen.load_runconfig(write(tmp_path / "run.yaml", "aggressive"))
    assert resolve() is Policy.DISABLED


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (YAML.format("fast"), "'fast' is not a policy; choose from disabled, default, aggressive, mandatory"),
        ("runconfig:\n  autogen_polciy: disabled\n", "autogen_polciy is no key of autogen's; it knows autogen_policy"),
        ("runconfig: {max_steps: 3}", "there is no autogen_policy under runconfig; write it as"),
        ("- a\n- list\n", "there is no autogen_policy under runconfig"),
        ("runconfig: {autogen_policy: [disabled", "it is no YAML"),
    ],
)
def test_a16_what_is_wrong_with_a_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as raised:
        autogen.load_runconfig(path)
    assert str(raised.value).startswith(f"{path}: {said}") and "\n" not in str(raised.value)
    assert resolve() is Policy.DEFAULT


def test_a16_a_file_that_is_not_there_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.yaml: the file cannot be read \(.*No such file"):
        autogen.load_runconfig(tmp_path / "none.yaml")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("runconfig: yes")
    with pytest.raises(ValueError, match="it is no TOML"):
        autogen.load_runconfig(wrong)


def test_a16_a_wrong_file_in_the_environment_is_said_by_calls(tmp_path: Path) -> None:
    code = "import autogen; from autogen.settings.policies import resolve; print('imported'); resolve()"
    environment = {"AUTOGEN_RUNCONFIG": str(tmp_path / "none.yaml"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "imported\n"
    assert "ValueError: environment variable AUTOGEN_RUNCONFIG: " in done.stderr


def test_a17_capabilities() -> None:
    found = autogen.capabilities()
    names = [each.name for each in found.capabilities]
    assert names == ["nonlinearities", "fusion", "custom losses"]
    nonlinearities, fusion, _ = found.capabilities
    assert {"relu", "tanh", "exp", "log1p", "where", "clamp", "pow", "maximum", "lt"} <= set(nonlinearities.items)
    assert set(fusion.items) == set(autogen.losses.__all__)
    data = json.loads(json.dumps(dataclasses.asdict(found)))
    assert data["environment"]["versions"]["autogen-loss"] == autogen.__version__
    assert data["environment"]["interpreter"] is data["environment"]["runs"] is True
    assert all(f"{name} (" in str(found) for name in names)


def test_a17_each_capability_has_a_page_with_an_example_that_runs_and_a_test() -> None:
    page = ROOT / "docs" / "capabilities.md"
    text = page.read_text(encoding="utf-8")
    headings = [each.lower() for each in re.findall(r"^## (.+)$", text, re.MULTILINE)]
    assert headings == [each.name for each in autogen.capabilities().capabilities]
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert all("```python\n" in section and "```text\n" in section for section in sections)
    assert all((ROOT / re.findall(r"`(tests/\S+\.py)`", section)[0]).is_file() for section in sections)
    assert renewed(text) == (text, [])


def _rows(heading: str) -> dict[str, list[str]]:
    """The rows of a table of docs/losses/index.md, by loss."""
    text = (ROOT / "docs" / "losses" / "index.md").read_text(encoding="utf-8")
    table = text.partition(f"<!-- {heading} -->")[2].partition(f"<!-- /{heading} -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    return {row[0]: row for row in rows}


@pytest.mark.slow
def test_a20_supported_losses_are_those_of_the_documentation() -> None:
    """One loss of each path; `tests/interpret/test_docs.py` compares all of them, with all dtypes."""
    names = ("BCELoss", "CTCLoss", "LinearCrossEntropyLoss")
    names = tuple(name for name in names if hasattr(nn, name))  # the last is of newer versions of torch
    found = autogen.supported_losses(*names, dtypes=("bf16", "fp32"))
    assert list(found) == list(names)
    for name, path, launches, _, options, falls_back in (_rows("coverage")[name] for name in names):
        each = found[name]
        assert (each.name, each.path, each.falls_back) == (name, path, falls_back)
        assert " + ".join(map(str, each.launches)) == launches
        assert ", ".join(f"`{option}`" for option in each.options) == options
        assert each.dtypes == ("bf16", "fp32") and each.is_of_torch and each.reason
    assert {each.path for each in found.values()} >= {"generated", "handwritten"}


def test_a20_losses_beyond_torch_say_what_torch_runs() -> None:
    found = autogen.supported_losses("CoxPHLoss")["CoxPHLoss"]
    _, path, launches, steps = _rows("beyond")["CoxPHLoss"]
    assert (found.path, " + ".join(map(str, found.launches)), ", ".join(found.torch_steps)) == (path, launches, steps)
    assert not found.is_of_torch


def test_a20_what_is_asked_for_is_checked() -> None:
    with pytest.raises(ValueError, match=r"autogen\.losses has no BCELos$"):
        autogen.supported_losses("BCELos")
    with pytest.raises(ValueError, match="fp16, bf16, fp32, fp64, not float32"):
        autogen.supported_losses("BCELoss", dtypes=("float32",))
