"""The policy in force: precedence, nesting, restoration and refusal of unknown values."""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from autogen import autogen_loss
from autogen.settings.policies import ENVIRONMENT_VARIABLE, Policy, policy, resolve, set_policy

ROOT = Path(__file__).parents[2]


T = TypeVar("T")


def in_new_thread(function: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_default() -> None:
    assert resolve() is Policy.DEFAULT


def test_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source wins over all those set before it."""
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "disabled")
    set_policy(None)
    assert resolve() is Policy.DISABLED
    set_policy("aggressive")
    assert resolve() is Policy.AGGRESSIVE
    with policy("mandatory"):
        assert resolve() is Policy.MANDATORY
        assert resolve("default") is Policy.DEFAULT
        assert resolve(Policy.DISABLED) is Policy.DISABLED
        set_policy("disabled")
        assert resolve() is Policy.MANDATORY
    assert resolve() is Policy.DISABLED


def run_in_new_process(program: str, environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, ENVIRONMENT_VARIABLE: environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_environment_is_read_at_import() -> None:
    program = f"""
import os
from autogen.settings.policies import resolve
os.environ["{ENVIRONMENT_VARIABLE}"] = "aggressive"
print(resolve())
"""
    assert run_in_new_process(program, "mandatory").stdout == "mandatory\n"


def test_unknown_value_in_the_environment_of_a_new_process() -> None:
    run = run_in_new_process(
        "import autogen.settings.policies; print('imported'); autogen.settings.policies.resolve()", "sometimes"
    )
    assert run.stdout == "imported\n"
    assert run.stderr.splitlines()[-1].startswith("ValueError: environment variable AUTOGEN_POLICY")


def test_environment_is_read_again_only_by_set_policy_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "disabled")
    assert resolve() is Policy.DEFAULT
    set_policy(None)
    assert resolve() is Policy.DISABLED


def test_empty_environment_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
    set_policy(None)
    assert resolve() is Policy.DEFAULT


def test_nested_blocks() -> None:
    with policy("mandatory"):
        with policy("disabled"):
            assert resolve() is Policy.DISABLED
        assert resolve() is Policy.MANDATORY
    assert resolve() is Policy.DEFAULT


def test_restored_after_an_exception() -> None:
    with pytest.raises(KeyError), policy("mandatory"):
        raise KeyError
    assert resolve() is Policy.DEFAULT


def test_one_object_entered_again_and_inside_itself() -> None:
    strict = policy("mandatory")
    for _ in range(2):
        with strict, policy("disabled"):
            with strict:
                assert resolve() is Policy.MANDATORY
            assert resolve() is Policy.DISABLED
        assert resolve() is Policy.DEFAULT


def test_block_holds_in_its_own_thread_only() -> None:
    with policy("mandatory"):
        assert in_new_thread(resolve) is Policy.DEFAULT


def test_set_policy_holds_in_all_threads() -> None:
    set_policy("mandatory")
    assert in_new_thread(resolve) is Policy.MANDATORY


def test_one_object_open_in_two_threads() -> None:
    strict = policy("mandatory")
    both_open = threading.Barrier(2)

    def enter(_: int) -> list[Policy]:
        with strict:
            both_open.wait(timeout=60)
            inside = resolve()
        return [inside, resolve()]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(enter, range(2))) == [[Policy.MANDATORY, Policy.DEFAULT]] * 2


LEVELS = "disabled, default, aggressive, mandatory"


@pytest.mark.parametrize("ask", [policy, set_policy, resolve, Policy])
def test_unknown_value_lists_the_levels(ask: type) -> None:
    with pytest.raises(ValueError, match=f"'sometimes' is not a policy; choose from {LEVELS}"):
        ask("sometimes")


def test_unknown_value_in_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "sometimes")
    with pytest.raises(ValueError, match=f"AUTOGEN_POLICY: 'sometimes' is not a policy.*{LEVELS}"):
        set_policy(None)


def test_refused_value_changes_nothing() -> None:
    set_policy("mandatory")
    with pytest.raises(ValueError):
        set_policy("sometimes")
    assert resolve() is Policy.MANDATORY


def test_levels_print_as_their_names() -> None:
    assert [f"{level}" for level in Policy] == LEVELS.split(", ")
    assert str(Policy.MANDATORY) == "mandatory"


def test_level_pickles() -> None:
    assert pickle.loads(pickle.dumps(Policy.MANDATORY)) is Policy.MANDATORY


class CompileCounter:
    """A `torch.compile` backend that runs the graph as it is and counts how many it was given."""

    graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        return graph


def double_if_mandatory(x: torch.Tensor, object_policy: Policy | str | None = None) -> torch.Tensor:
    return x * 2 if resolve(object_policy) is Policy.MANDATORY else x * 1


def test_policy_outside_a_compiled_graph() -> None:
    """The policy is read without a graph break, a change compiles once more, a known one not at all."""
    torch.compiler.reset()
    counter = CompileCounter()
    compiled = torch.compile(double_if_mandatory, backend=counter, fullgraph=True)

    def run() -> float:
        return float(compiled(torch.ones(())))

    def changes() -> None:
        assert [run(), run(), counter.graphs] == [1, 1, 1]
        with policy("mandatory"):
            assert [run(), run(), counter.graphs] == [2, 2, 2]
        assert [run(), counter.graphs] == [1, 2]
        set_policy("mandatory")
        assert [run(), counter.graphs] == [2, 3]
        with policy("disabled"):
            assert [run(), in_new_thread(run)] == [1, 2]

    in_new_thread(changes)  # where no block was open before


@pytest.mark.parametrize("own", [Policy.MANDATORY, "mandatory"])
def test_policy_inside_a_compiled_graph(own: Policy | str) -> None:
    def three_ways(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with policy("mandatory"):
            in_block = double_if_mandatory(x)
        return in_block, double_if_mandatory(x), double_if_mandatory(x, own)

    torch.compiler.reset()
    compiled = torch.compile(three_ways, backend="eager", fullgraph=True)
    assert [float(y) for y in compiled(torch.ones(()))] == [2, 1, 2]
    assert resolve() is Policy.DEFAULT


def test_a_loss_may_take_an_argument_of_any_name() -> None:
    loss = autogen_loss(lambda x, function, args=1: function(x) * args, policy="disabled")
    assert loss(torch.ones(2), function=torch.sum, args=3) == 6
