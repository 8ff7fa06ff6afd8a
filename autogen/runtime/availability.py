"""Find out whether kernels can run on given tensors, and if not, why."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.compiler import is_compiling

from autogen import compat
from autogen.compat import default_device as default_device
from autogen.compat import is_functional as is_functional
from autogen.errors import UnavailableError

PLAIN_TYPES = (int, float, bool, str, type(None), complex, bytes)
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_DTYPES = frozenset(
    (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
)
_TRITON = {"linux": "triton", "win32": "triton-windows"}  # packages by `sys.platform`


@functools.cache
def has_triton() -> bool:
    """Whether Triton can be imported; tried when a loss is first called, never at `import autogen`."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


@functools.cache
def has_interpreter() -> bool:
    """Whether Triton runs kernels in its interpreter, chosen by `TRITON_INTERPRET=1` before it was imported."""
    if not has_triton():
        return False
    import triton

    return bool(triton.knobs.runtime.interpret)


@functools.cache
def has_kernels() -> bool:
    """Whether kernels can run on any tensors at all."""
    return has_triton() and (has_interpreter() or torch.cuda.is_available())


def is_differentiable() -> bool:
    """Whether autograd follows what is computed now: in inference mode never, even where gradients are enabled."""
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def is_sharded(tensor: Any) -> bool:
    """Whether something is a DTensor, which AOTAutograd takes apart: kernels are given the tensor of this process."""
    module = sys.modules.get("torch.distributed.tensor")  # which takes long to import
    return module is not None and type(tensor) is module.DTensor


def is_taken_apart(tensor: Any) -> bool:
    """Whether something is a tensor made of others that AOTAutograd hands to kernels: a DTensor, or a jagged one, which
    is its values and offsets.
    """
    return is_sharded(tensor) or (type(tensor) in compat.jagged_types() and tensor.layout == torch.jagged)


def without_class(value: Any) -> Any:
    """A tensor as torch's operators see it, if its class is one that they do not ask (`__torch_dispatch__`).

    What such a class makes of torch's functions (`__torch_function__`), Dynamo traces. All else is as it is.
    """
    kind = type(value)
    if kind in PLAIN_TENSORS or not isinstance(value, torch.Tensor) or compat.hears_of_operators(kind):
        return value
    with compat.WithoutSubclasses():
        return value.as_subclass(torch.Tensor)


def refusal_of_class(kind: type) -> UnavailableError | None:
    """Why a loss that is given a tensor of a class is not captured; None if it is."""
    if kind in PLAIN_TENSORS or not issubclass(kind, torch.Tensor) or kind not in compat.UNTRACEABLE:
        return None
    return UnavailableError(
        f"an argument is a {kind.__name__}, which computes in its __torch_function__",
        remedy="Pass plain tensors.",
    )


def refusal_of(kind: str) -> UnavailableError | None:
    """Why no kernel can run on a kind of device; None if they can."""
    if not has_triton():
        package = _TRITON.get(sys.platform)
        remedy = (
            f"Install the package {package}."
            if package
            else "Use Linux or Windows: there is no Triton for other systems."
        )
        return UnavailableError("Triton is not installed", remedy=remedy)
    if kind == "cpu" and not has_interpreter():
        return UnavailableError(
            "the tensors are on the CPU, and Triton's interpreter is off",
            remedy="Move them to a GPU, or set TRITON_INTERPRET=1 before Triton is imported.",
        )
    if kind not in ("cpu", "cuda"):
        return UnavailableError(f"there are no kernels for the device {kind}", remedy="Move the tensors to a GPU.")
    return None


def require(tensors: Sequence[torch.Tensor], plain: tuple[type, ...] = PLAIN_TENSORS) -> None:
    """Check that kernels can run on `tensors`, which are of `plain` types.

    Raises:
        UnavailableError: no Triton, a device or dtype that kernels do not know, tensors that are no plain ones, or that
            cannot be saved for backward.
    """
    if not tensors:
        raise UnavailableError("the loss was given no tensor", remedy="Pass a tensor as an argument.")
    for tensor in tensors:
        if type(tensor) not in plain and not is_taken_apart(tensor):
            raise UnavailableError(
                f"an argument is a {type(tensor).__name__}, not a plain tensor",
                remedy="Pass plain tensors.",
            )
        if compat.is_functorch_wrapped(tensor):
            raise UnavailableError(
                "a tensor is wrapped by torch.func, and has no memory of its own",
                remedy="Call the loss outside of the transform, with plain tensors.",
            )
        if tensor.is_nested and tensor.layout != torch.jagged:
            raise UnavailableError(
                "no kernel can read a nested tensor of strided layout", remedy="Make it with layout=torch.jagged."
            )
        if tensor.layout not in (torch.strided, torch.jagged) or tensor.is_quantized or tensor.dtype not in _DTYPES:
            kind = "quantized" if tensor.is_quantized else f"{str(tensor.dtype)[6:]}, {str(tensor.layout)[6:]}"
            raise UnavailableError(
                f"no kernel can read a tensor that is {kind}",
                remedy="Convert it to a strided or jagged tensor of floats of 16 to 64 bits, integers or booleans.",
            )
        if tensor.is_neg():  # its memory holds the values with the other sign, as that of `x.conj().imag`
            raise UnavailableError("no kernel can read a negative view", remedy="Call resolve_neg() on the tensor.")
        if compat.is_zero_tensor(tensor):
            raise UnavailableError(
                "no kernel can read a tensor of zeros that has no memory", remedy="Call clone() on the tensor."
            )
    is_kept = is_differentiable() and any(tensor.requires_grad for tensor in tensors)
    if is_kept and any(tensor.is_inference() for tensor in tensors):
        raise UnavailableError(
            "a tensor was made in inference mode, and autograd cannot keep it for backward",
            remedy="Clone it outside of inference mode.",
        )
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        found = ", ".join(sorted(map(str, devices)))
        raise UnavailableError(f"the tensors are on several devices ({found})", remedy="Move them to one device.")
    refusal = refusal_of(tensors[0].device.type)
    if refusal is not None:
        raise refusal


def is_batched(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether torch maps over a dimension that is hidden in some tensors, whose memory no kernel can read then."""
    given = [tensor for tensor in tensors if tensor is not None]
    return any(map(compat.is_batched, given)) or any(map(compat.is_legacy_batched, given))


def has_no_memory(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether some tensors, such as upstream gradients, have no memory that a kernel can read, element by element."""
    given = [tensor for tensor in tensors if tensor is not None]
    return is_batched(given) or any(each.layout != torch.strided or compat.is_zero_tensor(each) for each in given)


def is_of_functions(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether some tensors are wrapped by a transform of `torch.func` that is at work, and none is mapped over."""
    if compat.functorch_level() is None or is_batched(tensors):
        return False
    return any(compat.is_functorch_wrapped(tensor) for tensor in tensors if tensor is not None)


def is_transformed() -> bool:
    """Whether torch transforms or traces the call (`torch.compile`, `torch.func`, forward-mode AD, `torch.jit`): its
    formula is needed.
    """
    has_modes = is_compiling() or is_functional() or compat.has_function_modes() or compat.dispatch_modes() > 0
    return has_modes or compat.jit_state() is not None
