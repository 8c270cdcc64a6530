"""A dashboard that is started anew while a page of it is open: the page says so, and goes on when it may."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.browser.runs import Deep
from tests.show.web.test_server import Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route


@pytest.mark.parametrize("is_loading", [False, True], ids=["shown", "still loading"])
def test_a_page_goes_on_after_a_restart(browser: Browser, tmp_path: Path, is_loading: bool) -> None:
    run = Deep(tmp_path / "runs" / "live", 2)
    run.write(40)
    first = Served(str(tmp_path / "runs"))
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    if is_loading:
        page.route("**/api/scale?*", hold, times=1)
    page.goto(f"{first.address}#/run?run=live")
    badge = page.locator("#bar .live")
    badge.get_by_text("step 39").wait_for()
    if not is_loading:
        page.locator("#main .run-page").wait_for()
    first.process.kill()
    first.process.communicate()
    for route in held:
        route.continue_()
    badge.get_by_text("no connection").wait_for()
    second = Served(str(tmp_path / "runs"), "--port", str(first.port))
    badge.get_by_text("open the address that it printed").wait_for()  # it has another token
    run.write(20)
    context.new_page().goto(second.address)
    page.bring_to_front()
    badge.get_by_text("step 59").wait_for()
    assert "started anew" not in badge.inner_text()
    run.finish()
    badge.get_by_text("finished").wait_for()
    context.close()
    second.stop()


def test_a_run_that_has_not_begun_is_waited_for(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    served = Served(str(tmp_path / "runs"))
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{served.address}#/run?run=late")
    page.get_by_role("heading", name="This cannot be shown").wait_for()
    run = Deep(tmp_path / "runs" / "late", 2)
    run.write(5)
    page.locator("#bar .live").get_by_text("step 4").wait_for()
    run.finish()
    context.close()
    served.stop()
    shutil.rmtree(tmp_path / "runs")
