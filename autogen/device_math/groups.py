"""Group the columns of a tile by thread, so that combining them moves no data between threads."""

import triton
import triton.language as tl


@triton.jit
def in_groups(x: tl.tensor, size: tl.constexpr) -> tl.tensor:
    """Neighbouring columns, `size` together: from `(..., columns)` to `(..., columns / size, size)`."""
    if len(x.shape) == 1:
        return tl.reshape(x, [x.shape[0] // size, size])
    else:
        return tl.reshape(x, [x.shape[0], x.shape[1] // size, size])


@triton.jit
def per_column(x: tl.tensor, size: tl.constexpr) -> tl.tensor:
    """What there is one of per group, once for each of its columns: from `(..., groups)` to `(..., groups * size)`."""
    if len(x.shape) == 1:
        return tl.reshape(tl.broadcast_to(x[:, None], [x.shape[0], size]), [x.shape[0] * size])
    else:
        columns = tl.broadcast_to(x[:, :, None], [x.shape[0], x.shape[1], size])
        return tl.reshape(columns, [x.shape[0], x.shape[1] * size])


@triton.jit
def columns_per_group(n_cols: tl.tensor, tile: tl.constexpr, size: tl.constexpr) -> tl.tensor:
    """How many of a row's columns each group of `size` is given, a tile of columns at a time: `(tile / size,)`."""
    rest = n_cols % tile - tl.arange(0, tile // size) * size
    return n_cols // tile * size + tl.minimum(tl.maximum(rest, 0), size)
