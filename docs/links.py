"""What mkdocs does not do with a page: links to files outside of docs/ and to torch, and pages that are such a file."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FILES = "https://github.com/autogen-loss/autogen-loss/blob/main/"
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
_OF_TORCH = re.compile(r"<code>(torch\.nn\.\w+Loss)</code>")
_TORCH = "https://docs.pytorch.org/docs/stable/generated/"
_LOG = logging.getLogger("mkdocs.hooks.links")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text of a page with links that lead somewhere. Of a page that is one link and no more, that file's text."""
    source = DOCS / page.file.src_uri
    if alone := re.fullmatch(r"\[[^\]]+\]\((\S+)\)\s*", markdown):
        source = (source.parent / alone[1]).resolve()
        markdown = source.read_text(encoding="utf-8")
    parts = markdown.split("```")  # every second one is code, in which `](` is no link

    def moved(match: re.Match[str]) -> str:
        target, anchor = (source.parent / match[1]).resolve(), match[2] or ""
        if not target.exists():
            _LOG.warning("%s links to %s, which is not there", page.file.src_uri, match[1])
        if target.is_relative_to(DOCS):
            return f"]({os.path.relpath(target, (DOCS / page.file.src_uri).parent)}{anchor})"
        return f"]({FILES}{target.relative_to(ROOT).as_posix()}{anchor})"

    parts[::2] = [_LINK.sub(moved, part) for part in parts[::2]]
    return "```".join(parts)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """The page with a link where a docstring names a loss of torch's."""
    is_of_losses = page.file.src_uri == "losses/torch.md"
    return _OF_TORCH.sub(rf'<a href="{_TORCH}\1.html"><code>\1</code></a>', html) if is_of_losses else html
