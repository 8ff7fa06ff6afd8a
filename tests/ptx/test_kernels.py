"""Every generated kernel, compiled for real targets: nothing spills, accesses are wide, the last block is ordered."""

from __future__ import annotations

import functools
import itertools
import math
import re
from dataclasses import replace

import pytest
import torch

import autogen.losses
from autogen.aot import TARGETS, CompiledKernel, SpecializedKernel, compile_kernel, kernels_of
from autogen.tiling.skew import IN_GROUPS, OVERLAPPING, WITHIN
from bench.assembly import Access, Atomic, accesses_of, atomics_of
from bench.kernel_cases import CASES, F32, FLAT, LOOPED, WIDE, Case, kernels, x
from tests.interpret.table import ELSEWHERE
from tests.ptx.versions import TRITON

LAUNCHES = list(itertools.product(CASES, TARGETS))
LAST_BLOCK = Atomic("add", "acq_rel", "gpu")
AMD_ATOMIC = re.compile(
    r"\bbuffer_wbl2 sc1$(?:.*\n){,4}?.*\bglobal_atomic_add\b.*\n(?:.*\n){,3}?.*\bbuffer_inv sc1$", re.MULTILINE
)
LOCAL_MEMORY = re.compile(r"\b(?:ld|st)\.local\b|\bscratch_(?:load|store)")
INT32_PRODUCT = re.compile(r"arith\.muli %\w+, %(?!c\d)\w+ : (?:tensor<[\dx]*x)?i32")

# Bytes that some versions of Triton have no registers for, of one kernel.
SPILLED = {"TripletMarginLoss-p=3-200x50272-float32-sm_100": 8} if TRITON < (3, 7) else {}
if TRITON >= (3, 8):  # two numbers, from before a loop to after it
    SPILLED["CrossEntropyLoss-1x150x4096x4096-bfloat16-sm_80"] = 8

# The variable that walks along each tile.
TILES = {"BLOCK": "offsets", "ROWS": "row", "COLS": "col"}


# A scope wider than a function makes pytest run the tests of a launch together, so that one process compiles it once.
@pytest.fixture(scope="module", params=LAUNCHES, ids=[f"{case}-{target}" for case, target in LAUNCHES])
def launch(request: pytest.FixtureRequest) -> tuple[Case, str]:
    """A case and a target."""
    return request.param


@functools.cache
def compiled(kernel: SpecializedKernel, target: str) -> CompiledKernel:
    return compile_kernel(kernel, TARGETS[target])


def tiles_of(kernel: SpecializedKernel) -> dict[str, int]:
    _, _, text = kernel.text.partition(f"def {kernel.name}(")
    parameters = re.findall(r"^    (\w+)(?:: tl\.constexpr)?,$", text, re.MULTILINE)
    values = {name: each.value for name, each in zip(parameters, kernel.parameters, strict=True)}
    return {name: values[name] or 1 for name in TILES if name in values}


