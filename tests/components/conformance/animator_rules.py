"""The animator, with the ten tests that the original brings itself."""

from __future__ import annotations

import csv
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.components.conformance import original
from tests.components.conformance.rules import rule

from undertow import GradientFlowAnimator
from undertow.components.frame_files import scientific
from undertow.schema import GradientFrame


def recorded(*frames: dict[str, Any], keep: int = 0, step: int = 1) -> GradientFlowAnimator:
    animator = GradientFlowAnimator(keep)
    for place, gradients in enumerate(frames):
        animator.record_step(step * place, gradients)
    return animator


def layers(gradients: dict[str, Any]) -> dict[str, Any]:
    return {layer.name: layer for layer in recorded(gradients).frames()[0].layers}


def exported(animator: GradientFlowAnimator, kind: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made" / "on the way" / f"frames.{kind}"
        getattr(animator, f"export_{kind}")(path)
        return path.read_text(encoding="utf-8")


def health(*frames: dict[str, Any]) -> str:
    return recorded(*frames).summary_report().overall_health


GOLDEN = recorded(*({"embed": [0.1 * k] * 4, "head": [0.5] * 4} for k in (1, 2, 3)), step=10)
FINE, SMALL, LARGE = {"a": [0.1]}, {"a": [1e-9]}, {"a": [2e3]}


@rule("animator", "test 1: one frame with two layers")
def _() -> None:
    assert len(recorded({"a": [1.0], "b": [2.0]}).frames()[0].layers) == 2


@rule("animator", "test 2: a window of 3 keeps 3 of 10")
def _() -> None:
    assert [frame.step for frame in recorded(*[FINE] * 10, keep=3).frames()] == [7, 8, 9]


@rule("animator", "test 3: the threshold of 1e-6 flags [1e-8, 1e-8], not [0.01, 0.01]")
def _() -> None:
    animator = GradientFlowAnimator().with_vanishing_threshold(1e-6)
    animator.record_step(0, {"a": [1e-8] * 2, "b": [0.01] * 2})
    assert [layer.is_vanishing for layer in animator.frames()[0].layers] == [True, False]


@rule("animator", "test 4: the threshold of 100 flags [500, 200], not [0.1, 0.1]")
def _() -> None:
    animator = GradientFlowAnimator().with_exploding_threshold(100)
    animator.record_step(0, {"a": [500.0, 200.0], "b": [0.1] * 2})
    assert [layer.is_exploding for layer in animator.frames()[0].layers] == [True, False]


@rule("animator", "test 5: intensities lie within 0 … 1")
def _() -> None:
    found = layers({name: np.random.default_rng(place).normal(size=9) for place, name in enumerate("abcdef")})
    assert all(0 <= layer.flow_intensity <= 1 for layer in found.values())


@rule("animator", "test 6: JSON round-trips two frames")
def _() -> None:
    animator = recorded(FINE, {"a": [0.2], "b": [3.0]})
    with tempfile.TemporaryDirectory() as folder:
        animator.export_json(Path(folder) / "frames.json")
        assert GradientFrame.read_json(Path(folder) / "frames.json") == animator.frames()


@rule("animator", "test 7: the CSV has three lines and the header's prefix")
def _() -> None:
    lines = exported(recorded(FINE, FINE), "csv").splitlines()
    assert len(lines) >= 3
    assert lines[0].startswith("step,layer,mean_abs_grad")


@rule("animator", "test 8: without frames, a line in round brackets")
def _() -> None:
    assert recorded().to_ascii_animation() == "(no gradient frames recorded)\n"


@rule("animator", "test 9: the heatmap has the names of the layers")
def _() -> None:
    assert "embed" in GOLDEN.to_ascii_animation()


@rule("animator", "test 10: five steps at 0.1 are healthy, with both lists empty")
def _() -> None:
    report = recorded(*[FINE] * 5).summary_report()
    assert (report.overall_health, report.layers_with_vanishing_grads, report.layers_with_exploding_grads) == (
        "Healthy",
        [],
        [],
    )


@rule("animator", "max_frames of 0 keeps all")
def _() -> None:
    assert len(recorded(*[FINE] * 50).frames()) == 50


@rule("animator", "mean of |g|, max |g| and L2 norm")
def _() -> None:
    (layer,) = layers({"a": [3.0, -4.0]}).values()
    assert (layer.mean_abs_grad, layer.max_abs_grad, layer.grad_norm) == (3.5, 4.0, 5.0)


@rule("animator", "intensity is the norm over the largest of the frame; 0 when that is 0")
def _() -> None:
    assert [one.flow_intensity for one in layers({"a": [1.0], "b": [4.0]}).values()] == [0.25, 1]
    assert [one.flow_intensity for one in layers({"a": [0.0], "b": [0.0]}).values()] == [0, 0]


@rule("animator", "layers are sorted by name in byte order")
def _() -> None:
    assert list(layers({"b": [1.0], "a": [1.0], "B": [1.0], "é": [1.0]})) == ["B", "a", "b", "é"]


@rule("animator", "JSON: an array of frames, indented by two, keys in the order of the fields")
def _() -> None:
    text = exported(recorded(FINE), "json")
    fields = ["name", "mean_abs_grad", "max_abs_grad", "grad_norm", "is_vanishing", "is_exploding", "flow_intensity"]
    assert list(json.loads(text)[0]) == ["step", "layers"]
    assert list(json.loads(text)[0]["layers"][0]) == fields
    assert text.startswith('[\n  {\n    "step": 0,\n    "layers": [\n      {\n        "name": "a",')


@rule("animator", "JSON numbers as its writer spells them")
def _() -> None:
    text = exported(recorded({"a": [1e-8], "b": [1e17], "c": [1e-5], "d": [2.0]}), "json")
    assert [f'"max_abs_grad": {number}' in text for number in ("1e-8", "1e17", "0.00001", "2.0")] == [True] * 4


@rule("animator", "CSV: seven columns, booleans as 0 and 1, a line feed at the end of each line")
def _() -> None:
    text = exported(recorded({"a": [2.0], "b": [2e3], "c": [1e-9]}), "csv")
    header = "step,layer,mean_abs_grad,max_abs_grad,grad_norm,is_vanishing,is_exploding"
    assert text.split("\n")[0] == header
    assert text.split("\n")[1:] == [
        "0,a,2.00000000e0,2.00000000e0,2.00000000e0,0,0",
        "0,b,2.00000000e3,2.00000000e3,2.00000000e3,0,1",
        "0,c,1.00000000e-9,1.00000000e-9,1.00000000e-9,1,0",
        "",
    ]


@rule("animator", "CSV numbers: eight digits after the point, the exponent bare")
def _() -> None:
    spelt = {
        0.0: "0.00000000e0",
        0.2: "2.00000000e-1",
        123.456: "1.23456000e2",
        1e-7: "1.00000000e-7",
    }
    assert {value: scientific(value) for value in spelt} == spelt
    assert (scientific(-0.0), scientific(math.nan), scientific(math.inf)) == ("-0.00000000e0", "NaN", "inf")


@rule("animator", "CSV names are not quoted", "csv-quoting")
def _() -> None:
    assert list(csv.reader(exported(recorded({"a,b": [1.0]}), "csv").splitlines()))[1][1] == "a,b"


@rule("animator", "heatmap: header of frame indices mod 10, ruler, rows right-aligned, golden")
def _() -> None:
    lines = GOLDEN.to_ascii_animation().splitlines()
    assert lines[1:] == ["layer  012", "─" * 10, "embed  ░▒▒", " head  ███"]


@rule("animator", "heatmap blocks at 1/8, 3/8, 5/8, 7/8, halves rounded up")
def _() -> None:
    for intensity in np.linspace(0, 1, 41):
        lines = recorded({"layer": [float(intensity)], "other": [1.0]}).to_ascii_animation().splitlines()
        assert lines[3].removeprefix("layer  ") == original.block(float(intensity)).rstrip() or lines[3][
            -1
        ] == original.block(float(intensity))


@rule("animator", "heatmap: width in bytes, at least that of no name", "heatmap-width")
def _() -> None:
    lines = recorded({"a": [1.0]}).to_ascii_animation().splitlines()
    assert (lines[1], lines[3]) == ("layer  0", "    a  █")
    wide = recorded({"層": [1.0]}).to_ascii_animation().splitlines()
    assert wide[3] == "   層  █"


@rule("animator", "a layer that is missing from a frame is drawn as intensity 0")
def _() -> None:
    assert recorded({"a": [1.0]}, {"b": [1.0]}).to_ascii_animation().splitlines()[3] == "    a  █ "


@rule("animator", "health by the share of flagged frames")
def _() -> None:
    assert health(LARGE, LARGE, FINE) == "Critical"
    assert health(LARGE, FINE, FINE) == "ProblemsDetected"
    assert health(SMALL, SMALL, FINE) == "ProblemsDetected"
    assert health(SMALL, *[FINE] * 9) == "MinorIssues"
    assert health(FINE) == "Healthy"


@rule("animator", "total_steps is the last step + 1, 0 without frames; lists are sorted")
def _() -> None:
    assert (GOLDEN.summary_report().total_steps, recorded().summary_report().total_steps) == (21, 0)
    assert recorded({"b": [0.0], "a": [0.0]}).summary_report().layers_with_vanishing_grads == ["a", "b"]


@rule("animator", "recommendations: two for vanishing, two for exploding, one to close", "animator-sentences")
def _() -> None:
    both = recorded({"a": [1e-9], "b": [2e3]}).summary_report().recommendations
    assert [sentence.split()[0] for sentence in both] == ["Vanishing", "Check", "Exploding", "Lower", "Gradient"]
    assert recorded(FINE).summary_report().recommendations == ["Gradient flow looks healthy in every recorded frame."]


@rule("animator", "the summary forgets what the window dropped", "cumulative-counts")
def _() -> None:
    report = recorded(LARGE, FINE, FINE, keep=2).summary_report()
    assert (report.layers_with_exploding_grads, report.frames_recorded, report.frames_retained) == ([], 3, 2)
    assert [(one.layer_name, one.issue, one.frames) for one in report.issue_counts] == [("a", "exploding", 1)]


@rule("animator", "NaN: mean and norm NaN, the maximum ignores it, neither flag")
def _() -> None:
    (layer,) = layers({"a": [math.nan, 3.0]}).values()
    assert math.isnan(layer.mean_abs_grad)
    assert math.isnan(layer.grad_norm)
    assert (layer.max_abs_grad, layer.is_vanishing, layer.is_exploding) == (3.0, False, False)


@rule("animator", "NaN is drawn blank and the run is Healthy", "nonfinite")
def _() -> None:
    animator = recorded({"a": [math.nan]})
    assert animator.to_ascii_animation().splitlines()[3] == "    a  ×"
    assert animator.summary_report().overall_health == "Critical"
    assert animator.summary_report().layers_with_nonfinite_grads == ["a"]


@rule("animator", "NaN in JSON is null and cannot be read back", "nonfinite-json")
def _() -> None:
    assert '"grad_norm": null' in exported(recorded({"a": [math.nan]}), "json")


@rule("animator", "infinity explodes; its own intensity is NaN, the others' 0", "nonfinite")
def _() -> None:
    found = layers({"a": [math.inf], "b": [2.0]})
    assert found["a"].is_exploding
    assert (math.isnan(found["a"].flow_intensity), found["b"].flow_intensity) == (True, pytest.approx(1))


@rule("animator", "an empty gradient is vanishing", "empty-gradient")
def _() -> None:
    (layer,) = layers({"a": []}).values()
    assert (layer.is_vanishing, layer.presence, layer.grad_norm) == (False, "empty", 0)


@rule("animator", "a frame of zeros: all intensities 0, all vanishing")
def _() -> None:
    assert [(one.flow_intensity, one.is_vanishing) for one in layers({"a": [0.0], "b": [0.0]}).values()] == [
        (0, True)
    ] * 2


@rule("animator", "no frames: Healthy")
def _() -> None:
    assert health() == "Healthy"
