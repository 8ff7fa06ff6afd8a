"""What a reader may expect of every generated kernel, for every loss in every shell."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.kernel_cases import CASES, Case, kernels
from tests.codegen.source import Source, tensor_of

MAX_LINE = 160


def sources(case: Case) -> Iterator[Source]:
    for kernel in kernels(case):
        for position in range(len(Source(kernel.text).kernels)):
            yield Source(kernel.text, position)


pytestmark = pytest.mark.parametrize("case", CASES, ids=str)


def test_one_launch_each_way(case: Case) -> None:
    assert [kernel.direction for kernel in kernels(case)] == ["forward", "backward"]


def test_one_kernel_per_module(case: Case) -> None:
    for kernel in kernels(case):
        *others, last = (each.name for each in Source(kernel.text).kernels)
        assert last == kernel.name
        assert others in ([], [f"{kernel.name}_last_block"], [f"{kernel.name}_first_block"])


def test_every_parameter_is_used(case: Case) -> None:
    for source in sources(case):
        assert set(source.parameters) <= source.used


def test_every_value_is_used(case: Case) -> None:
    for source in sources(case):
        assert source.assigned <= source.used


def test_the_docstring_tells_of_every_pointer_and_size(case: Case) -> None:
    for source in sources(case):
        told = re.findall(r"^(\w+): \S", source.documentation, re.MULTILINE)
        assert told == [name for name in source.parameters if name not in source.tiles]


def test_each_element_is_loaded_once_per_pass(case: Case) -> None:
    for source in sources(case):
        for loads in source.passes:
            assert set(loads.values()) <= {1}, loads


def test_rows_on_chip_and_elements_are_loaded_once_in_all(case: Case) -> None:
    for source in sources(case):
        if re.search(r"for first_(col|lane) in", source.text):
            continue  # long rows are walked as often as it takes
        addresses = [address for loads in source.passes for address in loads]
        assert len(addresses) == len(set(addresses))
        direct = Counter(tensor_of(address) for address in addresses if not source.values_in(address))
        assert set(direct.values()) <= {1}, direct


def test_results_are_stored_once(case: Case) -> None:
    for source in sources(case):
        stored = [tensor_of(call.args[0]) for call in source.calls("tl.store")]
        branches = 2 if {"is_full", "inside"} & source.assigned else 1
        assert all(stored.count(pointer) <= branches for pointer in set(stored))
        written = re.findall(r"^(\w+): .*\(written\)", source.documentation, re.MULTILINE)
        assert set(written) <= set(stored) | source.handed_on


def test_lines_are_short_and_clean(case: Case) -> None:
    for source in sources(case):
        for line in source.text.splitlines():
            assert len(line) <= MAX_LINE, line
            assert line == line.rstrip()
        assert source.text.endswith("\n") and not source.text.endswith("\n\n")
        assert "\n\n\n\n" not in source.text


def test_names_are_words(case: Case) -> None:
    for source in sources(case):
        for name in source.assigned:
            assert not re.fullmatch(r"(tmp|v|x|t|buf|arg|node|val|value|reduce|statistic)_?\d*", name), name


def test_no_path_of_this_machine(case: Case) -> None:
    places = {str(Path.home()), os.getcwd(), sys.prefix, tempfile.gettempdir(), "site-packages"}
    for source in sources(case):
        assert not [place for place in places if place in source.text]
