"""The units the engine drives: a condition for itself, or all conditions that share a tracker."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

import numpy as np

from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.condition import Condition, Judgement, Pace
from undertow.detect.engine.tracker import Tracker

Place = tuple[str, str]  # code and variant
Said = tuple[int, Place, Judgement]  # place of the frame in its batch, who speaks, and what


class Watcher:
    """Conditions that look at the same frames, and the tracker they share, if any."""

    def __init__(self, kinds: list[type[Condition]]) -> None:
        first = kinds[0]
        shared = first.tracker
        self._kinds = kinds if shared is None else sorted(kinds, key=lambda kind: _rank(shared, kind.variant))
        self._tracker_kind = shared
        self.places = [(kind.code, kind.variant) for kind in self._kinds]
        self.name = first.code if shared is not None else f"{first.code} ({first.variant})"
        self.pace: Pace | None = first.pace
        self.is_of_one_training = first.is_of_one_training if shared is None else shared.is_of_one_training
        self.renew(0)

    def owns(self, place: Place) -> bool:
        return place in self.places

    def renew(self, count: int) -> None:
        """Forget everything."""
        self._conditions = [kind() for kind in self._kinds]
        self._tracker = None if self._tracker_kind is None else self._tracker_kind()
        if self._tracker is not None:
            self._tracker.open_variants = set()
            for condition in self._conditions:
                setattr(condition, condition.tracker_name, self._tracker)
        self.grow(count)

    def grow(self, count: int) -> None:
        for condition in self._conditions:  # and the tracker, which is one of their attributes
            condition.grow(count)

    def judge(self, batch: FrameBatch) -> Iterator[Said]:
        """Frame by frame: the tracker first, then its conditions in their order."""
        tracker = self._tracker
        for frame in self._frames_to_see(batch):
            view = batch.view(frame)
            if tracker is not None:
                tracker.follow(view)
            for condition, place in zip(self._conditions, self.places):
                judgement = condition.observe(view)
                if tracker is not None:
                    note = tracker.open_variants.add if condition.is_open else tracker.open_variants.discard
                    note(condition.variant)
                if judgement is not None:
                    yield frame, place, judgement

    def _frames_to_see(self, batch: FrameBatch) -> Iterator[int]:
        """None that has nothing of what they need, and while all are calm only those that they wake on."""
        first = self._conditions[0] if self._tracker is None else self._tracker
        shown = np.flatnonzero(batch.with_any(first.needs)).tolist() if first.needs else range(len(batch))
        if first.wakes_on is None:
            yield from shown
            return
        wakes = first.wakes_on(batch)
        awake = [number for number, frame in enumerate(shown) if wakes[frame]]
        number = 0
        while number < len(shown):
            frame = shown[number]
            if not wakes[frame] and self._is_calm():
                following = bisect_left(awake, number)
                number = awake[following] if following < len(awake) else len(shown)
                if self._tracker is not None:
                    self._tracker.skip(batch, frame, shown[number] if number < len(shown) else len(batch))
            else:
                yield frame
                number += 1

    def _is_calm(self) -> bool:
        return (self._tracker is None or self._tracker.is_calm) and all(one.is_calm for one in self._conditions)


def watchers_of(kinds: Iterable[type[Condition]]) -> list[Watcher]:
    """Conditions that share a tracker are judged together, at the place of the first of them."""
    together: dict[object, list[type[Condition]]] = {}
    for kind in kinds:
        together.setdefault(kind.tracker or kind, []).append(kind)
    return [Watcher(group) for group in together.values()]


def _rank(tracker: type[Tracker], variant: str) -> tuple[int, str]:
    return (tracker.order.index(variant) if variant in tracker.order else len(tracker.order)), variant
