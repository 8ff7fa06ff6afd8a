"""What all tests share: one thread per process, hypothesis profiles, where each folder can run."""

import gc
import itertools
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from autogen.aot import kernels_of
from autogen.settings.policies import ENVIRONMENT_VARIABLE, set_policy
from tests import interpreter, tiers
from tests.ptx import driver

# One process per core is running already.
torch.set_num_threads(1)

# Compiling and interpreting make the first example of a test many times slower than the others. `make test` draws the
# same each time, and `make fuzz` anew.
settings.register_profile("test", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("fuzz", deadline=None, derandomize=False, max_examples=1000, print_blob=True)
settings.load_profile("test")
# hypothesis draws numbers that it reads in the modules imported so far, which are others in each worker.
providers._get_local_constants = Constants

TESTS = Path(__file__).parent
_EMULATED = pytest.StashKey[tempfile.TemporaryDirectory[str]]()
_STARTED = pytest.StashKey[float]()
_FINISHED = itertools.count(1)
TESTS_OF_A_COLLECTION = 25
NEEDS_INTERPRETER = {
    "interpret": True,
    "features": True,
    "mutations": True,
    "ptx": False,
    "gpu": False,
    "emulator": False,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "run tests of kernels and ops on an emulated GPU: kernels are compiled, and their PTX runs on the CPU"
    parser.addoption("--emulate", action="store_true", help=what)
    every = "run all cases of all tests, the slow ones too"
    parser.addoption("--every", action="store_true", help=every)
    cases = "how many cases of a parametrised test run, unless its mark `cases` says otherwise (default: 3)"
    parser.addoption("--cases", type=int, default=3, metavar="NUMBER", help=cases)
    most = "fail a test that takes more CPU time than this, that of its children included"
    parser.addoption("--most-seconds", type=float, metavar="SECONDS", help=most)


def pytest_configure(config: pytest.Config) -> None:
    tiers.every = config.option.every
    if not config.option.emulate:
        return
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise pytest.UsageError("--emulate needs TRITON_INTERPRET=0 in the environment: kernels are to be compiled")
    if not driver.has_compiler():
        return  # and all tests are skipped
    from tests.emulator.device import Device
    from tests.gpu import device
    from tests.interpret.launches import LAUNCHES

    folder = config.stash[_EMULATED] = tempfile.TemporaryDirectory()
    Device(Path(folder.name), LAUNCHES.note).install()
    device.DEVICE = "cpu"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> None:
    """Refuse to collect a folder whose tests could only fail, or pass without testing what they name."""
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    for folder, needed in NEEDS_INTERPRETER.items():
        needed = needed and not parent.config.option.emulate
        if TESTS / folder in file_path.parents and needed != is_interpreted:
            raise parent.CollectError(f"tests/{folder} needs TRITON_INTERPRET={needed:d} in the environment")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.every:
        kept = tiers.first_tier(items, config.option.cases)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    for item in items:
        if config.option.emulate and item.get_closest_marker("interpreted"):
            item.add_marker(pytest.mark.skip(reason="holds in Triton's interpreter alone"))
        if config.option.emulate and not driver.has_compiler():
            item.add_marker(pytest.mark.skip(reason=driver.NO_COMPILER))
        if TESTS / "gpu" in item.path.parents:
            item.add_marker("gpu")
        if config.option.emulate and item.get_closest_marker("hardware"):
            item.add_marker(pytest.mark.skip(reason="needs a real GPU"))
        elif not config.option.emulate and item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a GPU: torch.cuda.is_available() is false"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[_STARTED] = tiers.cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that takes longer than tests of this run may."""
    result = yield
    seconds, most = tiers.cpu_seconds() - item.stash[_STARTED], item.config.option.most_seconds
    if most is not None and seconds > most:
        remedy = "make it smaller, or mark it slow"
        pytest.fail(f"took {seconds:.1f} s of CPU time, where {most:g} s are allowed: {remedy}", pytrace=False)
    return result


def pytest_runtest_logstart() -> None:
    # If anything listens to its trace, torch describes the stack for each symbol that it makes: pytest, to loggers that
    # do not propagate, and torch's own handler, which leaves when something is logged.
    trace = logging.getLogger("torch.__trace")
    trace.propagate = True
    trace.handlers.clear()


def pytest_collection_finish(session: pytest.Session) -> None:
    pytest_runtest_logstart()  # pytest listens throughout the run, and again in each test
    if session.items and not session.config.option.collectonly:
        # No test is to take the seconds that the first capture imports for.
        kernels_of(torch.nn.functional.smooth_l1_loss, torch.ones(2, 3, requires_grad=True), torch.zeros(2, 3))
    gc.disable()  # a collection looks through millions of objects, in whichever test it falls into
    gc.freeze()


def pytest_runtest_logfinish() -> None:
    """Collect garbage between tests, now and then, and never look again at what is left: torch's and our caches."""
    if next(_FINISHED) % TESTS_OF_A_COLLECTION == 0:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _default_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test starts from the default, whatever the environment says or the test before it has set."""
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    set_policy(None)


@pytest.fixture(scope="session", autouse=True)
def _interpreter_for_tests() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("TRITON_INTERPRET") == "1":
            interpreter.patch(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def _every_pass_is_verified() -> Iterator[None]:
    from autogen import ir
    from tests.unit.verify import verify

    transform = ir.transform

    def verified(*args: Any) -> list[ir.Node]:
        found = transform(*args)
        verify(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ir, "transform", verified)
        yield
