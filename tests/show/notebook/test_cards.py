"""What a cell shows, without a kernel: pictures, names, and runs that cannot be read."""

from __future__ import annotations

import base64
import io
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.browser.runs import SCRIPT
from tests.cli.conftest import write
from tests.detect.building import Training

import undertow
from undertow.run import open_run
from undertow.schema import RunStatus
from undertow.show.notebook.small_heatmap import data_address
from undertow.views.palette import Cell, palette_of

OTHER_TAGS = re.compile(r"<(?!/?(?:div|p|span|b|bdi|details|summary|ul|li|pre|img|svg|polyline)\b)")


def pictures(html: str) -> list[np.ndarray]:
    found = re.findall(r"data:image/png;base64,([\w+/=]+)", html)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for text in found]


def shown(folder: Path) -> str:
    html = open_run(folder)._repr_html_()
    assert html is not None
    return html


def test_a_picture_comes_back_as_it_went() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 11, 3), np.uint8)
    (image,) = pictures(data_address(pixels))
    assert (image == pixels).all()


def test_the_heatmap_has_a_row_for_each_layer_and_marks_what_is_not_finite(tmp_path: Path) -> None:
    hit = {"second": 5.0}
    training = Training().run(30).run(10, gradient_nonfinite_count=hit, gradient_norm={"second": float("nan")})
    heatmap, _ = pictures(shown(write(tmp_path / "run", training)))
    assert heatmap.shape == (8, 40, 3)
    bad = (heatmap == palette_of().marks[Cell.NONFINITE].colour).all(axis=2)
    assert bad[2:4, 30:].all()  # weight and bias of the second layer, from step 30 on
    assert bad.sum() == 20


def test_a_card_is_small_and_says_what_to_do(tmp_path: Path) -> None:
    html = shown(write(tmp_path / "run", Training().run(30).run(10, gradient_nonfinite_count={"first": 3.0})))
    assert len(html) < 40_000
    for words in ("critical", "NUM001", "since step 30", "Risk:", "loss", "gradient norm"):
        assert words in html


def test_names_are_text(tmp_path: Path) -> None:
    html = shown(write(tmp_path / "run", Training(SCRIPT, "n" * 10_000).run(5), name=SCRIPT))
    assert not OTHER_TAGS.findall(html)
    assert "onerror" not in re.sub(r"&lt;.*?&gt;", "", html)
    assert len(html) < 40_000


def test_runs_without_steps_and_runs_that_go_on_have_a_card(tmp_path: Path) -> None:
    assert "no verdict" in shown(write(tmp_path / "empty", Training()))
    live = write(tmp_path / "live", Training().run(5), RunStatus.RUNNING)
    assert f"· {open_run(live).status}" in shown(live)


def test_a_run_that_has_gone_says_so(tmp_path: Path) -> None:
    run = open_run(write(tmp_path / "run", Training().run(5)))
    shutil.rmtree(tmp_path / "run")
    assert "there is no run.json" in (run._repr_html_() or "")


def test_outside_of_a_kernel_there_is_no_widget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert open_run(write(tmp_path / "run", Training().run(5)))._repr_mimebundle_() == {}


def test_a_watched_training_shows_itself_without_a_kernel(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = undertow.watch(model, optimizer, run_dir=tmp_path / "run", every=1, quiet=True)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    watch.close()
    shown = watch._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert shown is not None
    assert "steps 0" in shown
