"""Links between pages lead somewhere: the file exists, and so does the heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, name_of, prose

_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def _links(page: Path) -> list[str]:
    return [link for link in _LINK.findall(prose(page)) if not link.startswith(("http://", "https://"))]


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    named = set(re.findall(r'<a id="([^"]+)">', prose(page)))
    return named | {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} in {name_of(page)}"
        assert target.is_relative_to(ROOT)
        if anchor:
            assert anchor in _anchors(target), f"{link} in {name_of(page)}; there are {sorted(_anchors(target))}"


def test_every_page_of_the_docs_can_be_reached_from_the_index() -> None:
    reached, waiting = set[Path](), [ROOT / "docs/index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            waiting += [(page.parent / link.partition("#")[0]).resolve() for link in _links(page)]
    assert set(PAGES) <= reached, sorted(set(PAGES) - reached)
