"""The ranks that send to this one: waits for their parts of a frame, and knows what each of them holds.

Runs in the background thread. A rank that dies is left out from then on; one that is silent for long is left out
until it has caught up. Nobody waits for ever, and the training waits for nothing.
"""

import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from undertow.probe.distributed.contribution import part_of, roster_of
from undertow.probe.distributed.follower_link import FollowerLink, Key
from undertow.probe.distributed.rank_layout import RankLayout
from undertow.probe.distributed.rank_messages import Message, Part, Roster, Separate, Witness, Word
from undertow.probe.distributed.rendezvous import Connections
from undertow.probe.distributed.replica_check import are_replicas
from undertow.probe.readings import NewLayers, RawFrame
from undertow.probe.watched_layers import SlotLayout
from undertow.schema import LayerTable

PATIENCE = 30.0  # seconds to wait for a rank's part of a step
CLOSING_PATIENCE = 8.0  # seconds to wait for the others, once this rank has ended
_NAP = 0.2


class RankCollector:
    def __init__(self, rank: int, earlier: LayerTable | None = None) -> None:
        self.ranks = RankLayout(earlier if earlier is not None else LayerTable(), rank)
        self.seconds = 0.0  # of processor time that the last frame's parts took
        self._rank = rank
        self._followers: list[FollowerLink] = []
        self._came = threading.Condition()
        self._latest: Key = (-1, -1)  # of the latest frame: frames of a step have the same numbers on all ranks
        self._is_waiting = False  # for parts of that
        self._since = 0.0
        self._closing_since: float | None = None
        self._share = 1.0
        self._table = self.ranks.table
        self._new: NewLayers | None = None
        self._layout: SlotLayout | None = None
        self.apart: frozenset[str] = frozenset()  # paths of tensors whose shards are not joined on their way
        self._checked = -1  # version of the ranks
        self._lost: set[int] = set()  # ranks whose end has been noted

    @property
    def is_alone(self) -> bool:
        """Nobody sends to this rank."""
        return not self._followers

    def join(self, met: Connections) -> None:
        self._share = met.patience
        self._followers = [FollowerLink(link, self._came) for link in met.down]

    def introduce(self, new: NewLayers) -> None:
        """This rank's own layers."""
        self._new, self._table, self._layout = new, new.table, None

    def send(self, message: Message) -> None:
        for one in self._followers:
            one.send(message)

    def close(self) -> None:
        """From now on what is still missing is not waited for much longer."""
        self._closing_since = time.monotonic()

    def parts(self, frame: RawFrame, step: int, witness: NDArray[np.bool_] | None = None) -> list[Part] | None:
        """All parts of this frame, this rank's first; None while it is worth waiting for one of them."""
        if not self._is_waiting:
            latest, number = self._latest
            self._latest = (step, number + 1 if step == latest else 0)
            self._is_waiting, self._since = True, time.monotonic()
        if not self._wait(self._latest):
            return None
        key, self._is_waiting = self._latest, False
        began = time.thread_time()
        own = part_of(frame, self._rank, key, witness)
        own_roster = self._enter_own(frame.layout)
        parts = [own]
        for one in self._followers:
            with self._came:
                found = one.take(key)
            if found is not None:
                part, roster = found
                if roster is not None:
                    self._enter(roster, part, own_roster, own)
                if part.rank in self.ranks.by_rank:
                    parts.append(part)
        with self._came:
            decoding = sum(one.spent() for one in self._followers)
        self._separate()
        self.seconds = time.thread_time() - began + decoding
        return parts

    def keep_apart(self, paths: Sequence[str]) -> None:
        """From any thread."""
        self.apart |= frozenset(paths)
        self.send(Separate(list(paths)))

    def _separate(self) -> None:
        """Where what was joined overlaps, it must come as it is: in the next frames, then."""
        if self._checked != self.ranks.version:
            self._checked = self.ranks.version
            overlapping = np.flatnonzero(self.ranks.holding.counts < 0)
            paths = [self.ranks.slot_facts[slot].path for slot in overlapping.tolist()]
            if not self.apart.issuperset(paths):
                self.keep_apart(paths)

    def shorten(self, parts: list[Part]) -> None:
        """Tell ranks whose tensors all come from a lower rank that a comparison is enough from now on."""
        sent = {part.rank for part in parts}
        seen = np.zeros(len(self.ranks.holding.blocks), np.bool_)
        for rank in sorted(sent):
            portions = self.ranks.by_rank[rank].portions
            follower = next((one for one in self._followers if one.rank == rank), None)
            if follower is not None and not follower.is_short:
                follower.is_short = True
                follower.send(Witness(np.flatnonzero(seen[portions])))
            seen[portions] = True

    def words(self) -> list[Word]:
        """What the others have to say, and who is gone."""
        words: list[Word] = []
        with self._came:
            for one in self._followers:
                while one.words:
                    words.append(one.words.popleft())
                if one.gone and one.rank not in self._lost:
                    self._lost.add(one.rank)
                    held = "it" if one.speaks_for == 1 else f"it and the {one.speaks_for - 1} that send by way of it"
                    reason = f"rank {one.rank} was lost while training: what {held} held is missing from there on"
                    words.append(Word(one.rank, "note", None, {"reason": reason}))
        return words

    def part_ways(self) -> list[Word]:
        """Let the others end, too; those that give no sign of life are left behind."""
        with self._came:
            while any(one.gone is None for one in self._followers):
                left = self._deadline() - time.monotonic()
                if left <= 0:
                    break
                self._came.wait(left)
        words = self.words()
        self.leave()
        return words

    def leave(self) -> None:
        for one in self._followers:
            one.close()
        self._followers = []

    def _wait(self, key: Key) -> bool:
        until = time.monotonic() + _NAP
        with self._came:
            while True:
                deadline = self._deadline()
                for one in self._followers:
                    for roster in one.skip_to(key):
                        self.ranks.enter(roster)
                missing = [one for one in self._followers if one.is_awaited]
                now = time.monotonic()
                if not missing:
                    return True
                if now >= deadline:
                    for one in missing:
                        one.is_late = True
                    return True
                if now >= until:
                    return False
                self._came.wait(min(until, deadline) - now)

    def _deadline(self) -> float:
        """Until when a part is worth waiting for."""
        if self._closing_since is None:
            return self._since + self._share * PATIENCE
        return self._closing_since + self._share * CLOSING_PATIENCE

    def _enter_own(self, layout: SlotLayout) -> Roster:
        if layout is not self._layout:
            self._layout = layout
            roster = roster_of(self._rank, self._table, layout, self._new)
            if self.ranks.own != roster:
                self.ranks.enter(roster)
        assert self.ranks.own is not None
        return self.ranks.own

    def _enter(self, roster: Roster, part: Part, own_roster: Roster, own: Part) -> None:
        if roster.rank not in self.ranks.prefixes:
            alike = are_replicas(own_roster, own, roster, part)
            self.ranks.prefixes[roster.rank] = "" if alike else f"rank{roster.rank}."
        self.ranks.enter(roster)
