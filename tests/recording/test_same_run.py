"""Who writes a run makes no difference to it: in this process, in another, or first in one and then in the other."""

from __future__ import annotations

import time

import numpy as np
import pytest
from tests.recording.trainings import recorder_process, train

import undertow
from undertow.recording import recorder_client, training_run
from undertow.recording.messages import RecordFrames, SetLayers
from undertow.recording.recorder import RunRecorder
from undertow.schema.quantities import FLOW
from undertow.store.reader import RunReader


def contents(folder):
    """Everything a run holds but the times, which no two runs share."""
    reader = RunReader(folder)
    frames = []
    for frame in reader.frames():
        scalars = {name: value for name, value in frame.scalars.items() if name != "step_time"}
        blocks = {
            name: (block.layer_ids.tolist(), block.values.tobytes()) for name, block in sorted(frame.blocks.items())
        }
        frames.append((frame.sequence, frame.step, repr(sorted(scalars.items())), blocks))
    events = [
        {name: value for name, value in event.items() if name != "time"}
        for event in reader.events()
        if event["kind"] != "source"  # of the step after an alarm was heard of, which is a matter of luck
    ]
    return (
        frames,
        events,
        reader.layers,
        reader.graph,
        reader.facts.seams,
        reader.facts.frames_dropped,
        verdict_kept(reader.facts),
    )


def verdict_kept(facts):
    return facts.health, facts.cause


def verdict(diagnosis):
    return [(found.code, found.detected_step, found.last_step, found.layers) for found in diagnosis.findings]


def in_another_process(watch):
    return watch._run.recording._client._recorder is None


def hand_over(watch):
    """As when it has become worth it, but at this very step."""
    recording = watch._run.recording
    with recording._lock:
        recording._client._start_process()
        assert recorder_process(watch).is_ready(wait=True)
        recording._client._consider_process()
        assert in_another_process(watch)


def kill(watch):
    flush(watch)
    recorder_process(watch)._process.kill()


def flush(watch):
    assert watch._mailbox.flush(300)  # seconds: a busy machine is slow, not wrong


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here") / "run"
    told = []
    watch = train(folder, "never", at={0: lambda watch: watch.on_finding(told.append)})
    watch.close()
    assert told, "the training has to go wrong for this to show anything"
    return contents(folder), verdict(watch.diagnose()), told


@pytest.mark.parametrize(
    ("chronicler", "events"),
    [
        ("always", {}),
        ("never", {30: flush, 31: hand_over}),
        ("never", {80: flush, 81: hand_over}),
        ("always", {30: kill}),
        ("always", {75: kill}),
        ("never", {20: flush, 21: hand_over, 90: kill}),
    ],
    ids=["always", "handed over", "handed over sick", "killed", "killed sick", "handed over and killed"],
)
def test_the_same_run(tmp_path, here, chronicler, events):
    frames, journal, *rest = here[0]
    told = []
    watch = train(tmp_path / "run", chronicler, at={0: lambda watch: watch.on_finding(told.append)} | events)
    assert [found.code for found in watch.findings] == [code for code, *_ in here[1]]
    assert in_another_process(watch) == (kill not in events.values())
    watch.close()
    same_frames, same_journal, *same_rest = contents(tmp_path / "run")
    assert same_frames == frames
    assert same_journal == journal
    assert same_rest == rest
    assert verdict(watch.diagnose()) == here[1]
    assert verdict(undertow.open_run(tmp_path / "run").diagnose()) == here[1]
    assert told == here[2]
    reasons = undertow.open_run(tmp_path / "run").facts.reasons
    assert [reason.partition(":")[0] for reason in reasons] == (
        ["the run is written by the training's own process"] if kill in events.values() else []
    )


def test_what_is_told_does_not_depend_on_what_came_together(tmp_path):
    """How many frames the background thread finds waiting is a matter of luck; what it tells of them must not be."""
    train(tmp_path / "run", "never").close()
    reader = RunReader(tmp_path / "run")
    frames = list(reader.frames())

    def told(size):
        recorder = RunRecorder.begin(tmp_path / str(size), reader.facts, resume=False, disk_budget=None)
        recorder.handle(SetLayers([layer.to_dict() for layer in reader.layers], reader.graph, []))
        batches = [frames[first : first + size] for first in range(0, len(frames), size)]
        said = [recorder.handle(RecordFrames(batch)).changes for batch in batches]
        recorder.writer.close()
        return [one for some in said for one in some]

    one_by_one = told(1)
    assert len(one_by_one) > 1
    for size in (7, 16, len(frames)):
        assert told(size) == one_by_one


