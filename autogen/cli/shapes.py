"""Parse the inputs of a loss from text such as `8x128256:bf16,8:int64`, and draw tensors for them."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autogen.cli.usage import UsageError

if TYPE_CHECKING:
    import torch

GRAMMAR = """\
inputs (--shapes): one for each argument of the call, separated by commas
  8x10          a float32 tensor (8, 10) from a normal distribution; `scalar` is a tensor without dimensions
  8x10:bf16     another dtype: f16 bf16 f32 f64 i8 i16 i32 i64 u8 bool, or torch's names
  8:int64       class indices: integers below dimension 1 of the first floating-point input
  8:int64<50    integers below 50
  8x10@prob     numbers between 0 and 1; also @positive, @sign (-1 or 1), @softmax and @log_softmax (along dimension 1);
                integers may be @positive (CTC's labels: 2x3:int64<5@positive) or @sign
  8x10+grad     requires a gradient, as the first floating-point input does by default; -grad turns that off
  mask=8:bool   a keyword argument
  =0.5          a Python value, such as =(9,9) or =None
"""

DTYPES = {
    "f16": "float16",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "fp32": "float32",
    "float": "float32",
    "f64": "float64",
    "fp64": "float64",
    "double": "float64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "int": "int32",
    "i64": "int64",
    "long": "int64",
    "u8": "uint8",
    "bool": "bool",
}
_SHORT = ("f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "bool")
INTEGERS = ("positive", "sign")
_ITEM = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<size>scalar|\d+(?:x\d+)*)(?::(?P<dtype>\w+))?"
    r"(?:<(?P<below>\d+))?(?:@(?P<values>\w+))?(?P<grad>[+-]grad)?"
)
_MANY = 2**26  # numbers that nobody looks at are left as they are: memory that nothing has touched is none yet


@dataclass(frozen=True)
class Input:
    """One input: a tensor's size and dtype, and what it is to hold; or a `literal`, a Python value in a tuple."""

    name: str | None = None
    size: tuple[int, ...] = ()
    dtype: str = "float32"
    below: int | None = None
    values: str = "normal"
    grad: bool = False
    literal: tuple[Any] | None = None

    @property
    def is_float(self) -> bool:
        """Whether it is a tensor of floats."""
        return self.literal is None and "float" in self.dtype


def parse(text: str) -> list[Input]:
    """The inputs in a text; see `GRAMMAR`.

    Raises:
        UsageError: it is not understood.
    """
    found: list[Input] = []
    asked: list[str | None] = []
    for item in items_of(text):
        if item.startswith("="):
            found.append(Input(literal=(_literal(item[1:]),)))
            asked.append(None)
            continue
        match = _ITEM.fullmatch(item)
        if match is None:
            raise UsageError(f"{item!r} is no input; write one as 8x10:bf16, 8:int64<10, scalar:f32 or =0.5")
        found.append(_tensor(item, match))
        asked.append(match["grad"])
    first = next((k for k, each in enumerate(found) if each.is_float), None)
    return [
        _with_grad(each, sign, is_first=k == first) for k, (each, sign) in enumerate(zip(found, asked, strict=True))
    ]


def items_of(text: str) -> list[str]:
    """The text between commas that are in no brackets."""
    items, depth = [""], 0
    for character in text.replace(" ", ""):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            items.append("")
        else:
            items[-1] += character
    return items


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise UsageError(
            f"{text!r} is no Python value; write numbers, tuples, None, True, False or quoted text"
        ) from None


def _tensor(item: str, match: re.Match[str]) -> Input:
    size = () if match["size"] == "scalar" else tuple(map(int, match["size"].split("x")))
    written = match["dtype"] or "float32"
    dtype = DTYPES.get(written, written)
    if dtype not in DTYPES.values():
        raise UsageError(f"{written!r} in {item!r} is no dtype; choose from {', '.join(_SHORT)}, or torch's names")
    is_float, values = "float" in dtype, match["values"]
    known = () if dtype == "bool" else tuple(FLOATS) if is_float else INTEGERS
    if values is not None and values not in known:
        choice = f"choose from @{', @'.join(known)}" if known else "leave it out"
        raise UsageError(f"@{values} in {item!r} is not drawn for {dtype}; {choice}")
    if match["below"] is not None and (is_float or dtype == "bool" or int(match["below"]) == 0):
        raise UsageError(f"<{match['below']} in {item!r} is no bound for {dtype}; integers are below a positive one")
    below = None if match["below"] is None else int(match["below"])
    return Input(match["name"], size, dtype, below, values or ("normal" if is_float else ""))


def _with_grad(each: Input, sign: str | None, *, is_first: bool) -> Input:
    if sign == "+grad" and not each.is_float:
        raise UsageError(f"+grad is for floats; {each.dtype} has no gradient")
    wanted = sign == "+grad" or (is_first and sign is None)
    return Input(each.name, each.size, each.dtype, each.below, each.values, wanted, each.literal)


def draw(
    inputs: Sequence[Input], device: str, seed: int = 0, *, matters: bool = True
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, by position and by name: the same for the same seed.

    If what they hold does not `matter`, many numbers are any.

    Raises:
        UsageError: integers of which nobody says how large they may be.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    classes = next((each.size[1] for each in inputs if each.is_float and len(each.size) > 1), None)
    args: list[Any] = []
    named: dict[str, Any] = {}
    for each in inputs:
        if each.literal is not None:
            args.append(each.literal[0])
            continue
        if each.is_float and not matters and math.prod(each.size) > _MANY:
            tensor = torch.empty(each.size, dtype=getattr(torch, each.dtype), device=device)
        else:
            tensor = _drawn(each, classes, generator).to(device)
        tensor.requires_grad_(each.grad)
        if each.name is None:
            args.append(tensor)
        else:
            named[each.name] = tensor
    return tuple(args), named


def _drawn(each: Input, classes: int | None, generator: torch.Generator) -> torch.Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, each.dtype)
    if each.is_float:
        normal = torch.randn(each.size, generator=generator, dtype=torch.promote_types(dtype, torch.float32))
        return FLOATS[each.values](normal).to(dtype)
    if each.dtype == "bool" or each.values == "sign":
        bits = torch.randint(2, each.size, generator=generator)
        return bits.bool() if each.dtype == "bool" else (2 * bits - 1).to(dtype)
    below = each.below or classes
    if below is None:
        size = "x".join(map(str, each.size)) or "scalar"
        raise UsageError(f"how large may the integers be? Write {size}:{each.dtype}<10 for those below 10")
    low = int(each.values == "positive")
    return torch.randint(low, max(below, low + 1), each.size, generator=generator).to(dtype)


def _of_classes(normal: torch.Tensor) -> int:
    return min(1, normal.dim() - 1)


FLOATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal": lambda normal: normal,
    "prob": lambda normal: normal.sigmoid(),
    "positive": lambda normal: normal.exp(),
    "sign": lambda normal: (normal > 0) * 2.0 - 1,
    "softmax": lambda normal: normal.softmax(_of_classes(normal)),
    "log_softmax": lambda normal: normal.log_softmax(_of_classes(normal)),
}
"""What floats may be, made of normal ones."""
