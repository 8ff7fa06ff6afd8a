"""Collect the versions and settings that decide how losses run, for `capabilities` and bug reports."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from autogen._version import __version__
from autogen.settings.policies import resolve

EXTRAS = ("kernels", "liger-kernel", "scikit-learn")
"""Packages that a part of autogen, its benchmarks or its demo use where they are installed."""


@dataclass(frozen=True)
class Environment:
    """Versions and settings.

    Attributes:
        versions: of autogen, Python, torch and Triton, None of what is not installed.
        platform: the operating system and processor.
        devices: the GPUs that torch sees, with their capability.
        interpreter: whether Triton runs kernels in its interpreter, on tensors of the CPU.
        runs: whether kernels can run on any tensors here.
        policy: the policy in force, or what is wrong with the one that is set.
        variables: the environment variables that are set, of autogen's and Triton's.
        cache: the folder of generated modules and tuned configurations.
        extras: versions of optional packages, None of those that are not installed.
    """

    versions: Mapping[str, str | None]
    platform: str
    devices: tuple[str, ...]
    interpreter: bool
    runs: bool
    policy: str
    variables: Mapping[str, str]
    cache: str
    extras: Mapping[str, str | None]


def environment() -> Environment:
    """What is here now."""
    import torch

    from autogen.runtime import build
    from autogen.runtime.availability import has_interpreter, has_kernels

    versions: dict[str, str | None] = {"autogen-loss": __version__, "python": platform.python_version()}
    versions |= {"torch": torch.__version__, "triton": version_of("triton")}
    return Environment(
        versions=versions,
        platform=platform.platform(),
        devices=tuple(map(_device, range(torch.cuda.device_count()))),
        interpreter=has_interpreter(),
        runs=has_kernels(),
        policy=_policy(),
        variables={
            name: value for name, value in sorted(os.environ.items()) if name.startswith(("AUTOGEN_", "TRITON_"))
        },
        cache=str(build.cache_folder()),
        extras={name: version_of(name) for name in EXTRAS},
    )


def version_of(package: str) -> str | None:
    """The version of an installed package; None if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _device(index: int) -> str:
    import torch

    major, minor = torch.cuda.get_device_capability(index)
    return f"{torch.cuda.get_device_name(index)}, capability {major}.{minor}"


def _policy() -> str:
    try:
        return str(resolve())
    except ValueError as error:
        return str(error)
