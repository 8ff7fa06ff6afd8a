"""Every row of the op table keeps its promises, measured against the torch function that it names.

The functions run in Triton's interpreter and, where an emulated GPU is asked for, as the PTX compiled for NVIDIA.
"""

import importlib
import importlib.util
import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from autogen import device_math
from autogen.ir.ops import OPS, Nan, Op, Precedence, Rule
from autogen.runtime.launch import device_context

TRITON = {
    torch.bool: tl.int1,
    torch.uint8: tl.uint8,
    torch.int8: tl.int8,
    torch.int16: tl.int16,
    torch.int32: tl.int32,
    torch.int64: tl.int64,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
# What may be wrong beside the op, in ulps of the stored dtype: the twin itself in fp64, the rounding of a half.
SLACK = {torch.float64: 1.5, torch.float32: 0.0, torch.float16: 0.5, torch.bfloat16: 0.5}
INTERPRETED = triton.knobs.runtime.interpret
LIBRARY = {"erf", "sin", "tan"}  # NVIDIA's code for these takes a denormal argument for 0

KERNEL = """\
import triton
import triton.language as tl
{imports}

@triton.jit
def kernel({pointers}, out, WIDE: tl.constexpr, RESULT: tl.constexpr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    {loads}
    result = {text}
    tl.static_assert(result.dtype == RESULT)
    tl.store(out + i, result)
"""
Load = Callable[[str], ModuleType]


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Import a module from its text, by way of a file, where Triton will look for it."""
    folder = tmp_path_factory.mktemp("kernels")
    numbers = itertools.count()

    def load(text: str) -> ModuleType:
        path = folder / f"kernel_{next(numbers)}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a stored dtype is computed."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def argument_dtypes(op: Op, dtype: torch.dtype) -> list[torch.dtype]:
    return [torch.bool, dtype, dtype] if op.rule == Rule.SELECT else [dtype] * op.arity


def evaluate(load: Load, op: Op, arguments: list[torch.Tensor], literals: dict[int, str] | None = None) -> torch.Tensor:
    """The op's text on tensors of equal length, with literals in the place of some."""
    dtype = arguments[-1].dtype
    result = op.result_dtype(argument_dtypes(op, wide(dtype)))
    names = [f"x{position}" for position in range(op.arity)]
    text = KERNEL.format(
        imports=f"from autogen.device_math import {', '.join(op.helpers)}\n" if op.helpers else "",
        pointers=", ".join(f"{name}_pointer" for name in names),
        loads="\n    ".join(
            f"{name} = tl.load({name}_pointer + i)" + ".to(WIDE)" * (each.dtype != torch.bool)
            for name, each in zip(names, arguments, strict=True)
        ),
        text=op.triton.format(*((literals or {}).get(i, name) for i, name in enumerate(names))),
    )
    length = len(arguments[0])
    size = 1 << (length - 1).bit_length()
    padded = [torch.cat([each, each[:1].expand(size - length)]) for each in arguments]
    out = torch.empty(size, dtype=torch.bool if result == torch.bool else dtype)
    with device_context(out.device):
        load(text).kernel[(1,)](*padded, out, TRITON[wide(dtype)], TRITON[result], size)
    return out[:length]


def twin(op: Op, arguments: list[torch.Tensor]) -> torch.Tensor:
    """The twin on strided tensors, for which torch calls the C library, not a vectorised approximation."""
    return op.twin(*(torch.stack([each, each], dim=1)[:, 0] for each in arguments))


def special(dtype: torch.dtype) -> list[float]:
    """Zeros, infinities, nan, the ends of normal and denormal numbers, neighbours of 1, ties, odd and even."""
    if dtype == torch.bool:
        return [False, True]
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return [0, 1, 2, 3, 7, limits.max] + [-1, -2, -7, limits.min] * (limits.min < 0)
    tiny, eps = torch.finfo(dtype).tiny, torch.finfo(dtype).eps
    ends = [torch.finfo(dtype).max, tiny, tiny * (1 - eps), tiny * eps]
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, math.inf, math.nan, *ends]
    positive += [1 + eps, 1 - eps / 2, 2 / eps, 2 / eps - 1]
    return positive + [-each for each in positive]


