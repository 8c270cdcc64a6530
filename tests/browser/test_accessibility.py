"""Every page, light and dark: nothing seriously wrong for people who read, point or see differently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.browser.accessibility import axe_core, complaints
from tests.browser.conftest import Window
from tests.show.web.test_server import Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# The page, and what is there when it is complete.
PAGES = {
    "runs": ("#/runs", "table.runs a"),
    "run": ("#/run?run=sick&pins=0", ".pins .chart"),
    "many layers": ("#/run?run=deep", ".verdict"),
    "no steps": ("#/run?run=empty", ".verdict"),
    "findings": ("#/findings?run=sick", ".finding .chart"),
    "flow": ("#/flow?run=sick", ".flow-rows"),
    "weights": ("#/weights?run=sick", "tbody tr"),
    "compare": ("#/compare?runs=sick,deep", ".compare .chart"),
}


@pytest.fixture(scope="module")
def script() -> str:
    return axe_core()


@pytest.fixture(scope="module", params=["light", "dark"])
def themed(request: pytest.FixtureRequest, browser: Browser, served: Served, script: str) -> Iterator[Window]:
    context = browser.new_context(
        viewport={"width": 1440, "height": 900}, color_scheme=request.param, reduced_motion="reduce"
    )
    opened = Window(context.new_page(), served.address)
    opened.page.set_default_timeout(30_000)
    yield opened
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_seriously_wrong(themed: Window, script: str, name: str) -> None:
    place, complete = PAGES[name]
    page = themed.open(place)
    page.locator(complete).first.wait_for()
    assert complaints(page, script) == []
    assert themed.complaints == []


def test_neither_are_the_panels_over_a_page(themed: Window, script: str) -> None:
    page = themed.open("#/run?run=sick")
    page.locator(".verdict").wait_for()
    for button in ("Keys", "Table"):
        page.get_by_role("button", name=button).first.click()
        page.locator("dialog").wait_for()
        assert complaints(page, script) == []
        page.keyboard.press("Escape")
    assert themed.complaints == []


def test_the_judge_would_have_said_so(themed: Window, script: str) -> None:
    page = themed.open("#/runs")
    page.locator("table.runs a").first.wait_for()
    page.evaluate("document.querySelector('main input').removeAttribute('aria-label')")
    page.evaluate("document.querySelector('main input').removeAttribute('placeholder')")
    assert [one["id"] for one in complaints(page, script)] == ["label"]
