"""Calls that take a shortcut do what the others do."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen.losses
from autogen import CompileError, autogen_loss, explain, policy
from autogen.runtime.prepared import Direction, Prepared
from tests.interpret.samples import Samples
from tests.interpret.table import ROWS, Row

X, Y = torch.linspace(-1, 1, 15).reshape(3, 5), torch.linspace(0, 2, 15).reshape(3, 5)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((5,), 2.0))
        self.margin = 0.5

    def forward(self, x: Tensor, y: Tensor, power: int = 2) -> Tensor:
        return ((x * self.scale - y).abs() + self.margin).pow(power).mean()


def gradients(loss: Any, *inputs: Any) -> list[Tensor]:
    """The value, and the gradients of the floating inputs and of the parameters."""
    inputs = tuple(each.clone().requires_grad_(each.is_floating_point()) for each in inputs)
    value = loss(*inputs)
    wanted = [each for each in inputs if each.requires_grad]
    wanted += list(loss.parameters()) if isinstance(loss, nn.Module) else []
    return [value, *torch.autograd.grad(value, wanted, torch.full_like(value, 0.5), allow_unused=True)]


def test_the_third_call_is_not_taken_apart(binds: list[str]) -> None:
    ours, theirs = autogen_loss(Scaled()), Scaled()
    for _ in range(5):
        torch.testing.assert_close(gradients(ours, X, Y), gradients(theirs, X, Y))
    assert len(binds) == 2


def test_other_sizes_do_not_need_to_be_taken_apart(binds: list[str]) -> None:
    ours, theirs = autogen_loss(Scaled()), Scaled()
    for rows in (3, 3, 4, 7, 2, 300, 3, 2000):
        x = torch.linspace(-1, 1, 5 * rows).reshape(rows, 5)
        torch.testing.assert_close(gradients(ours, x, x.abs()), gradients(theirs, x, x.abs()))
    assert len(binds) == 2


def test_other_strides(binds: list[str]) -> None:
    ours, theirs = autogen_loss(Scaled()), Scaled()
    for x in (
        X,
        X,
        X,
        X.t().contiguous().t(),
        X[:1].expand(3, 5),
        X.t().contiguous().t(),
        X[:, ::2].repeat(1, 2)[:, :5],
    ):
        torch.testing.assert_close(gradients(ours, x, Y), gradients(theirs, x, Y))


def test_changes_are_seen(binds: list[str]) -> None:
    ours, theirs = autogen_loss(Scaled()), Scaled()
    for margin in (0.5, 0.5, 0.5, 0.25, 0.25, 0.5):
        ours.margin = theirs.margin = margin
        torch.testing.assert_close(gradients(ours, X, Y), gradients(theirs, X, Y))
    with torch.no_grad():
        ours.scale.add_(1), theirs.scale.add_(1)
    torch.testing.assert_close(gradients(ours, X, Y), gradients(theirs, X, Y))
    ours.scale, theirs.scale = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))
    torch.testing.assert_close(gradients(ours, X, Y), gradients(theirs, X, Y))
    torch.testing.assert_close(ours(X, Y, 3), theirs(X, Y, 3))
    torch.testing.assert_close(gradients(ours.double(), X.double(), Y.double())[0].float(), theirs(X, Y))


def test_floats_that_vary(binds: list[str]) -> None:
    def loss(x: Tensor, y: Tensor, scale: float) -> Tensor:
        return (x * scale - y).abs().sum() if scale > 0.5 else (x - y).pow(2).sum() * scale

    ours = autogen_loss(loss)
    for scale in (0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.5, 0.51, 0.52, 0.53, 0.6, 0.4):
        own, their = (gradients(lambda x, s=scale, f=f: f(x, Y, s), X) for f in (ours, loss))
        torch.testing.assert_close(own, their)
    assert len(binds) < 10


def test_modes(binds: list[str]) -> None:
    ours, theirs = autogen_loss(Scaled()), Scaled()
    for _ in range(4):
        torch.testing.assert_close(gradients(ours, X, Y), gradients(theirs, X, Y))
        with torch.no_grad():
            value = ours(X, Y)
        assert not value.requires_grad
        torch.testing.assert_close(value, theirs(X, Y).detach())
        with torch.inference_mode():
            assert ours(X, Y).is_inference()


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("before", [1, 3])
def test_a_mode_without_gradients_first(before: int, is_inference: bool) -> None:
    ours, x, y = autogen_loss(Scaled()), X.clone().requires_grad_(), Y.clone().requires_grad_()
    with torch.inference_mode(is_inference), torch.set_grad_enabled(is_inference):
        for _ in range(before):
            assert not ours(x, y).requires_grad
    for _ in range(3):
        torch.testing.assert_close(gradients(ours, X, Y), gradients(Scaled(), X, Y))


def test_policies_and_transforms_come_first() -> None:
    ours = autogen_loss(Scaled())
    for _ in range(4):
        ours(X, Y)
    with policy("disabled"):
        assert "Mean" in ours(X, Y).grad_fn.name()
    assert "_Short" in ours(X, Y).grad_fn.name()
    doubled = torch.func.vmap(lambda x: ours(x, Y))(torch.stack([X, 2 * X]))
    torch.testing.assert_close(doubled, torch.stack([ours(X, Y), ours(2 * X, Y)]))


def test_second_derivatives(binds: list[str]) -> None:
    ours, theirs = autogen_loss(Scaled()), Scaled()
    found = []
    for loss in (ours, theirs):
        for _ in range(4):
            x = X.clone().requires_grad_()
            (first,) = torch.autograd.grad(loss(x, Y, power=3), x, create_graph=True)
            found.append(torch.autograd.grad(first.pow(2).sum(), x)[0])
    torch.testing.assert_close(found[:4], found[4:])


def test_second_derivatives_of_floats_that_vary(binds: list[str]) -> None:
    def loss(x: Tensor, scale: float) -> Tensor:
        return (x * scale).pow(3).sum()

    ours = autogen_loss(loss)
    for scale in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        x = X.clone().requires_grad_()
        (first,) = torch.autograd.grad(ours(x, scale), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(second, 6 * scale**3 * X)


def test_a_loss_that_changed_has_the_second_derivative_of_its_call(binds: list[str]) -> None:
    found = []
    for loss in (autogen_loss(Scaled()), Scaled()):
        for _ in range(4):
            x = X.clone().requires_grad_()
            value = loss(x, Y, power=3)
        loss.margin = 7.0
        loss.power = 1
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        found.append([first, *torch.autograd.grad(first.sum(), x)])
        assert loss.margin == 7.0 and loss.power == 1
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("layout", ["dense", "expanded", "transposed", "negative"])
def test_upstream_gradients_of_every_layout(layout: str, binds: list[str]) -> None:
    upstream = {
        "dense": X.clone(),
        "expanded": torch.tensor(3.0).expand(3, 5),
        "transposed": X.t().contiguous().t(),
        "negative": torch.complex(X, X).conj().imag,
    }[layout]
    ours = autogen_loss(lambda x, y: (x * y).exp())
    for _ in range(4):
        x = X.clone().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(ours(x, Y), x, upstream)[0], upstream * Y * (X * Y).exp())


def test_several_results_and_constants(binds: list[str]) -> None:
    def loss(x: Tensor, y: Tensor) -> dict[str, Any]:
        return {
            "loss": (x * y).sum(),
            "count": (x > 0).sum(),
            "name": "both",
            "table": torch.tensor([1.0, 2.0]) * y.sum(),
        }

    ours = autogen_loss(loss)
    for _ in range(4):
        x = X.clone().requires_grad_()
        found, expected = ours(x, Y), loss(x, Y)
        assert found["name"] == "both" and not found["count"].requires_grad
        for key in ("loss", "count", "table"):
            torch.testing.assert_close(found[key], expected[key])
        torch.testing.assert_close(torch.autograd.grad(found["loss"], x)[0], Y)
    assert len(binds) == 2


def test_modules_are_not_kept_alive(binds: list[str]) -> None:
    loss = autogen_loss(Scaled)()
    for _ in range(4):
        value = loss(X.clone().requires_grad_(), Y)
    gone = weakref.ref(loss)
    value.backward()
    del loss, value
    gc.collect()
    assert gone() is None


def test_classes_are_not_kept_alive() -> None:
    """Nor is what they close over."""

    def make() -> list[weakref.ref[Any]]:
        held = X.clone()
        loss = autogen_loss(type("Local", (nn.Module,), {"forward": lambda self, x: (x - held).abs().mean()}))
        for _ in range(3):
            loss()(Y)
        return [weakref.ref(loss), weakref.ref(held)]

    gone = make()
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_a_random_loss_is_random() -> None:
    ours = autogen_loss(lambda x: (x * torch.rand_like(x)).sum())
    assert len({float(ours(X)) for _ in range(5)}) == 5


FIRST = list({row.loss: row for row in reversed(ROWS)}.values())


@pytest.mark.parametrize("row", FIRST, ids=lambda row: row.loss)
def test_every_loss(row: Row) -> None:
    samples = Samples(torch.float32)
    loss = getattr(autogen.losses, row.loss)(**row.options(samples))
    x, *rest = row.inputs(samples)
    with policy("mandatory"):
        first, *others = [gradients(lambda x: loss(x, *rest), x) for _ in range(4)]
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0, equal_nan=True)


def test_a_prepared_backward_that_does_not_compile_goes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = autogen_loss(Scaled())
    expected = [gradients(ours, X, Y) for _ in range(4)][-1]

    def fail(*args: Any) -> Any:
        raise CompileError("backward", cause=ValueError("too large"))

    monkeypatch.setattr(Prepared, "backward", fail)
    torch.testing.assert_close(gradients(ours, X, Y), expected)


PROBABILITIES = torch.softmax(Y, dim=1)


def test_what_is_kept_for_backward_is_one_tensor(binds: list[str]) -> None:
    ours = autogen_loss(nn.CrossEntropyLoss())
    saved = []
    for _ in range(4):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved[-1].append(x) or x, lambda x: x):
            saved.append([])
            value = ours(X.clone().requires_grad_(), PROBABILITIES)
        value.backward()
    assert {len(each) for each in saved} == {3}  # the inputs, and beside them maxima and sums, also in the first calls
    assert {each[2].dtype for each in saved} == {torch.uint8}


def test_upstream_gradients_that_need_another_way(binds: list[str]) -> None:
    """A negative view is resolved first, for which what forward has kept is unpacked."""
    x = X.double()
    ours, theirs = autogen_loss(nn.CrossEntropyLoss(reduction="none")), nn.CrossEntropyLoss(reduction="none")
    plain = torch.tensor([0.5, 2.0, -1.0], dtype=torch.float64)
    layouts = [plain, plain, plain, torch._neg_view(-plain), plain.repeat(2, 1).t()[:, 0], plain[:1].expand(3), plain]
    for upstream in layouts:
        found, expected = (
            torch.autograd.grad(loss(each, PROBABILITIES.double()), each, upstream)[0]
            for loss in (ours, theirs)
            for each in [x.clone().requires_grad_()]
        )
        torch.testing.assert_close(found, expected)
    assert len(binds) == 2


class Tagged(Tensor):
    """A tensor of a class of the user's."""


