"""Run the losses inside existing models on kernels, by way of Hugging Face's `kernels`.

What `kernels` has is used as it is, and re-exported here; what is added is a mapping for the losses of `torch.nn`, and
repositories of several versions in a local folder. Needs the extra `hub`.
"""

from __future__ import annotations

try:
    from kernels import (
        CUDAProperties,
        Device,
        KernelizeFallback,
        LayerRepository,
        LocalLayerRepository,
        Mode,
        ROCMProperties,
    )
except ImportError as error:
    raise ImportError(
        'autogen.hub needs the package kernels, 0.17 or later: pip install "autogen-loss[hub]"', name="kernels"
    ) from error

from autogen.hub.kernelizing import kernelize
from autogen.hub.layers import LossLayer, mapping
from autogen.hub.registering import make_extensible, register_mapping, use_mapping
from autogen.hub.versions import LocalVersions

__all__ = [
    "CUDAProperties",
    "Device",
    "KernelizeFallback",
    "LayerRepository",
    "LocalLayerRepository",
    "LocalVersions",
    "LossLayer",
    "Mode",
    "ROCMProperties",
    "kernelize",
    "make_extensible",
    "mapping",
    "register_mapping",
    "use_mapping",
]
