"""Whatever the user calls an argument, a parameter or a variable, the kernels compute the same."""

from __future__ import annotations

import ast
import copy
import linecache
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autogen import autogen_loss, device_math, explain, policy
from autogen.emission.shell import RESERVED
from autogen.templates import FOLDER
from tests.interpret.agreement import agree, draw

# One kernel, one with a product between, one with a last block, one with horizontal parts.
TEXTS = {
    "rows": "-(({C} * {B}).sum(1)).mean() * {D}",
    "partial": "(({C} @ {B}.t()).tanh() * {B}[:, :1]).logsumexp(1) * {D}",
    "nested": "(({C} * {B}).sum(1) / ({C} + {B}).sum(1)).amax(0) * {D}",
    "horizontal": "{C}.mean() + {B}[0].abs().mean() * {D}",
}
OURS = ["loss", "loss_0", "loss_2", "grad_a", "grad_loss", "grad_grad_a", "number_0", "counter", "counter_ptr"]
OURS += ["range", "float", "tl", "triton", "N_TILE", "ELEMENT_TILE", "ROWS", "PARTIALS", "CHUNKS", "row", "mask"]
OURS += [
    "col",
    "n_rows",
    "n_elements",
    "program",
    "part",
    "size",
    "size_1",
    "a_size_0",
    "quotient_partial",
    "scaled_ptr",
]


def defined(text: str) -> Callable[..., Tensor]:
    """The function `f` of a text whose lines, and so its variables, are found."""
    name = f"<{text}>"
    scope: dict[str, Any] = {}
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    exec(compile(text, name, "exec"), scope)
    return scope["f"]  # type: ignore[no-any-return]


def made(kind: str, a: str = "a", b: str = "b", c: str = "c", d: str = "d") -> Callable[..., Tensor]:
    text = f"def f({a}, {b}, {d}):\n    {c} = {a}.log_softmax(1)\n    return {TEXTS[kind]}\n"
    return defined(text.format(B=b, C=c, D=d))


def results(loss: Callable[..., Tensor]) -> list[Tensor]:
    found = []
    for scale in (0.5, 1.5, 2.5):  # the third of which is an argument of the kernels
        a, b = draw("real", 6, 8), draw("real", 6, 8, seed=1)
        value = loss(a, b, scale)
        found += [value, *torch.autograd.grad(value.sum(), (a, b))]
    return found


@pytest.mark.parametrize("name", OURS)
def test_names_of_ours(name: str) -> None:
    k = OURS.index(name)
    kind, place = list(TEXTS)[k // 4 % 4], "abcd"[k % 4]
    expected = results(made(kind))
    with policy("mandatory"):
        torch.testing.assert_close(results(autogen_loss(made(kind, **{place: name}))), expected)


MODELS = [
    lambda: nn.Sequential(nn.PReLU(), nn.Softmax(1)),
    lambda: nn.Sequential(nn.Linear(5, 5), nn.PReLU()),
    lambda: nn.Sequential(nn.BatchNorm1d(5), nn.PReLU()),
    lambda: nn.ModuleDict({"lambda": nn.PReLU(), "a-b": nn.PReLU(), "loss": nn.PReLU()}),
]


class Chain(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.model, nn.Sequential):
            return self.model(x).exp().mean(1)  # type: ignore[no-any-return]
        for layer in self.model.children():
            x = layer(2 * x)
        return x


@pytest.mark.parametrize("model", MODELS)
def test_parameters_whose_names_are_no_identifiers(model: Callable[[], nn.Module]) -> None:
    theirs = Chain(model()) if isinstance(model(), nn.ModuleDict) else model()
    ours = autogen_loss(copy.deepcopy(theirs), policy="mandatory")
    for _ in range(3):
        x = draw("real", 4, 5)
        torch.testing.assert_close(ours(x), theirs(x))
        for loss in (ours, theirs):
            loss(x).sum().backward()
        torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()])
        torch.testing.assert_close(list(ours.buffers()), list(theirs.buffers()))


class Called(nn.Module):
    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.randn(5)))

    def forward(self, x: Tensor) -> Tensor:
        for name in self.names:
            x = x.square() + getattr(self, name)
        return x.mean()


@pytest.mark.parametrize("names", [("L²", "x²", "x2"), ("ﬁ", "fi"), ("\u2113oss", "loss"), ("௰", "_")], ids=str)
def test_names_that_python_spells_otherwise(names: tuple[str, ...]) -> None:
    agree(Called(names), draw("real", 4, 5))


@pytest.mark.parametrize(
    "name", ["3d_loss", "L²", "௰", "İ", "ﬁ", "größe", "損失", 'a"""b', 'a"', "L\\N", "a\\", "a\nb", "\0", "\ud800", ""]
)
def test_losses_whose_names_are_no_identifiers(name: str) -> None:
    def loss(x: Tensor) -> Tensor:
        return x.square().mean()

    loss.__name__ = name
    agree(loss, draw("real", 4, 5))
    forward = explain(autogen_loss(loss), draw("real", 4, 5)).forward
    documentation = ast.get_docstring(ast.parse(forward.source), clean=False) or ""
    assert f"Generated by autogen-loss from {name}." in documentation
    assert re.fullmatch(r"[a-zA-Z_]\w*", *forward.kernels, re.ASCII), "Triton refuses to compile it"


def test_an_average_of_losses() -> None:
    """The output is called `loss`, too, unless an input is."""

    def masked_mean(loss: Tensor, mask: Tensor) -> Tensor:
        return (loss * mask).sum() / mask.sum()

    loss, mask = draw("real", 6, 8), (torch.arange(48).reshape(6, 8) % 3 > 0).float()
    decorated = autogen_loss(masked_mean)
    torch.testing.assert_close(decorated(loss, mask), masked_mean(loss, mask))
    assert explain(decorated, loss, mask).path == "generated"


@pytest.mark.parametrize("name", ["per_column", "in_groups", "columns_per_group", "previous_row_max_shift", "columns"])
@pytest.mark.parametrize("weighted", ["", " * y"])
def test_names_of_walks_along_rows(name: str, weighted: str) -> None:
    """What kernels of long rows import, and keep from step to step."""
    text = f"{name} = (x - y).tanh()\n    return ({name}.log_softmax(1){weighted}).sum(1).mean()"
    loss = defined(f"def f(x, y):\n    {text}\n")
    agree(loss, draw("real", 2, 40_000), draw("real", 2, 40_000, seed=1))


def test_what_kernels_import_and_templates_assign_is_reserved() -> None:
    assigned: set[str] = set()
    for template in FOLDER.glob("*.jinja"):
        assigned.update(re.findall(r"^ *(?:for )?(\w+) (?:=|in) ", template.read_text(), re.MULTILINE))
    assert "first_of_group" in assigned
    assert device_math.NAMES | assigned <= RESERVED
