"""The emulator computes what PTX says, and finds what a kernel does wrong. Its kernels here are written by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.emulator.instructions import UnknownInstructionError
from tests.emulator.program import EmulationError
from tests.emulator.written import program, run

# Each thread's own number of a type, at the address in rd3, and its result's in rd4.
_ADDRESSES = "mad.wide.u32 %rd3, %r1, {size}, %rd1; mad.wide.u32 %rd4, %r1, {size}, %rd2;"


def mapped(instructions: str, x: np.ndarray, kind: type, of: str, to: str) -> np.ndarray:
    """What instructions make of 32 numbers, one for each thread, from the register rd5 to rd6."""
    loads = f"mad.wide.u32 %rd3, %r1, {x.itemsize}, %rd1; ld.global.{of} %rd5, [%rd3];"
    stores = f"mad.wide.u32 %rd4, %r1, {np.dtype(kind).itemsize}, %rd2; st.global.{to} [%rd4], %rd6;"
    return run(f"{loads} {instructions} {stores}", x, np.zeros(32, kind))


COPY = f"{_ADDRESSES.format(size=4)} ld.global.b32 %r3, [%rd3]; st.global.b32 [%rd4], %r3;"


def test_threads_reach_memory_of_their_own() -> None:
    x = np.arange(64, dtype=np.int32)
    np.testing.assert_array_equal(run(COPY, x, np.zeros_like(x), threads=64), x)


def test_what_caches_are_told_changes_nothing() -> None:
    policy = "createpolicy.fractional.L2::evict_first.b64 %rd5, 1.0;"
    told = COPY.replace("ld.global.b32 %r3, [%rd3]", "ld.global.L1::evict_first.L2::cache_hint.b32 %r3, [%rd3], %rd5")
    x = np.arange(32, dtype=np.int32)
    np.testing.assert_array_equal(run(policy + told, x, np.zeros_like(x)), x)


@pytest.mark.parametrize(("length", "room", "what"), [(31, 32, "ld"), (32, 31, "st")])
def test_an_access_beyond_a_tensor(length: int, room: int, what: str) -> None:
    x, out = (np.zeros(64, np.int32)[16 : 16 + size] for size in (length, room))
    with pytest.raises(EmulationError, match=rf"^{what}\.global\.b32.* 4 bytes at 0x\w+ are in no tensor"):
        run(COPY, x, out)


def test_a_thread_that_is_masked_out_reaches_nothing() -> None:
    x, out = np.arange(31, dtype=np.int32), np.zeros(31, np.int32)
    masked = COPY.replace("ld.", "setp.lt.u32 %p1, %r1, 31; @%p1 ld.").replace("st.", "@%p1 st.")
    np.testing.assert_array_equal(run(masked, x, out), x)


def test_an_access_that_is_not_aligned() -> None:
    wide = f"{_ADDRESSES.format(size=4)} ld.global.v4.b32 {{%r3, %r4, %r5, %r6}}, [%rd3];"
    x = np.zeros(128, np.int32)
    with pytest.raises(EmulationError, match="is no multiple of 16"):
        run(wide, x, x)


def test_an_access_beyond_shared_memory() -> None:
    x = np.zeros(1, np.int32)
    with pytest.raises(EmulationError, match="byte 0x400 of 1024 shared"):
        run("mov.b32 %r3, global_smem; ld.shared.b8 %rs1, [%r3 + 1024];", x, x)


# Each thread's own number and the second of the table, by addresses that are computed.
TABLE_AND_OWN = (
    f"{_ADDRESSES.format(size=4)} mov.b64 %rd5, own; cvt.u32.u64 %r3, %rd5; mov.b64 %rd6, table;"
    " st.local.b32 [%r3+4], %r1; ld.local.b32 %r4, [%r3+4]; ld.global.nc.b32 %r5, [%rd6+4];"
    " add.s32 %r6, %r4, %r5; st.global.b32 [%rd4], %r6;"
)


def test_memory_of_a_thread_and_of_the_module() -> None:
    x = np.zeros(64, np.int32)
    np.testing.assert_array_equal(run(TABLE_AND_OWN, x, x.copy(), threads=64), np.arange(64) + 2)


@pytest.mark.parametrize(
    ("inside", "beyond", "message"),
    [("ld.local.b32 %r4, [%r3+4]", "ld.local.b32 %r4, [%r3+16]", "byte 0x10 of 16 local"),
     ("[%rd6+4]", "[%rd6+8]", "in no tensor")],
)  # fmt: skip
def test_an_access_beyond_them(inside: str, beyond: str, message: str) -> None:
    x = np.zeros(32, np.int32)
    with pytest.raises(EmulationError, match=message):
        run(TABLE_AND_OWN.replace(inside, beyond), x, x.copy())


# From each warp to the next by way of shared memory, which goes well without a barrier if they run in their order.
SHIFTED = (
    f"{_ADDRESSES.format(size=4)} ld.global.b32 %r3, [%rd3]; shl.b32 %r4, %r1, 2; st.shared.b32 [%r4], %r3;"
    " bar.sync 0; setp.lt.u32 %p1, %r1, 32; @%p1 ret;"
    " ld.shared.b32 %r6, [%r4 + -128]; st.global.b32 [%rd4], %r6;"
)


def shifted(body: str, seed: int) -> bool:
    """Whether each warp has got what the one before it had."""
    x = np.arange(128, dtype=np.int32)
    return bool((run(body, x, np.zeros_like(x), threads=128, seed=seed)[32:] == x[:-32]).all())


def test_warps_wait_for_each_other() -> None:
    assert all(shifted(SHIFTED, seed) for seed in range(20))


def test_shared_memory_is_that_of_the_program() -> None:
    assert shifted(SHIFTED.replace("shared", "shared::cta"), 0)


def test_a_barrier_that_is_missing_shows_in_another_order() -> None:
    assert not all(shifted(SHIFTED.replace("bar.sync 0;", ""), seed) for seed in range(20))


def test_a_barrier_that_some_never_reach() -> None:
    x = np.zeros(1, np.int32)
    with pytest.raises(EmulationError, match="32 of 64 threads wait for those that have ended"):
        run("setp.lt.u32 %p1, %r1, 32; @%p1 bra $L1; bar.sync 0; $L1:", x, x, threads=64)


def test_lanes_exchange_values() -> None:
    x = np.arange(32, dtype=np.int32)
    exchange = COPY.replace("st.", "shfl.sync.bfly.b32 %r3, %r3, 16, 31, -1; st.")
    np.testing.assert_array_equal(run(exchange, x, np.zeros_like(x)), np.roll(x, 16))


def test_a_value_of_a_lane_that_is_elsewhere() -> None:
    x = np.zeros(32, np.int32)
    with pytest.raises(EmulationError, match="a lane that is elsewhere"):
        run(f"setp.lt.u32 %p1, %r1, 16; @%p1 ret; {COPY} shfl.sync.bfly.b32 %r3, %r3, 16, 31, -1;", x, np.zeros_like(x))


def test_numbers_of_tf32_have_11_digits() -> None:
    x = np.array([1 + 2**-11, 1 + 2**-12, -1 - 2**-11, np.inf] * 8, np.float32)
    found = mapped(
        "cvt.u32.u64 %r4, %rd5; cvt.rna.tf32.f32 %r5, %r4; cvt.u64.u32 %rd6, %r5;", x, np.float32, "b32", "b32"
    )
    np.testing.assert_array_equal(found, np.array([1 + 2**-10, 1, -1 - 2**-10, np.inf] * 8, np.float32))


def test_programs_add_to_one_number() -> None:
    x = np.zeros(1, np.int32)
    assert run("red.global.gpu.relaxed.add.u32 [%rd2], 1;", x, np.zeros_like(x), grid=5)[0] == 160


@pytest.mark.parametrize(
    "instruction",
    [
        "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%r3, %r4, %r5, %r6}, %rd3, %rd4, 1;",
        "add.sat.s32 %r3, %r3, %r3;",
        "cvt.rn.relu.f16.f32 %rs1, %r1;",
        "ld.weird.b32 %r3, [%rd1];",
    ],
)
def test_what_it_does_not_know_it_refuses(instruction: str) -> None:
    with pytest.raises(UnknownInstructionError, match=instruction.split(" ")[0].rstrip(";")):
        program(instruction)


def lanes(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[list[int]]:
    return st.lists(numbers, min_size=32, max_size=32)


@given(lanes(st.integers(0, 2**64 - 1)))
@example([0x0003_8001_FFF0_FFFF] * 32)  # a sum below zero must not reach its neighbour
def test_sums_of_halves(numbers: list[int]) -> None:
    x = np.array(numbers, np.uint64)
    split = "mov.b64 {%r3, %r4}, %rd5; add.s16x2 %r5, %r3, %r4; mov.b64 %rd6, {%r5, %r5};"
    expected = x.view(np.int16).reshape(32, 2, 2).sum(1, dtype=np.int16)
    np.testing.assert_array_equal(mapped(split, x, np.int32, "b64", "b32").view(np.int16).reshape(32, 2), expected)


@given(lanes(st.integers(0, 2**64 - 1)))
def test_products_that_carry(numbers: list[int]) -> None:
    """The square of a number's low half plus its high one."""
    x = np.array(numbers, np.uint64)
    instructions = (
        "mov.b64 {%r3, %r4}, %rd5; mad.lo.cc.u32 %r5, %r3, %r3, %r4; madc.hi.u32 %r6, %r3, %r3, 0;"
        " mov.b64 %rd6, {%r5, %r6};"
    )
    expected = [(each % 2**32) ** 2 + (each >> 32) for each in numbers]
    assert mapped(instructions, x, np.uint64, "b64", "b64").tolist() == [each % 2**64 for each in expected]


