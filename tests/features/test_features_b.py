"""Group B of the features: models on kernels by Hugging Face's `kernels`, as its documentation describes it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import inspect
import itertools
import json
import logging
import pickle
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kernels
import pytest
import torch
from kernels.layer import repos
from torch import Tensor, nn

import autogen
from autogen import hub, losses
from autogen.hub import CUDAProperties, Device, LocalLayerRepository, LocalVersions, Mode, ROCMProperties
from autogen.hub.registering import extensible
from tests.features.hub import Stub, new_class, write_package
from tests.interpret.launches import Launches

MODES = (Mode.INFERENCE, Mode.INFERENCE | Mode.TORCH_COMPILE, Mode.TRAINING, Mode.TRAINING | Mode.TORCH_COMPILE)
INF, IC, T, TC = MODES
F = Mode.FALLBACK


@pytest.fixture(autouse=True)
def _no_mapping() -> Iterator[None]:
    """Each test begins without a mapping."""
    with kernels.use_kernel_mapping({}, inherit_mapping=False):
        yield


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    launches = Launches()  # of its own: in one process with tests/interpret there is another
    launches.patch(monkeypatch)
    return launches.take


@pytest.fixture
def theirs() -> type[nn.Module]:
    """A class of somebody else's, extensible by its name."""
    with pytest.warns(UserWarning, match="Theirs of tests.features.hub is made extensible from outside"):
        return autogen.make_extensible(new_class(), "Theirs")


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], None]]:
    """Sets what torch says of the GPU."""

    def set_to(major: int, minor: int) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (major, minor))
        repos._find_capability.cache_clear()

    yield set_to
    repos._find_capability.cache_clear()


class Model(nn.Module):
    """A model with losses of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 5)
        self.losses = nn.ModuleDict({"soft": nn.BCEWithLogitsLoss(pos_weight=torch.full((5,), 2.0))})
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, input: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        found = self.head(input)
        return self.loss(found, labels) + self.losses["soft"](found, target)


def arguments() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 5, generator=generator), torch.rand(6, 5, generator=generator), torch.arange(6) % 5


def step(model: nn.Module, run: Callable[..., Any] | None = None) -> tuple[Tensor, Tensor]:
    """A model's loss, and the gradient of its weight."""
    model.head.weight.grad = None
    loss = (model if run is None else run)(*arguments())
    loss.backward()
    return loss.detach(), model.head.weight.grad.clone()


def chosen(cls: type[nn.Module], mode: Mode = T, device: Any = "cpu", **options: Any) -> Any:
    """What the `forward` of a class returns once it is kernelized."""
    return autogen.kernelize(cls(), mode=mode, device=device, **options)(None, None)


def test_b1_a_backend_for_each_device(theirs: type[nn.Module], capability: Callable[[int, int], None]) -> None:
    capability(8, 0)
    mapping = {"Theirs": {"cpu": Stub("on cpu"), "cuda": Stub("on cuda")}}
    with autogen.use_mapping(mapping):
        model = nn.Sequential(nn.Linear(2, 2), theirs())
        assert autogen.kernelize(model)[1](None, None) == "on cpu"  # where the parameters are
        assert chosen(theirs, device="cuda") == "on cuda"


def test_b2_losses_carry_a_layer_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in losses.__all__:
        assert getattr(losses, name).kernel_layer_name == name
    loss, (input, target, _) = losses.MSELoss(), arguments()
    before = loss(input, target)
    kernels.kernelize(loss, mode=T, device="cpu")  # for whose name nothing is registered
    assert torch.equal(loss(input, target), before)
    with autogen.use_mapping({"MSELoss": {"cpu": Stub("from the hub")}}):
        kernels.kernelize(loss, mode=T, device="cpu")
        assert loss(input, target) == "from the hub"

        class Own(losses.MSELoss):
            def forward(self, input: Tensor, target: Tensor) -> Tensor:
                return 2 * super().forward(input, target)

        own, off = Own(), losses.MSELoss(use_autogen=False)
        for kernelize in (kernels.kernelize, autogen.kernelize):
            kernelize(nn.ModuleList([own, off]), mode=T, device="cpu")
            assert torch.equal(own(input, target), 2 * before)
            assert off(input, target).grad_fn is None and torch.is_tensor(off(input, target))


