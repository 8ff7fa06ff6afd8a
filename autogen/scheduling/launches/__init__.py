"""Turn results into kernels, and choose how each kernel walks its axes."""
