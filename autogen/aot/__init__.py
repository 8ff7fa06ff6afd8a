"""Compile kernels ahead of time for real targets, without a GPU.

    kernels = kernels_of(CrossEntropyLoss(), logits, target)      # traced, in any process
    for kernel, target, result in compile_all(kernels):           # compiled, in processes of their own
        print(kernel.name, target.name, result)

`kernels_of` gives the kernels of a call as plain data, specialised as Triton would specialise them at launch;
`compile_kernel` compiles one, and says which registers and memory it takes. Triton decides when it is imported whether
it compiles or interprets, so `compile_kernel` needs a process without `TRITON_INTERPRET=1`; `compile_all` brings its
own and can be called from everywhere.
"""

from autogen.aot.compilation import TARGETS, CompiledKernel, Target, compile_kernel
from autogen.aot.kernels import Parameter, SpecializedKernel, kernels_of, specialize, specialize_launch
from autogen.aot.workers import compile_all

__all__ = [
    "TARGETS",
    "CompiledKernel",
    "Parameter",
    "SpecializedKernel",
    "Target",
    "compile_all",
    "compile_kernel",
    "kernels_of",
    "specialize",
    "specialize_launch",
]