def sample(op: Op, dtype: torch.dtype) -> list[torch.Tensor]:
    """Arguments from the domain; half of the floats are spread evenly, half have evenly spread exponents."""
    generator = np.random.default_rng(0)
    count = 2000
    columns = []
    for interval, each in zip(op.domain, argument_dtypes(op, dtype), strict=True):
        if each.is_floating_point:
            limits = torch.finfo(each)
            low, high = max(interval.low, limits.min), min(interval.high, limits.max)
            even = generator.uniform(max(low, -1e3), min(high, 1e3), count)
            exponents = generator.uniform(max(math.log2(limits.tiny), -150), math.log2(max(-low, high)), count)
            scattered = np.exp2(exponents) * generator.choice([-1, 1], count)
            scattered = np.where((scattered < low) | (scattered > high), -scattered, scattered)
            column = np.where(generator.random(count) < 0.5, even, np.clip(scattered, low, high))
        else:
            ends = (0, 1) if each == torch.bool else (torch.iinfo(each).min, torch.iinfo(each).max)
            low, high = int(max(interval.low, ends[0])), int(min(interval.high, ends[1]))
            column = generator.integers(low, high, count, dtype=np.int64, endpoint=True)
        columns.append(torch.from_numpy(column).to(each))
    return columns


def arguments(op: Op, dtype: torch.dtype) -> list[torch.Tensor]:
    """All combinations of special values, then samples of the domain."""
    dtypes = argument_dtypes(op, dtype)
    grid = zip(*itertools.product(*map(special, dtypes)), strict=True)
    specials = [torch.tensor(column, dtype=each) for column, each in zip(grid, dtypes, strict=True)]
    columns = [torch.cat(pair) for pair in zip(specials, sample(op, dtype), strict=True)]
    if dtype.is_floating_point and not any(interval.hard for interval in op.domain):
        return columns
    # Integers have no nan to answer with, so torch raises outside the domain.
    keep = inside(op, columns) | torch.stack(columns).isnan().any(dim=0)
    return [column[keep] for column in columns]


def inside(op: Op, arguments: list[torch.Tensor]) -> torch.Tensor:
    """Where all arguments are in their domains."""
    pairs = [(x.double(), interval) for x, interval in zip(arguments, op.domain, strict=True)]
    within = [(x >= each.low) & (x <= each.high) & (each.zero | (x != 0)) for x, each in pairs]
    return torch.stack(within).all(dim=0)


def ulps(result: torch.Tensor, reference: torch.Tensor, unit: float) -> np.ndarray:
    """The error in ulps of the result's dtype; infinity counts as the first number that is too large."""
    digits, limits = DIGITS[result.dtype], torch.finfo(result.dtype)
    infinity = np.ldexp(np.longdouble(1), math.frexp(limits.max)[1])
    got = np.clip(result.double().numpy().astype(np.longdouble), -infinity, infinity)
    expected = np.clip(reference.numpy().astype(np.longdouble), -infinity, infinity)
    exponent = np.maximum(np.frexp(np.maximum(np.abs(expected), unit))[1], math.frexp(limits.tiny)[1])
    error = np.abs(got - expected) / np.ldexp(np.longdouble(1), exponent - digits)
    error[np.isnan(got) & np.isnan(expected)] = 0
    return np.where(np.isnan(got) != np.isnan(expected), np.inf, error)


def rows(*rules: Rule) -> list[str]:
    return [name for name, op in OPS.items() if op.rule in rules]


def show(op: Op, arguments: list[torch.Tensor], result: torch.Tensor, expected: torch.Tensor, at: int) -> str:
    given = ", ".join(repr(each[at].item()) for each in arguments)
    return f"{op.name}({given}) is {result[at].item()!r}, not {expected[at].item()!r}"


