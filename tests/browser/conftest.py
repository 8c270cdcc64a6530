"""A real Chromium, where there is one, and a dashboard to look at with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.browser.runs import deep_run, histogram_run, hostile_run, sick_run, sparse_run, spread_run
from tests.cli.conftest import write
from tests.detect.building import Training
from tests.show.web.test_server import Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--no-first-run", "--disable-gpu"]  # fmt: skip


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("browser") / "runs"
    sick_run(root / "sick")
    deep_run(root / "deep")
    hostile_run(root / "hostile")
    spread_run(root / "spread")
    histogram_run(root / "histograms")
    sparse_run(root / "sparse")
    write(root / "empty", Training())
    return root


@pytest.fixture(scope="session")
def served(folder: Path) -> Iterator[Served]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    server = Served(str(folder))
    yield server
    server.stop()


class Window:
    """A page of the dashboard that remembers everything its console complained about."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.base, _, self.token = address.partition("?")
        self.complaints: list[str] = []
        self.expected: str | None = None  # part of complaints that belong to the test; they may come late
        page.on("console", self._read)
        page.on("pageerror", lambda error: self._note(str(error)))

    def _read(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._note(f"{message.text} {message.location['url']}")

    def _note(self, complaint: str) -> None:
        if self.expected is None or self.expected not in complaint:
            self.complaints.append(complaint)

    def open(self, place: str = "") -> Page:
        self.page.goto(f"{self.base}?{self.token}{place}")
        return self.page


@pytest.fixture
def window(browser: Browser, served: Served) -> Iterator[Window]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    opened = Window(context.new_page(), served.address)
    opened.page.set_default_timeout(30_000)
    yield opened
    context.close()
    assert opened.complaints == []
