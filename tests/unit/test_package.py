"""The package as it is installed: its version, what importing it loads, what its archives hold."""

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml

import autogen

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def test_changelog_and_citation_are_of_the_version() -> None:
    headings = dict(re.findall(r"^## \[(.+?)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == autogen.__version__
    assert citation["date-released"] == headings[autogen.__version__]


def test_import_loads_no_heavy_module() -> None:
    """Neither Triton, which may look for a driver, nor the tracer, which takes a second to import, nor the compiler."""
    heavy = {"triton", "torch._dynamo", "sympy", "jinja2", "kernels"}
    program = f"import sys, autogen, autogen.losses; print(*{heavy} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_losses_are_there_once_the_package_is_imported() -> None:
    program = """
import sys, autogen
assert {"losses", *autogen.__all__} <= set(dir(autogen))
assert "torch" not in sys.modules
autogen.losses.FocalLoss, autogen.functional.mse_loss
assert autogen.losses is sys.modules["autogen.losses"]
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    with pytest.raises(AttributeError, match="no attribute 'loses'"):
        _ = autogen.loses


def test_policy_is_callable_whatever_was_imported_before() -> None:
    program = "import autogen.settings.policies, autogen\nwith autogen.policy('mandatory'): pass"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def _imported(tree: ast.AST) -> Iterator[str]:
    """What a module imports when it is run, when its functions are, or when its types are checked."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.fixture(scope="module")
def below() -> dict[str, set[str]]:
    """The modules of the package, without that of the package itself, and those that each imports."""
    files = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in (ROOT / "autogen").glob("**/*.py")
    }
    modules = {name.removesuffix(".__init__"): ast.parse(file.read_text()) for name, file in files.items()}
    del modules["autogen"]
    imported = {name: set(_imported(tree)) for name, tree in modules.items()}
    return {
        name: {each if each in modules else each.rpartition(".")[0] for each in found} & modules.keys() - {name}
        for name, found in imported.items()
    }


def test_modules_import_each_other_in_one_order(below: dict[str, set[str]]) -> None:
    """So a newcomer may read them in it; a circle is a `CycleError`, which names it."""
    order = list(TopologicalSorter(below).static_order())
    upwards = ["autogen.capture.sizes", "autogen.capture.joint", "autogen.compiler", "autogen.dispatch.dispatcher"]
    assert [name for name in order if name in upwards] == upwards


def test_packages_import_each_other_in_one_order(below: dict[str, set[str]]) -> None:
    rooms: dict[str, set[str]] = {}
    for module, found in below.items():
        room = module.split(".")[1]
        rooms.setdefault(room, set()).update({each.split(".")[1] for each in found} - {room})
    order = list(TopologicalSorter(rooms).static_order())
    flow = ["compat", "capture", "lowering", "scheduling", "tiling", "emission", "runtime", "compiler", "dispatch"]
    assert {"errors", "decorator", *flow} <= set(order)
    assert not [(a, b) for k, a in enumerate(flow) for b in flow[k + 1 :] if b in rooms[a]]


def test_modules_say_in_one_line_what_they_are() -> None:
    """Each docstring begins with one line of at most 120 columns, which ends in a full stop."""
    folders = ("autogen", "losses", "templates", "bench", "examples", "tests")
    files = [file for folder in folders for file in (ROOT / folder).glob("**/*.py")]
    docstrings = {file: ast.get_docstring(ast.parse(file.read_text()), clean=False) or "" for file in files}
    line = re.compile(r"[^\n]{0,116}\.(\n\s*(\n|$)|$)")
    assert len(files) > 400 and not [file for file, docstring in docstrings.items() if not line.match(docstring)]


@pytest.mark.parametrize("folder", ["bench", "examples"])
def test_no_tool_imports_the_tests(folder: str) -> None:
    files = {file: ast.parse(file.read_text()) for file in (ROOT / folder).glob("**/*.py")}
    assert files
    assert not [file for file, tree in files.items() if any(name.split(".")[0] == "tests" for name in _imported(tree))]


@pytest.mark.parametrize("folder", ["losses", "templates"])
def test_top_level_folder_is_linked_into_the_package(folder: str) -> None:
    assert (ROOT / "autogen" / folder).readlink() == Path("..", folder)


BUILT_FROM = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.mark.parametrize("folder", ["losses", "templates"])
def test_a_checkout_without_links_is_not_built(folder: str, tmp_path: Path) -> None:
    """Where git makes no symbolic links, it writes a file of where each leads."""
    (tmp_path / "autogen").mkdir()
    for file in BUILT_FROM:
        shutil.copy(ROOT / file, tmp_path)
    for name in ("losses", "templates"):
        (tmp_path / name).mkdir()
        if name == folder:
            (tmp_path / "autogen" / name).write_text(f"../{name}")
        else:
            (tmp_path / "autogen" / name).symlink_to(Path("..", name))
    program = "from setuptools.build_meta import build_wheel; build_wheel('built')"
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 1
    said = run.stderr.splitlines()[-1]
    assert said.startswith(f"autogen/{folder} is a file where a link to the folder {folder}/ belongs")
    assert "git config core.symlinks true" in said
    assert not list(tmp_path.glob("built/*"))


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and an sdist, built from a copy of the checkout without network."""
    base = tmp_path_factory.mktemp("archives")
    checkout, built = base / "checkout", base / "built"
    checkout.mkdir()
    for folder in ("autogen", "losses", "templates"):
        shutil.copytree(ROOT / folder, checkout / folder, symlinks=True)
    for file in BUILT_FROM:
        shutil.copy(ROOT / file, checkout)
    # Not covered by the package's own globs, so it must come in as package data.
    (checkout / "templates" / "probe.jinja").write_text("probe")
    program = "from setuptools.build_meta import *; build_wheel(*argv); build_sdist(*argv)"
    program = f"import sys; argv = sys.argv[1:]; sys.argv[1:] = []; {program}"
    subprocess.run(
        [sys.executable, "-c", program, str(built)], cwd=checkout, capture_output=True, text=True, check=True
    )
    return built


WANTED = {
    "autogen/_version.py",
    "autogen/py.typed",
    "autogen/losses/__init__.py",
    "autogen/losses/__init__.pyi",
    "autogen/templates/__init__.py",
    "autogen/templates/probe.jinja",
}
WANTED |= {
    str(Path("autogen", file.relative_to(ROOT))) for file in (ROOT / "losses").glob("**/*.py*") if file.is_file()
}
WANTED |= {f"autogen/templates/{file.name}" for file in (ROOT / "templates").glob("*.jinja")}


def test_wheel_holds_the_linked_packages_as_files(archives: Path) -> None:
    with zipfile.ZipFile(archives / f"autogen_loss-{autogen.__version__}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
        assert names >= WANTED
        assert {name.split("/")[0] for name in names} == {
            "autogen",
            f"autogen_loss-{autogen.__version__}.dist-info",
        }
        assert wheel.read("autogen/templates/probe.jinja") == b"probe"


def test_metadata_is_complete(archives: Path) -> None:
    with zipfile.ZipFile(archives / f"autogen_loss-{autogen.__version__}-py3-none-any.whl") as wheel:
        metadata = message_from_bytes(wheel.read(f"autogen_loss-{autogen.__version__}.dist-info/METADATA"))
    urls = dict(each.split(", ") for each in metadata.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Changelog", "Issues"} == urls.keys()
    assert all(url.startswith(urls["Homepage"]) for url in urls.values())
    assert {"bench", "docs", "examples", "hub"} <= set(metadata.get_all("Provides-Extra", []))
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["Description-Content-Type"] == "text/markdown"
    needed = [each for each in metadata.get_all("Requires-Dist", []) if each.startswith("triton")]
    assert {each.split(">")[0] for each in needed} == {"triton", "triton-windows"}
    # Where PyPI shows the page, no file lies beside it.
    parts = metadata.get_payload().split("```")
    links = re.findall(r"\]\(([^)]+)\)", " ".join(parts[::2]))
    assert parts[1::2] == (ROOT / "README.md").read_text(encoding="utf-8").split("```")[1::2]
    own = [link for link in links if link.startswith(urls["Homepage"])]
    assert own and all(link.startswith(("https://", "#")) for link in links)
    files = [re.sub(r"^/(blob|raw)/main/|#.*", "", link.removeprefix(urls["Homepage"])) for link in own]
    assert all((ROOT / file).is_file() for file in files)
    images = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", " ".join(parts[::2]))
    assert images and all(image.startswith(f"{urls['Homepage']}/raw/main/") for image in images)


def test_classifiers_name_the_versions_of_python() -> None:
    """From the oldest that pip installs it for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert project["requires-python"] == f">={versions[0]}"
    assert versions == [f"3.{minor}" for minor in range(10, 10 + len(versions))]


def test_sdist_holds_the_linked_packages_as_files(archives: Path) -> None:
    root = f"autogen_loss-{autogen.__version__}"
    with tarfile.open(archives / f"{root}.tar.gz") as sdist:
        assert all(sdist.getmember(f"{root}/{name}").isfile() for name in WANTED)
        assert not any(member.issym() or member.islnk() for member in sdist.getmembers())
