"""Run compiled losses: build modules, allocate results, launch kernels."""
