"""`capabilities`: list what the package does, and what of it is available here."""

from __future__ import annotations

from dataclasses import dataclass

from autogen.report.environment import Environment, environment


@dataclass(frozen=True)
class Capability:
    """One of the three things that the compiler is for.

    Attributes:
        name: "nonlinearities", "fusion" or "custom losses".
        summary: what it is, in a sentence.
        items: what it covers: operations, losses, or what can be decorated.
    """

    name: str
    summary: str
    items: tuple[str, ...]


@dataclass(frozen=True)
class Capabilities:
    """What `capabilities` returns; `dataclasses.asdict` makes plain data of it, and `str` a short text.

    Attributes:
        capabilities: what the package does, each with a summary and the items that belong to it.
        environment: versions, devices, extras and settings found here.
    """

    capabilities: tuple[Capability, ...]
    environment: Environment

    def __str__(self) -> str:
        lines = [f"{each.name} ({len(each.items)}): {each.summary}" for each in self.capabilities]
        here = self.environment
        versions = ", ".join(f"{name} {version or 'missing'}" for name, version in here.versions.items())
        devices = ", ".join(here.devices) or "no GPU"
        where = "kernels can run" if here.runs else "losses run in torch"
        extras = ", ".join(name for name, version in here.extras.items() if version) or "none"
        return "\n".join(
            [
                *lines,
                f"here: {versions}",
                f"{where}: {devices}, Triton's interpreter {'on' if here.interpreter else 'off'}",
                f"extras installed: {extras}",
            ]
        )


def capabilities() -> Capabilities:
    """What the package can do (see `docs/capabilities.md`), and which versions, devices and settings are here."""
    from autogen import losses

    kinds = ("a class of modules", "a module", "a function", "a method", "what torch.compile captures, by its backend")
    return Capabilities(
        (
            Capability(
                "nonlinearities",
                "pointwise operations of torch that have a kernel in any loss; what torch writes with these, such as "
                "gelu or mish, has one as well",
                pointwise_operations(),
            ),
            Capability("fusion", "losses that run as few kernels forward and few backward", tuple(losses.__all__)),
            Capability("custom losses", "what autogen_loss takes: plain PyTorch, with no line about kernels", kinds),
        ),
        environment(),
    )


def pointwise_operations() -> tuple[str, ...]:
    """The names of the pointwise ATen operations that are lowered: those of the op table, and what is made of them."""
    from autogen.lowering import pointwise
    from autogen.lowering.registry import LOWERINGS

    named = {
        name.partition(".")[0] for name, lowering in LOWERINGS.items() if _module_of(lowering) == pointwise.__name__
    }
    return tuple(
        sorted(name for name in named if not name.startswith("_") and not name.endswith(("_forward", "_backward")))
    )


def _module_of(lowering: object) -> str:
    return str(getattr(getattr(lowering, "func", lowering), "__module__", ""))