def test_b3_make_extensible(monkeypatch: pytest.MonkeyPatch, launched: Callable[[], int]) -> None:
    for name in ("kernel_layer_name", "kernel_condition"):  # which are taken away at the end
        monkeypatch.setattr(nn.BCEWithLogitsLoss, name, None, raising=False)
    with pytest.warns(UserWarning, match="its forward may change"):
        assert autogen.make_extensible(nn.BCEWithLogitsLoss, "BCEWithLogitsLoss") is nn.BCEWithLogitsLoss
    model = Model()
    before = step(model)
    assert launched() == 0
    with kernels.use_kernel_mapping(hub.mapping()):
        kernels.kernelize(model, mode=T)
    torch.testing.assert_close(step(model), before)
    assert launched() == 2 and "forward" not in vars(model.loss)
    extensible.discard(nn.BCEWithLogitsLoss)


def test_b3_a_condition_chooses_instances() -> None:
    cls = new_class()
    with pytest.warns(UserWarning, match="extensible"):
        autogen.make_extensible(cls, "Theirs", condition=lambda module: module.training)
    with autogen.use_mapping({"Theirs": {"cpu": Stub("ours")}}):
        assert chosen(cls) == "ours"
        assert autogen.kernelize(cls().eval(), device="cpu")(None, None) == "theirs"


def test_b3_a_decorated_class_that_is_off() -> None:
    with pytest.warns(UserWarning, match="extensible"):
        cls = autogen.make_extensible(autogen.autogen_loss(new_class()), "Theirs")
    with autogen.use_mapping({"Theirs": {"cpu": Stub("ours")}}):
        assert chosen(cls) == "ours"
        assert autogen.kernelize(cls(use_autogen=False), device="cpu")(None, None) == "theirs"


def test_b4_signatures_are_compared_when_registered(theirs: type[nn.Module], tmp_path: Path) -> None:
    wrong = {"Theirs": {"cpu": Stub("wrong", takes_more=True)}}
    for register in (autogen.register_mapping, autogen.use_mapping):
        with pytest.raises(TypeError, match=r"cannot take the place of Theirs: .*input.*target.*more"):
            register(wrong)
    assert chosen(theirs) == "theirs"
    with pytest.raises(TypeError, match="cannot take the place of GaussianNLLLoss"):
        autogen.register_mapping({"GaussianNLLLoss": {"cpu": hub.LossLayer("L1Loss")}})
    with autogen.use_mapping({"Other": {"cpu": Stub("wrong", takes_more=True)}}):
        cls = new_class()
        with pytest.raises(TypeError, match="cannot take the place of Theirs"):
            autogen.make_extensible(cls, "Other")
        assert not hasattr(cls, "kernel_layer_name")
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module class"):
        autogen.make_extensible(nn.MSELoss(), "Other")  # type: ignore[arg-type]


class Renamed(nn.BCEWithLogitsLoss):
    """Computes what its base does."""


