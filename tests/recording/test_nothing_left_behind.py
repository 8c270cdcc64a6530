"""Objects, threads and files must not grow with watches that were closed, nor with frames that were recorded."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path

from tests.detect.building import Training
from tests.recording.trainings import parts, step

import undertow
from undertow.recording.messages import RecordFrames, SetLayers, WriteFacts, decode_request, encode
from undertow.recording.recorder import RunRecorder
from undertow.schema import Frame, RunFacts


def left_after(work: Callable[[], object]) -> tuple[int, int, int]:
    work()
    gc.collect()
    return len(gc.get_objects()), threading.active_count(), len(os.listdir("/proc/self/fd"))


def test_watches_that_were_closed(tmp_path: Path) -> None:
    numbers = itertools.count()

    def watch_some() -> None:
        for number in itertools.islice(numbers, 5):
            model, optimizer, inputs, targets = parts()
            folder = tmp_path / str(number)
            with undertow.watch(model, optimizer, run_dir=folder, every=1, chronicler="never", quiet=True):
                for _ in range(3):
                    step(model, optimizer, inputs, targets)

    left_after(watch_some)  # imports, and caches that fill once
    objects, threads, files = left_after(watch_some)
    more_objects, more_threads, more_files = left_after(watch_some)
    assert more_objects - objects < 50, "ten for each watch"
    assert (more_threads, more_files) == (threads, files)


def test_frames_that_were_recorded(tmp_path: Path) -> None:
    """As they come in another process. A finding opens and closes in every turn."""
    hit = {"first": 3.0, "second": 5.0}
    turn = Training().run(40).run(10, gradient_nonfinite_count=hit, gradient_norm=dict.fromkeys(hit, float("nan")))
    recorder = RunRecorder.begin(tmp_path / "run", RunFacts(name="long"), resume=False, disk_budget=200_000)
    recorder.handle(SetLayers([layer.to_dict() for layer in turn.layers], turn.graph, []))
    turns = itertools.count()

    def record_some() -> None:
        for number in itertools.islice(turns, 10):
            shift = number * len(turn.frames)
            frames = [Frame(f.sequence + shift, f.step + shift, f.time, f.scalars, f.blocks) for f in turn.frames]
            answer = recorder.handle(decode_request(encode(RecordFrames(frames))))
            assert answer.changes
            encode(answer)
        recorder.handle(decode_request(encode(WriteFacts(RunFacts(name="long")))))

    left_after(record_some)
    objects, threads, files = left_after(record_some)
    more_objects, more_threads, more_files = left_after(record_some)
    recorder.writer.close()
    assert more_objects - objects < 100, "a fifth of one for each of 500 frames"
    assert (more_threads, more_files) == (threads, files)
