"""What a person sees of a run that is damaged, gone, or very wide."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.browser.conftest import Window
from tests.browser.runs import sick_run
from tests.browser.test_dashboard import wait_for_picture
from tests.cli.conftest import write
from tests.detect.building import Training

from undertow.schema import STREAMS, Block, Frame, Layer, LayerGraph, LayerTable, RunFacts
from undertow.store.writer import RunWriter


@pytest.fixture
def damaged(folder: Path) -> Iterator[Path]:
    run = write(folder / "damaged", Training().run(6))
    (run / "run.json").write_text('{"format": 1, "name', encoding="utf-8")
    yield run
    shutil.rmtree(run)


def test_a_damaged_run_is_listed_with_the_reason_and_the_others_open(window: Window, damaged: Path) -> None:
    page = window.open("#/runs")
    row = page.locator("table.runs tr", has_text="run.json is damaged")
    row.wait_for()
    assert row.locator("a").count() == 0
    page.get_by_role("link", name="sick one").click()
    page.get_by_role("heading", name="critical").wait_for()
    window.expected = "status of 422"
    page.goto(f"{window.base}#/run?run=damaged")
    page.get_by_role("heading", name="This cannot be shown").wait_for()
    page.get_by_text("run.json is damaged").wait_for()
    page.get_by_role("link", name="All runs").click()
    page.locator("table.runs a").first.wait_for()


def test_a_run_that_is_deleted_is_said_where_it_is_looked_at(window: Window, folder: Path) -> None:
    sick_run(folder / "doomed")
    page = window.open("#/run?run=doomed")
    page.get_by_role("heading", name="critical").wait_for()
    window.expected = "Failed to load resource"
    shutil.rmtree(folder / "doomed")
    page.locator("#bar .live").get_by_text("this run is no longer there").wait_for()  # without anything being pressed
    page.get_by_role("link", name="Findings").click()
    page.get_by_role("heading", name="This cannot be shown").wait_for()
    page.goto(f"{window.base}#/runs")
    page.get_by_role("link", name="spread").wait_for()
    page.wait_for_timeout(2500)  # the list is searched anew every other second
    page.reload()
    page.get_by_role("link", name="spread").wait_for()
    assert page.get_by_text("doomed").count() == 0


def test_five_thousand_layers_with_long_names(window: Window, folder: Path) -> None:
    stream, count = STREAMS["gradient"], 5000
    writer = RunWriter(folder / "wide", RunFacts(name="wide"))
    names = [f"{'very' * 48}.{number}.weight" for number in range(count)]
    writer.set_layers(LayerTable.of(Layer(name, order=i) for i, name in enumerate(names)), LayerGraph())
    random = np.random.default_rng(0)
    for step in range(4):
        values = np.zeros((len(stream.names), count), np.float32)
        values[stream.names.index("gradient_norm")] = 10 ** random.uniform(-4, 1, count)
        assert writer.append(Frame(step, step, 0.0, {}, {"gradient": Block("gradient", np.arange(count), values)}))
    writer.close()
    page = window.open("#/run?run=wide")
    wait_for_picture(page, 30)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440
    page.get_by_label("Filter layers").fill("*.4321.*")
    page.get_by_text("1 of 5,000 layers").wait_for()
    page.goto(f"{window.base}#/flow?run=wide")
    page.locator("h1").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440
    page.goto("about:blank")
    shutil.rmtree(folder / "wide")
