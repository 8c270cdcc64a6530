"""The animator: the ten seed tests, the golden bytes, and the states that are no numbers."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from undertow import GradientFlowAnimator
from undertow.components.frame_files import scientific
from undertow.schema import GradientHealth, GradientIssue, GradientPresence, InputError


def golden() -> GradientFlowAnimator:
    animator = GradientFlowAnimator()
    for k, step in ((1, 0), (2, 10), (3, 20)):
        animator.record_step(step, {"embed": [0.1 * k] * 4, "head": [0.5] * 4})
    return animator


# -- the ten tests of the seed -----------------------------------------------------------------------------


def test_one_frame_with_two_layers() -> None:
    animator = GradientFlowAnimator(max_frames=0)
    animator.record_step(0, {"b": [0.1, 0.2], "a": [0.3]})
    (frame,) = animator.frames()
    assert [layer.name for layer in frame.layers] == ["a", "b"]


def test_window_of_three_after_ten_records() -> None:
    animator = GradientFlowAnimator(3)
    for step in range(10):
        animator.record_step(step, {"a": [0.1]})
    assert [frame.step for frame in animator.frames()] == [7, 8, 9]


def test_vanishing_threshold() -> None:
    animator = GradientFlowAnimator().with_vanishing_threshold(1e-6)
    animator.record_step(0, {"small": [1e-8, 1e-8], "fine": [0.01, 0.01]})
    assert {layer.name: layer.is_vanishing for layer in animator.frames()[0].layers} == {"small": True, "fine": False}


def test_exploding_threshold() -> None:
    animator = GradientFlowAnimator().with_exploding_threshold(100)
    animator.record_step(0, {"large": [500.0, 200.0], "fine": [0.1, 0.1]})
    assert {layer.name: layer.is_exploding for layer in animator.frames()[0].layers} == {"large": True, "fine": False}


def test_intensity_within_zero_and_one() -> None:
    animator = golden()
    assert all(0 <= layer.flow_intensity <= 1 for frame in animator.frames() for layer in frame.layers)


def test_json_round_trip(tmp_path: Path) -> None:
    animator = GradientFlowAnimator()
    animator.record_step(0, {"a": [0.25], "β": [1.0]})
    animator.record_step(5, {"a": [0.5]})
    animator.export_json(tmp_path / "new" / "frames.json")
    text = (tmp_path / "new" / "frames.json").read_text("utf-8")
    assert text.startswith('[\n  {\n    "step": 0,\n    "layers": [\n      {\n        "name": "a",\n')
    assert text.endswith("]")
    assert "β" in text
    frames = json.loads(text)
    assert [frame["step"] for frame in frames] == [0, 5]
    assert list(frames[0]["layers"][0]) == [
        "name", "mean_abs_grad", "max_abs_grad", "grad_norm", "is_vanishing", "is_exploding", "flow_intensity",
    ]  # fmt: skip
    assert frames[0]["layers"][0]["flow_intensity"] == 0.25


def test_csv_bytes(tmp_path: Path) -> None:
    animator = GradientFlowAnimator()
    animator.record_step(7, {"b": [-0.2], 'a,"x"': [0.0, 2000.0]})
    animator.export_csv(tmp_path / "new" / "frames.csv")
    assert (tmp_path / "new" / "frames.csv").read_bytes() == (
        b"step,layer,mean_abs_grad,max_abs_grad,grad_norm,is_vanishing,is_exploding\n"
        b'7,"a,""x""",1.00000000e3,2.00000000e3,2.00000000e3,0,1\n'
        b"7,b,2.00000000e-1,2.00000000e-1,2.00000000e-1,0,0\n"
    )
    rows = list(csv.reader((tmp_path / "new" / "frames.csv").read_text().splitlines()))
    assert rows[1][1] == 'a,"x"'


def test_empty_heatmap() -> None:
    assert GradientFlowAnimator().to_ascii_animation() == "(no gradient frames recorded)\n"


def test_heatmap_bytes() -> None:
    assert golden().to_ascii_animation() == (
        "Gradient Flow Animation (step → right, layer ↓)\nlayer  012\n──────────\nembed  ░▒▒\n head  ███\n"
    )


