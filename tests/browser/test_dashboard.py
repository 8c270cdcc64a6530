"""The dashboard in a real browser: what is seen, what a hand can do, and that nothing complains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser.conftest import Window
from tests.browser.runs import SCRIPT, Deep

from undertow.views.palette import Cell, palette_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Colours of the picture, to the right of the names, as sets of "red,green,blue".
COLOURS = """() => {
  const canvas = document.querySelector(".heatmap"), ratio = devicePixelRatio, pen = canvas?.getContext("2d");
  if (!canvas?.width || canvas.width < 300) return {};
  const { data } = pen.getImageData(240 * ratio, 0, canvas.width - 256 * ratio, canvas.height - 24 * ratio);
  const found = new Map();
  for (let i = 0; i < data.length; i += 4) {
    const key = `${data[i]},${data[i + 1]},${data[i + 2]}`;
    found.set(key, (found.get(key) ?? 0) + 1);
  }
  return Object.fromEntries(found);
}"""
NONFINITE = ",".join(map(str, palette_of().marks[Cell.NONFINITE].colour))
NOT_SAMPLED = ",".join(map(str, palette_of().marks[Cell.NOT_SAMPLED].colour))
MIDDLE = "33,144,141"  # of the scale: where all numbers of a run are equal


def wait_until(page: Page, holds: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    """Ask again and again: the page itself may not evaluate text, which is as it should be."""
    for _ in range(300):
        colours: dict[str, int] = page.evaluate(COLOURS)
        if holds(colours):
            return colours
        page.wait_for_timeout(100)
    raise AssertionError(f"the picture never came; it has {len(colours)} colours")


def wait_for_picture(page: Page, least: int = 3) -> dict[str, int]:
    """Broad colours only: the words "loading …" are of many shades, each of a few points."""
    wait_until(page, lambda colours: sum(points > 100 for points in colours.values()) >= least)
    page.wait_for_timeout(600)  # for finer tiles
    return page.evaluate(COLOURS)


def shown_steps(page: Page) -> tuple[float, float]:
    page.wait_for_timeout(400)  # the address follows a hand a little later
    query = dict(part.split("=") for part in page.evaluate("location.hash").partition("?")[2].split("&"))
    return float(query.get("from", "nan")), float(query.get("to", "nan"))


def test_the_list_leads_to_a_run(window: Window) -> None:
    page = window.open()
    page.get_by_role("link", name="sick one").click()
    page.get_by_role("heading", name="critical").wait_for()
    assert "token" not in page.url


def test_the_first_screen_answers_everything(window: Window) -> None:
    page = window.open("#/run?run=sick")
    verdict = page.locator(".verdict")
    verdict.wait_for()
    for word in ("critical", "NUM001", "What", "Where", "When", "Why", "Next"):
        assert word in verdict.inner_text()
    colours = wait_for_picture(page, 2)
    assert colours.get(NONFINITE, 0) > 500
    assert colours.get("255,255,255", 0) > 50  # the hatching on it
    for part in (".verdict", ".chart", ".heatmap", ".legend"):
        box = page.locator(part).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900, part


def test_nothing_is_cut_off_or_covered_on_the_first_screen(window: Window) -> None:
    page = window.open("#/run?run=sick")
    code = page.locator(".verdict .code pre")
    code.wait_for()
    assert code.evaluate("box => box.scrollWidth - box.clientWidth") == 0
    tools = page.locator(".chart .tools").first.bounding_box()
    chart = page.locator(".chart").first.bounding_box()
    assert tools is not None
    assert chart is not None
    assert tools["y"] + tools["height"] <= chart["y"] + 32  # where the curve and its bands begin


def test_the_wheel_zooms_and_the_address_remembers(window: Window) -> None:
    page = window.open("#/run?run=deep")
    wait_for_picture(page, 30)
    page.mouse.move(800, 600)
    for _ in range(6):
        page.mouse.wheel(0, -240)
    first, last = shown_steps(page)
    assert 0 < first < last < 1500
    assert last - first < 400
    page.reload()
    wait_for_picture(page, 30)
    assert shown_steps(page) == (first, last)
    page.locator(".heatmap").focus()
    page.keyboard.press("ArrowRight")
    assert shown_steps(page)[0] > first
    page.keyboard.press("0")
    page.wait_for_timeout(400)
    assert "from=" not in page.url


def test_dragging_moves_the_steps(window: Window) -> None:
    page = window.open("#/run?run=deep&from=500&to=700")
    wait_for_picture(page, 30)
    page.mouse.move(800, 600)
    page.mouse.down()
    page.mouse.move(500, 600, steps=8)
    page.mouse.up()
    first, last = shown_steps(page)
    assert first > 520
    assert abs((last - first) - 200) < 1


def test_the_cursor_is_read_out(window: Window) -> None:
    page = window.open("#/run?run=sick")
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


def test_layers_are_filtered_grouped_and_pinned(window: Window) -> None:
    page = window.open("#/run?run=deep")
    wait_for_picture(page, 30)
    page.get_by_label("Filter layers").fill("blocks.1?.attn.*")
    page.get_by_text("40 of 120 layers").wait_for()
    page.get_by_role("button", name="Close all").click()
    page.get_by_role("button", name="Open all").wait_for()
    page.get_by_label("Filter layers").fill("blocks.7.mlp.up.weight")
    page.get_by_text("1 of 120 layers").wait_for()
    box = page.locator(".heatmap").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 700, box["y"] + 100)
    page.locator(".pins .chart").wait_for()
    assert "blocks.7.mlp.up.weight" in page.locator(".pins .chart").inner_text()
    page.get_by_role("button", name="Unpin").click()
    assert page.locator(".pins .chart").count() == 0


def test_another_quantity_and_palette_change_the_colours(window: Window) -> None:
    page = window.open("#/run?run=deep")
    before = set(wait_for_picture(page, 30))
    page.get_by_label("quantity").select_option("gradient_cosine")
    page.wait_for_timeout(300)
    cosines = set(wait_for_picture(page, 30))
    assert cosines != before
    page.get_by_label("quantity").select_option("gradient_norm")
    page.get_by_label("palette").select_option("Monochrome")
    page.wait_for_timeout(300)
    grey = [colour.split(",") for colour in wait_for_picture(page, 30)]
    assert sum(red == green == blue for red, green, blue in grey) > 0.9 * len(grey)


def test_a_run_is_followed_while_it_is_written(window: Window, folder: Path) -> None:
    run = Deep(folder / "live", 4)
    run.write(300)
    page = window.open("#/run?run=live")
    wait_for_picture(page, 30)
    assert "live" in page.locator("#bar .live").inner_text()
    page.get_by_role("button", name="Pause").wait_for()
    run.write(500)
    page.get_by_text("step 799").first.wait_for()
    wait_until(page, lambda colours: len(colours) > 30 and NOT_SAMPLED not in colours)  # the new steps are drawn
    run.finish()
    page.get_by_text("finished").wait_for()


def test_names_cannot_do_anything(window: Window) -> None:
    page = window.open("#/run?run=hostile")
    wait_until(page, lambda colours: MIDDLE in colours)
    assert page.evaluate("window.hacked") is None
    assert page.locator("#bar .run").inner_text().startswith(SCRIPT)
    for other in ("findings", "flow", "weights"):
        page.goto(f"{window.base}#/{other}?run=hostile")
        page.locator("main h1").wait_for()
        assert page.evaluate("window.hacked") is None
    page.goto(f"{window.base}#/runs")
    page.get_by_text("window.hacked").first.wait_for()
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440


def test_findings_flow_weights_and_compare(window: Window) -> None:
    page = window.open("#/findings?run=sick")
    page.get_by_role("heading", name="NUM001").wait_for()
    page.get_by_text("What NUM001 means in general").click()
    page.get_by_role("heading", name="Why it is bad").wait_for()
    page.locator(".finding .chart").first.wait_for()
    page.get_by_role("link", name="Flow").click()
    page.get_by_text("gain from loss to input").wait_for()
    page.get_by_role("button", name="Play").click()
    page.get_by_role("link", name="Weights").click()
    page.get_by_role("cell", name="first.weight").wait_for()
    page.get_by_role("link", name="Undertow").click()
    for name in ("Compare sick one", "Compare deep"):
        page.get_by_label(name).check()
    page.get_by_role("link", name="Compare 2 runs").click()
    page.locator(".compare .chart").wait_for()


def test_dark_is_dark(window: Window) -> None:
    page = window.open("#/run?run=sick")
    page.locator(".verdict").wait_for()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light != dark


def test_a_run_without_steps_has_a_page(window: Window) -> None:
    page = window.open("#/run?run=empty")
    page.get_by_role("heading", name="no verdict").wait_for()


def test_a_missing_run_says_so(window: Window) -> None:
    window.expected = "status of 404"
    page = window.open("#/run?run=nothing")
    page.get_by_text("there is no such run here").wait_for()