def made_in_inference_mode() -> Tensor:
    with torch.inference_mode():
        return PROBABILITIES * 2


@pytest.mark.parametrize(
    "other",
    [
        lambda: torch._neg_view(PROBABILITIES),
        lambda: PROBABILITIES.as_subclass(Tagged),
        made_in_inference_mode,
    ],
    ids=["a negative view", "another class", "made in inference mode"],
)
def test_tensors_that_no_kernel_may_be_given_are_torchs_also_once_there_is_a_plan(other: Callable[[], Tensor]) -> None:
    ours, theirs = autogen_loss(nn.L1Loss()), nn.L1Loss()
    x = X.clone().requires_grad_()
    for target in (PROBABILITIES, PROBABILITIES, PROBABILITIES, other(), PROBABILITIES, other()):
        found, expected = ours(x, target), theirs(x, target)
        assert type(found) is type(expected)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(expected, x))


class Strict(Tensor):
    """A tensor of a class that has one function, and refuses even to say its dtype."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is nn.functional.mse_loss, func
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


@pytest.mark.parametrize("static", [False, True])
def test_a_class_of_tensors_that_refuses_what_it_does_not_know(static: bool) -> None:
    x, strict = X.clone(), torch.Tensor._make_subclass(Strict, X.clone())
    ours = autogen_loss(nn.MSELoss(), static_graph=static)
    for each in (strict, strict, x, x, x, strict, strict, x):
        assert float(ours(each, Y)) == pytest.approx(float(nn.MSELoss()(x, Y)))
    assert "Strict" in explain(ours, strict, Y).reason


def detection(outputs: dict[str, Any], targets: Any, weight: float = 1.0) -> Tensor:
    """A loss whose arguments come in containers."""
    boxes = (outputs["boxes"] - targets[0]).abs().mean()
    others = [(each - target).square().mean() for each, target in zip(outputs["aux"], targets[1], strict=True)]
    return boxes * weight + sum(others) * outputs["scale"] + (0 if outputs.get("extra") is None else outputs["extra"])


def test_arguments_in_containers(binds: list[str]) -> None:
    ours = autogen_loss(detection)

    def call(count: int = 2, rows: int = 3, **more: Any) -> Any:
        x = torch.linspace(-1, 1, 5 * rows).reshape(rows, 5)
        return {"boxes": x, "aux": [x * (k + 2) for k in range(count)], "scale": 0.5, **more}, (
            x.abs(),
            [x + 1] * count,
        )

    def agree(outputs: Any, targets: Any, **options: Any) -> None:
        found = []
        for loss in (ours, detection):
            x = outputs["boxes"].clone().requires_grad_()
            value = loss({**outputs, "boxes": x}, targets, **options)
            (first,) = torch.autograd.grad(value, x, create_graph=True)
            found.append([value, first, *torch.autograd.grad(value, x)])
        torch.testing.assert_close(*found)

    for _ in range(4):
        agree(*call())
    assert len(binds) == 2
    agree(*call(rows=4))
    assert len(binds) == 2
    for changed in (call(3), call(extra=torch.tensor(2.0)), call(extra=None), call(scale=2), call(), call(3)):
        agree(*changed)
    outputs, targets = call()
    agree(outputs, list(targets))
    agree(dict(reversed(outputs.items())), targets)
    agree(outputs, (targets[0], tuple(targets[1])))


def test_tensors_and_none_in_each_others_places(binds: list[str]) -> None:
    loss = autogen_loss(lambda x, *bounds, **more: x.clamp(*bounds, **more).sum())
    calls: list[Any] = [((None, Y), {}), ((Y, None), {}), ((), {"min": None, "max": Y}), ((), {"min": Y, "max": None})]
    for k in range(3):
        for bounds, more in calls:
            torch.testing.assert_close(loss(X, *bounds, **more), X.clamp(*bounds, **more).sum())
        if k == 1:
            binds.clear()
    assert not binds


def test_a_float_in_a_container_that_changes(binds: list[str]) -> None:
    ours = autogen_loss(detection)
    for step in range(8):
        outputs = {"boxes": X.clone().requires_grad_(), "aux": [Y], "scale": 0.5 + step / 7}
        value = ours(outputs, (Y, [X]), weight=0.25)
        torch.testing.assert_close(value, detection(outputs, (Y, [X]), weight=0.25))
    assert len(binds) < 8


class Child(nn.Module):
    def __init__(self, parent: nn.Module) -> None:
        super().__init__()
        self.__dict__["parent"] = parent

    def forward(self, x: Tensor) -> Tensor:
        return x * self.parent.scale


class Held(nn.Module):
    """A loss whose module is referred to by what it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((5,), 2.0))
        self.reduce: Any = self.mean
        self.table = {"own": self.mean}
        self.inner = Child(self)

    def mean(self, x: Tensor) -> Tensor:
        return x.mean()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.reduce(self.inner(x) - y) + self.table["own"](x)


