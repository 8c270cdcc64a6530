"""Every example runs under `undertow run` in seconds and shows what its first lines say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import ROOT
from tests.docs.shell import call

import undertow


def _watched(reader: Path, name: str) -> tuple[undertow.Run, dict[str, Any]]:
    done = call(reader, "undertow", "run", "--every", "1", "--run-dir", "run", f"examples/{name}.py")
    assert done.returncode == 0, done.stderr
    report = json.loads(call(reader, "undertow", "report", "run", "--json").stdout)
    return undertow.open_run(reader / "run"), report


def _is_described(scalar: str) -> bool:
    """Each number per step that is captured by itself has a row on the page about capture."""
    page = (ROOT / "docs/capture.md").read_text(encoding="utf-8")
    return f"| `{scalar}`" in page


def test_no_example_is_left_out() -> None:
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert names == {"plain_loop", "mixed_precision", "gan"}


def test_mixed_precision(reader: Path) -> None:
    run, report = _watched(reader, "mixed_precision")
    assert report["health"] == "healthy"
    assert report["steps"] == {"first": 0, "last": 119, "recorded": 120}
    assert set(run.scalars("backward_count")) == {4.0}
    assert set(run.scalars("loss_scale")) == {1024.0}
    # Ten classes at first, so the mean loss is near ln 10, whatever scale and micro-batches did to it.
    assert run.scalars("loss")[0] == pytest.approx(2.3, abs=0.4)
    # Clipped to 0.5 in total: what the optimizer got over what there was.
    clipped = run.scalars("clip_coefficient") * run.scalars("gradient_norm_total")
    assert clipped[:10] == pytest.approx(0.5, rel=1e-3)
    assert {"gradient_norm_total", "loss_scale", "lr", "step_skipped", "step_time"} <= set(run.scalar_names)
    assert all(_is_described(name) for name in run.scalar_names)


def test_gan(reader: Path) -> None:
    run, report = _watched(reader, "gan")
    assert report["health"] == "healthy"
    assert len(run.steps) == 200  # a hundred of either optimizer
    assert {path.partition(".")[0] for path in run.layers.paths} == {"generator", "discriminator"}
    assert [name for name in run.scalar_names if not _is_described(name)] == ["lr_1", "distance_from_circle"]