class Doubled(nn.MSELoss):
    """Does not."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return 2 * super().forward(input, target)


def test_b5_kernelize_in_place(launched: Callable[[], int]) -> None:
    model = Model()
    model.losses["renamed"], model.losses["doubled"] = Renamed(), Doubled()
    before, attributes = (
        step(model),
        {cls: dict(vars(cls)) for cls in (nn.Module, *vars(nn.modules.loss).values()) if isinstance(cls, type)},
    )
    names, state, text = dict(model.named_modules()), model.state_dict(), repr(model)
    assert autogen.kernelize(model) is model
    assert dict(model.named_modules()) == names and repr(model) == text
    assert list(model.state_dict()) == list(state)
    assert all(dict(vars(cls)) == had for cls, had in attributes.items())
    for _ in range(2):  # captured, and by the fast path
        torch.testing.assert_close(step(model), before)
        assert launched() == 4
    input, target, _ = arguments()
    for loss, count in ((model.losses["renamed"], 1), (model.losses["doubled"], 0)):
        torch.testing.assert_close(loss(input, target), type(loss)()(input, target))
        assert launched() == count
    assert autogen.explain(model.loss, input, arguments()[2]).path == "generated"


@pytest.mark.slow
def test_b5_kernelized_models_are_copied_and_compiled(launched: Callable[[], int]) -> None:
    model = Model()
    before = step(model)
    autogen.kernelize(model, mode=TC, use_fallback=False)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(step(model, compiled), before)
    assert launched() == 4
    copied = copy.deepcopy(model)
    copied.head.weight.data.zero_()
    assert not torch.allclose(step(copied)[0], before[0])
    assert launched() == 4
    torch.testing.assert_close(step(pickle.loads(pickle.dumps(model))), before)  # on torch's forward, as of kernels
    assert launched() == 0


def test_b5_all_losses_of_torch_have_layers() -> None:
    assert {*nn.modules.loss.__all__, "AdaptiveLogSoftmaxWithLoss"} == set(hub.mapping())
    for name, devices in hub.mapping().items():
        assert set(devices) == {"cpu", "cuda", "rocm"}
        assert all(set(modes) == {F, *MODES} for modes in devices.values())
        for mode in MODES:
            module = object.__new__(getattr(losses, name))
            nn.Module.__init__(module)
            with kernels.use_kernel_mapping(hub.mapping()):  # kernels looks at each layer, by its own rules
                kernels.kernelize(module, mode=mode, device="cpu", use_fallback=False)
            assert module.forward.__func__ is not type(module).forward


def test_b5_losses_with_parameters(launched: Callable[[], int]) -> None:
    input, labels = torch.randn(4, 6), torch.tensor([0, 7, 3, 1])
    tested = [nn.AdaptiveLogSoftmaxWithLoss(6, 10, [4])]
    if hasattr(nn, "LinearCrossEntropyLoss"):
        tested.append(nn.LinearCrossEntropyLoss(6, 10))
    for loss in tested:
        before = loss(input, labels)
        autogen.kernelize(loss)
        torch.testing.assert_close(loss(input, labels), before)
        assert launched() > 0


def test_b6_inference_has_no_gradients(launched: Callable[[], int]) -> None:
    model = Model()
    before = step(model)
    autogen.kernelize(model, mode=INF)
    with pytest.raises(RuntimeError, match=r"BCEWithLogitsLoss was .*call it under torch\.no_grad\(\), or kernelize"):
        model.losses["soft"](*(each.requires_grad_() for each in arguments()[:2]))
    saved: list[Tensor] = []
    with torch.no_grad(), torch.autograd.graph.saved_tensors_hooks(saved.append, lambda each: each):
        torch.testing.assert_close(model(*arguments()), before[0])
    assert launched() == 2 and not saved
    with torch.inference_mode():
        torch.testing.assert_close(model(*arguments()), before[0])
    torch.compiler.reset()
    compiled = torch.compile(autogen.kernelize(model, mode=IC), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(*arguments()), before[0])
    assert autogen.kernelize(model) is model
    torch.testing.assert_close(step(model), before)


def test_b7_unions_of_modes() -> None:
    assert autogen.Mode is kernels.Mode
    for mode in MODES:
        autogen.kernelize(nn.MSELoss(), mode=mode, device="cpu")
    for union in (lambda: INF | T, lambda: F | TC):
        with pytest.raises(ValueError, match="Mode"):
            union()
    for wrong in (F, Mode.TORCH_COMPILE, "training"):
        with pytest.raises(ValueError, match=r"mode .* choose from .*TRAINING"):
            autogen.kernelize(nn.MSELoss(), mode=wrong, device="cpu")


def test_b8_device_is_inferred(theirs: type[nn.Module], launched: Callable[[], int]) -> None:
    with autogen.use_mapping({"Theirs": {"cpu": Stub("on cpu")}}):
        of_buffer = nn.Sequential(nn.BatchNorm1d(2, affine=False), theirs())
        assert autogen.kernelize(of_buffer, use_fallback=False)[1](None, None) == "on cpu"
        with pytest.raises(ValueError, match="Cannot determine model device"):
            autogen.kernelize(theirs(), use_fallback=False)
        later = autogen.kernelize(theirs())
    assert later("no tensor", None) == "theirs"  # and still waits for one
    assert copy.deepcopy(later)(torch.ones(2), None) == "on cpu"  # what was registered when it was kernelized
    assert later(torch.ones(2), None) == "on cpu"
    input, target, _ = arguments()
    for loss in (nn.HuberLoss(), losses.HuberLoss()):
        with autogen.use_mapping({"HuberLoss": {"xpu": Stub("on xpu")}}):
            later = autogen.kernelize(copy.deepcopy(loss))
        for each in (later, autogen.kernelize(loss)):
            torch.testing.assert_close(each(input, target), nn.HuberLoss()(input, target))
            assert launched() == 1
    assert "forward" not in vars(autogen.kernelize(theirs()))


def test_b9_device_by_name(theirs: type[nn.Module]) -> None:
    with autogen.use_mapping({"Theirs": {"cpu": Stub("on cpu"), "xpu": Stub("on xpu"), "mps": Stub("on mps")}}):
        for device, result in {"cpu": "on cpu", "xpu:1": "on xpu", "metal": "on mps"}.items():
            assert chosen(theirs, device=device) == result
        assert chosen(theirs, device=torch.device("xpu", 0)) == "on xpu"
    for wrong in ("gpu", ""):
        with pytest.raises(ValueError, match="choose from cpu, cuda, mps, neuron, npu, rocm, tpu, xpu"):
            autogen.kernelize(Model(), device=wrong)


def test_b10_layers_that_cannot_are_not_used(theirs: type[nn.Module], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with autogen.use_mapping({"Theirs": {"cpu": Stub("forward alone", has_backward=False)}}):
        assert chosen(theirs, T) == "theirs"
        assert chosen(theirs, INF) == "forward alone"
    with autogen.use_mapping({"Theirs": {"cpu": Stub("not compiled", can_torch_compile=False)}}):
        assert chosen(theirs, TC) == "theirs"
        assert chosen(theirs, T) == "not compiled"
    said = [each.getMessage() for each in caplog.records]
    assert "Theirs: its own forward, as there are no kernels for it, for Mode.TRAINING on cpu" in said
    assert "Layer does not support backward, using fallback" in said


def test_b11_no_fallback(theirs: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: dict[str, Any] = {"Theirs": {"xpu": Stub("on xpu")}}
    only_inference = {"Theirs": {"cpu": {INF: Stub("inference", has_backward=False)}}}
    no_backward = {"Theirs": {"cpu": Stub("forward alone", has_backward=False)}}
    for mapping in (nothing, only_inference, no_backward):
        with autogen.use_mapping(mapping):
            model = nn.ModuleList([nn.MSELoss(), theirs()])
            with pytest.raises(ValueError, match=r"Theirs has no kernels for Mode\.TRAINING on cpu: \w+"):
                autogen.kernelize(model, device="cpu", use_fallback=False)
            assert "forward" not in vars(model[0])  # which was before it
    with pytest.raises(ValueError, match=r"MSELoss has no kernels for Mode\.TRAINING on xpu"):
        autogen.kernelize(nn.MSELoss(), device="xpu", use_fallback=False)
    monkeypatch.setattr("autogen.runtime.availability.has_interpreter", lambda: False)
    with pytest.raises(ValueError, match=r"MSELoss has no .* on cpu: the tensors are on the CPU, and .*; Move them"):
        autogen.kernelize(nn.MSELoss(), device="cpu", use_fallback=False)
    autogen.kernelize(nn.MSELoss(), device="cpu")  # which torch runs


def test_b12_what_is_used_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    model = Model()
    model.ours, model.own = losses.L1Loss(), nn.L1Loss()
    model.own.forward = lambda input, target: "own"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        autogen.kernelize(model)
    assert model.own(None, None) == "own"
    ending = "for Mode.TRAINING on cpu"
    assert [each.getMessage() for each in caplog.records if each.name == "autogen"] == [
        f"BCEWithLogitsLoss (losses.soft): kernels of autogen.losses.BCEWithLogitsLoss, {ending}",
        f"CrossEntropyLoss (loss): kernels of autogen.losses.CrossEntropyLoss, {ending}",
        f"L1Loss (ours): kernels of its own, {ending}",
        f"L1Loss (own): a forward of its own, which stays, {ending}",
    ]
    assert {each.levelno for each in caplog.records} == {logging.INFO}


def test_b13_cuda_and_rocm(
    theirs: type[nn.Module], capability: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    capability(9, 0)
    with autogen.use_mapping({"Theirs": {"cuda": Stub("for cuda"), "rocm": Stub("for rocm")}}):
        assert chosen(theirs, device="cuda") == "for cuda"
        monkeypatch.setattr(torch.version, "hip", "6.4")
        assert chosen(theirs, device="cuda") == chosen(theirs, device=torch.device("cuda")) == "for rocm"


def test_b14_register_mapping_is_of_the_context(theirs: type[nn.Module]) -> None:
    def register(name: str) -> str:
        autogen.register_mapping({"Theirs": {"cpu": Stub(name)}})
        return str(chosen(theirs))

    async def both() -> list[str]:
        return await asyncio.gather(*(asyncio.to_thread(register, name) for name in ("one", "two")))

    assert register("here") == "here"
    found: list[str] = []
    for run in (lambda: register("thread"), lambda: chosen(theirs)):
        thread = threading.Thread(target=lambda run=run: found.append(run()))
        thread.start()
        thread.join()
    assert found == ["thread", "theirs"]  # the second has what neither this thread nor the first has registered
    assert asyncio.run(both()) == ["one", "two"]
    assert contextvars.copy_context().run(register, "copy") == "copy"
    assert chosen(theirs) == "here"


def test_b14_what_is_registered_comes_before_our_kernels() -> None:
    autogen.register_mapping({"BCELoss": {"cpu": {INF: Stub("inference")}}})
    assert chosen(nn.BCELoss, INF) == "inference"
    model = autogen.kernelize(nn.BCELoss(), device="cpu")  # for whose mode nothing is registered
    assert model(torch.rand(3), torch.rand(3)).shape == ()
    autogen.register_mapping({"BCELoss": {"cpu": Stub("the later")}})
    assert chosen(nn.BCELoss) == chosen(losses.BCELoss) == "the later"


def test_b15_use_mapping_ends_with_its_block(theirs: type[nn.Module]) -> None:
    model = theirs()
    for _ in range(2):
        with autogen.use_mapping({"Theirs": {"cpu": Stub("within")}}):
            assert autogen.kernelize(model, device="cpu")(None, None) == "within"
        assert autogen.kernelize(model, device="cpu")(None, None) == "theirs"
    with contextlib.suppress(ZeroDivisionError), autogen.use_mapping({"Theirs": {"cpu": Stub("within")}}):
        raise ZeroDivisionError
    assert chosen(theirs) == "theirs"


def test_b16_versions(theirs: type[nn.Module], tmp_path: Path) -> None:
    for version in ("0.0.3", "0.0.4", "0.0.10", "0.1.0"):
        write_package(tmp_path / f"v{version}", f"_theirs_{version.replace('.', '_')}", version)
    (tmp_path / "v0.0.11-draft").mkdir()
    for bounds, result in {
        ">=0.0.4,<0.1.0": "0.0.10",
        "<=0.0.4": "0.0.4",
        "==0.1.0": "0.1.0",
        "~=0.0.3": "0.0.10",
    }.items():
        with autogen.use_mapping({"Theirs": {"cpu": LocalVersions(tmp_path, "Theirs", bounds)}}):
            assert chosen(theirs) == result
    for unbounded in (None, ">=0.0.4"):
        with pytest.warns(UserWarning, match="no upper bound"):
            newest = LocalVersions(tmp_path, "Theirs", unbounded)
        with autogen.use_mapping({"Theirs": {"cpu": newest}}):
            assert chosen(theirs) == "0.1.0"
    with pytest.raises(FileNotFoundError, match=r"fits '>=2,<3'; there is 0\.0\.3, 0\.0\.4, 0\.0\.10, 0\.1\.0"):
        autogen.use_mapping({"Theirs": {"cpu": LocalVersions(tmp_path, "Theirs", ">=2,<3")}})
    with pytest.raises(ValueError, match="version 'new' is not understood"):
        LocalVersions(tmp_path, "Theirs", "new")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        autogen.register_mapping({"Theirs": {"cpu": LocalVersions(tmp_path / "none", "Theirs", "<1")}})


def test_b17_kernels_of_each_mode(theirs: type[nn.Module]) -> None:
    with autogen.use_mapping({"Theirs": {"cpu": {INF: Stub("inference", has_backward=False), T: Stub("training")}}}):
        assert (chosen(theirs, INF), chosen(theirs, T)) == ("inference", "training")


ORDER = {INF: (INF, IC, T, TC, F), IC: (IC, TC, F), T: (T, TC, F), TC: (TC, F)}


def test_b18_fallback_order(theirs: type[nn.Module]) -> None:
    for registered in itertools.chain.from_iterable(itertools.combinations((F, *MODES), n) for n in range(6)):
        with autogen.use_mapping({"Theirs": {"cpu": {mode: Stub(str(mode)) for mode in registered}}}):
            for mode, order in ORDER.items():
                expected = next((str(each) for each in order if each in registered), "theirs")
                assert chosen(theirs, mode) == expected


def test_b19_mode_fallback(theirs: type[nn.Module]) -> None:
    mapping = {INF: Stub("inference"), T: Stub("training"), F: Stub("fallback")}
    with autogen.use_mapping({"Theirs": {"cpu": mapping}}):
        assert [chosen(theirs, mode) for mode in (IC, TC)] == ["fallback", "fallback"]
        assert [chosen(theirs, mode) for mode in (INF, T)] == ["inference", "training"]
    with autogen.use_mapping({"Theirs": {"cpu": Stub("of no mode")}}):
        assert {chosen(theirs, mode) for mode in MODES} == {"of no mode"}


def cuda(low: int, high: int) -> Device:
    return Device("cuda", CUDAProperties(min_capability=low, max_capability=high))


def test_b20_capabilities(theirs: type[nn.Module], capability: Callable[[int, int], None]) -> None:
    mapping = {
        cuda(75, 89): Stub("KernelB"),
        cuda(80, 89): Stub("KernelA"),
        cuda(90, sys.maxsize): Stub("hopper"),
    }
    expected = {
        (7, 0): "theirs",
        (7, 5): "KernelB",
        (8, 0): "KernelA",
        (8, 9): "KernelA",
        (9, 0): "hopper",
        (12, 0): "hopper",
    }
    with autogen.use_mapping({"Theirs": mapping}):
        for found, result in expected.items():
            capability(*found)
            assert chosen(theirs, device="cuda") == result


def test_b20_ours_where_the_capability_has_no_other(capability: Callable[[int, int], None]) -> None:
    with autogen.use_mapping({"MSELoss": {cuda(90, sys.maxsize): Stub("hopper")}}):
        capability(9, 0)
        assert chosen(nn.MSELoss, device="cuda") == "hopper"
        capability(8, 0)
        assert "forward" in vars(autogen.kernelize(nn.MSELoss(), device="cuda"))
    with autogen.use_mapping({"MSELoss": {cuda(90, sys.maxsize): {INF: Stub("hopper")}}}):
        capability(9, 0)
        assert "forward" in vars(autogen.kernelize(nn.MSELoss(), device="cuda"))


def test_b21_bounds_are_inclusive(theirs: type[nn.Module], capability: Callable[[int, int], None]) -> None:
    autogen.register_mapping({"Theirs": {cuda(80, 89): Stub("first")}})
    for found, result in {(8, 0): "first", (8, 9): "first", (7, 9): "theirs", (9, 0): "theirs"}.items():
        capability(*found)
        assert chosen(theirs, device="cuda") == result
    autogen.register_mapping({"Theirs": {cuda(80, 89): Stub("second")}})
    capability(8, 6)
    assert chosen(theirs, device="cuda") == "second"


def test_b22_smallest_interval(theirs: type[nn.Module], capability: Callable[[int, int], None]) -> None:
    capability(8, 6)
    for order in itertools.permutations([(75, 89, "wide"), (80, 89, "narrow"), (0, sys.maxsize, "all")]):
        with autogen.use_mapping({"Theirs": {cuda(low, high): Stub(name) for low, high, name in order}}):
            assert chosen(theirs, device="cuda") == "narrow"


def test_b23_rocm_capabilities(theirs: type[nn.Module], capability: Callable[[int, int], None]) -> None:
    def rocm(low: int, high: int) -> Device:
        return Device("rocm", ROCMProperties(low, high))

    capability(9, 4)
    with autogen.use_mapping(
        {"Theirs": {rocm(90, 93): Stub("gfx90a"), rocm(94, 94): Stub("gfx942"), "rocm": Stub("any")}}
    ):
        assert chosen(theirs, device="rocm") == "gfx942"
        capability(11, 0)
        assert chosen(theirs, device="rocm") == "any"


def test_b24_other_devices_keep_torch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autogen")
    input, target, labels = (each.to("meta") for each in arguments())
    model = autogen.kernelize(Model().to("meta"))
    assert model(input, target, labels).device.type == "meta"
    for device in ("mps", "metal", "xpu", torch.device("hpu")):
        assert "forward" not in vars(autogen.kernelize(nn.MSELoss(), device=device))
    said = [each.getMessage() for each in caplog.records]
    assert "CrossEntropyLoss (loss): its own forward, as there are no kernels for it, for Mode.TRAINING on meta" in said
    assert "MSELoss: its own forward, as there are no kernels for it, for Mode.TRAINING on hpu" in said


def test_b26_inherit_mapping(theirs: type[nn.Module]) -> None:
    autogen.register_mapping({"Theirs": {"cpu": Stub("outer")}})
    other: dict[str, Any] = {"Other": {"cpu": Stub("other")}}
    with autogen.use_mapping(other, inherit_mapping=True):
        assert chosen(theirs) == "outer"
        with autogen.use_mapping({"Theirs": {"cpu": Stub("inner")}}):
            assert chosen(theirs) == "inner"
        assert chosen(theirs) == "outer"
    with autogen.use_mapping(other, inherit_mapping=False):
        assert chosen(theirs) == "theirs"
    assert chosen(theirs) == "outer"


def test_mistakes_are_said_when_registered(theirs: type[nn.Module], tmp_path: Path) -> None:
    package = write_package(tmp_path / "package", "_theirs_package", "a package")
    mistakes: list[tuple[Any, type[Exception], str]] = [
        (LocalLayerRepository(tmp_path / "none", layer_name="Theirs"), FileNotFoundError, "which is no folder"),
        (LocalLayerRepository(str(package), layer_name="Theirs"), TypeError, "repo_path of Theirs is a pathlib.Path"),
        (LocalLayerRepository(package, layer_name="Other"), ValueError, "Layer `Other` not found"),
        ({"training": Stub("by name")}, ValueError, "the mode 'training'; choose from .*FALLBACK"),
        ("KernelA", TypeError, "which is no repository"),
    ]
    for repository, error, said in mistakes:
        with pytest.raises(error, match=said):
            autogen.register_mapping({"Theirs": {"cpu": Stub("half"), "xpu": repository}})
        assert chosen(theirs) == "theirs"  # nothing was registered
    with pytest.raises(ValueError, match="the device 'gpu'; choose from cpu, cuda"):
        autogen.register_mapping({"Theirs": {"gpu": Stub("nowhere")}})
    with pytest.raises(TypeError, match="is a dict of devices"):
        autogen.register_mapping({"Theirs": Stub("everywhere")})
    autogen.register_mapping({"Theirs": {"cpu": LocalLayerRepository(package, layer_name="Theirs")}})
    assert chosen(theirs) == "a package"


def test_without_kernels_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each == "autogen.hub" or each.startswith("autogen.hub.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kernels", None)
    names = ("Mode", "hub", "kernelize", "make_extensible", "register_mapping", "use_mapping")
    for name in names:
        monkeypatch.delitem(vars(autogen), name, raising=False)
        with pytest.raises(ImportError, match=r'pip install "autogen-loss\[hub\]"'):
            getattr(autogen, name)
    assert callable(autogen.patch) and inspect.isclass(losses.MSELoss)


def test_a_gpu_that_is_not_there() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match="torch sees no GPU for the device 'cuda'"):
        autogen.kernelize(nn.MSELoss(), device="cuda")


def test_b25_an_export_is_loaded_by_kernels_for_the_class_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = autogen.export(nn.BCEWithLogitsLoss(), [torch.randn(8, 6), torch.rand(8, 6)], tmp_path / "bce")
    monkeypatch.setattr(nn.BCEWithLogitsLoss, "kernel_layer_name", "", raising=False)  # what is set is unset
    monkeypatch.setattr(nn.BCEWithLogitsLoss, "kernel_condition", None, raising=False)
    kernels.replace_kernel_forward_from_hub(nn.BCEWithLogitsLoss, "BCEWithLogitsLoss")
    model = nn.ModuleDict({"layer": nn.Linear(4, 3), "loss": nn.BCEWithLogitsLoss()})
    inputs, target = torch.randn(50, 4), torch.rand(50, 3)

    def step() -> tuple[torch.Tensor, torch.Tensor | None]:
        model.zero_grad()
        loss = model["loss"](model["layer"](inputs), target)
        loss.backward()
        return loss.detach(), model["layer"].weight.grad

    expected = step()
    layer = kernels.LocalLayerRepository(repo_path=path, layer_name="BCEWithLogitsLoss")
    mode = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
    with kernels.use_kernel_mapping({"BCEWithLogitsLoss": {"cpu": {mode: layer}}}, inherit_mapping=False):
        kernels.kernelize(model, mode=mode, device="cpu", use_fallback=False)
    module = kernels.get_local_kernel(path).kernels
    launched = []
    launch = module.launch
    monkeypatch.setattr(
        module, "launch", lambda plan, *given: [launched.append(plan[0].__name__), launch(plan, *given)]
    )
    torch.testing.assert_close(step(), expected)
    assert launched == ["bce_with_logits_loss_forward", "bce_with_logits_loss_backward"]


@pytest.mark.slow
def test_b27_check_export_gives_the_verdict_of_kernels(tmp_path: Path) -> None:
    good = autogen.export(nn.MSELoss(), [torch.randn(8, 6), torch.randn(8, 6)], tmp_path / "mse")
    assert autogen.check_export(good) == []
    bad = shutil.copytree(good, tmp_path / "bad")
    (metadata,) = bad.glob("build/*/metadata.json")
    content = json.loads(metadata.read_text())
    metadata.write_text(json.dumps({**content, "name": "MSE_Loss"}))
    assert [each for each in autogen.check_export(bad) if "MSE_Loss" in each]
    metadata.write_text(json.dumps({name: each for name, each in content.items() if name != "license"}))
    assert [each for each in autogen.check_export(bad) if "license" in each]
