"""`export`: write a loss as a repository for Hugging Face `kernels`, or as one file."""

from __future__ import annotations

import hashlib
import json
import keyword
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from autogen._version import __version__
from autogen.emission.shell import render
from autogen.exporting.subject import subject_of
from autogen.exporting.writer import Written, class_name, write

Format = Literal["hub", "module"]

VARIANT = "build/torch-universal"
"""Where `kernels` looks for code that is the same on every system."""

_NAME = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]")  # of a repository, as `kernels` wants it


def export(
    loss: Any,
    example_inputs: Sequence[Any],
    path: str | Path,
    *,
    format: Format = "hub",
    name: str | None = None,
    layer_name: str | None = None,
    version: int = 1,
) -> Path:
    """Write a loss as code that needs torch and Triton, but not this package.

    The kernels are those of a call with the example inputs, for all sizes of their dimensions. They compute gradients
    of the inputs that require one, or of the first floating-point input if none does. Calls that differ otherwise (in
    dtypes, numbers of dimensions, options of the loss, sizes that are guarded or below two, the inputs that require a
    gradient, autocast, or without a GPU) are computed in torch. Tensors of other strides are copied first.

    Args:
        loss: a module or function, decorated or not.
        example_inputs: its arguments; the tensors may be on the CPU.
        path: for "hub" the folder of the new repository, for "module" the new file, or the folder to put it in.
        format: "hub" for a repository that `kernels.LocalLayerRepository` loads, or "module" for one file with the
            kernels, an `autograd.Function`, and a function that takes the loss's tensors.
        name: the name of the repository, by default that of the loss in the form `bce-with-logits-loss`.
        layer_name: the name of the layer in the repository, by default that of the loss.
        version: the version of the repository.

    Returns:
        The path of what was written. Nothing is written when an error is raised.

    Raises:
        ExportError: the loss needs more than generated kernels.
        AutogenError: some part of the loss has no kernel.
        FileExistsError: there is something at the path.
        TypeError: the inputs do not fit the loss's signature, or `loss` is a class.
        ValueError: another argument is not understood.
    """
    if format not in get_args(Format):
        raise ValueError(f'an export has the format "hub" or "module", not {format!r}')
    _check_names(name, layer_name)
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise ValueError(f"the version of a repository is an integer of at least 0, not {version!r}")
    target = Path(path)
    if format == "hub" or target.suffix == ".py":
        _refuse_existing(target)
    subject = subject_of(loss, example_inputs)
    written = write(subject)
    if format == "module":
        target = target if target.suffix == ".py" else target / f"{subject.name}.py"
        _refuse_existing(target)
        return _placed({"": written.module()}, target)
    name = name or subject.name.replace("_", "-")
    layer = layer_name or class_name(subject.title)
    _check_names(name, layer)  # of a loss, too, may be a single letter
    return _placed(_repository(written, name, layer, version, target.name), target)


def _check_names(name: str | None, layer: str | None) -> None:
    if name is not None and not _NAME.fullmatch(name):
        raise ValueError(f"a repository has a name= of small letters, digits and hyphens, not {name!r}")
    if layer is not None and (not layer.isidentifier() or keyword.iskeyword(layer)):
        raise ValueError(f"a layer has a layer_name= that a class can have, not {layer!r}")


def _refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(f"{path} is there already: export to a new path, or remove it first")


def _repository(written: Written, name: str, layer: str, version: int, folder: str) -> dict[str, str]:
    """The files of a repository, by their paths in it."""
    layers, configs = written.layers(layer), _configs(written)
    content = "\n".join([written.kernels("autogen"), layers, configs])
    identity = f"autogen_{name.replace('-', '_')}_{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    subject, context = written.subject, written.context
    metadata = {
        "name": name,
        "id": identity,
        "version": version,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda"},
        "autogen": {"version": __version__, "loss": subject.title, "options": list(subject.fixed)},
    }
    init = f'"""{subject.title} by Triton kernels."""\n\nfrom . import layers\n\n__all__ = ["layers"]\n'
    kind = subject.kind
    home, adopter = (kind.__module__, kind.__qualname__) if kind else ("your_package", layer)
    return {
        "README.md": render("export_readme.jinja", layer=layer, folder=folder, home=home, adopter=adopter, **context),
        f"{VARIANT}/metadata.json": json.dumps(metadata, indent=2) + "\n",
        f"{VARIANT}/__init__.py": init,
        f"{VARIANT}/layers.py": layers,
        f"{VARIANT}/kernels.py": written.kernels(identity),
        f"{VARIANT}/configs.json": configs,
    }


def _configs(written: Written) -> str:
    """The rules as JSON, one a line."""
    kernels = []
    for name, rules in written.configs.items():
        lines = ",\n".join(f"    {json.dumps(rule)}" for rule in rules)
        kernels.append(f"  {json.dumps(name)}: [\n{lines}\n  ]")
    return "{\n" + ",\n".join(kernels) + "\n}\n"


def _placed(files: Mapping[str, str], target: Path) -> Path:
    """Write files, whole or not at all; a path of "" is the target itself."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".autogen-") as room:
        new = Path(room) / target.name
        for path, text in files.items():
            file = new / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        _refuse_existing(target)
        os.rename(new, target)
    return target
