"""What a loss prints, logs and warns of: as torch does, in each call, beside its kernels."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any
from warnings import warn

import pytest
import torch
from torch import Tensor

import autogen
from autogen import autogen_loss, explain, trace_count
from autogen.tracing.python.disguise import swapped
from autogen.tracing.python.said import Listener
from tests.interpret.launches import Launches

LOG = logging.getLogger("test_said")
ADAPTER = logging.LoggerAdapter(LOG, {"rank": 3})
SAY = print
OUT, ERRORS = io.StringIO(), io.StringIO()


def prints(a: Tensor, b: Tensor, step: int) -> None:
    print("terms", a.item(), b.detach(), len(a.shape), step, sep=", ", end=";\n")
    print()
    print({"a": [a.item()]}, a.dtype, file=sys.stderr, flush=True)


def logs(a: Tensor, b: Tensor, step: int) -> None:
    LOG.info("loss %.4f of %d", a.item(), step)
    LOG.warning("%(a)s", {"a": b.item()})
    LOG.debug("never %s", b.item())
    LOG.log(logging.ERROR, "no arguments", extra={"rank": 1})
    ADAPTER.info(b.detach())
    logging.warning("by the root")


def logs_of_a_caller(a: Tensor, b: Tensor, step: int) -> None:
    def told(value: Any) -> None:
        LOG.info("value %s", value, stacklevel=2)

    told(a.item())


def warns(a: Tensor, b: Tensor, step: int) -> None:
    warnings.warn("careful")  # noqa: B028
    warnings.warn("again", FutureWarning, stacklevel=1)


def by_another_name(a: Tensor, b: Tensor, step: int) -> None:
    SAY("loss", a.item())
    warn("careful")  # noqa: B028


def formats(a: Tensor, b: Tensor, step: int) -> None:
    print(f"a {a.item():.3f} {b:>9.2e}|{step:03d}", "{:.1f}, {n}".format(a.item(), n=step), f"{a}" + f"{step:>{4}}")  # noqa: UP032
    print(
        [step, {"n": 1}, a.shape],
        a.new_zeros(2, step).shape,
        f"{a.item() / b.item():.2f} of {len(a.shape)}",
        end=f"{b.item()}\n",
    )
    LOG.info(f"loss {a.item():8.2f} of %s", f"{step:x}")


def all_in_turn(a: Tensor, b: Tensor, step: int) -> None:
    print("one", file=sys.stderr)
    LOG.info("two %s", a.item())
    if step % 2:
        print("odd", file=sys.stderr)


Say = Callable[[Tensor, Tensor, int], None]


def loss_that(say: Say) -> Callable[..., Tensor]:
    def loss(x: Tensor, y: Tensor, step: int) -> Tensor:
        a, b = (x - y).square().sum(), (x - y).abs().sum()
        say(a, b, step)
        return a + b

    return loss


def given(seed: int) -> tuple[Tensor, Tensor]:
    """Integers, of which all sums are exact."""
    generator = torch.Generator().manual_seed(seed)
    rows = 4 + seed % 3
    x, y = (torch.randint(0, 9, (rows, 3), generator=generator).float() for _ in range(2))
    return x.requires_grad_(), y


def emptied(file: io.StringIO) -> None:
    file.seek(0)
    file.truncate()


def heard(loss: Callable[..., Any], seed: int, step: int) -> list[Any]:
    """What a call says."""
    records: list[logging.LogRecord] = []
    handler = logging.StreamHandler(out := io.StringIO())
    handler.emit = lambda record: (records.append(record), print(record.getMessage(), file=sys.stderr))  # type: ignore[assignment]
    x, y = given(seed)
    emptied(ERRORS)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(ERRORS):
        logging.getLogger().addHandler(handler)
        try:
            with warnings.catch_warnings(record=True) as given_:
                warnings.simplefilter("always")
                loss(x, y, step).backward()
        finally:
            logging.getLogger().removeHandler(handler)
    of_records = [
        (each.name, each.levelno, each.getMessage(), each.pathname, each.lineno, each.funcName, vars(each).get("rank"))
        for each in records
    ]
    of_warnings = [
        (str(each.message), each.category, each.filename, each.lineno) for each in given_ if each.filename == __file__
    ]
    return [out.getvalue(), ERRORS.getvalue(), of_records, of_warnings, x.grad]


@pytest.fixture(autouse=True)
def _level() -> Any:
    before = LOG.level
    LOG.setLevel(logging.INFO)
    yield
    LOG.setLevel(before)


@pytest.mark.parametrize("say", [prints, logs, logs_of_a_caller, warns, by_another_name, formats, all_in_turn])
def test_what_is_said(say: Say, launches: Launches) -> None:
    theirs = loss_that(say)
    ours = autogen_loss(theirs)
    for seed, step in enumerate((1, 1, 1, 2, 3, 5, 7, 8)):
        launches.take()
        found = heard(ours, seed, step)
        assert launches.take() == 2
        wanted = heard(theirs, seed, step)
        torch.testing.assert_close(found.pop(), wanted.pop())
        assert found == wanted
    assert trace_count(ours) <= 6


def test_a_level_that_is_changed_later_and_nothing_is_read_before(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = autogen_loss(loss_that(logs_of_a_caller))
    LOG.setLevel(logging.ERROR)
    for seed in range(3):
        assert heard(ours, seed, 1)[2] == []
    item, read = Tensor.item, []
    monkeypatch.setattr(Tensor, "item", lambda each: read.append(each) or item(each))
    assert heard(ours, 3, 1)[2] == []
    assert not read
    LOG.setLevel(logging.INFO)
    assert len(heard(ours, 3, 1)[2]) == 1
    assert len(read) == 1
    assert trace_count(ours) == 1


def test_a_warning_that_is_an_error() -> None:
    ours = autogen_loss(loss_that(warns))
    for seed in range(4):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            with pytest.raises(UserWarning, match="careful"):
                ours(*given(seed), 1)


def print_with_a_graph(a: Tensor, b: Tensor, step: int) -> None:
    print("loss:", a)


def print_to_a_file(a: Tensor, b: Tensor, step: int) -> None:
    print("x", file=OUT)


def print_an_object(a: Tensor, b: Tensor, step: int) -> None:
    print(io.StringIO)
    print([OUT.seekable])


def log_a_traceback(a: Tensor, b: Tensor, step: int) -> None:
    LOG.info("stack", stack_info=True)


def ask_for_a_level(a: Tensor, b: Tensor, step: int) -> None:
    if LOG.isEnabledFor(logging.DEBUG):
        LOG.debug("no")


def ask_for_the_level(a: Tensor, b: Tensor, step: int) -> None:
    if LOG.getEffectiveLevel() <= logging.DEBUG:
        LOG.debug("a %s", a.item())


def say_in_backward(a: Tensor, b: Tensor, step: int) -> None:
    a.register_hook(lambda gradient: print("backward"))


def print_before_a_write(a: Tensor, b: Tensor, step: int) -> None:
    total = a.detach().clone()
    print(total)
    total += 1


def print_before_a_hidden_write(a: Tensor, b: Tensor, step: int) -> None:
    total = torch.stack([a, b]).detach()
    print(total[0])
    total.data.add_(1)


def print_elsewhere(a: Tensor, b: Tensor, step: int) -> None:
    with contextlib.redirect_stdout(OUT):
        print("aside")


def warn_under_filters(a: Tensor, b: Tensor, step: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("ignored")  # noqa: B028


def format_for_a_comparison(a: Tensor, b: Tensor, step: int) -> None:
    text = f"{a.item():.1f}"
    print(text, text == "3.0")


def format_for_a_helper(a: Tensor, b: Tensor, step: int) -> None:
    def info(text: str) -> None:
        print(text[:2])

    info(f"{a.item():.1f}")


def format_for_a_key(a: Tensor, b: Tensor, step: int) -> None:
    print({f"{a.item()}": 1})


def format_twice(a: Tensor, b: Tensor, step: int) -> None:
    print(f"{f'{a.item():.1f}':>12}|")


def format_another_way(a: Tensor, b: Tensor, step: int) -> None:
    print(f"{a.item():.1f}".rjust(12), str(b.item()), "%.1f" % a.item())  # noqa: UP031


def format_a_tensor_of_many(a: Tensor, b: Tensor, step: int) -> None:
    print(f"{torch.stack([a, b]).detach()}")


def show_a_tensor(a: Tensor, b: Tensor, step: int) -> None:
    print("a: " + str(a.detach()), repr([b.detach()]))


def print_and_leave(a: Tensor, b: Tensor, step: int) -> None:
    print("before")
    a.detach().numpy()


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (print_with_a_graph, "printed or logged of a tensor with a graph"),
        (print_to_a_file, "print to a file"),
        (print_an_object, "printed or logged here"),
        (log_a_traceback, "a record with a traceback"),
        (ask_for_a_level, "Logger.isEnabledFor"),
        (ask_for_the_level, "Logger.getEffectiveLevel"),
        (say_in_backward, "printed or logged in backward"),
        (print_before_a_write, "a tensor that is written to later"),
        (print_before_a_hidden_write, "a tensor that is written to later"),
        (print_elsewhere, "print to a file"),
        (warn_under_filters, "a warning under filters of its own"),
        (format_for_a_comparison, "formatting a number"),
        (format_for_a_helper, "formatting a number"),
        (format_for_a_key, "takes a tensor's value into Python"),
        (format_twice, "formatting a number"),
        (format_another_way, "formatting a number"),
        (format_a_tensor_of_many, "the text of a tensor"),
        (show_a_tensor, "the text of a tensor"),
        (print_and_leave, "numpy"),
    ],
)
def test_what_torch_has_to_say(say: Say, why: str) -> None:
    theirs = loss_that(say)
    ours = autogen_loss(theirs)
    for seed in range(4):
        emptied(OUT)
        found = heard(ours, seed, 1)
        written, wanted = OUT.getvalue(), heard(theirs, seed, 1)
        torch.testing.assert_close(found.pop(), wanted.pop())
        assert found == wanted
        assert OUT.getvalue() == 2 * written
    report = explain(ours, *given(0), 1)
    assert report.path == "eager"
    assert why in report.reason
    assert "test_said.py" in report.reason


def test_a_text_that_cannot_be_formatted_so() -> None:
    def loss(x: Tensor) -> Tensor:
        print(f"{x.sum().item():d}")
        return x.sum()

    for _ in range(3):
        with pytest.raises(ValueError, match="Unknown format code 'd'"):
            autogen_loss(loss)(torch.randn(3))


def test_sizes_are_formatted_in_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    @autogen_loss
    def loss(x: Tensor) -> Tensor:
        print(f"{len(x)} rows of {x.shape[1]:>3}")
        return x.square().mean()

    for rows in range(2, 9):
        loss(torch.randn(rows, 5))
    assert capsys.readouterr().out.splitlines() == [f"{rows} rows of   5" for rows in range(2, 9)]
    assert trace_count(loss) == 1


def test_a_truth_is_formatted_in_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    @autogen_loss
    def loss(x: Tensor) -> Tensor:
        print(f"{(x > 0).any()}")
        return x.square().mean()

    for sign in (1, -1, 1, -1):
        loss(torch.ones(3) * sign)
    assert capsys.readouterr().out.split() == ["True", "False"] * 2
    assert explain(loss, torch.ones(3)).path == "generated"


def test_sizes_in_texts_that_go_elsewhere_are_those_of_the_call() -> None:
    @autogen_loss
    def loss(x: Tensor) -> dict[str, Tensor]:
        name = f"rows_{len(x)}"
        return {name: x.sum(), f"{x.shape[1]:03d}": x.mean()}

    for rows in (4, 5, 4, 7, 5):
        assert list(loss(torch.randn(rows, 5))) == [f"rows_{rows}", "005"]
    assert explain(loss, torch.randn(4, 5)).path == "generated"


def test_a_parameter_is_formatted_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, x: Tensor, is_short: bool) -> Tensor:
            if is_short:
                print(f"{self.scale:.3f}")
            print(f"{self.scale}")
            return (x * self.scale).sum()

    ours = autogen_loss(Loss())
    for _ in range(3):
        ours(torch.ones(3), False)
        assert capsys.readouterr().out == f"{ours.scale}\n"
        with pytest.raises(TypeError, match="unsupported format string"):
            ours(torch.ones(3), True)


def test_records_are_those_of_a_factory_and_a_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    class Marking(logging.Logger):
        def makeRecord(self, *args: Any, **options: Any) -> logging.LogRecord:
            record = super().makeRecord(*args, **options)
            record.msg = f"marked {record.msg}"
            return record

    def make(*args: Any, **options: Any) -> logging.LogRecord:
        record = logging.LogRecord(*args, **options)
        record.step = steps[-1]
        return record

    found: list[tuple[str, int, float]] = []
    log = Marking("marking", logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda each: found.append((each.getMessage(), each.step, each.mean))  # type: ignore[method-assign]
    log.addHandler(handler)

    @autogen_loss
    def loss(x: Tensor) -> Tensor:
        log.info("of %d", len(x), extra={"mean": x.mean().item()})
        return x.square().mean()

    steps = [0]
    monkeypatch.setattr(logging, "_logRecordFactory", make)
    for steps in ([1], [2], [3], [4]):
        loss(torch.full((4 + steps[0], 2), float(steps[0])))
    assert found == [(f"marked of {4 + k}", k, float(k)) for k in (1, 2, 3, 4)]
    assert explain(loss, torch.ones(4, 2)).path == "generated"


def test_each_trace_says_it_once() -> None:
    ours = autogen_loss(loss_that(prints), retrace="every")
    theirs = loss_that(prints)
    for seed in range(3):
        assert heard(ours, seed, 1)[:2] == heard(theirs, seed, 1)[:2]
    with autogen.policy("disabled"):
        assert heard(ours, 3, 1)[:2] == heard(theirs, 3, 1)[:2]


def test_what_is_computed_again_is_not_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    ours = autogen_loss(loss_that(formats))
    for seed in range(4):
        x, y = given(seed)
        (gradient,) = torch.autograd.grad(ours(x, y, 1), x, create_graph=True)
        gradient.square().sum().backward()
        assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_record_of_others_is_of_their_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), swapped(Listener().replacements()):
        exec("log.info('of a library', stacklevel=1)", {"log": LOG, "__name__": "torch.test"})
    assert [(each.getMessage(), each.filename) for each in caplog.records] == [("of a library", "<string>")]


def test_others_are_not_listened_to(capsys: pytest.CaptureFixture[str]) -> None:
    listener = Listener()
    said = {name: function for (_, name), function in listener.replacements().items()}
    scope = {"said": said, "LOG": LOG}
    exec("def speak():\n  said['print']('aloud')\n  return said['isEnabledFor'](LOG, 10)\n", scope)
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(scope["speak"]()))  # type: ignore[operator]
    thread.start()
    thread.join()
    assert (capsys.readouterr().out, answers, listener.heard) == ("aloud\n", [False], [])
    with pytest.raises(autogen.UnsupportedOpError, match="isEnabledFor"):
        scope["speak"]()  # type: ignore[operator]
    assert [each.leaves for each in listener.heard] == [["aloud"]]