def test_steady_gradients_are_healthy() -> None:
    animator = GradientFlowAnimator()
    for step in range(5):
        animator.record_step(step, {"a": [0.1] * 3})
    report = animator.summary_report()
    assert report.overall_health is GradientHealth.HEALTHY
    assert report.layers_with_vanishing_grads == report.layers_with_exploding_grads == []


# -- details -------------------------------------------------------------------------------------------------


def test_golden_summary() -> None:
    report = golden().summary_report()
    assert (report.total_steps, report.overall_health) == (21, "Healthy")
    assert (report.frames_recorded, report.frames_retained, report.first_step, report.last_step) == (3, 3, 0, 20)
    assert len(report.recommendations) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00000000e0"), (0.2, "2.00000000e-1"), (123.456, "1.23456000e2"), (1e-7, "1.00000000e-7"),
        (-0.0, "-0.00000000e0"), (math.nan, "NaN"), (math.inf, "inf"), (1e100, "1.00000000e100"),
    ],
)  # fmt: skip
def test_scientific(value: float, text: str) -> None:
    assert scientific(value) == text


@pytest.mark.parametrize(
    ("intensity", "symbol"),
    [(0.12, " "), (0.125, "░"), (0.374, "░"), (0.375, "▒"), (0.624, "▒"), (0.625, "▓"), (0.874, "▓"), (0.875, "█")],
)
def test_blocks_round_half_away_from_zero(intensity: float, symbol: str) -> None:
    animator = GradientFlowAnimator()
    animator.record_step(0, {"alpha": [intensity], "omega": [1.0]})
    assert animator.to_ascii_animation().splitlines()[3] == f"alpha  {symbol}"


def test_heatmap_without_layers_and_with_short_or_wide_names() -> None:
    animator = GradientFlowAnimator()
    animator.record_step(0, {})
    assert animator.to_ascii_animation().splitlines()[1:] == ["   layer  0", "─" * 11]
    animator = GradientFlowAnimator()
    animator.record_step(0, {"a": [1.0], "層層層": [1.0]})
    assert animator.to_ascii_animation().splitlines()[1:] == [" layer  0", "─" * 9, "     a  █", "層層層  █"]


def test_health_levels() -> None:
    def health(*frames: dict[str, list[float]]) -> str:
        animator = GradientFlowAnimator()
        for step, frame in enumerate(frames):
            animator.record_step(step, frame)
        return animator.summary_report().overall_health

    fine, gone, large = {"a": [0.1]}, {"a": [0.0]}, {"a": [2e3]}
    assert health(large, large, fine) == "Critical"
    assert health(large, fine, fine) == "ProblemsDetected"
    assert health(gone, gone, fine) == "ProblemsDetected"
    assert health(gone, fine, fine, fine) == "MinorIssues"
    assert health() == "Healthy"


def test_nonfinite_is_never_healthy_nor_blank(tmp_path: Path) -> None:
    animator = GradientFlowAnimator()
    animator.record_step(3, {"bad": [math.nan, 1.0], "far": [math.inf], "fine": [0.5]})
    bad, far, fine = animator.frames()[0].layers
    assert (bad.presence, bad.nonfinite_count, bad.is_vanishing, bad.is_exploding) == ("non-finite", 1, False, False)
    assert bad.max_abs_grad == 1.0
    assert far.is_exploding
    assert fine.flow_intensity == 1.0
    rows = animator.to_ascii_animation().splitlines()[3:]
    assert [row[-1] for row in rows] == ["×", "×", "█"]
    report = animator.summary_report()
    assert report.overall_health is GradientHealth.CRITICAL
    assert report.layers_with_nonfinite_grads == ["bad", "far"]
    assert "NaN or infinite" in report.recommendations[0]
    animator.export_json(tmp_path / "frames.json")
    layers = json.loads((tmp_path / "frames.json").read_text())[0]["layers"]
    assert layers[0]["grad_norm"] is None
    assert layers[0]["nonfinite_count"] == 1
    animator.export_csv(tmp_path / "frames.csv")
    assert "3,bad,NaN,1.00000000e0,NaN,0,0" in (tmp_path / "frames.csv").read_text()


