"""The policy of a process, from a file: row A16 of the features."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import autogen
from autogen import Policy, policies, policy
from autogen.policies import resolve

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
    code = "import autogen; from autogen.policies import resolve; print('imported'); resolve()"
    environment = {"AUTOGEN_RUNCONFIG": str(tmp_path / "none.yaml"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "imported\n"
    assert "ValueError: environment variable AUTOGEN_RUNCONFIG: " in done.stderr
