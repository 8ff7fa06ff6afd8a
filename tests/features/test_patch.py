"""`autogen.patch`: torch's functions, and a model's `loss_function`, on kernels, and as they were afterwards."""

from __future__ import annotations

import gc
import inspect
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen
from autogen import functional, losses
from tests.interpret.launches import Launches

ORIGINAL = {name: getattr(F, name) for name in functional.__all__}


@pytest.fixture(autouse=True)
def _all_is_as_it_was() -> Iterator[None]:
    names = set(vars(F))
    yield
    assert {name: getattr(F, name) for name in ORIGINAL} == ORIGINAL
    assert not {name for name in set(vars(F)) - names if not name.startswith("__")}  # which are Dynamo's


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    launches = Launches()  # of its own: in one process with tests/interpret there is another
    launches.patch(monkeypatch)
    return launches.take


def arguments() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 5, generator=generator, requires_grad=True), torch.arange(6) % 5


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    return 2 * F.cross_entropy(3 * logits, labels, label_smoothing=0.1)


def step(function: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    logits, labels = arguments()
    found = function(logits, labels)
    (gradient,) = torch.autograd.grad(found, logits)
    return found.detach(), gradient


def modules(cls: type[nn.Module], **options: Any) -> Callable[..., Tensor]:
    module = cls(label_smoothing=0.1, **options)
    return lambda logits, labels: 2 * module(3 * logits, labels)


def test_functions_run_on_kernels(launched: Callable[[], int]) -> None:
    before = step(loss)
    assert launched() == 0
    with autogen.patch():
        own = autogen.autogen_loss(nn.CrossEntropyLoss(label_smoothing=0.1), policy="disabled")
        ways = {
            "function": (loss, 2),
            "torch.nn": (modules(nn.CrossEntropyLoss), 2),
            "ours": (modules(losses.CrossEntropyLoss), 2),
            "use_autogen": (modules(losses.CrossEntropyLoss, use_autogen=False), 0),
            "a policy": (lambda logits, labels: 2 * own(3 * logits, labels), 0),
        }
        for name, (way, count) in ways.items():
            torch.testing.assert_close(step(way), before, msg=name)
            assert launched() == count, name
        with autogen.policy("disabled"):
            torch.testing.assert_close(step(loss), before)
        assert launched() == 0
        autogen.kernelize(module := nn.CrossEntropyLoss(), device="cpu")
        torch.testing.assert_close(module(*arguments()), ORIGINAL["cross_entropy"](*arguments()))
        assert launched() == 1


def test_signatures_are_those_of_torch() -> None:
    with autogen.patch():
        for name, original in ORIGINAL.items():
            patched = getattr(F, name)
            assert patched is not original
            if not isinstance(original, type(torch.cosine_embedding_loss)):
                taken = [(each.name, each.default) for each in inspect.signature(original).parameters.values()]
                assert [(p.name, p.default) for p in inspect.signature(patched).parameters.values()] == taken
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'target'"):
            F.cross_entropy(torch.ones(2, 2))


def test_what_torch_runs_of_a_loss_stays_in_torch(launched: Callable[[], int]) -> None:
    """A graph calls functions of torch's by name: those that fall back must not come back to themselves."""
    logits, labels = arguments()
    negative = torch._neg_view(logits.detach())  # which no kernel reads
    input, target, var = torch.rand(3, 4, 5).requires_grad_()

    def twice(function: Callable[[Tensor], Tensor]) -> Tensor:
        (first,) = torch.autograd.grad(function(logits).square(), logits, create_graph=True)
        return torch.autograd.grad(first.sum(), logits)[0]

    functions: list[Callable[[], Tensor]] = [
        lambda: F.multi_margin_loss(negative, labels),
        lambda: losses.MultiMarginLoss()(negative, labels),
        lambda: F.gaussian_nll_loss(torch._neg_view(input.detach()), target, var),
        lambda: twice(lambda x: F.cross_entropy(x, labels)),
        lambda: twice(lambda x: losses.CrossEntropyLoss()(x, labels)),
        lambda: losses.GaussianNLLLoss(use_autogen=False)(input, target, var),
        lambda: torch.func.grad(lambda x: F.cross_entropy(x, labels))(logits.detach()),
    ]
    before = [function() for function in functions]
    with autogen.patch():
        for function, expected in zip(functions, before, strict=True):
            torch.testing.assert_close(function(), expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])  # inductor takes 20 s
