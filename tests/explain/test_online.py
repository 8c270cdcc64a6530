"""Live and from the disk, the same engine gives the same answer: on real trainings, sick ones and a healthy one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import undertow
from corpus.registry import controls, sick_cases
from undertow.detect.engine import Change, Engine
from undertow.detect.engine.journal import changes_in
from undertow.schema import Finding

TRAININGS = ["missing_zero_grad", "raw_inputs", "dead_relu"]
HEALTHY = sorted(controls("development"))[0]
STEPS = 40


@pytest.mark.parametrize("name", [*TRAININGS, HEALTHY])
def test_live_and_stored_findings_are_the_same(tmp_path: Path, name: str) -> None:
    training = {**sick_cases("development"), **controls("development")}[name]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    heard: list[Finding] = []
    try:
        with undertow.watch(None, run_dir=tmp_path / "run", every=1, quiet=True) as watch:
            watch.on_finding(heard.append)
            training.run(STEPS)
            live = watch.findings
    finally:
        torch.set_num_threads(threads)
    run = undertow.open_run(tmp_path / "run")
    assert [finding.code for finding in run.findings] == [finding.code for finding in live]
    assert repr(list(run.findings)) == repr(live)  # as text, because NaN is no equal of itself
    alarms = {finding.code for finding in live if finding.severity.is_alarm}
    assert alarms & set(training.codes) if training.is_sick else not alarms
    # What was told when it happened: the same codes, at the step at which they were detected.
    assert {finding.code for finding in heard} == {finding.code for finding in live}
    assert {finding.detected_step for finding in heard} == {finding.detected_step for finding in live}


@pytest.mark.parametrize("name", ["dead_relu", "raw_inputs"])
def test_a_fresh_engine_writes_the_same_journal(tmp_path: Path, name: str) -> None:
    with undertow.watch(None, run_dir=tmp_path / "run", quiet=True):
        sick_cases("development")[name].run(STEPS)
    run = undertow.open_run(tmp_path / "run")
    journal = list(changes_in(run.events))
    assert journal
    engine = Engine()
    engine.set_layers(run.layers, run.graph)
    replayed = [change for frame in run.reader.frames(-1) for change in engine.observe(frame)]
    # A journal of JSON has no NaN and no infinity.
    assert [(change.change, change.place, _plain(change.finding)) for change in replayed] == [
        (change.change, change.place, _plain(change.finding)) for change in journal
    ]
    assert {change.change for change in journal} <= set(Change)


def _plain(finding: Finding) -> Finding:
    return replace(finding, evidence=())
