"""The components show themselves, with the drawing code of runs."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from undertow import EnhancedGradientAnalyzer, GradientFlowAnimator, GradientFlowVisualizer
from undertow.errors import SettingError, UnreadableRunError
from undertow.show.notebook.formatters import _drawn_by  # pyright: ignore[reportPrivateUsage]

CHANCE = np.random.default_rng(0)


@pytest.fixture
def animator() -> GradientFlowAnimator:
    animator = GradientFlowAnimator()
    for step in range(0, 60, 10):
        gradients = {"embed.weight": CHANCE.normal(size=8), "mlp.weight": 1e-3 * CHANCE.normal(size=8), "unused": None}
        gradients["head.weight"] = np.array([math.nan if step > 40 else 1e300])
        animator.record_step(step, gradients)
    return animator


def test_animations_and_stills(animator: GradientFlowAnimator, tmp_path: Path) -> None:
    animator.export_gif(tmp_path / "new folder" / "frames.gif", size=(640, None), palette="colour-blind")
    with Image.open(tmp_path / "new folder" / "frames.gif") as picture:
        assert picture.n_frames >= 6
        assert picture.width == 640
    with pytest.raises(SettingError, match=r"no option 'colour'.*palette"):
        animator.export_gif(tmp_path / "frames.gif", colour="red")
    animator.export_png(tmp_path / "frames.png", size=(640, None), theme="dark", quantity="gradient_max_abs")
    with Image.open(tmp_path / "frames.png") as picture:
        assert picture.width == 640


def test_a_file_for_a_browser(animator: GradientFlowAnimator, tmp_path: Path) -> None:
    animator.export_html(tmp_path / "frames.html")
    page = (tmp_path / "frames.html").read_text("utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert len(page) > 50_000  # the page with its data and its script


def test_played_where_there_is_no_terminal(animator: GradientFlowAnimator, capsys: pytest.CaptureFixture[str]) -> None:
    animator.play()
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("embed", "mlp", "head"))
    animator.play(once=True, quantity="gradient_max_abs")
    assert "max" in capsys.readouterr().out


def test_nothing_to_show() -> None:
    with pytest.raises(UnreadableRunError, match="nothing was recorded"):
        GradientFlowAnimator().play()


def test_the_flow_is_drawn_in_the_colours_of_its_configuration(tmp_path: Path) -> None:
    norms = {name: np.exp(CHANCE.normal(0, 0.3, 30)) for name in ("embed", "block.mlp", "block.attn", "head")}
    graph = [("embed", "block.mlp"), ("block.mlp", "block.attn"), ("block.attn", "head"), ("embed", "head")]
    pictures = {}
    for scheme in ("Default", "Monochrome"):
        flow = GradientFlowVisualizer({"color_scheme": scheme}).generate_visualization(norms, graph=graph)
        flow.draw(tmp_path / f"{scheme}.png")
        with Image.open(tmp_path / f"{scheme}.png") as picture:
            pictures[scheme] = np.asarray(picture.convert("RGB")).astype(int)
    grey = np.ptp(pictures["Monochrome"], axis=2).max()
    assert grey < 30 < np.ptp(pictures["Default"], axis=2).max()
    flow.draw(tmp_path / "flow.html")
    page = (tmp_path / "flow.html").read_text("utf-8")
    assert "<svg" in page
    assert "GradientFlowVisualization" in page
    flow.draw(tmp_path / "flow.svg")
    drawing = ElementTree.fromstring((tmp_path / "flow.svg").read_text("utf-8"))
    words = {element.text for element in drawing.iter() if element.tag.endswith("text")}
    assert {"embed", "block.mlp", "block.attn", "head", "gradient flow"} <= words
    with pytest.raises(SettingError, match=r"flow.bmp.*\.png"):
        flow.draw(tmp_path / "flow.bmp")


def test_every_record_has_a_card() -> None:
    analysis = EnhancedGradientAnalyzer().analyze_gradients({"<b>": [1.0, 2.0]})
    card = _drawn_by("record_card")(analysis.network_level_analysis)
    assert "NetworkLevelAnalysis" in card
    assert "<b>: 1" not in card
