"""The background thread and those who wait for it."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from undertow.probe import mailbox as module
from undertow.probe.mailbox import Item, Mailbox
from undertow.probe.readings import Note, RawFrame
from undertow.probe.watched_layers import SlotLayout


class Held:
    """Handles items once it may, and remembers them."""

    def __init__(self) -> None:
        self.begun, self.may = threading.Event(), threading.Event()
        self.handled: list[Item] = []

    def __call__(self, items: list[Item]) -> None:
        self.begun.set()
        assert self.may.wait(60)
        self.handled += items


def test_who_waits_is_not_answered_for_somebody_earlier() -> None:
    held = Held()
    mailbox = Mailbox(held, idle=lambda: None)
    first, second = Note("note", 0, {}), Note("note", 1, {})
    mailbox.post(first)
    assert not mailbox.flush(0.5)  # gave up while the first is being handled
    assert held.begun.wait(60)
    mailbox.post(second)
    threading.Timer(0.1, held.may.set).start()
    assert mailbox.flush(60)
    assert held.handled == [first, second]
    assert mailbox.close(60)


def test_several_may_wait_at_once() -> None:
    held = Held()
    mailbox = Mailbox(held, idle=lambda: None)
    mailbox.post(Note("note", 0, {}))
    answers: list[bool] = []
    waiting = [threading.Thread(target=lambda: answers.append(mailbox.flush(60))) for _ in range(4)]
    for one in waiting:
        one.start()
    held.may.set()
    for one in waiting:
        one.join(60)
    assert answers == [True] * 4
    assert mailbox.close(60)


def test_who_asks_while_the_thread_ends_is_answered() -> None:
    answers: list[bool] = []

    def settle() -> None:
        asking.start()
        while not mailbox._asked:
            time.sleep(0.001)

    mailbox = Mailbox(lambda items: None, idle=lambda: None, settle=settle)
    asking = threading.Thread(target=lambda: answers.append(mailbox.flush(60)))
    assert mailbox.close(60)
    asking.join(60)
    assert answers == [True]


def frame(step: int) -> RawFrame:
    none = np.zeros(0, np.int64)
    return RawFrame(
        step, 0.0, SlotLayout(none.astype(np.int32), none, none, np.zeros(1, np.int64), none.astype(np.int32)), {}
    )


def test_where_both_need_the_same_processors_the_training_stands_still_while_the_thread_works() -> None:
    handled: list[Item] = []
    mailbox = Mailbox(handled.extend, idle=lambda: None, takes_turns=lambda: True)
    waited = [mailbox.post(frame(step)) for step in range(module._WAKE_AT)]
    assert len(handled) == module._WAKE_AT  # by the time the last call has returned
    assert waited[-1] > 0
    assert mailbox.close(60)


def test_a_thread_that_has_waited_long_enough_gets_the_next_turn() -> None:
    handled: list[Item] = []
    mailbox = Mailbox(handled.extend, idle=lambda: None, takes_turns=lambda: True)
    mailbox.post(frame(0))
    ends = time.monotonic() + 60
    while not handled and time.monotonic() < ends:
        waited = mailbox.post(frame(1))
        if waited:
            assert handled
        time.sleep(0.001)
    assert handled
    assert mailbox.close(60)


def test_a_thread_that_hangs_does_not_hold_up_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TURN", 0.01)
    held = Held()
    mailbox = Mailbox(held, idle=lambda: None, takes_turns=lambda: True)
    for step in range(module._WAKE_AT):
        mailbox.post(frame(step))  # the last of them returns though nothing can be handled
    assert held.begun.wait(60)
    assert not held.handled
    held.may.set()
    assert mailbox.close(60)
    assert len(held.handled) == module._WAKE_AT


def test_with_processors_to_spare_the_training_never_stands_still() -> None:
    held = Held()
    mailbox = Mailbox(held, idle=lambda: None)
    waited = sum(mailbox.post(frame(step)) for step in range(module._WAKE_AT))
    assert waited == 0
    held.may.set()
    assert mailbox.close(60)


def test_what_is_held_is_released_in_order_or_discarded() -> None:
    handled: list[Item] = []
    mailbox = Mailbox(handled.extend, idle=lambda: None)
    note, logged, frames = Note("note", 0, {}), frame(9), [frame(step) for step in range(3)]

    def hold() -> None:
        handled.clear()
        mailbox.hold()
        for item in (frames[0], note, *frames[1:]):
            mailbox.post(item)
        mailbox.post(logged, at_once=True)
        assert mailbox.flush(60)
        assert handled == [logged]
        assert mailbox.is_holding

    for let_go, kept in (
        (mailbox.release, [logged, frames[0], note, *frames[1:]]),
        (lambda: mailbox.discard(everything=False), [logged, note]),
        (lambda: mailbox.discard(everything=True), [logged]),
    ):
        hold()
        let_go()
        assert mailbox.flush(60)
        assert handled == kept
        assert not mailbox.is_holding
    assert mailbox.close(60)
