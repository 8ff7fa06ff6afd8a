"""The demo runs, its page is whole, and what it says about itself is true."""

import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autogen import losses
from examples import llm_head
from examples.demo import training
from examples.demo.cases import cases
from examples.demo.heads import recurrent
from examples.llm_head import compare
from tests.interpret.table import ELSEWHERE

ROOT = Path(__file__).parent.parent.parent


class Page(HTMLParser):
    """What a page refers to, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attributes if name in ("src", "href", "srcset", "data")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.slow
def test_quick_demo(tmp_path: Path) -> None:
    output = tmp_path / "new" / "demo.html"
    command = [sys.executable, "-m", "examples.demo", "--quick", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Triton's interpreter" in done.stdout
    assert "agree at each of the 30 steps" in done.stdout
    assert "Head and loss agree at each of the 4 steps, in chunks with " in done.stdout
    assert str(output) in done.stdout

    text = output.read_text(encoding="utf-8")
    page = Page(text)
    assert page.references
    assert all(re.fullmatch(r"#case-\d+", reference) for reference in page.references)
    assert not re.search(r"url\((?!#)|@import|https?:", text)
    assert not re.search(r"nan|None|undefined", page.text.split("Every kernel")[0])
    for name in set(losses.__all__) - ELSEWHERE:
        assert name in page.text
    for case in cases(16):
        assert case.description in page.text
    assert page.text.count("@triton.jit") == 2 * len(cases(16))
    charts = [re.findall("<text[^>]*>(.*?)</text>", each) for each in re.findall("(?s)<svg.*?</svg>", text)]
    names = [{"torch", "generated kernels"}, {"generated and torch"}, {"torch", "in chunks"}, {"torch", "in chunks"}]
    assert len(charts) == 4 and all(each <= {*drawn} for each, drawn in zip(names, charts, strict=True))


@pytest.mark.slow
@pytest.mark.interpreted  # allocates on the CPU
def test_a_head_learns_the_same_in_chunks_of_less_memory() -> None:
    found = compare(recurrent, torch.device("cpu"), steps=3)
    assert found.agrees and found.chunks.losses[-1] < found.chunks.losses[0]
    count, tokens = llm_head.words(torch.device("cpu"))[1], llm_head.SEQUENCES * llm_head.LENGTH
    assert found.torch.peak >= 3 * 4 * tokens * count, "logits, their logarithms and their gradient"
    assert found.chunks.peak <= 1.15 * 4 * (llm_head.WIDTH * (count + tokens) + 2 * llm_head.CHUNK * count)


def test_heads_that_differ_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_head, "in_chunks", lambda h, w, y: F.cross_entropy(h @ w.t(), y, label_smoothing=0.01))
    found = compare(recurrent, torch.device("cpu"), steps=3)
    assert not found.agrees and "DO NOT agree" in found.statement


def test_every_loss_is_in_the_walk() -> None:
    assert {case.loss for case in cases(16)} == set(losses.__all__) - ELSEWHERE


def test_a_case_is_always_drawn_alike() -> None:
    for case in cases(16):
        (options, arguments), (options_again, arguments_again) = case.draw(), case.draw()
        for one, other in zip(arguments, arguments_again, strict=True):
            assert torch.equal(one, other)
        assert options.keys() == options_again.keys()


@pytest.mark.interpreted  # counts the launches of the interpreter
def test_the_runs_agree() -> None:
    found = training.train(training.load_digits(torch.device("cpu")), steps=4)
    assert found.agrees and "agree at each of the 4 steps" in found.statement
    assert found.launches == 8
    assert found.generated.losses == pytest.approx(found.torch.losses, abs=1e-6)


def test_runs_that_differ_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "CrossEntropyLoss", lambda: nn.CrossEntropyLoss(label_smoothing=0.01))
    found = training.train(training.load_digits(torch.device("cpu")), steps=4)
    assert not found.agrees and "DO NOT agree" in found.statement
    assert found.launches == 0


@pytest.mark.parametrize(("package", "hint"), [("sklearn", "autogen-loss[demo]"), ("triton", "pip install triton")])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, package: str, hint: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "argv", ["examples.demo"])
    with pytest.raises(SystemExit, match=re.escape(hint)):
        runpy.run_module("examples.demo", run_name="__main__")