def possible_width(case: Case, kernel: SpecializedKernel, target: str, access: Access) -> int:
    """The bytes of an access that can move at a time, up to 16: threads share a small tile, rows start anywhere."""
    in_groups = access.mask in IN_GROUPS
    walked = [tile for tile, variable in TILES.items() if in_groups or re.search(rf"\b{variable}\b", access.address)]
    elements = math.prod(tiles_of(kernel).get(tile, 1) for tile in walked)
    per_thread = max(elements // (kernel.num_warps * TARGETS[target].warp_size), 1)
    shape = case.inputs[0].shape
    row_length = math.prod(shape[2:] or shape[1:])  # in memory: of columns, else of rows that lie side by side
    aligned = 16 if walked == ["BLOCK"] or in_groups else row_length & -row_length
    return min(min(per_thread, aligned) * access.item_bytes, 16)


def test_every_loss_has_a_case() -> None:
    assert {case.loss for case in CASES} == set(autogen.losses.__all__) - ELSEWHERE


def test_nothing_spills(launch: tuple[Case, str]) -> None:
    case, target = launch
    for kernel in kernels(case):
        result = compiled(kernel, target)
        assert result.spilled <= SPILLED.get(f"{case}-{target}", 0), kernel.name
        assert not LOCAL_MEMORY.search(result.asm), kernel.name


def test_only_the_last_block_is_ordered(launch: tuple[Case, str]) -> None:
    case, target = launch
    forward, backward = (compiled(kernel, target) for kernel in kernels(case))
    is_scalar = case.options.get("reduction") != "none"
    assert atomics_of(forward) == (LAST_BLOCK,) * is_scalar
    assert atomics_of(backward) == ()
    if is_scalar and target == "gfx942":
        # Agent scope: what was written before is written back, what is read after is read anew.
        assert AMD_ATOMIC.search(forward.asm)


def test_accesses_are_as_wide_as_can_be(launch: tuple[Case, str]) -> None:
    case, target = launch
    for kernel in kernels(case):
        found = accesses_of(kernel, compiled(kernel, target))
        is_flat = "BLOCK" in tiles_of(kernel)
        if is_flat:
            accesses = [each for each in found if re.fullmatch(r"\w+ \+ offsets", each.address)]
            accesses = [each for each in accesses if each.mask is None]
        else:
            walked = "col" if "COLS" in tiles_of(kernel) else "row"
            accesses = [each for each in found if re.search(rf"\b{walked}\b", each.address)]
            accesses += [each for each in found if each.mask in IN_GROUPS]
        assert accesses, kernel.text
        for access in accesses:
            if access.mask == OVERLAPPING and not access.widths and (TRITON, target) == ((3, 6), "gfx942"):
                continue  # made one with what reads single elements
            # The same access on both sides of an `if` may have been made one.
            merged = (each.widths for each in found if (each.kind, each.line) == (access.kind, 0))
            widths = access.widths or [max(itertools.chain(*merged))]
            assert min(widths) >= possible_width(case, kernel, target, access), access


@pytest.mark.parametrize(("case", "target"), list(itertools.product(WIDE, TARGETS)), ids=str)
def test_offsets_past_32_bits_are_computed_in_64(case: Case, target: str) -> None:
    for kernel in kernels(case):
        ttir = compiled(kernel, target).ttir
        assert not INT32_PRODUCT.search(ttir), kernel.text
        assert re.search(r"tt\.addptr .*xi64>", ttir), kernel.text


def test_few_rows_and_columns() -> None:
    """Triton cannot compile this backward on a tile of 8 x 8 (triton-lang/triton #8257)."""
    inputs = [x(8, 8).tensor(F32, "cpu") for _ in range(3)]
    for kernel in kernels_of(autogen.losses.TripletMarginLoss(p=0.5, swap=True), *inputs):
        assert compiled(kernel, "sm_90").spilled == 0


class TestBrokenKernelsAreSeen:
    """The facts that the tests above rely on change with the kernel."""

    @pytest.fixture
    def kernel(self) -> SpecializedKernel:
        return kernels(FLAT[0])[0]

    @pytest.mark.parametrize("target", TARGETS)
    def test_relaxed_atomic(self, kernel: SpecializedKernel, target: str) -> None:
        result = compiled(replace(kernel, text=kernel.text.replace('sem="acq_rel"', 'sem="relaxed"')), target)
        assert atomics_of(result) == (Atomic("add", "relaxed", "gpu"),)
        assert not AMD_ATOMIC.search(result.asm)

    @pytest.mark.parametrize("target", TARGETS)
    def test_narrow_scope(self, kernel: SpecializedKernel, target: str) -> None:
        result = compiled(replace(kernel, text=kernel.text.replace('scope="gpu"', 'scope="cta"')), target)
        assert atomics_of(result) == (Atomic("add", "acq_rel", "cta"),)
        assert not AMD_ATOMIC.search(result.asm)

    @pytest.mark.parametrize("target", TARGETS)
    def test_masked_full_blocks(self, kernel: SpecializedKernel, target: str) -> None:
        kernel = replace(kernel, text=kernel.text.replace("    if is_full:", "    if False:"))
        found = accesses_of(kernel, compiled(kernel, target))
        loads = [each for each in found if "offsets" in each.address and each.widths]
        assert loads
        assert all(set(each.widths) == {4} for each in loads)

    def test_branches_that_differ_in_a_mask_alone(self) -> None:
        """They are made one: why what is read in groups has no `other`."""
        case = next(each for each in LOOPED if each.loss == "CrossEntropyLoss")
        kernel = kernels(case)[0]
        text = kernel.text.replace("mask=overlapping)", "mask=overlapping, other=0.0)")
        assert text != kernel.text
        both = (replace(kernel, text=text), kernel)
        narrow, wide = (accesses_of(each, compiled(each, "sm_90")) for each in both)
        assert {w for each in narrow if "place" in each.address and each.mask != WITHIN for w in each.widths} == {4}
        assert {w for each in narrow if each.mask == WITHIN for w in each.widths} == {16}, "between the ends"
        assert {w for each in wide if each.mask == OVERLAPPING for w in each.widths} == {16}

    def test_offsets_in_32_bits(self) -> None:
        kernel = kernels(WIDE[1])[0]
        result = compiled(replace(kernel, text=kernel.text.replace(".to(tl.int64)", "")), "sm_90")
        assert INT32_PRODUCT.search(result.ttir)

    @pytest.mark.parametrize("target", ["sm_80", "gfx942"])
    def test_tile_too_large_for_its_threads(self, kernel: SpecializedKernel, target: str) -> None:
        *before, block, partials = kernel.parameters
        assert (block.value, partials.value) == (2048, 4096)
        block = replace(block, value=256 * TARGETS[target].warp_size)
        result = compiled(replace(kernel, parameters=(*before, block, partials), num_warps=1), target)
        assert result.spilled > 0
        assert target != "gfx942" or LOCAL_MEMORY.search(result.asm)


@pytest.mark.parametrize("columns", [50304, 50257])
def test_caches_are_told_of_rows_that_are_walked_again(columns: int) -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return ((x / x.sum(-1, keepdim=True)).abs() + 1).log().sum()

    (kernel,) = kernels_of(loss, torch.empty(200, columns, device="meta"))
    made = compiled(kernel, "sm_90")
    loads = re.findall(r"ld\.global\.(\S*evict_\w+)\S*\.(v4)\.b32", made.asm)
    assert {told for told, _ in loads} == {"L1::evict_last", "L1::evict_first"}
    elements = [access for access in accesses_of(kernel, made) if re.search(r"\b(col|place)\b", access.address)]
    in_groups = [access for access in elements if columns % 16 == 0 or access.mask in IN_GROUPS]
    assert {width for access in in_groups for width in access.widths} == {16}
