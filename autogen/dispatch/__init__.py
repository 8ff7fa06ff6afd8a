"""Who runs a call: kernels that were compiled before, the compiler first, or torch; and what autograd hears of it."""
