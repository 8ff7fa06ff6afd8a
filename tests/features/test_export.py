"""What `autogen.export` writes: it computes the loss by itself, in kernels where it can; what it cannot, it refuses."""

import ast
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import kernels
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen
from autogen import losses
from autogen.exporting import mathematics
from autogen.exporting.subject import subject_of
from autogen.exporting.writer import write

ROOT = Path(__file__).parent.parent.parent


class Focal(nn.Module):
    """A loss of the user's, with a number, a buffer, a branch on a size, and an argument that is baked in."""

    def __init__(self, gamma: float = 2.0, size: int = 5) -> None:
        super().__init__()
        self.gamma = gamma
        self.register_buffer("weight", torch.linspace(0.5, 2, size))

    def forward(self, output: Tensor, target: Tensor, *, scale: float = 1.0) -> Tensor:
        chance = torch.sigmoid(output)
        if output.shape[0] % 2 == 0:
            chance = chance * 0.5
        return scale * (self.weight * (chance - target).abs() ** self.gamma).sum(-1).mean()


def absolute(input: Tensor, target: Tensor) -> Tensor:
    return (input - target).abs()


def pair(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.randn(shape, dtype=dtype, requires_grad=True), torch.rand(shape, dtype=dtype)


def labelled(n: int, c: int) -> tuple[Tensor, Tensor]:
    labels = torch.randint(c, (n,))
    labels[0] = -100
    return torch.randn(n, c, requires_grad=True), labels


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cross_entropy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("module")
    return loaded(autogen.export(losses.CrossEntropyLoss(), labelled(8, 6), folder, format="module"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return autogen.export(nn.CrossEntropyLoss(), labelled(8, 6), tmp_path_factory.mktemp("hub") / "ce")


def agree(
    own: Callable[..., Tensor], torchs: Callable[..., Tensor], inputs: tuple[Tensor, ...], **limits: float
) -> None:
    """Both compute the same value and the same gradients."""
    results = []
    for function in (own, torchs):
        given = [each.detach().clone().requires_grad_(each.requires_grad) for each in inputs]
        value = function(*given)
        value.backward(torch.linspace(1, 2, value.numel()).view_as(value))
        results.append([value.detach(), *(each.grad for each in given)])
    torch.testing.assert_close(*results, **limits)


@pytest.mark.parametrize("size", [(8, 6), (33, 1000), (3, 20000), (2100, 3)], ids=str)
def test_one_file_computes_other_sizes(cross_entropy: Any, size: tuple[int, int]) -> None:
    inputs = labelled(*size)
    assert cross_entropy.fits(*inputs)
    agree(cross_entropy.cross_entropy_loss, F.cross_entropy, inputs)


def test_rows_that_are_too_long_are_walked_in_steps(cross_entropy: Any) -> None:
    names = [cross_entropy.plan_cross_entropy_loss_forward(c, n)[0].__name__ for n, c in ((64, 512), (64, 40000))]
    names.append(cross_entropy.plan_cross_entropy_loss_forward(512, 2**20)[0].__name__)
    assert names == [f"cross_entropy_loss_forward{ending}" for ending in ("", "_looped", "_strided")]


def test_what_the_kernels_are_not_made_for_is_computed_in_torch(cross_entropy: Any) -> None:
    logits, labels = labelled(8, 6)
    probabilities = torch.rand(8, 6)
    for other in (
        (logits.double(), labels),
        (logits, probabilities),
        (logits[0], labels[1]),
        (logits[:1], labels[1:2]),
    ):
        assert not cross_entropy.fits(*other)
        agree(cross_entropy.cross_entropy_loss, F.cross_entropy, (other[0].detach().requires_grad_(), other[1]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not cross_entropy.fits(logits, labels)
    assert not cross_entropy.fits(logits, labels[:3])


def test_strides_and_upstream_gradients_of_any_kind(tmp_path: Path) -> None:
    own = loaded(autogen.export(absolute, pair(4, 6), tmp_path, format="module"))
    wide, target = pair(6, 9)
    agree(lambda x, t: own.absolute(x.t(), t.t()), lambda x, t: absolute(x.t(), t.t()), (wide, target))
    agree(lambda x, t: own.absolute(x, t).sum().expand(3), lambda x, t: absolute(x, t).sum().expand(3), (wide, target))
    assert not own.fits(wide, target.requires_grad_())  # whose gradient nobody asked for
    agree(own.absolute, absolute, (wide, target))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_loss_of_the_users(tmp_path: Path, dtype: torch.dtype) -> None:
    loss = Focal().to(dtype)
    own = loaded(autogen.export(loss, pair(8, 5, dtype=dtype), tmp_path / "own.py", format="module"))
    limits = {"rtol": 0.02, "atol": 0.02} if dtype == torch.bfloat16 else {}
    for n in (6, 40):
        inputs = pair(n, 5, dtype=dtype)
        assert own.fits(*inputs, loss.weight)
        agree(lambda x, t: own.focal(x, t, loss.weight), loss, inputs, **limits)
        torch.testing.assert_close(own.in_torch(*inputs, loss.weight), loss(*inputs))
    assert not own.fits(*pair(7, 5, dtype=dtype), loss.weight)  # which takes another branch
    assert not own.fits(*pair(6, 5, dtype=dtype), loss.weight[:4])


def test_the_layer_reads_the_state_of_its_module(tmp_path: Path) -> None:
    loss = Focal()
    inputs = pair(8, 5)
    layer = kernels.LocalLayerRepository(
        repo_path=autogen.export(loss, inputs, tmp_path / "focal", name="my-focal"), layer_name="Focal"
    ).load()
    launches = Counter[str]()
    module: Any = sys.modules[layer.__module__]
    op = module.focal
    module.focal = lambda *given: [launches.update(["focal"]), op(*given)][1]
    loss.weight *= 3
    agree(lambda *given: layer.forward(loss, *given), loss, inputs)
    assert launches["focal"] == 1
    agree(lambda *given: layer.forward(loss, *given, scale=2.0), lambda *given: loss(*given, scale=2.0), inputs)
    loss.gamma = 1.0
    agree(lambda *given: layer.forward(loss, *given), loss, inputs)
    assert launches["focal"] == 1  # the others are torch's
    with pytest.raises(AttributeError, match="gamma"):
        layer()(*inputs)


def test_the_op_is_one_that_torch_knows(repository: Path) -> None:
    module = kernels.get_local_kernel(repository)
    inputs = labelled(8, 6)
    found = torch.library.opcheck(module.kernels.cross_entropy_loss, inputs)
    assert set(found.values()) == {"SUCCESS"}
    layer = module.layers.CrossEntropyLoss
    assert layer.has_backward and layer.can_torch_compile
    loss = nn.CrossEntropyLoss()
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, example: list[Any]) -> Any:
        graphs.append(graph)
        return torch.compiler.disable(graph.forward)

    compiled = torch.compile(lambda *given: 2 * layer.forward(loss, *given), fullgraph=True, backend=backend)
    agree(compiled, lambda *given: 2 * F.cross_entropy(*given), inputs)
    assert [node for node in graphs[0].graph.nodes if "autogen_cross_entropy_loss" in str(node.target)]
    agree(
        torch.compile(lambda *given: layer.forward(loss, *given), fullgraph=True, backend="aot_eager", dynamic=True),
        F.cross_entropy,
        labelled(9, 7),
    )


_ALONE = """
import sys
sys.modules["autogen"] = None
import socket
socket.socket.connect = None
import warnings
warnings.simplefilter("ignore")
from pathlib import Path
import torch
from torch import nn
from kernels import LocalLayerRepository, Mode, get_local_kernel, kernelize, replace_kernel_forward_from_hub
from kernels import use_kernel_mapping
path = Path(sys.argv[1])
replace_kernel_forward_from_hub(nn.CrossEntropyLoss, "CrossEntropyLoss")
loss, logits, labels = nn.CrossEntropyLoss(), torch.randn(7, 11, requires_grad=True), torch.randint(11, (7,))
expected = torch.autograd.grad(loss(logits, labels), logits)[0]
layer = LocalLayerRepository(repo_path=path, layer_name="CrossEntropyLoss")
with use_kernel_mapping({"CrossEntropyLoss": {"cpu": layer}}):
    kernelize(loss, mode=Mode.TRAINING | Mode.TORCH_COMPILE, device="cpu", use_fallback=False)
found = torch.autograd.grad(loss(logits, labels), logits)[0]
torch.testing.assert_close(found, expected)
module = get_local_kernel(path).kernels
print(module.fits(logits, labels), bool(module.plan_cross_entropy_loss_backward.cache_info().misses))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("interpret", "said"), [("1", "True True"), ("0", "False False")])
def test_it_runs_without_autogen(repository: Path, interpret: str, said: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", _ALONE, str(repository)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == said


def test_a_repository_has_what_kernels_looks_for(repository: Path) -> None:
    (folder,) = repository.glob("build/*")
    assert folder.name == "torch-universal"
    files = {"__init__.py", "configs.json", "kernels.py", "layers.py", "metadata.json"}
    assert {each.name for each in folder.iterdir() if each.name != "__pycache__"} == files
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["name"] == "cross-entropy-loss"
    assert metadata["id"] in (folder / "kernels.py").read_text()
    functions = [
        node for node in ast.parse((folder / "kernels.py").read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    assert all(ast.get_docstring(each) for each in functions if each.name != "_")
    assert set(json.loads((folder / "configs.json").read_text())) == {
        "cross_entropy_loss_forward",
        "cross_entropy_loss_backward",
    }


def test_the_same_loss_is_the_same_text_and_another_has_another_id(tmp_path: Path) -> None:
    ids = []
    for number, reduction in enumerate(("mean", "mean", "none")):
        path = autogen.export(nn.L1Loss(reduction=reduction), pair(8, 6), tmp_path / str(number))
        ids.append(json.loads(next(path.rglob("metadata.json")).read_text())["id"])
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize(
    ("loss", "inputs"),
    [
        (nn.L1Loss(), pair(8, 6)),
        (nn.CrossEntropyLoss(), labelled(8, 6)),
        (nn.CrossEntropyLoss(), (torch.randn(4, 6, 5, 5), torch.randint(6, (4, 5, 5)))),
        (losses.DiceLoss(activation="softmax"), pair(64, 8, 128)),
    ],
    ids=["flat", "rows", "rows of planes", "chunked"],
)
def test_launches_are_those_of_the_process(tmp_path: Path, loss: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    subject = subject_of(loss, inputs)
    path = tmp_path / "loss.py"
    path.write_text(write(subject).module())
    module = loaded(path)
    powers = (64, 512, 8192) if len(subject.joint.sizes.symbols) < 3 else (16, 256)
    for launcher in subject.launchers:
        plan: Any = getattr(module, f"plan_{launcher.kernel.name}")
        names = plan.__wrapped__.__code__.co_varnames[: plan.__wrapped__.__code__.co_argcount]
        for sizes in itertools.product(powers, repeat=len(names)):
            known = {**subject.joint.sizes.hints(), **dict(zip(names, sizes, strict=True))}
            tiling = launcher.tiling(known)
            function, programs, counts, arguments, num_warps = plan(*sizes)
            source = launcher.source(tiling.variant)
            if tiling.variant.wide:  # beyond what `fits` admits
                continue
            assert not tiling.variant.skewed
            ending = "_looped" * tiling.variant.looped + "_strided" * tiling.variant.strided
            assert function.__name__ == f"{launcher.kernel.name}{ending}"
            assert (programs, num_warps) == (tiling.programs, tiling.num_warps), (known, tiling)
            tiles = dict(tiling.tiles)
            numbers = launcher.arguments(known, tiling.variant)
            assert arguments == [*numbers, *(tiles[name] for name in source.tiles)], (known, tiling)
            assert counts == [count for _, count in launcher.partials(known, tiling)]


def test_what_is_written_in_place_is_in_torchs_operations_too(tmp_path: Path) -> None:
    def clamped(input: Tensor, target: Tensor) -> Tensor:
        distance = input - target
        with torch.no_grad():
            distance.clamp_(min=0.25)
        return distance.mean()

    module = loaded(autogen.export(clamped, pair(8, 6), tmp_path, format="module"))
    inputs = pair(9, 4)
    torch.testing.assert_close(module.in_torch(*inputs), clamped(*inputs))
    agree(module.clamped, clamped, inputs)


def test_the_first_input_has_a_gradient_where_none_asks_for_one(tmp_path: Path) -> None:
    module = loaded(autogen.export(nn.MSELoss(), [torch.rand(8, 6), torch.rand(8, 6)], tmp_path, format="module"))
    inputs, target = pair(9, 4)
    assert module.fits(inputs, target) and not module.fits(target, inputs)
    agree(module.mse_loss, F.mse_loss, (inputs, target))


def test_launch_parameters_that_were_set_come_first(tmp_path: Path) -> None:
    loss = autogen.autogen_loss(losses.MSELoss(), config={"BLOCK": 2048, "num_warps": 8})
    module = loaded(autogen.export(loss, pair(100, 100), tmp_path, format="module"))
    assert module.plan_mse_loss_forward(100, 100)[3][1] == 2048
    assert module.plan_mse_loss_forward(1000, 100)[3][1] == 1024


class Outside(nn.Module):
    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ((input - target) * CONSTANT).mean()


class Counting(nn.Module):
    calls = 0

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return (input - target).mean()


CONSTANT = torch.rand(6)
DISTANCE = nn.TripletMarginWithDistanceLoss(distance_function=absolute)


@pytest.mark.parametrize(
    ("loss", "inputs", "message"),
    [
        (losses.InfoNCELoss(), (torch.randn(8, 6), torch.randn(8, 6)), "torch runs mm between kernels"),
        (nn.TripletMarginWithDistanceLoss(), (torch.randn(8, 6),) * 3, "it has modules of its own"),
        (DISTANCE, (torch.randn(8, 6),) * 3, "its attribute distance_function is a function"),
        (losses.QuantileLoss(), pair(8, 6), "it computes with quantiles_number"),
        (Outside(), pair(8, 6), "neither an argument nor of its module"),
        (Counting(), pair(8, 6), "a call changes its inputs or its module"),
        (lambda input, target: (input, target), pair(8, 6), "it returns a tuple, not one tensor"),
        (lambda input, *others: input - others[0], pair(8, 6), "takes any number of arguments"),
    ],
    ids=[
        *("matrix products", "modules", "a function", "a number", "a tensor outside", "counting", "two results"),
        "any arguments",
    ],
)
def test_what_is_more_than_kernels_is_refused(
    tmp_path: Path, loss: Any, inputs: tuple[Tensor, ...], message: str
) -> None:
    with pytest.raises(autogen.ExportError, match=message):
        autogen.export(loss, inputs, tmp_path / "no")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "onnx"}, "hub"),
        ({"name": "My_Loss"}, "name="),
        ({"layer_name": "my loss"}, "layer_name="),
        ({"version": -1}, "version"),
    ],
    ids=str,
)
def test_an_argument_that_is_not_understood_writes_nothing(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        autogen.export(nn.MSELoss(), pair(8, 6), tmp_path / "no", **options)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "mse_loss.py").write_text("mine")
    for target, format in ((tmp_path / "there", "hub"), (tmp_path, "module"), (tmp_path / "mse_loss.py", "module")):
        with pytest.raises(FileExistsError, match="is there already"):
            autogen.export(nn.MSELoss(), pair(8, 6), target, format=format)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mse_loss.py", "there"]
    assert (tmp_path / "mse_loss.py").read_text() == "mine"


_LAYERS = """
import numpy
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, input): return input

class More(nn.Module):
    margin = 1

    def forward(self, input): return input

class Plain:
    def forward(self, input): return input

class Forward(nn.Module):
    has_backward = False

    def forward(self, input): return input
"""


def test_what_is_wrong_with_layers_is_said(tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "build" / "torch-cpu"
    folder.mkdir(parents=True)
    (metadata,) = repository.rglob("metadata.json")
    (folder / "metadata.json").write_text(metadata.read_text())
    (folder / "__init__.py").write_text("from . import layers\n")
    (folder / "layers.py").write_text(_LAYERS)
    (found,) = autogen.check_export(tmp_path)
    assert "torch-cpu/layers.py, line 2: it imports numpy" in found
    (folder / "layers.py").write_text(_LAYERS.replace("import numpy", ""))
    found = autogen.check_export(tmp_path)
    assert [each.partition("layer ")[2].partition(":")[0] for each in found] == ["Own", "More", "Plain"]
    assert "must not override nn.Module constructor" in found[0]
    assert "must not contain additional members" in found[1]
    assert "is not a Torch layer" in found[2]


def test_a_folder_without_a_variant_is_no_repository(tmp_path: Path) -> None:
    (found,) = autogen.check_export(tmp_path)
    assert "is no repository of kernels" in found


def test_without_kernels_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="autogen-loss\\[hub\\]"):
        autogen.check_export(tmp_path)


def test_a_name_in_the_device_math_is_one_thing() -> None:
    found = Counter[str]()
    for file in (ROOT / "autogen" / "device_math").glob("[!_]*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] += 1
            elif isinstance(node, ast.Assign):
                found[ast.unparse(node.targets[0])] += 1
    assert found.most_common(1)[0][1] == 1


def test_all_that_a_function_calls_goes_along() -> None:
    for name in sorted(mathematics.NAMES):
        needed = mathematics.needed_by([name])
        text = "\n\n".join(["import triton", "import triton.language as tl", *needed.imports, *needed.definitions])
        exec(compile(text, name, "exec"), vars(ModuleType("alone")))
        assert f"def {name}(" in text
