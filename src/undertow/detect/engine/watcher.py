"""The units the engine drives: a condition for itself, or all conditions that share a tracker."""

from collections.abc import Iterable, Iterator

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
        self._tracker = None if self._tracker_kind is None else self._tracker_kind()
        self._conditions = [kind() if self._tracker is None else kind(self._tracker) for kind in self._kinds]
        self.grow(count)

    def grow(self, count: int) -> None:
        if self._tracker is not None:
            self._tracker.grow(count)
        for condition in self._conditions:
            condition.grow(count)

    def judge(self, batch: FrameBatch) -> Iterator[Said]:
        if self._tracker is not None:
            yield from self._judge_together(batch, self._tracker)
            return
        (condition,), (place,) = self._conditions, self.places
        for frame, judgement in condition.judge(batch):
            yield frame, place, judgement

    def _judge_together(self, batch: FrameBatch, tracker: Tracker) -> Iterator[Said]:
        """Frame by frame: the tracker first, then its conditions in their order."""
        shown = batch.with_any(tracker.needs).tolist() if tracker.needs else None
        wakes = tracker.wakes_on(batch).tolist() if tracker.wakes_on is not None else None
        skipped = None  # since which frame all have been calm
        for frame in range(len(batch)):
            if shown is not None and not shown[frame]:
                continue
            if wakes is not None and not wakes[frame] and self._all_calm(tracker):
                skipped = frame if skipped is None else skipped
                continue
            if skipped is not None:
                tracker.skip(batch, skipped, frame)
                skipped = None
            view = batch.view(frame)
            tracker.follow(view)
            for condition, place in zip(self._conditions, self.places):
                judgement = condition.observe(view)
                (tracker.open_variants.add if condition.is_open else tracker.open_variants.discard)(condition.variant)
                if judgement is not None:
                    yield frame, place, judgement
        if skipped is not None:
            tracker.skip(batch, skipped, len(batch))

    def _all_calm(self, tracker: Tracker) -> bool:
        return tracker.is_calm and all(condition.is_calm for condition in self._conditions)


def watchers_of(kinds: Iterable[type[Condition]]) -> list[Watcher]:
    """Conditions that share a tracker are judged together, at the place of the first of them."""
    together: dict[object, list[type[Condition]]] = {}
    for kind in kinds:
        together.setdefault(kind.tracker or kind, []).append(kind)
    return [Watcher(group) for group in together.values()]


def _rank(tracker: type[Tracker], variant: str) -> tuple[int, str]:
    return (tracker.order.index(variant) if variant in tracker.order else len(tracker.order)), variant
