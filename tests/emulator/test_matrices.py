"""The emulator multiplies matrices as PTX has them in registers and in shared memory."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.written import run


def stored(matrix: np.ndarray, kind: str) -> np.ndarray:
    """Small integers as numbers of a type, the latter as unsigned integers."""
    single = matrix.astype(np.float32)
    if kind == "tf32":
        return single.view(np.uint32)
    return (
        single.astype(np.float16).view(np.uint16) if kind == "f16" else (single.view(np.uint32) >> 16).astype(np.uint16)
    )


def of_lanes(left: np.ndarray) -> np.ndarray:
    """What lanes have of a left factor with 16 rows, or a right factor's 8 columns, in registers: (32, registers)."""
    rows, depth = left.shape
    wide = depth // 8  # numbers in a register
    split = left.reshape(rows // 8, 8, 2, 4, wide).transpose(1, 3, 2, 0, 4)
    return np.ascontiguousarray(split).reshape(32, -1).view(np.uint32)


@pytest.mark.parametrize(("kind", "depth"), [("tf32", 8), ("f16", 16), ("bf16", 16)])
def test_a_warp_multiplies_matrices(kind: str, depth: int) -> None:
    """Each lane has numbers of both factors, and gets four of the product, where PTX says."""
    draw = np.random.default_rng(0)
    a, b = draw.integers(-8, 8, (16, depth)), draw.integers(-8, 8, (depth, 8))
    lanes = np.concatenate([of_lanes(stored(a, kind)), of_lanes(stored(b.T, kind))], 1)
    loads = " ".join(f"ld.global.b32 %r{3 + k}, [%rd3+{4 * k}];" for k in range(6))
    zeros = " ".join(f"mov.b32 %r{9 + k}, 0;" for k in range(4))
    product = f"mma.sync.aligned.m16n8k{depth}.row.col.f32.{kind}.{kind}.f32"
    product += " {%r9, %r10, %r11, %r12}, {%r3, %r4, %r5, %r6}, {%r7, %r8}, {%r9, %r10, %r11, %r12};"
    stores = " ".join(f"st.global.b32 [%rd4+{4 * k}], %r{9 + k};" for k in range(4))
    addresses = "mad.wide.u32 %rd3, %r1, 24, %rd1; mad.wide.u32 %rd4, %r1, 16, %rd2;"
    body = f"{addresses} {loads} {zeros} {product} {stores}"
    found = run(body, lanes, np.zeros((32, 4), np.float32)).reshape(8, 4, 2, 2)
    np.testing.assert_array_equal(found.transpose(2, 0, 1, 3).reshape(16, 8), a @ b)


def in_shared_memory(matrix: np.ndarray, width: int) -> np.ndarray:
    """A matrix as four warps expect it: of each 8 rows, blocks of `width` bytes of each row, one after the other.

    The parts of 16 bytes of a block's row change places, by the number of the line of 128 bytes that the row is in.
    """
    parts = matrix.view(np.uint8).reshape(len(matrix) // 8, 8, -1, width // 16, 16).transpose(0, 2, 1, 3, 4)
    line = np.arange(8) * width // 128
    moved = np.arange(width // 16) ^ (line if width > 16 else 0 * line)[:, None]
    return np.take_along_axis(parts, moved[None, None, :, :, None], 3).reshape(-1)


def descriptor(start: int, columns: int, size: int, width: int, first: int, is_across: bool) -> str:
    """Of a matrix in shared memory: what begins at the `first` number along what is added up, which is along its rows,
    or across them.
    """
    block, of_8_rows = 8 * width, 8 * columns * size
    if is_across:
        start += first // 8 * of_8_rows
    else:
        start += first * size // width * block + first * size % width
    near, far = (of_8_rows, block) if is_across and width == 16 else (block, of_8_rows)
    mode = {16: 0, 128: 1, 64: 2, 32: 3}[width]
    return f"{start >> 4 | near >> 4 << 16 | far >> 4 << 32 | mode << 62:#x}"


@pytest.mark.parametrize("left", ["in registers", "along rows", "along columns"])
@pytest.mark.parametrize("right", ["along columns", "along rows"])
@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_four_warps_multiply_matrices(kind: str, width: int, right: str, left: str) -> None:
    multiply(kind, width, left, right)


@pytest.mark.parametrize("left", ["in registers", "along rows"])
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_four_warps_multiply_matrices_of_tf32(width: int, left: str) -> None:
    multiply("tf32", width, left, "along columns")


def multiply(kind: str, width: int, left: str, right: str) -> None:
    """64 rows by some columns, in steps of what one instruction adds up."""
    size, depth = (4, 8) if kind == "tf32" else (2, 16)
    n = max(2 * width // size, 16) if right == "along rows" else 16
    draw = np.random.default_rng(0)
    a, b = draw.integers(-8, 8, (64, 64)), draw.integers(-8, 8, (64, n))
    in_columns, in_rows = left == "along columns", right == "along rows"
    memory = np.concatenate(
        [
            in_shared_memory(stored(a.T if in_columns else a, kind).copy(), width),
            in_shared_memory(stored(b if in_rows else b.T, kind).copy(), width),
        ]
    ).view(np.uint32)
    lanes = [
        of_lanes(stored(each, kind))
        for each in a.reshape(4, 16, -1, depth).transpose(2, 0, 1, 3).reshape(-1, 16, depth)
    ]
    results = [f"%r{8 + k}" for k in range(n // 2)]
    body = "mov.b32 %r3, %r1; $L1: shl.b32 %r4, %r3, 2; cvt.u64.u32 %rd3, %r4; add.s64 %rd3, %rd1, %rd3;"
    body += " ld.global.b32 %r5, [%rd3]; st.shared.b32 [%r4], %r5; add.s32 %r3, %r3, 128;"
    body += f" setp.lt.u32 %p1, %r3, {len(memory)}; @%p1 bra $L1; bar.sync 0; wgmma.fence.sync.aligned;"
    body += " mad.wide.u32 %rd3, %r1, 16, %rd1;"
    for step in range(64 // depth):
        one = descriptor(0, 64, size, width, step * depth, in_columns)
        other = descriptor(a.size * size, n if in_rows else 64, size, width, step * depth, in_rows)
        place = memory.nbytes + step * 128 * 16
        body += f" mov.b64 %rd5, {one}; mov.b64 %rd6, {other};"
        body += f" ld.global.v4.b32 {{%r3, %r4, %r5, %r6}}, [%rd3+{place}];"
        factor = "{%r3, %r4, %r5, %r6}" if left == "in registers" else "%rd5"
        flags = [in_columns] * (left != "in registers") + [in_rows] if kind != "tf32" else []
        body += f" wgmma.mma_async.sync.aligned.m64n{n}k{depth}.f32.{kind}.{kind} {{{', '.join(results)}}},"
        body += f" {factor}, %rd6, {min(step, 1)}, 1, 1{''.join(f', {flag:d}' for flag in flags)};"
    body += " wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    body += f" mad.wide.u32 %rd4, %r1, {2 * n}, %rd2;"
    body += " ".join(f" st.global.b32 [%rd4+{4 * k}], {result};" for k, result in enumerate(results))
    x = np.concatenate([memory, np.concatenate(lanes).reshape(-1)])
    out = run(body, x, np.zeros((128, n // 2), np.float32), threads=128, shared=memory.nbytes)
    found = out.reshape(4, 8, 4, n // 8, 2, 2).transpose(0, 4, 1, 3, 2, 5).reshape(64, n)
    np.testing.assert_array_equal(found, a @ b)
