"""`check_export`: find what Hugging Face `kernels` would refuse of a repository.

What can be read is read: metadata by `kernels`, imports and syntax by Python. Then `kernels` loads each layer and gives
it to a module that takes what the layer takes, in a process of its own: `kernels` keeps what it has loaded by its path,
and the code is somebody's.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LIBRARIES = frozenset({"torch", "triton"})
_OLDEST = (3, 9)  # the oldest Python whose syntax a repository may need
_SECONDS = 120


def check_export(path: str | Path) -> list[str]:
    """Find out what Hugging Face `kernels` would refuse of a repository.

    The code in the repository is run, in another process and without the network.

    Args:
        path: the folder of the repository, as `export` writes it.

    Returns:
        A sentence for each problem; an empty list if there is none.

    Raises:
        ImportError: `kernels` is not installed.
    """
    if importlib.util.find_spec("kernels") is None:
        raise ImportError("check_export asks the package kernels; install it: pip install 'autogen-loss[hub]'")
    repository = Path(path)
    variants = _variants(repository)
    if not variants:
        return [f"{repository} is no repository of kernels: there is no build/<variant>/metadata.json in it"]
    found = [problem for variant in variants for problem in _read(variant)]
    if found:
        return found
    return [problem for variant in variants for problem in _loaded(variant)]


def _variants(repository: Path) -> list[Path]:
    """The folders that hold a variant: the repository itself, or folders in it or in its folder `build`."""
    folders = [repository, *sorted(repository.glob("*")), *sorted(repository.glob("build/*"))]
    return [folder for folder in folders if (folder / "metadata.json").is_file()]


def _read(variant: Path) -> Iterator[str]:
    """What can be seen of a variant without running it."""
    import kernels

    try:
        metadata = kernels.Metadata.read_from_file(variant / "metadata.json")
    except ValueError as error:
        yield f"{variant.name}/metadata.json: {' '.join(str(error).split())}"
    else:
        if not metadata.id.isidentifier():
            yield f"{variant.name}/metadata.json: the id {metadata.id!r} is no name that Python imports a module by"
    for file in sorted(variant.rglob("*.py")):
        where = f"{variant.name}/{file.relative_to(variant)}"
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"), feature_version=_OLDEST)
        except SyntaxError as error:
            yield f"{where}, line {error.lineno}: Python {'.'.join(map(str, _OLDEST))} does not take it: {error.msg}"
            continue
        yield from (f"{where}, line {line}: it imports {name}, {_RULE}" for name, line in _foreign(tree))


_RULE = "and may import torch, triton, the standard library and what is beside it"


def _foreign(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """What a module imports that nobody promises to be there, with the line."""
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    for node in imports:
        is_beside = isinstance(node, ast.ImportFrom) and node.level > 0
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
        for name in [] if is_beside else names:
            first = name.partition(".")[0]
            if first not in _LIBRARIES and first not in sys.stdlib_module_names:
                yield name, node.lineno


def _loaded(variant: Path) -> list[str]:
    """What `kernels` says when it loads a variant."""
    folder = str(Path(__file__).parent.parent.parent)  # where the package `autogen` is found
    paths = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", "from autogen.exporting.check import serve; serve()", str(variant)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"]
        return [f"{variant.name}: kernels cannot load it: {said[-1]}"]
    problems: list[str] = json.loads(done.stdout.splitlines()[-1])
    return problems


def serve() -> None:
    """The other side of `_loaded`: `kernels` loads the variant that the command line names, and adopts its layers."""
    import kernels
    from torch import nn

    variant = Path(sys.argv[1])
    module = kernels.get_local_kernel(variant)
    layers = getattr(module, "layers", None)
    found = {name: each for name, each in vars(layers).items() if isinstance(each, type)} if layers else {}
    own = {name: each for name, each in found.items() if each.__module__.startswith(module.__name__)}
    problems = [] if own else [f"{variant.name}: it has no layers"]
    for name, layer in own.items():
        forward: Any = getattr(layer, "forward", nn.Module.forward)
        # What kernels compares is the signature of forward, and all but that is the layer's own.
        adopting = type(name, (nn.Module,), {"forward": forward})
        kernels.replace_kernel_forward_from_hub(adopting, name)
        repository = kernels.LocalLayerRepository(repo_path=variant, layer_name=name)
        mode = kernels.Mode.TRAINING if getattr(layer, "has_backward", True) else kernels.Mode.INFERENCE
        with kernels.use_kernel_mapping({name: {"cpu": {mode: repository}}}, inherit_mapping=False):
            try:
                kernels.kernelize(adopting(), mode=mode, device="cpu", use_fallback=False)
            except (TypeError, ValueError) as error:
                problems.append(f"{variant.name}: layer {name}: {' '.join(str(error).split())}")
    print(json.dumps(problems))
