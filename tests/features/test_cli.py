"""The command line: what each command prints, and what it says of a mistake."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import autogen
from autogen.cli import bench, judging, main, output, shapes, targets
from autogen.cli.usage import UsageError
from autogen.dispatch.site import Site

LOSSES = '''
import torch
from torch import nn


class Huberish(nn.Module):
    """Squared where small."""

    def __init__(self, margin=1.0):
        super().__init__()
        self.margin = margin

    def forward(self, prediction, target):
        error = (prediction - target).abs()
        return torch.where(error < self.margin, error**2, error).mean()


made = Huberish(2.0)


def masked(prediction, target, mask, weight=1.0):
    return ((prediction - target).abs() * mask).sum() * weight


def counted(prediction):
    return prediction.numel()


class Nothing:
    pass
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("users") / "losses_of_a_user.py"
    path.write_text(LOSSES)
    return str(path)


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err, "no colours where nobody sees them"
        return status, out, err

    return run


class TestExplain:
    def test_says_what_the_report_says(self, run: Run) -> None:
        status, out, err = run("explain", "torch.nn:MSELoss", "--shapes", "8x10:bf16,8x10:bf16")
        x = torch.zeros(8, 10, dtype=torch.bfloat16)
        report = autogen.explain(torch.nn.MSELoss(), x.clone().requires_grad_(), x)
        assert (status, out, err) == (0, f"{report.summary}\n", "")

    def test_makes_a_class_of_a_file_and_writes_a_page(self, run: Run, file: str, tmp_path: Path) -> None:
        page = tmp_path / "report.html"
        loss = (f"{file}:Huberish", "--with", "margin=0.25", "--shapes", "4x5,4x5")
        status, out, _ = run("explain", *loss, "--html", str(page))
        assert status == 0 and out.startswith("Huberish: generated\n")
        text = page.read_text()
        assert text.startswith("<!doctype html>") and "huberish_backward" in text and "0.25" in text
        status, _, err = run("explain", *loss, "--html", str(tmp_path / "none" / "report.html"))
        assert status == 2 and "report.html cannot be written: No such file" in err

    def test_names_arguments_and_gives_options_to_a_function(self, run: Run, file: str) -> None:
        shape = "5x6,5x6,mask=5x6:bool"
        status, out, _ = run("explain", f"{file}:masked", "--shapes", shape, "--with", "weight=0.5", "--stages")
        assert status == 0 and "load mask[" in out and "const 0.5" in out


class TestShow:
    def test_prints_the_source(self, run: Run) -> None:
        status, out, _ = run("show", "torch.nn:L1Loss", "--shapes", "8x10,8x10", "--with", "reduction=sum")
        assert status == 0
        names = {node.name for node in ast.parse(out).body if isinstance(node, ast.FunctionDef)}
        assert names == {"l1_loss_forward", "l1_loss_backward"}

    def test_stages_print_what_the_compiler_decided(self, run: Run) -> None:
        status, out, _ = run("show", "torch.nn:CrossEntropyLoss", "--shapes", "200x60000,200:int64", "--stages")
        assert status == 0
        order = [
            "== captured: Dynamo's graph",
            "== captured: AOTAutograd's graph",
            "aten._log_softmax",
            "== lowered: results: loss",
            "== lowered: gradients: grad_input",
        ]
        order += [
            "== scheduled for N = 200, C = 60000",
            "-- kernel cross_entropy_loss_forward",
            "rows n of N; columns c of C",
        ]
        order += [
            "one per row and column",
            "reads input once",
            "default configuration: ROWS 1",
            "200 programs",
            "; looped",
            "launch: cross_entropy_loss_forward[(200,)](input, target, ",
        ]
        order += ["-- kernel cross_entropy_loss_backward", "@triton.jit"]
        places = [out.find(each) for each in order]
        assert -1 not in places and places == sorted(places), dict(zip(order, places, strict=True))

    def test_stages_of_handwritten_kernels_are_their_launches(self, run: Run) -> None:
        status, out, _ = run("show", "autogen.losses:CosineEmbeddingLoss", "--shapes", "8x10,8x10,8@sign", "--stages")
        assert status == 0 and out.startswith("== handwritten kernels")
        assert "-- kernel cosine_embedding_loss_forward: grid (1,), " in out and "COLS=16, " in out

    def test_without_kernels_there_is_nothing_to_show(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        with autogen.policy("disabled"):
            status, out, err = run("show", "torch.nn:L1Loss", "--shapes", "8,8")
        assert (status, out) == (2, "") and "no kernels here, as the policy is disabled" in err


class TestCheck:
    def test_compares_value_and_gradients(self, run: Run, file: str) -> None:
        status, out, _ = run("check", f"{file}:made", "--shapes", "8x10:bf16,8x10:bf16+grad")
        assert status == 0
        lines = out.splitlines()
        assert lines[0].startswith("Huberish: generated, as ") and lines[1].split()[:3] == ["result", "our", "error"]
        assert [line.rpartition("  ")[2] for line in lines[2:]] == ["ok"] * 3
        assert [line.split("  ")[0] for line in lines[2:]] == ["value", "gradient of input 1", "gradient of input 2"]

    def test_fails_if_ours_is_too_wrong(self, run: Run, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
        right = judging.ours
        monkeypatch.setattr(judging, "ours", lambda *call: right(*call) * (1 + 1e-3))
        status, out, err = run("check", f"{file}:Huberish", "--shapes", "8x10,8x10")
        assert status == 1 and out.count("too wrong") == 2
        assert err == "Huberish: more wrong than allowed: value, gradient of input 1\n"

    def test_fails_if_ours_is_of_another_dtype_or_has_no_gradient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        target = targets.Target("loss", torch.nn.MSELoss(), shapes.parse("8,8"), {})
        right = judging.ours
        for change, fault in (
            (lambda value: value.double(), "it is float64 (), torch's float32 ()"),
            (lambda value: value.detach(), "only one of the two has it"),
        ):
            monkeypatch.setattr(judging, "ours", lambda *call, change=change: change(right(*call)))
            assert fault in [each.fault for each in judging.judge(target, "cpu")]

    def test_judges_parameters_and_double_precision(self) -> None:
        loss = torch.nn.Sequential(torch.nn.PReLU(), torch.nn.Tanh()).double()
        verdicts = judging.judge(targets.Target("net", loss, shapes.parse("8x10:f64"), {}), "cpu")
        assert [each.what for each in verdicts] == ["value", "gradient of input 1", "gradient of 0.weight"]
        assert all(each.holds and each.allowed < 1e-12 for each in verdicts)

    def test_says_what_the_loss_says_of_inputs(self, run: Run) -> None:
        status, _, err = run("check", "torch.nn:L1Loss", "--shapes", "8,9")
        assert status == 2 and "L1Loss does not take these inputs: " in err and err.count("\n") == 1

    def test_without_gpu_nor_interpreter_says_what_to_set(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("autogen.runtime.availability.has_interpreter", lambda: False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        status, _, err = run("check", "torch.nn:L1Loss", "--shapes", "8,8")
        assert status == 2 and "set TRITON_INTERPRET=1" in err


class TestBench:
    def test_without_gpu_says_so(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        status, out, err = run("bench", "torch.nn:L1Loss", "--shapes", "8,8")
        assert (status, out) == (2, "") and "there is none here" in err and "bench.host" in err

    def test_columns_take_turns_and_ratios_are_of_the_same_round(self) -> None:
        taken = iter([10.0, 5.0, 5.0, 40.0, 20.0, 10.0, 60.0, 30.0, 10.0, 80.0, 40.0, 10.0, 100.0, 50.0, 50.0])
        order: list[str] = []
        calls = {"forward": {name: (lambda: None) for name in ("eager", "compile", "autogen")}}
        found = bench.measure(calls, lambda call: next(taken), order.append)
        assert order[:4] == ["forward, eager", "forward, compile", "forward, autogen", "forward, eager"]
        assert found["forward"] == {
            "eager µs": "60.0",
            "compile µs": "30.0",
            "autogen µs": "10.0",
            "times as fast as eager": "4.00",
            "times as fast as compile": "2.00",
        }

    def test_calls_are_those_of_the_loss(self, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = functools.partial(torch.compile, backend="eager", fullgraph=True)
        monkeypatch.setattr(torch, "compile", whole)  # the loss alone is what is compiled
        loss = targets.load(f"{file}:made")
        target = targets.Target("made", loss, shapes.parse("8,8"), {})
        args, named = target.arguments("cpu")
        found = bench.calls_of(target, args, named)
        assert list(found) == ["forward", "forward + backward"]
        eager, *others = [call() for call in found["forward"].values()]
        assert len(others) == 2
        for value in others:
            torch.testing.assert_close(value, eager)
        found["forward + backward"]["autogen"]()
        assert args[0].grad is None, "nothing is added up"

    def test_a_loss_is_captured_once_however_often_it_is_called(self, monkeypatch: pytest.MonkeyPatch) -> None:
        captured: list[Any] = []
        monkeypatch.setattr(Site, "_hear", lambda self, graph, runner: captured.append(graph) or runner)
        target = targets.Target("L1Loss", torch.nn.L1Loss(), shapes.parse("8,8"), {})
        args, named = target.arguments("cpu")
        call = bench.calls_of(target, args, named)["forward"]["autogen"]
        assert [call() == call() for _ in range(2)] == [True, True]
        assert len(captured) == 1


def test_export_is_given_the_call(run: Run, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    given: list[Any] = []

    def export(*args: Any, **kwargs: Any) -> Path:
        given.append((args, kwargs))
        return Path("there")

    monkeypatch.setattr(autogen, "export", export, raising=False)
    status, out, _ = run("export", f"{file}:made", "--shapes", "4,4", "--out", "there", "--format", "module")
    assert (status, out) == (0, "Huberish is in there\n")
    (((loss, inputs, path), options),) = given
    assert loss.margin == 2.0 and [each.requires_grad for each in inputs] == [True, False]
    assert (path, options) == (Path("there"), {"format": "module"})
    run("export", f"{file}:masked", "--shapes", "4,4,mask=4", "--with", "weight=0.5", "--out", "there")
    ((_, inputs, _), options) = given[1]
    assert [type(each) for each in inputs] == [torch.Tensor] * 3 + [float] and options == {"format": "hub"}

    def full(*_: Any, **__: Any) -> Path:
        raise FileExistsError("there is something at there")

    monkeypatch.setattr(autogen, "export", full, raising=False)
    status, _, err = run("export", f"{file}:made", "--shapes", "4,4", "--out", "there")
    assert (status, err) == (2, "autogen export: there is something at there\n")


class TestOthers:
    def test_losses(self, run: Run) -> None:
        status, out, _ = run("losses", "BCELoss", "--json")
        (found,) = json.loads(out).values()
        assert status == 0 and (found["path"], found["launches"]) == ("generated", [1, 1])
        status, _, err = run("losses", "BCELos")
        assert status == 2 and "has no BCELos" in err

    def test_env_is_for_reports_of_defects(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AUTOGEN_POLICY", "mandatory")
        status, out, _ = run("env")
        found = dict(line.split(maxsplit=1) for line in out.splitlines())
        assert status == 0 and found["torch"] == torch.__version__ and found["interpreter"] == "on"
        assert found["autogen-loss"] == autogen.__version__ and found["AUTOGEN_POLICY"] == "mandatory"
        data = json.loads(run("env", "--json")[1])
        assert data["variables"]["AUTOGEN_POLICY"] == "mandatory" and data["extras"].keys() >= {"kernels"}

    def test_capabilities(self, run: Run) -> None:
        assert run("capabilities")[1] == f"{autogen.capabilities()}\n"

    @pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["check", "--help"]], ids=" ".join)
    def test_what_needs_no_torch_does_not_import_it(self, arguments: list[str]) -> None:
        program = f"import sys; from autogen.cli import main\ntry: main({arguments!r})\nfinally: print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        modules = done.stdout.splitlines()[-1].split()
        assert "autogen.cli" in modules and not {"torch", "triton", "rich.console"} & {*modules}
        assert autogen.__version__ in done.stdout or "2x3:int64<5@positive" in done.stdout or "COMMAND" in done.stdout

    def test_a_table_is_plain_where_no_terminal_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        output.table(("loss", "µs"), [("a", "1.5"), ("[bold]b", "12.5")])
        assert capsys.readouterr().out.splitlines() == ["loss       µs", "a         1.5", "[bold]b  12.5"]


class TestShapes:
    def test_inputs(self) -> None:
        args, named = shapes.draw(
            shapes.parse("4x7:bf16, 4:i64, scalar:f64, mask=4x7:bool, 4:int32<3@positive, =(9, 9), 4x7@softmax+grad"),
            "cpu",
        )
        logits, labels, number, some, lengths, chances = args
        assert (logits.shape, logits.dtype, logits.requires_grad) == ((4, 7), torch.bfloat16, True)
        assert labels.dtype == torch.int64 and {*labels.tolist()} <= {*range(7)}
        assert number.shape == () and not number.requires_grad and named["mask"].dtype == torch.bool
        assert some.dtype == torch.int32 and {*some.tolist()} <= {1, 2} and lengths == (9, 9)
        torch.testing.assert_close(chances.sum(1), torch.ones(4))
        assert chances.requires_grad

    def test_the_same_seed_draws_the_same(self) -> None:
        inputs = shapes.parse("3x4,3:i64")
        first, again, other = (shapes.draw(inputs, "cpu", seed)[0] for seed in (0, 0, 1))
        assert (
            torch.equal(first[0], again[0]) and torch.equal(first[1], again[1]) and not torch.equal(first[0], other[0])
        )

    @pytest.mark.parametrize(
        ("values", "low", "high"), [("prob", 0, 1), ("positive", 0, 1e9), ("log_softmax", -1e9, 0), ("sign", -1, 1)]
    )
    def test_values(self, values: str, low: float, high: float) -> None:
        ((drawn,), _) = shapes.draw(shapes.parse(f"50x3@{values}-grad"), "cpu")
        assert low <= drawn.min() and drawn.max() <= high and not drawn.requires_grad
        assert values != "sign" or {*drawn.flatten().tolist()} == {-1.0, 1.0}

    def test_what_nobody_reads_takes_no_time_nor_memory(self) -> None:
        ((large,), _) = shapes.draw(shapes.parse("100000x20000:bf16"), "cpu", matters=False)
        assert large.shape == (100_000, 20_000)

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("8x10:f8", "'f8' in '8x10:f8' is no dtype; choose from f16, bf16"),
            ("8xx10", "'8xx10' is no input; write one as"),
            ("", "'' is no input"),
            ("8@lovely", "@lovely in '8@lovely' is not drawn for float32; choose from @normal, @prob"),
            ("8:i64@prob", "is not drawn for int64; choose from @positive, @sign"),
            ("8:bool@sign", "is not drawn for bool; leave it out"),
            ("8<5", "<5 in '8<5' is no bound for float32"),
            ("8:i64<0", "integers are below a positive one"),
            ("8:i64+grad", "int64 has no gradient"),
            ("8,=open(1)", "'open(1)' is no Python value"),
            ("8,4:i64", "how large may the integers be? Write 4:int64<10"),
        ],
    )
    def test_mistakes(self, text: str, fault: str) -> None:
        with pytest.raises(UsageError) as found:
            shapes.draw(shapes.parse(text), "cpu")
        assert fault in str(found.value) and "\n" not in str(found.value)


class TestTargets:
    @pytest.mark.parametrize(
        ("loss", "fault"),
        [
            ("MSELoss", "'MSELoss' names no loss; write module:Loss"),
            ("torch.nnn:MSELoss", "there is no module torch.nnn"),
            ("torch.nn:MSELos", "torch.nn has no MSELos; did you mean MSELoss?"),
            ("nowhere.py:Loss", "there is no file nowhere.py"),
            ("{file}:Nothing", "Nothing is no class of modules"),
            ("{file}:LOSSES.none", "has no LOSSES.none"),
            ("{file}:__name__", "is no loss but a str"),
        ],
    )
    def test_what_is_not_there(self, run: Run, file: str, loss: str, fault: str) -> None:
        status, out, err = run("explain", loss.format(file=file), "--shapes", "8,8")
        assert (status, out) == (2, "") and fault in err and err.startswith("autogen explain: ")
        assert err.count("\n") == 1

    @pytest.mark.parametrize(
        ("options", "fault"),
        [
            (("--with", "beta=2"), "cannot be made by --with: "),
            (("--with", "2"), "--with '2' gives no argument"),
            (("--shapes", "8"), "than Huberish(prediction, target) takes: missing a required argument: 'target'"),
            (("--device", "tpu"), "--device tpu: "),
        ],
    )
    def test_what_does_not_fit(self, run: Run, file: str, options: tuple[str, ...], fault: str) -> None:
        status, _, err = run("explain", f"{file}:Huberish", "--shapes", "8,8", *options)
        assert status == 2 and fault in err and err.count("\n") == 1

    def test_a_policy_that_is_none(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AUTOGEN_POLICY", "fast")
        monkeypatch.setattr("autogen.settings.policies._process_policy", None)
        _, _, err = run("explain", "torch.nn:L1Loss", "--shapes", "8,8")
        assert err.startswith("autogen explain: environment variable AUTOGEN_POLICY: 'fast' is not a policy")

    def test_an_object_takes_no_options(self, run: Run, file: str) -> None:
        assert "is made already" in run("explain", f"{file}:made", "--shapes", "8,8", "--with", "margin=2")[2]

    def test_a_module_of_the_current_folder(self, run: Run, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(Path(file).parent)
        monkeypatch.delitem(sys.modules, "losses_of_a_user", raising=False)
        assert targets.load("losses_of_a_user:made.margin") == 2.0