def test_a_process_that_dies_before_it_has_answered(tmp_path, here):
    """It may have written what it was sent, or a part of it, or nothing: each frame is there once, and told once."""
    told = []
    events = {0: lambda watch: watch.on_finding(told.append)}
    for number in range(60, 70):  # one batch after the other, none waited for
        events[number] = lambda watch: watch._mailbox._wake.set()
    events[70] = lambda watch: recorder_process(watch)._process.kill()
    watch = train(tmp_path / "run", "always", at=events)
    watch.close()
    frames, journal, *_ = contents(tmp_path / "run")
    assert [(step, scalars, blocks) for _, step, scalars, blocks in frames] == [
        (step, scalars, blocks) for _, step, scalars, blocks in here[0][0]
    ]
    assert journal == here[0][1]
    assert [found.code for found in told] == [found.code for found in here[2]]


def test_a_process_that_cannot_be_started(tmp_path, monkeypatch):
    def refuse():
        raise OSError("no more processes")

    monkeypatch.setattr("undertow.recording.recorder_client.RecorderProcess", refuse)
    watch = train(tmp_path / "run", "always", steps=20)
    watch.close()
    run = undertow.open_run(tmp_path / "run")
    assert len(run.steps) == 20
    assert run.facts.reasons == [
        "the run is written by the training's own process: another was tried, but OSError: no more processes"
    ]


def test_a_process_that_stumbles(tmp_path, monkeypatch):
    monkeypatch.setattr("undertow.recording.recorder_process._PROGRAM", "raise SystemExit(3)")
    watch = train(tmp_path / "run", "always", steps=20)
    watch.close()
    run = undertow.open_run(tmp_path / "run")
    assert len(run.steps) == 20
    assert len(run.facts.reasons) == 1


def test_a_resumed_run_keeps_its_one_seam(tmp_path):
    for chronicler in ("always", "always", "never"):
        train(tmp_path / "run", chronicler, steps=20, resume=True).close()
    run = undertow.open_run(tmp_path / "run")
    assert run.steps.tolist() == list(range(60))
    assert run.facts.seams == [20, 40]
    assert np.isfinite(run.series("gradient_norm", "0.weight")).all()


def _make_worthwhile(monkeypatch, crowded: bool) -> None:
    monkeypatch.setattr(recorder_client, "_WORTH_A_PROCESS", 0.0)
    monkeypatch.setattr(recorder_client, "_SHORT", 0.0)
    monkeypatch.setattr(recorder_client, "processors", lambda: 2)
    monkeypatch.setattr(training_run, "competes", lambda threads: crowded)


def test_not_where_the_training_needs_every_processor(tmp_path, monkeypatch):
    _make_worthwhile(monkeypatch, crowded=True)
    watch = train(tmp_path / "run", "auto", steps=60, at={10: flush, 40: flush})
    assert not in_another_process(watch)
    assert recorder_process(watch) is None
    watch.close()
    assert len(undertow.open_run(tmp_path / "run").steps) == 60


def test_by_itself_once_it_is_worth_it(tmp_path, monkeypatch):
    _make_worthwhile(monkeypatch, crowded=False)

    def wait(watch):
        end = time.monotonic() + 60
        while not in_another_process(watch) and time.monotonic() < end:
            time.sleep(0.05)

    watch = train(tmp_path / "run", "auto", steps=60, at={10: flush, 40: wait})
    assert in_another_process(watch)
    watch.close()
    assert len(undertow.open_run(tmp_path / "run").steps) == 60


def test_a_short_training_starts_no_process(tmp_path):
    watch = train(tmp_path / "run", "auto", steps=20)
    assert not in_another_process(watch)
    assert recorder_process(watch) is None
    watch.close()


def test_the_verdict_at_the_end_is_kept_for_lists_of_runs(here):
    health, cause = here[0][-1]
    assert health in ("problems", "critical")
    assert cause.split()[0] == here[1][0][0]


@pytest.mark.parametrize(
    "events", [{20: flush, 21: hand_over}, {20: flush, 21: hand_over, 40: kill}], ids=["handed over", "killed"]
)
def test_shares_along_connections_are_written_whoever_writes(tmp_path, events):
    """The numbers that a training gives its connections are not on disk: whoever takes over has to be told."""
    train(tmp_path / "run", "never", at=events, activations=1).close()
    reader = RunReader(tmp_path / "run")
    assert reader.facts.frames_dropped == 0
    assert np.isfinite(reader.along_connections(FLOW.names[0])[-10:]).any()