def test_empty_and_missing_gradients_are_their_own_states() -> None:
    animator = GradientFlowAnimator()
    animator.record_step(0, {"empty": [], "none": None, "zero": [0.0]})
    empty, none, zero = animator.frames()[0].layers
    assert (empty.presence, empty.is_vanishing, empty.grad_norm) == (GradientPresence.EMPTY, False, 0.0)
    assert (none.presence, none.is_vanishing) == (GradientPresence.MISSING, False)
    assert (zero.presence, zero.is_vanishing) == (GradientPresence.PRESENT, True)
    animator = GradientFlowAnimator()
    animator.record_step(0, {"empty": [], "fine": [0.1]})
    report = animator.summary_report()
    assert report.overall_health is GradientHealth.MINOR_ISSUES
    assert report.layers_without_grads == ["empty"]


def test_counts_survive_the_window() -> None:
    animator = GradientFlowAnimator(2)
    for step in range(10):
        animator.record_step(step, {"a": [0.0 if step in (1, 2, 4) else 0.1]})
    report = animator.summary_report()
    assert report.layers_with_vanishing_grads == []
    assert (report.frames_recorded, report.frames_retained, report.total_steps) == (10, 2, 10)
    (count,) = report.issue_counts
    assert (count.issue, count.frames, count.share, count.longest_run) == (GradientIssue.VANISHING, 3, 0.3, 2)
    assert (count.first_step, count.last_step) == (1, 4)
    animator.record_step(10, {"a": [math.nan]})
    for step in range(11, 15):
        animator.record_step(step, {"a": [0.1]})
    assert animator.summary_report().overall_health is GradientHealth.CRITICAL


def test_options_of_the_heatmap() -> None:
    animator = GradientFlowAnimator()
    for step in range(6):
        animator.record_step(10 * step, {"z": [10.0**-step], "a": [1.0]})
    log = animator.to_ascii_animation(scale="log", order="execution", step_labels=True)
    lines = log.splitlines()
    assert [line.strip()[0] for line in lines[3:5]] == ["z", "a"]
    assert lines[3].endswith("██▓▓▒▒")
    assert lines[-1] == "steps 0 … 50"
    thin = animator.to_ascii_animation(scale="layer", max_columns=3, step_labels=True).splitlines()
    assert thin[1] == "layer  0"
    assert thin[4] == "    z  █  "
    assert thin[-1].endswith("2 frames a column")


def test_inputs_of_every_kind_agree() -> None:
    values = [[1.0, -2.0], [3.0, 0.5]]
    animator = GradientFlowAnimator()
    animator.record_step(
        np.int64(1),
        {
            "array": np.array(values, np.float32), "list": values, "tuple": tuple(map(tuple, values)),
            "tensor": torch.tensor(values, dtype=torch.bfloat16, requires_grad=True) * 1, "tensors": [torch.ones(2)],
            "sparse": torch.tensor(values).to_sparse(),
        },
    )  # fmt: skip
    norms = {layer.name: layer.grad_norm for layer in animator.frames()[0].layers}
    assert norms.pop("tensors") == pytest.approx(math.sqrt(2))
    assert set(norms.values()) == {math.sqrt(14.25)}


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_norm_of_extreme_magnitudes(size: float) -> None:
    animator = GradientFlowAnimator()
    animator.record_step(0, {"a": [3 * size, 4 * size]})
    assert animator.frames()[0].layers[0].grad_norm == pytest.approx(5 * size)


def test_errors_name_the_layer() -> None:
    animator = GradientFlowAnimator()
    for bad in (["x"], [1.0, "x"], [[1.0], [1.0, 2.0]], [1 + 2j], np.array([object()]), torch.ones(1).to(torch.cfloat)):
        with pytest.raises(InputError, match="conv1"):
            animator.record_step(0, {"conv1": bad})
    with pytest.raises(InputError, match="'a' is given twice"):
        animator.record_step(0, [("a", [1.0]), ("a", [2.0])])
    with pytest.raises(InputError, match="step"):
        animator.record_step(-1, {})
    with pytest.raises(InputError, match="max_frames"):
        GradientFlowAnimator(-1)
    assert animator.frames() == []
