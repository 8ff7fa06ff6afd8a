"""Export a loss as code that needs torch, Triton and the standard library, and nothing of this package.

    captured loss → refusals → bindings → kernels in all their variants, host code, device math → text → files

What a call decides in process is decided here once, for all sizes: which variants of a kernel there are, and by which
sizes one of them, its tiles and its warps are chosen. What torch guards in process is a condition in the host code.
"""