_SINGLE = st.floats(width=32)
_DOUBLE = st.floats(width=64)


def rounded_to_bf16(x: np.ndarray) -> np.ndarray:
    """The nearest numbers of bfloat16, of ties the even one, as their bits."""
    wide = x.view(np.uint32).astype(np.uint64)
    return ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)


@given(st.lists(_SINGLE, min_size=32, max_size=32))
@example([65519.99, 65520.0, 2.0**-25, 2.0**-24 * 1.5, 1 + 2.0**-11, 1 + 3 * 2.0**-11, -0.0, float("inf")] * 4)
def test_single_precision_to_half(numbers: list[float]) -> None:
    x = np.array(numbers, np.float32)
    convert = "cvt.u32.u64 %r3, %rd5; cvt.rn.{}.f32 %rs1, %r3; cvt.u64.u16 %rd6, %rs1;"
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    np.testing.assert_array_equal(mapped(convert.format("f16"), x, np.float16, "b32", "b16"), expected)
    found = mapped(convert.format("bf16"), x, np.uint16, "b32", "b16")
    number = ~np.isnan(x)
    np.testing.assert_array_equal(found[number], rounded_to_bf16(x)[number])
    assert (found[~number] == 0x7FFF).all()


@given(st.lists(_DOUBLE, min_size=32, max_size=32))
@example(
    [1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11 - 2.0**-40, 65519.999999999] * 10 + [2.0**-25, 2.0**-25 * (1 + 2.0**-50)]
)
def test_double_precision_to_half_is_rounded_once(numbers: list[float]) -> None:
    x = np.array(numbers)
    convert = "cvt.rn.f16.f64 %rs1, %rd5; cvt.u64.u16 %rd6, %rs1;"
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    np.testing.assert_array_equal(mapped(convert, x, np.float16, "b64", "b16"), expected)


@given(st.lists(_SINGLE, min_size=32, max_size=32))
def test_floats_to_integers(numbers: list[float]) -> None:
    """To the nearest; what is beyond is the last one, and what is no number is 0. Denormals may be 0 before."""
    x = np.array(numbers, np.float32)
    convert = "cvt.u32.u64 %r3, %rd5; cvt.rni{}.s32.f32 %r4, %r3; cvt.s64.s32 %rd6, %r4;"
    expected = np.nan_to_num(np.rint(x.astype(np.float64)), nan=0).clip(-(2.0**31), 2.0**31 - 1).astype(np.int32)
    for flushed in ("", ".ftz"):
        np.testing.assert_array_equal(mapped(convert.format(flushed), x, np.int32, "b32", "b32"), expected)
