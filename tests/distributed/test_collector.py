"""Ranks that skip a step, fall silent or break: whoever waits for their parts does so for a while, and goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

from undertow.measure.partials import offsets_of
from undertow.probe.distributed import rank_collector as waiting
from undertow.probe.distributed.rank_collector import RankCollector
from undertow.probe.distributed.rank_messages import Farewell, Message, Part, Roster, decode, encode
from undertow.probe.distributed.rendezvous import Connections, Link, LinkBrokenError
from undertow.probe.readings import RawFrame
from undertow.probe.watched_layers import SlotLayout

NOTHING = np.empty(0, np.int64)
LAYOUT = SlotLayout(NOTHING.astype(np.int32), NOTHING, NOTHING, offsets_of(NOTHING), NOTHING.astype(np.int32))


class Wire:
    """The other end of a link, in the same process."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.heard: list[Message] = []
        self._said: queue.Queue[bytes | None] = queue.Queue()
        self._is_handed = False
        self._open = 0  # messages that have not been dealt with
        self._changed = threading.Condition()

    def listen(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, daemon=True).start()

    def say(self, message: Message) -> None:
        with self._changed:
            self._open += 1
        self._said.put(encode(message))

    def wait_until_heard(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._open == 0, 60)

    def say_step(self, step: int) -> None:
        flags = np.empty(0, np.float32)
        self.say(Part(self.rank, step, 0, {}, NOTHING, flags, flags, flags, {}))

    def breaks(self) -> None:
        self._said.put(None)

    def receive(self) -> bytes:
        """Asked again when the message before has been dealt with."""
        with self._changed:
            self._open -= self._open > 0 and self._is_handed
            self._changed.notify_all()
        said = self._said.get(timeout=60)
        if said is None:
            raise LinkBrokenError("reset by peer")
        self._is_handed = True
        return said

    def send(self, message: bytes) -> None:
        self.heard.append(decode(message))

    def close(self) -> None:
        self.breaks()


@pytest.fixture
def wires() -> Iterator[tuple[RankCollector, Wire, Wire]]:
    gathering, wires = RankCollector(0), (Wire(1), Wire(2))
    gathering.join(Connections(down=[cast(Link, wire) for wire in wires]))
    for wire in wires:
        wire.say(Roster(wire.rank, [], []))
    yield gathering, *wires
    gathering.leave()


def ranks_heard(gathering: RankCollector, step: int) -> list[int]:
    while (parts := gathering.parts(_frame(step), step)) is None:
        pass  # each look is short, and the patience is, too
    return [part.rank for part in parts]


def _frame(step: int) -> RawFrame:
    return RawFrame(step, 0.0, LAYOUT, cast(dict[str, Any], {"step_time": 1.0}))


def test_a_rank_that_skips_a_step_is_not_waited_for(wires: tuple[RankCollector, Wire, Wire]) -> None:
    gathering, one, other = wires
    for step in (0, 1, 2):
        one.say_step(step)
    for step in (0, 2):
        other.say_step(step)
    assert [ranks_heard(gathering, step) for step in (0, 1, 2)] == [[0, 1, 2], [0, 1], [0, 1, 2]]
    assert gathering.words() == []


def test_a_step_that_this_rank_skips_is_left_out(wires: tuple[RankCollector, Wire, Wire]) -> None:
    gathering, *others = wires
    for other in others:
        for step in (0, 1, 2):
            other.say_step(step)
    assert [ranks_heard(gathering, step) for step in (0, 2)] == [[0, 1, 2], [0, 1, 2]]


def test_a_rank_that_is_silent_is_left_out_until_it_has_caught_up(
    wires: tuple[RankCollector, Wire, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    gathering, one, other = wires
    monkeypatch.setattr(waiting, "PATIENCE", 0.1)
    for step in range(4):
        one.say_step(step)
    other.say_step(0)
    one.wait_until_heard()
    other.wait_until_heard()
    assert [ranks_heard(gathering, step) for step in (0, 1, 2)] == [[0, 1, 2], [0, 1], [0, 1]]
    for step in (1, 2, 3):
        other.say_step(step)
    other.wait_until_heard()
    assert ranks_heard(gathering, 3) == [0, 1, 2]
    assert gathering.words() == []


def test_a_rank_that_breaks_is_left_out_and_named_once(wires: tuple[RankCollector, Wire, Wire]) -> None:
    gathering, one, other = wires
    one.say_step(0)
    one.say_step(1)
    other.breaks()
    assert [ranks_heard(gathering, step) for step in (0, 1)] == [[0, 1], [0, 1]]
    (word,) = gathering.words()
    assert word.rank == 2
    assert "rank 2 was lost while training" in word.fields["reason"]
    assert gathering.words() == []


def test_ranks_that_end_in_peace_are_not_missed(wires: tuple[RankCollector, Wire, Wire]) -> None:
    gathering, *others = wires
    for other in others:
        other.say_step(0)
        other.say(Farewell())
    assert ranks_heard(gathering, 0) == [0, 1, 2]
    gathering.close()
    assert gathering.part_ways() == []
    assert all(isinstance(other.heard[-1], Farewell) for other in others)