@pytest.mark.cases(len(OPS))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", rows(Rule.ARITHMETIC, Rule.FLOAT))
def test_error_and_nan_on_floats(load: Load, name: str, dtype: torch.dtype) -> None:
    op = OPS[name]
    if dtype == torch.float64 and name in ("cos", "sin", "tan") and not INTERPRETED:
        pytest.skip("a kernel that calls a function, which the emulator does not")
    values = arguments(op, dtype)
    result = evaluate(load, op, values)
    reference = twin(op, [each.double() for each in values])
    error = ulps(result, reference, op.unit)
    if dtype == torch.float64:
        # In fp64 the domain is also where the twin can be trusted.
        error[(~inside(op, values) & reference.isfinite()).numpy()] = 0
    tiny = torch.finfo(dtype).tiny
    if dtype == torch.bfloat16:
        error[(reference.abs() < tiny).numpy()] = 0
    if name in LIBRARY and not INTERPRETED:
        error[(values[0].abs() < tiny).numpy()] = 0
    worst = int(error.argmax())
    allowed = SLACK[dtype] + op.ulp * 2.0 ** (DIGITS[dtype] - DIGITS[wide(dtype)])
    assert error[worst] <= allowed, f"{error[worst]:.3g} ulp: {show(op, values, result, reference, worst)}"

    with_nan = result[torch.stack(values).isnan().any(dim=0)]
    if op.nan == Nan.PROPAGATES:
        assert with_nan.isnan().all()
    else:
        assert op.nan == Nan.ABSORBED and not with_nan.isnan().all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", rows(Rule.COMPARE, Rule.PREDICATE, Rule.SELECT))
def test_choices_on_floats(load: Load, name: str, dtype: torch.dtype) -> None:
    op = OPS[name]
    values = arguments(op, dtype)
    result = evaluate(load, op, values)
    expected = twin(op, values)
    assert result.dtype == expected.dtype
    wrong = (result != expected) & ~(result.isnan() & expected.isnan())
    assert not wrong.any(), show(op, values, result, expected, int(wrong.int().argmax()))
    assert op.nan == (Nan.ABSORBED if op.rule == Rule.SELECT else Nan.NEVER)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name, op in OPS.items() for dtype in op.rule.dtypes if not dtype.is_floating_point],
    ids=str,
)
def test_integers_and_bools(load: Load, name: str, dtype: torch.dtype) -> None:
    if (name, dtype) == ("bitwise_not", torch.uint8):
        pytest.skip("Triton's interpreter has no mask of ones for uint8")
    op = OPS[name]
    values = arguments(op, dtype)
    result = evaluate(load, op, values)
    expected = twin(op, values)
    assert result.dtype == expected.dtype
    wrong = result != expected
    assert not wrong.any(), show(op, values, result, expected, int(wrong.int().argmax()))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.ties])
def test_ties(load: Load, name: str, dtype: torch.dtype) -> None:
    op = OPS[name]
    values = [torch.tensor(column, dtype=dtype) for column in list(zip(*op.ties, strict=True))[:-1]]
    for result in (evaluate(load, op, values), twin(op, values)):
        for (*given, expected), found in zip(op.ties, result.tolist(), strict=True):
            same = found == expected or (math.isnan(found) and math.isnan(expected))
            # A zero without a point may have any sign.
            if expected == 0 and isinstance(expected, float):
                same = same and math.copysign(1, found) == math.copysign(1, expected)
            assert same, f"{name}{tuple(given)} is {found}, not {expected}"


@pytest.mark.parametrize("dtype", (torch.int32, torch.float32, torch.float64), ids=str)
@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.arity > 1])
def test_literal_arguments(load: Load, name: str, dtype: torch.dtype) -> None:
    op = OPS[name]
    if dtype not in op.rule.dtypes:
        return
    number = 3 if dtype == torch.int32 else 2.5
    literal = f"tl.full((), {number}, tl.float64)" if dtype == torch.float64 else str(number)
    for position, each in enumerate(argument_dtypes(op, dtype)):
        if each == torch.bool:
            continue
        values = sample(op, dtype)
        values = [value[inside(op, values)] for value in values]
        values[position] = torch.full_like(values[position], number)
        expected = evaluate(load, op, values)
        result = evaluate(load, op, values, {position: literal})
        assert ((result == expected) | (result.isnan() & expected.isnan())).all()


@pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
def test_dtype_rule(op: Op) -> None:
    for dtype in op.rule.dtypes:
        dtypes = argument_dtypes(op, dtype)
        assert op.result_dtype(dtypes) == op.twin(*(torch.ones(1, dtype=each) for each in dtypes)).dtype
        other = torch.int64 if dtype == torch.float64 else torch.float64
        if op.arity > 1:
            with pytest.raises(TypeError, match=op.name):
                op.result_dtype([*dtypes[:-1], other])
        with pytest.raises(TypeError, match=op.name):
            op.result_dtype([*dtypes, dtype])
    for dtype in set(TRITON) - set(op.rule.dtypes) | {torch.float16, torch.bfloat16}:
        with pytest.raises(TypeError, match=op.name):
            op.result_dtype(argument_dtypes(op, dtype))


@pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
def test_aten_overloads_take_the_arguments_and_nothing_else(op: Op) -> None:
    for name in op.aten:
        packet, overload = name.split(".")
        schema = getattr(getattr(torch.ops.aten, packet), overload)._schema
        assert [str(argument.type) for argument in schema.arguments] == ["Tensor"] * op.arity


def test_precedence() -> None:
    order = ["eq", "bitwise_or", "bitwise_xor", "bitwise_and", "sub", "div", "neg", "exp"]
    assert [OPS[name].precedence for name in order] == sorted(OPS[name].precedence for name in order)
    assert OPS["exp"].precedence == OPS["where"].precedence == Precedence.ATOM
    assert OPS["add"].precedence == OPS["sub"].precedence < OPS["mul"].precedence == OPS["reciprocal"].precedence


def test_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        OPS["exp"] = OPS["log"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        OPS["exp"].ulp = 100  # type: ignore[misc]


REDUCTION = """\
import triton
import triton.language as tl
from autogen.device_math import {over}, {combine}

@triton.jit
def kernel(x_pointer, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.arange(0, ROWS)
    x = tl.load(x_pointer + row[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :])
    tl.store(out + row, {over}(x, 1))
    tl.store(out + ROWS + row, tl.reduce(x, 1, {combine}))
"""


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.int32), ids=str)
@pytest.mark.parametrize(("over", "combine"), [("max_over", "maximum"), ("min_over", "minimum")])
def test_reductions(load: Load, over: str, combine: str, dtype: torch.dtype) -> None:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)).mul(100).to(dtype)
    if dtype.is_floating_point:
        x[1] = math.inf
        x[2] = -math.inf
        x[3, 5] = x[4] = math.nan
        x[5, 3:] = -math.inf
    out = torch.empty(2, 8, dtype=dtype)
    load(REDUCTION.format(over=over, combine=combine)).kernel[(1,)](x, out, 8, 16)
    expected = (torch.amax if over == "max_over" else torch.amin)(x, dim=1)
    for result in out:
        assert ((result == expected) | (result.isnan() & expected.isnan())).all()


ALONG = """\
import triton
import triton.language as tl
from autogen.device_math import logcumsumexp, prod_over

@triton.jit
def kernel(x_pointer, out, products, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    places = row[:, None] * COLUMNS + column[None, :]
    x = tl.load(x_pointer + places)
    tl.store(out + places, logcumsumexp(x, 1))
    tl.store(out + ROWS * COLUMNS + places, logcumsumexp(x, 1, reverse=True))
    tl.store(products + row, prod_over(x, 1))
"""


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_along_rows(load: Load, dtype: torch.dtype) -> None:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0), dtype=dtype)
    x[1, 3:], x[2, 5], x[3, 2], x[4, 7], x[5] = -math.inf, math.inf, math.nan, 90, -200
    out, products = torch.empty(2, 8, 16, dtype=dtype), torch.empty(8, dtype=dtype)
    load(ALONG).kernel[(1,)](x, out, products, 8, 16)
    torch.testing.assert_close(out[0], x.logcumsumexp(1), equal_nan=True)
    torch.testing.assert_close(out[1], x.flip(1).logcumsumexp(1).flip(1), equal_nan=True)
    torch.testing.assert_close(products, x.prod(1), equal_nan=True)


def test_functions_of_kernels_are_found_in_their_files() -> None:
    folder = Path(device_math.__file__).parent
    files = [file for file in folder.glob("*.py") if file.stem not in ("__init__", "device")]
    defined = {file.stem: set(re.findall(r"^def ([a-z]\w*)", file.read_text(), re.MULTILINE)) for file in files}
    assert {file: set(names.split()) for file, names in device_math._FUNCTIONS.items()} == defined
    for file, names in defined.items():
        home = importlib.import_module(f"autogen.device_math.{file}")
        assert all(getattr(device_math, name) is getattr(home, name) for name in names)
