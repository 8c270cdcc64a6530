"""Wherever the process that records a run is killed, and whatever it has answered by then: the run that is taken back
from it is the one that it would have written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.recording.trainings import train

from undertow.recording.messages import RecordFrames, Request, SetLayers, WriteEvent
from undertow.recording.recorder import RunRecorder
from undertow.schema import RunFacts
from undertow.store import run_documents, segment_writer
from undertow.store.journal import Journal
from undertow.store.reader import RunReader

_AT_ONCE = 16  # frames of a request


class KilledError(BaseException):
    """Nobody catches it, as nobody catches SIGKILL."""


class Killer:
    """Ends the work at one of the places where something is written: before or after it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = self.count = 0
        self.afterwards = False
        for owner, name in (
            (Journal, "append"),
            (segment_writer.SegmentWriter, "_write"),
            (run_documents, "write_layers"),
        ):
            monkeypatch.setattr(owner, name, self._watched(getattr(owner, name)))

    def _watched(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            self.count += 1
            self.left -= 1
            if self.left == 0 and not self.afterwards:
                raise KilledError
            result = write(*arguments)
            if self.left == 0:
                raise KilledError
            return result

        return wrapped


def _contents(folder: Path) -> tuple[Any, ...]:
    reader = RunReader(folder)
    frames = [
        (frame.step, sorted(frame.scalars.items()), {name: one.values.tobytes() for name, one in frame.blocks.items()})
        for frame in reader.frames()
    ]
    events = [{name: value for name, value in event.items() if name != "time"} for event in reader.events()]
    return repr(frames), events, reader.layers.paths


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Request]:
    """Of a training that goes wrong, and whose layers are found in two goes."""
    folder = tmp_path_factory.mktemp("told") / "run"
    train(folder, "never").close()
    reader = RunReader(folder)
    layers, frames = [layer.to_dict() for layer in reader.layers], list(reader.frames())
    asked: list[Request] = []
    for count in (2, len(layers)):
        asked.append(SetLayers(layers[:count], reader.graph, []))
        asked.append(WriteEvent("layers", None, float(count), {"count": count}))
    asked += [RecordFrames(frames[first : first + _AT_ONCE]) for first in range(0, len(frames), _AT_ONCE)]
    return asked


def _begun(folder: Path) -> tuple[RunRecorder, RunFacts]:
    facts = RunFacts(undertow="0.1.0")
    return RunRecorder.begin(folder, facts, resume=False, disk_budget=None), facts


def _killed_at(folder: Path, killer: Killer, place: int, requests: Sequence[Request], unheard: int) -> None:
    """`unheard`: how many of its last answers are lost with it."""
    recorder, facts = _begun(folder)
    killer.left, done = place, 0
    try:
        for request in requests:
            recorder.handle(request)
            done += 1
        pytest.fail("it was not killed")
    except KilledError:
        pass
    killer.left = 0
    answered = max(0, done - unheard)
    told = [one.frames[-1].sequence for one in requests[:answered] if isinstance(one, RecordFrames)]
    again = RunRecorder.take_over(folder, facts, None, seam_due=False, until=told[-1] if told else -1)
    for request in requests[answered:]:
        again.handle(request)
    again.all_replayed()
    again.writer.close()


def test_a_run_that_is_taken_back_is_the_same(
    tmp_path: Path, requests: Sequence[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = _begun(tmp_path / "whole")
    killer = Killer(monkeypatch)
    for request in requests:
        whole.handle(request)
    places = killer.count
    whole.writer.close()
    expected = _contents(tmp_path / "whole")
    assert any(event["kind"] == "finding" for event in expected[1])
    for place in [*range(1, 12), *range(12, places, max(1, places // 24))]:
        for unheard in (0, 2):
            killer.afterwards = (place + unheard) % 2 == 1
            folder = tmp_path / f"{place}-{unheard}"
            _killed_at(folder, killer, place, requests, unheard)
            assert _contents(folder) == expected, (place, unheard, killer.afterwards)
