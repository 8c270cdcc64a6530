"""A run of which few steps were sampled: it is still read, and it is said what was measured when."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.browser.conftest import Window
from tests.browser.test_dashboard import MIDDLE, NOT_SAMPLED, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Locator


def test_what_was_not_sampled_has_a_tint_of_what_was_last_seen(window: Window) -> None:
    page = window.open("#/run?run=sparse")
    seen, grey = ([int(part) for part in colour.split(",")] for colour in (MIDDLE, NOT_SAMPLED))
    tint = ",".join(str(one // 2 + other // 2) for one, other in zip(seen, grey, strict=True))
    colours = wait_until(page, lambda colours: MIDDLE in colours)
    assert colours[tint] > 4 * colours[MIDDLE]
    assert NOT_SAMPLED not in colours
    assert "tint of what was last seen" in page.locator(".legend").inner_text()
    box = page.locator(".heatmap").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 240 + 0.3 * (box["width"] - 254), box["y"] + 20)
    tip = page.locator(".tip")
    tip.wait_for()
    assert "not sampled" in tip.inner_text()
    assert "last seen: 0.1 at step 9" in tip.inner_text()


def test_flow_shows_what_was_last_measured_and_the_address_holds_the_step(window: Window) -> None:
    page = window.open("#/flow?run=sparse")
    said = page.locator(".scrub output")
    said.get_by_text("step 99, as measured at step 50").wait_for()
    norms = page.locator(".flow-row:not(.head) > :nth-child(5)")
    assert norms.all_inner_texts() == ["0.1", "0.1", "0.1"]
    page.get_by_label("Step").fill("39")
    said.get_by_text("step 39, as measured at step 9").wait_for()
    page.wait_for_timeout(400)  # the address follows a little later
    page.reload()
    said.get_by_text("step 39, as measured at step 9").wait_for()
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Pause").wait_for()
    said.get_by_text("step 99, as measured at step 50").wait_for()  # it plays to the end
    page.get_by_role("button", name="Play").wait_for()


def test_time_stands_along_the_steps(window: Window) -> None:
    """Three seconds a step."""
    page = window.open("#/run?run=sparse")
    chart = page.locator(".chart").first
    page.get_by_label("Axis").select_option("time since start")
    page.wait_for_timeout(400)  # the address follows a little later
    page.reload()
    step, minutes, seconds = map(int, re.findall(r"\d+", _read_at(chart, 0.6, re.compile("step")))[:3])
    assert 30 < step < 70
    assert 60 * minutes + seconds == 3 * step
    page.get_by_label("Axis").select_option("time of day")
    assert _read_at(chart, 0.5, re.compile(r"step \d+, \d\d:\d\d:\d\d: 1")).startswith("step")


def _read_at(chart: Locator, share: float, wanted: re.Pattern[str]) -> str:
    """What a chart says under the mouse. It may still be drawn anew, or be moved by what is loaded above it."""
    readout = chart.locator(".readout").get_by_text(wanted)
    for _ in range(60):
        box = chart.bounding_box()
        assert box is not None
        chart.hover(position={"x": share * box["width"], "y": 80})
        if readout.is_visible():
            break
        chart.page.wait_for_timeout(200)
    return chart.locator(".readout").inner_text() if readout.is_visible() else f"no {wanted.pattern}"
