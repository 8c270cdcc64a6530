"""The live view of a notebook in a real browser: a frame that is sent a run while it is written."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.browser.runs import SCRIPT, Deep
from tests.cli.conftest import write
from tests.detect.building import Training

from undertow.run import Run
from undertow.show.page.page import page as page_of
from undertow.show.page.snapshot import snapshot
from undertow.views.verdict import judge

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Frame, Page

# What anywidget does: a model, and a place for the view.
HOST = """<!doctype html><meta charset="utf-8"><body><div id="cell"></div><script type="module">
%s
const state = {}, heard = new Set();
window.set = (name, value) => { state[name] = value; for (const act of heard) act(); };
window.bytes = (text) => new DataView(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
const model = { get: (name) => state[name], on: (_, act) => heard.add(act), off: (_, act) => heard.delete(act) };
window.begin = () => { window.end = view.render({ model, el: document.getElementById("cell") }); };
</script>"""

COLOURS = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(360, 0, 400, 100);
  return new Set(new Uint32Array(data.buffer)).size;
}"""


class Cell:
    def __init__(self, page: Page) -> None:
        self.page = page

    def tell(self, run: Run) -> None:
        run.refresh()
        news = base64.b64encode(snapshot(run, judge(run))).decode()
        self.page.evaluate("(text) => set('news', bytes(text))", news)

    @property
    def frame(self) -> Frame:
        return self.page.frames[1]


@pytest.fixture
def cell(browser: Browser) -> Iterator[Cell]:
    context = browser.new_context(viewport={"width": 1100, "height": 800}, offline=True)
    page = context.new_page()
    page.set_default_timeout(30_000)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    source = files("undertow.show.notebook").joinpath("widget.js").read_text(encoding="utf-8")
    page.set_content(HOST % source.replace("export default", "const view ="))
    page.evaluate("(text) => set('page', text)", page_of(None))
    yield Cell(page)
    context.close()
    assert complaints == []


def test_a_run_grows_in_its_frame(cell: Cell, tmp_path: Path) -> None:
    writer = Deep(tmp_path / "live", 4)
    run = Run(tmp_path / "live")
    cell.tell(run)
    cell.page.evaluate("begin()")
    cell.page.wait_for_selector("iframe")
    cell.frame.get_by_role("heading", name="no verdict", exact=True).wait_for()
    for written in (300, 700):  # from one level of zoom to the next
        writer.write(written)
        cell.tell(run)
        cell.frame.get_by_text(f"step {writer.step - 1:,}").first.wait_for()
    picture = cell.frame.locator(".heatmap")
    picture.wait_for()
    cell.page.wait_for_timeout(600)
    assert picture.evaluate(COLOURS) > 30
    writer.finish()
    cell.tell(run)
    cell.frame.get_by_text("finished").wait_for()
    before = cell.page.url
    cell.frame.get_by_role("link", name="Findings").click()
    assert cell.page.url == before
    cell.page.evaluate("end()")


def test_the_frame_is_closed_off(cell: Cell, tmp_path: Path) -> None:
    cell.tell(Run(write(tmp_path / "run", Training(SCRIPT).run(5), name=SCRIPT)))
    cell.page.evaluate("begin()")
    cell.page.wait_for_selector("iframe")
    cell.frame.locator(".verdict").wait_for()
    assert cell.frame.evaluate("origin") == "null"  # it cannot reach the notebook, its cookies or its token
    assert cell.frame.evaluate("window.hacked") is None
    assert cell.page.evaluate("window.hacked") is None
