"""The distribution of a layer, the views that most questions begin with, and the history of a weight."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from PIL import Image
from tests.browser.conftest import Window
from tests.browser.test_dashboard import wait_for_picture

import undertow

if TYPE_CHECKING:
    from playwright.sync_api import Locator


def test_views_choose_a_quantity(window: Window) -> None:
    page = window.open("#/run?run=deep")
    before = set(wait_for_picture(page, 30))
    page.get_by_role("button", name="Cosines").click()
    page.wait_for_timeout(300)
    assert set(wait_for_picture(page, 30)) != before
    assert page.get_by_role("button", name="Cosines").get_attribute("aria-pressed") == "true"
    assert page.get_by_label("quantity").input_value() == "gradient_cosine"
    assert page.locator(".toolbar").bounding_box()["height"] < 40  # type: ignore[index]


def test_a_layer_is_shown_as_a_distribution_and_the_address_remembers(window: Window) -> None:
    page = window.open("#/run?run=spread&pins=0")
    page.get_by_role("button", name="Distribution").click()
    chart = page.locator(".pins .chart")
    assert "5 %, median, 95 %, largest" in chart.inner_text()
    page.wait_for_timeout(500)  # the address follows a little later
    page.reload()
    chart.wait_for()
    assert "5 %, median, 95 %, largest" in chart.inner_text()
    page.wait_for_timeout(500)
    chart.get_by_role("button", name="Table").click()
    cells = page.locator("dialog tbody tr:nth-child(1) td").all_inner_texts()
    assert cells == ["5 %", "0", "0.01", "0.01", "0.01"]
    curves = page.locator("dialog tbody tr", has_not_text="share from")
    assert curves.count() == 4 * 20


def test_what_is_guessed_between_quantiles_is_called_so(window: Window) -> None:
    page = window.open("#/run?run=spread&pins=0&spread=0")
    page.get_by_text("interpolated between the quantiles").wait_for()
    window.page.goto(f"{window.base}#/run?run=histograms&pins=0&spread=0")
    page.get_by_text("counted at 3 histogram frames").wait_for()
    page.locator(".pins .chart").get_by_role("button", name="Table").click()
    shares = page.locator("dialog tbody tr", has_text="share from 2^-3 to 2^-2")
    assert shares.locator("td:nth-child(4)").all_inner_texts() == ["0.75", "0.75", "0.75"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_history_of_a_weight(window: Window, scheme: str) -> None:
    window.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page = window.open("#/weights?run=spread")
    page.get_by_role("button", name="second.weight").click()
    charts = page.locator(".history .chart")
    charts.first.wait_for()
    titles = charts.locator(".caption strong").all_inner_texts()
    assert titles[:2] == ["norm", "drift from the start, relative to the initial norm"]
    page.get_by_role("button", name="second.weight").click()
    assert charts.count() == 0


def test_how_to_get_spectra_is_said_where_there_are_none(window: Window) -> None:
    page = window.open("#/weights?run=spread")
    page.get_by_text("undertow weights CHECKPOINT --json").wait_for()


def test_spectra_of_a_checkpoint_stand_beside_the_run(window: Window, folder: Path) -> None:
    report = undertow.weights({"second.weight": np.diag([4.0, 2.0, 1.0]).astype(np.float32)})
    (folder / "histograms" / "weights.json").write_bytes(msgspec.json.encode(report))
    (folder / "histograms" / "weights-torn.json").write_text('{"undertow": "0.1', encoding="utf-8")
    page = window.open("#/weights?run=histograms")
    row = page.locator(".spectra tbody tr")
    row.wait_for()
    assert row.locator("td").all_inner_texts()[:4] == ["second.weight", "3 × 3", "4", "1.31"]
    assert "cannot be shown" in page.locator(".spectra .problem").inner_text()


def test_every_picture_can_be_taken_away_with_a_line_that_says_what_it_is(window: Window, tmp_path: Path) -> None:
    def taken(press: Locator) -> Path:
        with page.expect_download() as download:
            press.click()
        download.value.save_as(file := tmp_path / download.value.suggested_filename)
        return file

    page = window.open("#/run?run=deep")
    wait_for_picture(page, 30)
    for place in (page.locator(".toolbar"), page.locator(".chart").first):
        drawn = place.evaluate("node => (node.querySelector('canvas') ?? document.querySelector('.heatmap')).height")
        with Image.open(taken(place.get_by_role("button", name="PNG"))) as image:
            assert image.height == drawn + 34
            head = np.asarray(image.convert("L"))[:34]
        assert (head < 150).sum() > 60  # there are letters in it
    page.goto(f"{window.base}#/flow?run=sparse")
    page.locator(".scrub output").get_by_text("step 99").wait_for()
    with Image.open(taken(page.get_by_role("button", name="PNG"))) as image:
        assert image.height == 34 + 3 * 20 + 10
    lines = taken(page.get_by_role("button", name="CSV")).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "kind,module,feeds,gradient norm,gain,share"
    assert [line.split(",")[1] for line in lines[1:4]] == ["first", "second", "third"]
    assert [line.split(",")[1:3] for line in lines[4:]] == [["first", "second"], ["second", "third"]]
    page.get_by_role("button", name="Table").click()
    assert page.locator("dialog table").count() == 2


def test_the_choices_of_the_weights_and_of_a_comparison_are_in_the_address(window: Window) -> None:
    page = window.open("#/weights?run=spread")
    page.get_by_role("button", name="norm", exact=True).click()
    page.get_by_label("Filter Tensors").fill("weight")
    page.get_by_role("button", name="second.weight").click()
    page.wait_for_timeout(400)  # the address follows a little later
    page.reload()
    page.locator(".history .chart").first.wait_for()
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("norm")
    assert page.locator(".page table.data").first.locator("tbody tr").count() == 4
    page.goto(f"{window.base}#/compare?runs=deep,sick")
    page.locator("label", has_text="log").locator("input").check()
    page.wait_for_timeout(400)
    page.reload()
    assert page.locator("label", has_text="log").locator("input").is_checked()
    page.goto(f"{window.base}#/runs")
    page.locator("tr", has_text="sick one").locator("input").check()
    page.wait_for_timeout(400)
    page.reload()
    assert page.locator("tr", has_text="sick one").locator("input").is_checked()
