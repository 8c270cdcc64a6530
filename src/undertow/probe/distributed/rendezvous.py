"""How the ranks find each other: a roll call in the store of the training's own process group, then a link to each
rank that this one sends to or is sent to.

A link is a process group of two, so that a rank that dies takes only its own link with it. Everything here runs in
the background thread; a rank that is not watched, or comes too late, is left out.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from undertow.probe.distributed.rank_tree import RankPlace, branch_of, group_is_made

PATIENCE = 20.0  # seconds the first rank waits for the others to say that they are watched, too
_FOR_EVER = timedelta(days=365)  # a link that is idle is not broken; one whose other end dies breaks at once
_UP, _DOWN, _CLOSING = 1, 2, 3  # tags: towards the first rank, from it, and for nobody
_JOIN = 2.0  # seconds
_LARGEST = 1 << 31
_NAP = 0.05

_ProcessGroup: Any = getattr(dist, "ProcessGroupGloo", None)
_PrefixStore: Any = getattr(dist, "PrefixStore", None)
Store = Any  # torch exports its stores without their types

_open: weakref.WeakSet[Link] = weakref.WeakSet()

_meetings = 0  # of this process so far; watches are opened in the same order on all ranks


class LinkBrokenError(Exception):
    """The process at the other end is gone."""


class Link:
    """Sends and receives whole messages. Any thread may send while another receives.

    Every link must be closed, and the thread that receives have ended, before the process ends: a thread that is
    inside gloo at that moment would bring the whole process down. So what is left at exit is closed then.
    """

    def __init__(self, store: Store, rank: int, leads: bool) -> None:
        self.rank = rank  # of the process at the other end
        self._peer = 1 if leads else 0
        self._send_tag, self._receive_tag = (_DOWN, _UP) if leads else (_UP, _DOWN)
        self._group: Any = _ProcessGroup(store, 0 if leads else 1, 2, _FOR_EVER)
        self._listener: threading.Thread | None = None
        self._sending = threading.Lock()  # a message goes out whole
        self._is_closed = False
        _open.add(self)

    def listen(self, work: Callable[[], None]) -> None:
        """Run this in a thread of its own; it receives until the link is closed or breaks."""
        self._listener = threading.Thread(target=work, name=f"undertow rank {self.rank}", daemon=True)
        self._listener.start()

    def close(self) -> None:
        """Safe to call twice. Pending sends and receives fail."""
        _open.discard(self)
        if not self._is_closed:
            self._is_closed = True
            with contextlib.suppress(RuntimeError):
                # The one way there is to wake a thread that waits in gloo: a wait that times out closes the pair.
                self._group.recv([torch.zeros(1)], self._peer, _CLOSING).wait(timedelta(milliseconds=1))
        if self._listener is not None and self._listener is not threading.current_thread():
            self._listener.join(_JOIN)

    def send(self, message: bytes) -> None:
        body = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        try:
            with self._sending:
                self._group.send([torch.tensor([len(message)])], self._peer, self._send_tag).wait()
                self._group.send([body], self._peer, self._send_tag).wait()
        except RuntimeError as error:
            raise LinkBrokenError(str(error)) from None

    def receive(self) -> bytes:
        size = torch.zeros(1, dtype=torch.int64)
        try:
            self._group.recv([size], self._peer, self._receive_tag).wait()
            length = int(size.item())
            if not 0 < length < _LARGEST:
                raise LinkBrokenError(f"a message of {length} bytes")
            body = torch.empty(length, dtype=torch.uint8)
            self._group.recv([body], self._peer, self._receive_tag).wait()
        except RuntimeError as error:
            raise LinkBrokenError(str(error)) from None
        return body.numpy().tobytes()


@dataclass(frozen=True, slots=True)
class Connections:
    """Whom this rank sends to, and who sends to it."""

    up: Link | None = None  # None on the first rank, and on one that has come too late
    down: list[Link] = field(default_factory=list[Link])
    patience: float = 1.0  # as a share of the first rank's
    message: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of the first rank


class Rendezvous:
    """Asked again and again until everybody is there; never waits for long."""

    def __init__(self, place: RankPlace) -> None:
        global _meetings
        self._place = place
        self._prefix = f"undertow/{_meetings}"
        _meetings += 1
        self._store: Store | None = None
        self._since = 0.0
        self.absent: list[int] = []  # ranks that are not watched; known to the first one only

    def wait(self, seconds: float) -> None:
        """Until everybody is there, or nobody else will come, or the time is over."""
        until = time.monotonic() + seconds
        while group_is_made() and not self._is_complete() and time.monotonic() < until:
            time.sleep(_NAP)

    def give_up(self) -> None:
        self.absent = list(range(1, self._place.world)) if group_is_made() else []

    def _is_complete(self) -> bool:
        store = self._enter()
        if not self._place.leads:
            return store.check(["members"])
        return all(store.check([f"here/{rank}"]) for rank in range(1, self._place.world))

    def _enter(self) -> Store:
        if self._store is None:
            store = self._store = _PrefixStore(self._prefix, _own_store())
            store.set(f"here/{self._place.rank}", "1")
            self._since = time.monotonic()
        return self._store

    def met(self, message: Mapping[str, Any] | None = None) -> Connections | None:
        """None while somebody is still missing."""
        if not group_is_made():  # processes that `torchrun` started, but that never join: each trains for itself
            self._since = self._since or time.monotonic()
            return None if time.monotonic() - self._since < PATIENCE else Connections()
        store = self._enter()
        return self._call(store, message or {}) if self._place.leads else self._answer(store)

    def _call(self, store: Store, message: Mapping[str, Any]) -> Connections | None:
        others = range(1, self._place.world)
        here = [rank for rank in others if store.check([f"here/{rank}"])]
        if len(here) < len(others) and time.monotonic() - self._since < PATIENCE:
            return None
        self.absent = sorted(set(others) - set(here))
        store.set("members", json.dumps({"ranks": here, "message": message}))
        return self._linked(store, here, message)

    def _answer(self, store: Store) -> Connections | None:
        if not store.check(["members"]):
            return None
        said: dict[str, Any] = json.loads(store.get("members"))
        if self._place.rank not in said["ranks"]:
            return Connections(message=said["message"])
        return self._linked(store, said["ranks"], said["message"])

    def _linked(self, store: Store, others: list[int], message: Mapping[str, Any]) -> Connections:
        """Upwards first: everybody then waits for somebody who is on the way."""
        mine = branch_of(self._place.rank, [0, *others])
        up = None
        if mine.parent is not None:
            up = Link(_PrefixStore(f"link/{self._place.rank}", store), mine.parent, leads=False)
        down = [Link(_PrefixStore(f"link/{rank}", store), rank, leads=True) for rank in mine.children]
        return Connections(up, down, mine.patience, message)


def _own_store() -> Store:
    """The store that the training's process group was made with, through a connection of our own where there is one:
    a call that waits would else keep the training's own calls waiting."""
    store: Any = dist.distributed_c10d._get_default_store()
    try:
        return store.clone()
    except (AttributeError, RuntimeError):
        return store


@atexit.register
def _close_all() -> None:
    for link in list(_open):
        link.close()
