"""docs/links.py makes links of pages lead somewhere on the site."""

import importlib.util
import logging
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def links() -> ModuleType:
    spec = importlib.util.spec_from_file_location("links", ROOT / "docs" / "links.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(name: str) -> SimpleNamespace:
    return SimpleNamespace(file=SimpleNamespace(src_uri=name))


def test_links_out_of_the_pages_lead_to_the_repository(links: ModuleType) -> None:
    text = "[a](../../bench/run.py#x), [b](../support.md#y), [c](https://a.b), [d](#e)\n```\n[f](g)\n```\n"
    assert links.on_page_markdown(text, page("losses/index.md")) == text.replace(
        "../../bench/run.py", f"{links.FILES}bench/run.py"
    )


def test_a_page_that_is_one_link_shows_that_file(links: ModuleType) -> None:
    shown = links.on_page_markdown("[README.md](../README.md)\n", page("index.md"))
    assert shown.startswith("# autogen-loss\n")
    assert "](support.md)" in shown and f"]({links.FILES}LICENSE)" in shown and "](docs/" not in shown


def test_a_link_to_nowhere_is_a_warning(links: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        links.on_page_markdown("A [page](../nowhere.py).", page("support.md"))
    assert "support.md links to ../nowhere.py, which is not there" in caplog.text


def test_names_of_losses_of_torch_are_links_on_their_page(links: ModuleType) -> None:
    html = "see <code>torch.nn.L1Loss</code>"
    assert f'<a href="{links._TORCH}torch.nn.L1Loss.html">' in links.on_page_content(html, page("losses/torch.md"))
    assert links.on_page_content(html, page("support.md")) == html
