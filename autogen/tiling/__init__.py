"""From a kernel and the sizes of a call to its launch: axes merged, tiles and warps chosen."""
