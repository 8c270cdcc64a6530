"""A report in a real browser: opened from disk, without network, with everything a hand can do in the dashboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.browser.runs import SCRIPT
from tests.browser.test_dashboard import MIDDLE, NONFINITE, shown_steps, wait_for_picture, wait_until
from tests.cli.conftest import write
from tests.detect.building import Training

from undertow.run import open_run
from undertow.show.html.report_file import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


@pytest.fixture(scope="session")
def reports(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("reports")
    late = Training().run(200).run(20, gradient_nonfinite_count={"first": 3.0})
    write_report(open_run(write(place / "late", late)), place / "late.html")
    for name in ("sick", "deep", "hostile", "empty"):
        write_report(open_run(folder / name), place / f"{name}.html")
    return place


class Reports:
    """Opens reports by their names, and remembers what they complained about and asked for."""

    def __init__(self, context: BrowserContext, folder: Path) -> None:
        self._context, self._folder = context, folder
        self.complaints: list[str] = []
        self.asked: list[str] = []

    def __call__(self, name: str) -> Page:
        page = self._context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto((self._folder / f"{name}.html").as_uri())
        return page


@pytest.fixture
def report(browser: Browser, reports: Path) -> Iterator[Reports]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light", offline=True)
    opened = Reports(context, reports)
    yield opened
    context.close()
    assert opened.complaints == []
    assert all(url.startswith(("file:", "blob:")) for url in opened.asked)


def test_the_first_screen_is_that_of_the_dashboard(report: Reports) -> None:
    page = report("sick")
    verdict = page.locator(".verdict")
    verdict.wait_for()
    for word in ("critical", "NUM001", "What", "Where", "When", "Why", "Next"):
        assert word in verdict.inner_text()
    assert wait_for_picture(page, 2).get(NONFINITE, 0) > 500
    for part in (".verdict", ".chart", ".heatmap", ".legend"):
        box = page.locator(part).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900, part


def test_all_parts_are_there(report: Reports) -> None:
    page = report("sick")
    page.locator("#weights td", has_text="first.weight").wait_for()
    assert page.locator("#findings .finding").count() == page.locator("#findings .track").count() > 0
    assert page.locator("#findings .remedy pre").count() > 0
    page.locator("#findings .chart").first.wait_for()
    page.get_by_text("What NUM001 means in general").click()
    page.get_by_role("heading", name="Why it is bad").wait_for()
    assert page.locator("#flow .flow-row").count() > 1
    assert "Undertow" in page.locator("footer").inner_text()


def test_cells_mean_what_they_mean_in_the_run(report: Reports) -> None:
    page = report("sick")
    wait_for_picture(page, 2)
    box = page.locator(".heatmap").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 300, box["y"] + box["height"] - 40)
    tip = page.locator(".tip")
    tip.wait_for()
    assert "head.bias" in tip.inner_text()
    assert "gradient norm 0.1" in tip.inner_text()
    page.mouse.move(box["x"] + box["width"] - 60, box["y"] + 10)
    assert "not finite" in tip.inner_text()


def test_the_wheel_scrolls_first_and_zooms_a_heatmap_that_was_clicked(report: Reports) -> None:
    page = report("deep")
    wait_for_picture(page, 30)
    page.mouse.move(800, 600)
    page.mouse.wheel(0, 300)
    page.wait_for_timeout(400)
    assert page.evaluate("document.querySelector('main').scrollTop") > 100
    page.evaluate("document.querySelector('main').scrollTop = 0")
    page.locator(".heatmap").focus()
    for _ in range(6):
        page.mouse.wheel(0, -240)
    first, last = shown_steps(page)
    assert 0 < first < last < 1500
    wait_for_picture(page, 30)
    page.reload()
    wait_for_picture(page, 30)
    assert shown_steps(page) == (first, last)


def test_quantities_are_chosen_and_rows_become_lines(report: Reports) -> None:
    page = report("deep")
    before = set(wait_for_picture(page, 30))
    page.get_by_label("quantity").select_option("gradient_cosine")
    page.wait_for_timeout(300)
    assert set(wait_for_picture(page, 30)) != before
    page.get_by_label("Filter layers").fill("blocks.7.mlp.up.weight")
    page.get_by_text("1 of 120 layers").wait_for()
    box = page.locator(".heatmap").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 700, box["y"] + 100)
    chart = page.locator(".pins .chart")
    chart.wait_for()
    assert re.search(r"blocks\.7\.mlp\.up\.weight\s+gradient cosine", chart.inner_text())


def test_links_lead_to_places_in_the_file(report: Reports) -> None:
    page = report("late")
    page.locator("#findings .finding").first.wait_for()
    page.locator("nav").get_by_text("Weights").click()
    page.wait_for_timeout(200)
    assert page.evaluate("document.querySelector('main').scrollTop") > 300
    page.locator("#findings").get_by_text("Show these steps in the heatmap").first.click()
    page.wait_for_timeout(200)
    assert page.evaluate("document.querySelector('main').scrollTop") == 0
    assert shown_steps(page)[0] > 0


def test_names_cannot_do_anything(report: Reports) -> None:
    page = report("hostile")
    wait_until(page, lambda colours: MIDDLE in colours)
    page.locator("#weights td").first.wait_for()
    assert page.evaluate("window.hacked") is None
    assert page.locator("#bar .run").inner_text().startswith(SCRIPT)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440


def test_nothing_else_may_run_in_the_page(report: Reports) -> None:
    page = report("empty")
    page.get_by_role("heading", name="no verdict", exact=True).wait_for()
    refused = page.evaluate("""() => new Promise((resolve) => {
      addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective));
      const script = document.createElement("script");
      script.textContent = "window.hacked = 1";
      document.body.append(script);
    })""")
    assert refused == "script-src-elem"
    assert page.evaluate("window.hacked") is None
    report.complaints.clear()  # the browser notes it


def test_without_scripts_the_verdict_is_there_in_words(browser: Browser, reports: Path) -> None:
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto((reports / "sick.html").as_uri())
    text = page.locator("main").inner_text()
    context.close()
    assert "critical" in text
    assert "NUM001" in text


def test_it_prints_in_light_without_controls(report: Reports, tmp_path: Path) -> None:
    page = report("sick")
    page.locator("#weights td").first.wait_for()
    wait_for_picture(page, 2)
    page.evaluate("document.documentElement.dataset.theme = 'dark'; dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".toolbar").is_visible()
    assert page.locator("#weights tbody tr:first-child td:first-child").inner_text() == "first.weight"
    box = page.locator(".heatmap").bounding_box()
    assert box is not None
    assert 600 < box["width"] <= 700
    assert abs(page.evaluate("document.querySelector('.heatmap').width") - box["width"]) < 5  # drawn anew, not squeezed
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator(".toolbar").is_visible()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.pdf().startswith(b"%PDF")
