"""Frames of another framework take the way of torch's: judged, written, told, and explained at the end."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from tests.recording.trainings import train

import undertow
from undertow.integrations.frame_writer import FrameWriter
from undertow.settings import Settings
from undertow.store.reader import RunReader


@pytest.mark.parametrize("chronicler", ["never", "always"])
def test_the_same_findings(tmp_path: Path, chronicler: str, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "torch", "never").close()
    source = RunReader(tmp_path / "torch")
    writer = FrameWriter(Settings(run_dir=tmp_path / "run", chronicler=chronicler), "gpu:0")
    writer.put(source.layers)
    for frame in source.frames():
        writer.put(dataclasses.replace(frame, time=0.0))
    writer.close()
    writer.close()
    run = undertow.open_run(tmp_path / "run")
    assert run.status == "finished"
    assert run.steps.tolist() == source.steps.tolist()
    expected = undertow.open_run(tmp_path / "torch").findings
    assert [(found.code, found.detected_step) for found in run.findings] == [
        (found.code, found.detected_step) for found in expected
    ]
    said = capsys.readouterr().err
    assert said.startswith("undertow: NUM"), "what is critical is said while training"
    assert f"undertow report {tmp_path / 'run'}" in said


def test_no_torch_is_needed() -> None:
    code = "import sys, undertow.integrations.frame_writer; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
