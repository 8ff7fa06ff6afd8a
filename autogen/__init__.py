"""Compile PyTorch losses to Triton kernels: one launch forward and one backward, wherever that is possible.

>>> from autogen.losses import BCELoss                                      # doctest: +SKIP
>>> BCELoss(use_autogen=True)(probability, target).backward()               # doctest: +SKIP

The packages, in the order of a call (`docs/architecture.md` in the repository follows one loss through them):

    decorator → settings → dispatch → capture → ir → lowering → scheduling → tiling → emission → runtime

Beside these are `compiler` (from capture to runtime), `compat` (private APIs of torch and Triton), `data` (batches),
`device_math` (functions that kernels call), `tuning`, `aot` (compilation without a GPU), `hub` (losses inside existing
models), `exporting`, `report` (`explain`), `cli`, and the losses themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autogen._version import __version__
from autogen.errors import (
    AutogenError,
    CompileError,
    ConfigError,
    DataError,
    ExportError,
    FallbackWarning,
    GraphBreakError,
    GraphChangedError,
    GraphError,
    InternalError,
    RecompileLimitError,
    RefusedError,
    ScheduleError,
    SharedCacheError,
    StorageError,
    UnavailableError,
    UnsupportedOpError,
    ValueBranchError,
)
from autogen.settings.policies import Policy, load_runconfig, policy, set_policy

if TYPE_CHECKING:
    from autogen import data as data
    from autogen import functional as functional
    from autogen import hub as hub
    from autogen import losses as losses
    from autogen.data.jagged import ragged
    from autogen.decorator import autogen_loss, trace_count
    from autogen.exporting.api import export
    from autogen.exporting.check import check_export
    from autogen.hub import Mode, kernelize, make_extensible, register_mapping, use_mapping
    from autogen.patching import Patch, patch
    from autogen.report import DirectionReport, Report, explain
    from autogen.report.capabilities import capabilities
    from autogen.report.coverage import SupportedLoss, supported_losses
    from autogen.settings.options import retracing

__all__ = [
    "AutogenError",
    "CompileError",
    "ConfigError",
    "DataError",
    "DirectionReport",
    "ExportError",
    "FallbackWarning",
    "GraphBreakError",
    "GraphChangedError",
    "GraphError",
    "InternalError",
    "Mode",
    "Patch",
    "Policy",
    "RecompileLimitError",
    "RefusedError",
    "Report",
    "ScheduleError",
    "SharedCacheError",
    "StorageError",
    "SupportedLoss",
    "UnavailableError",
    "UnsupportedOpError",
    "ValueBranchError",
    "__version__",
    "autogen_loss",
    "capabilities",
    "check_export",
    "explain",
    "export",
    "kernelize",
    "load_runconfig",
    "make_extensible",
    "patch",
    "policy",
    "ragged",
    "register_mapping",
    "retracing",
    "set_policy",
    "supported_losses",
    "trace_count",
    "use_mapping",
]

# Imported when asked for: they need torch, which takes a second that `import autogen` should not.
_LAZY = {
    "autogen_loss": "autogen.decorator",
    "DirectionReport": "autogen.report",
    "Mode": "autogen.hub",
    "Patch": "autogen.patching",
    "Report": "autogen.report",
    "SupportedLoss": "autogen.report.coverage",
    "capabilities": "autogen.report.capabilities",
    "check_export": "autogen.exporting.check",
    "data": "autogen.data",
    "explain": "autogen.report",
    "export": "autogen.exporting.api",
    "functional": "autogen.functional",
    "hub": "autogen.hub",
    "kernelize": "autogen.hub",
    "losses": "autogen.losses",
    "make_extensible": "autogen.hub",
    "patch": "autogen.patching",
    "ragged": "autogen.data.jagged",
    "register_mapping": "autogen.hub",
    "retracing": "autogen.settings.options",
    "supported_losses": "autogen.report.coverage",
    "trace_count": "autogen.decorator",
    "use_mapping": "autogen.hub",
}


if not TYPE_CHECKING:  # a type checker shall see that a name is not there

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        module = importlib.import_module(_LAZY[name])
        value = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LAZY})