@autogen_loss
class OwnHeld(Held):
    pass


def test_a_module_that_refers_to_itself_is_freed(binds: list[str]) -> None:
    references = []
    for _ in range(3):
        ours, theirs = OwnHeld(), Held()
        for how in (lambda module: module, copy.copy, copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))):
            each = how(ours)
            for _ in range(5):
                torch.testing.assert_close(gradients(each, X, Y), gradients(theirs, X, Y))
            assert len(binds) == 2
            binds.clear()
            references.append(weakref.ref(each))
    del ours, theirs, each
    gc.collect()
    assert [each() for each in references] == [None] * 12


REGISTRY = [[each] for each in range(2000)]


def test_a_loss_that_reaches_thousands_of_values(binds: list[str]) -> None:
    def theirs(x: Tensor, y: Tensor) -> Tensor:
        return (x - y).pow(REGISTRY[2][0]).mean()

    ours = autogen_loss(theirs)
    for _ in range(4):
        torch.testing.assert_close(gradients(ours, X, Y), gradients(theirs, X, Y))
    assert len(binds) == 2
    REGISTRY[2][0] = 4
    torch.testing.assert_close(gradients(ours, X, Y), gradients(theirs, X, Y))
    REGISTRY[2][0] = 2


@pytest.mark.parametrize("name", ["prepared", "handwritten_prepared"])
def test_layouts_of_upstream_gradients_are_forgotten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those behind a `torch.cat` with what has another width each time."""
    monkeypatch.setattr(f"autogen.runtime.{name}.MOST_LAYOUTS", 2)
    kept: weakref.WeakSet[Direction] = weakref.WeakSet()
    make = Direction.__init__

    def noted(self: Direction, *arguments: Any) -> None:
        make(self, *arguments)
        kept.add(self)

    monkeypatch.setattr(Direction, "__init__", noted)
    x, y, signs = torch.ones(4, 3, requires_grad=True), torch.ones(4, 3), torch.ones(4)
    is_generated = name == "prepared"
    loss = (
        autogen.losses.L1Loss(reduction="none")
        if is_generated
        else autogen.losses.CosineEmbeddingLoss(reduction="none")
    )
    for width in range(3, 12):
        value = loss(x, y) if is_generated else loss(x, y, signs)
        upstream = torch.ones(4, width)[:, :3] if is_generated else torch.ones(4, width)[:, 0]
        torch.autograd.grad(value, x, upstream)
    gc.collect()
    assert 1 < len(kept) <= 4  # forward, what there is room for, and the latest
