"""The version of Triton by which some bounds are chosen."""

from __future__ import annotations

import triton

# Versions allocate registers otherwise: a bound that some do not keep is one of each.
TRITON = tuple(map(int, triton.__version__.split(".")[:2]))
