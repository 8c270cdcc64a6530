"""The background thread and those who wait for it."""

from __future__ import annotations

import threading
import time

from undertow.probe.mailbox import Item, Mailbox
from undertow.probe.readings import Note


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
