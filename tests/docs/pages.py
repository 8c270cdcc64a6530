"""The Markdown pages of the project, and what is fenced in them.

A block marked `python` or `bash` is run by the tests; `diff` is applied to the script of the README; `console`, `text`
and `toml` are there to be read.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "src/undertow/store/FORMAT.md"])
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return [body for tag, body in _FENCE.findall(page.read_text(encoding="utf-8")) if tag == language]


def languages(page: Path) -> set[str]:
    return {tag for tag, _ in _FENCE.findall(page.read_text(encoding="utf-8"))}


def prose(page: Path) -> str:
    """The text without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]
