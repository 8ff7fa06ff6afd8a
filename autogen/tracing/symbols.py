"""What stands for the tensors and numbers of a call while a loss is traced: fake tensors, whose sizes are symbols."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo.source  # not later: an import that fails in there keeps the frames below it, tensors and all

NUMBERS = (torch.SymInt, torch.SymFloat)
"""What stands for the numbers of a call."""

SYMBOLS = (*NUMBERS, torch.SymBool)
"""The same, and what stands for a condition on these."""

PYTHONS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
"""What each kind of symbol stands for."""


def number_of(symbol: Any) -> Any:
    """The number that a symbol stands for, which is fixed then."""
    return PYTHONS[type(symbol)](symbol)


class Symbols:
    """The symbols of one trace.

    Args:
        static: whether sizes are taken as they are.
    """

    def __init__(self, *, static: bool) -> None:
        # Importing these pulls in torch._dynamo, about a second: only when a loss is really traced.
        from torch._functorch import config
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self.static = static
        self.shapes = ShapeEnv(duck_shape=False)
        with config.patch(fake_tensor_propagate_real_tensors=False):  # with which a trace would draw, too
            self.mode = FakeTensorMode(shape_env=self.shapes, allow_non_fake_inputs=True)
        self.mode.cache_enabled = False  # every trace has symbols of its own: never a hit, and half of a trace's time

    def number(self, name: str, value: float) -> Any:
        """A symbol for a float, or for an integer of at least 2."""
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        source = ConstantSource(name)
        symbol = self.shapes.create_unspecified_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC)
        if isinstance(value, float):
            return self.shapes.create_symfloatnode(symbol, hint=value, source=source)
        number = self.shapes.create_symintnode(symbol, hint=value, source=source)
        torch._check(number >= 2)
        return number

    def tensor(self, tensor: torch.Tensor, name: str, *, requires_grad: bool = False) -> torch.Tensor:
        """A fake tensor; its sizes of 0 and 1 are no symbols."""
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        varies = [size > 1 and not self.static for size in tensor.shape]
        dynamic = [DimDynamic.DYNAMIC if each else DimDynamic.STATIC for each in varies]
        context: Any = StatelessSymbolicContext(dynamic_sizes=dynamic)
        with torch.utils._python_dispatch._disable_current_modes():
            fake: torch.Tensor = self.mode.from_tensor(
                tensor.detach(), symbolic_context=context, source=ConstantSource(name)
            )
            if fake.is_inference():  # which no trace can ask for gradients
                geometry = fake.size(), fake.stride()
                with torch.inference_mode(False), self.mode:
                    fake = torch.empty_strided(*geometry, dtype=fake.dtype, device=fake.device)
            with self.mode:
                return fake.detach().requires_grad_(requires_grad)