def test_inside_torch_compile(backend: str, launched: Callable[[], int]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    before = step(loss)
    for _ in range(2):
        torch.testing.assert_close(step(compiled), before)
        assert launched() == 0
        with autogen.patch():
            torch.testing.assert_close(step(compiled), before)
            assert launched() == 2
    if backend != "eager":  # which runs the functions that torch finds by name
        off = torch.compile(modules(losses.CrossEntropyLoss, use_autogen=False), fullgraph=True, backend=backend)
        with autogen.patch():
            torch.testing.assert_close(step(off), before)
            assert launched() == 0


def test_patches_are_undone_in_any_order() -> None:
    for order in itertools.permutations(range(3)):
        patches = [autogen.patch() for _ in range(3)]
        ours = F.cross_entropy
        for left, place in enumerate(order):
            assert F.cross_entropy is ours
            patches[place].undo()
            patches[place].undo()
            assert (F.cross_entropy is ours) == (left < 2)
        assert F.cross_entropy is ORIGINAL["cross_entropy"]


def test_entering_twice_is_once() -> None:
    patch = autogen.patch()
    ours = F.cross_entropy
    with patch:
        with patch as same, autogen.patch():
            assert same is patch and F.cross_entropy is ours
        assert F.cross_entropy is ours
    assert F.cross_entropy is ORIGINAL["cross_entropy"]
    with pytest.raises(ZeroDivisionError), patch:
        assert F.cross_entropy is ours
        raise ZeroDivisionError


def test_a_forgotten_patch_stays() -> None:
    autogen.patch()
    gc.collect(1)  # what is new, not all that a process of tests has kept
    for _ in range(3):
        with autogen.patch():
            pass
        assert F.cross_entropy is not ORIGINAL["cross_entropy"]
    from autogen import patching

    patching._of_torch[0]._holders.clear()
    autogen.patch().undo()


def test_what_somebody_has_put_there_since_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(*args: Any) -> str:
        return "other"

    with autogen.patch():
        F.mse_loss = other
    assert F.mse_loss is other and F.l1_loss is ORIGINAL["l1_loss"]
    F.mse_loss = ORIGINAL["mse_loss"]


def test_threads_may_patch_at_once() -> None:
    def run() -> None:
        for _ in range(50):
            with autogen.patch():
                assert F.cross_entropy is not ORIGINAL["cross_entropy"]

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def for_causal_lm(
    logits: Tensor, labels: Tensor, vocab_size: int, num_items_in_batch: Any = None, ignore_index: int = -100
) -> Tensor:
    """As language models of transformers compute it: shifted labels, in float32, by torch's function."""
    logits = logits.float()
    labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:].contiguous()
    reduction = "mean" if num_items_in_batch is None else "sum"
    found = F.cross_entropy(
        logits.view(-1, vocab_size), labels.view(-1), ignore_index=ignore_index, reduction=reduction
    )
    return found if num_items_in_batch is None else found / num_items_in_batch


class Pretrained(nn.Module):
    """A model with the property of transformers' `PreTrainedModel`."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 8, dtype=torch.bfloat16)

    @property
    def loss_function(self) -> Callable[..., Tensor]:
        return getattr(self, "_loss_function", for_causal_lm)

    @loss_function.setter
    def loss_function(self, value: Callable[..., Tensor]) -> None:
        self._loss_function = value

    def forward(self, input: Tensor, labels: Tensor, **options: Any) -> Tensor:
        return self.loss_function(logits=self.head(input), labels=labels, vocab_size=8, **options)


def test_the_loss_function_of_a_model(launched: Callable[[], int]) -> None:
    model, input = Pretrained(), torch.randn(2, 6, 4, dtype=torch.bfloat16)
    labels = torch.randint(0, 8, (2, 6))

    def train(run: Callable[..., Tensor] = model, **options: Any) -> tuple[Tensor, Tensor]:
        loss = run(input, labels, **options)
        return loss.detach(), torch.autograd.grad(loss, model.head.weight)[0]

    given: list[dict[str, Any]] = [{}, {"num_items_in_batch": 7}, {"num_items_in_batch": torch.tensor(7)}]
    before = [train(**options) for options in given]
    with autogen.patch(model) as patch:
        for options, expected in zip(given, before, strict=True):
            torch.testing.assert_close(train(**options), expected)
            assert launched() == 2
        torch.compiler.reset()
        torch.testing.assert_close(train(torch.compile(model, fullgraph=True, backend="aot_eager")), before[0])
        assert launched() == 2
        with autogen.patch(model):
            assert model.loss_function is not for_causal_lm
            own = model.loss_function
        assert model.loss_function is own
    assert "_loss_function" not in vars(model) and model.loss_function is for_causal_lm
    patch.undo()
    model.loss_function = other = lambda **_: 1
    autogen.patch(model).undo()
    assert model.loss_function is other


def test_a_patched_model_is_collected() -> None:
    model = Pretrained()
    patch, found = autogen.patch(model), weakref.ref(model)
    del model
    gc.collect(1)  # what is new, not all that a process of tests has kept
    assert found() is None
    patch.undo()


def test_models_without_a_loss_function() -> None:
    with_module = nn.Linear(2, 2)
    with_module.loss_function = nn.MSELoss()
    for model in (nn.Linear(2, 2), with_module):
        with pytest.raises(
            TypeError, match=r"Linear has no function loss_function; pass .* autogen\.kernelize\(model\)"
        ):
            autogen.patch(model)


def test_a_model_inside_is_not_meant() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = Pretrained()

        def __getattr__(self, name: str) -> Any:
            return super().__getattr__(name) if name == "inside" else getattr(self.inside, name)

    assert Wrapper().loss_function is for_causal_lm
    with pytest.raises(TypeError, match="pass the model that has"):
        autogen.patch(Wrapper())
