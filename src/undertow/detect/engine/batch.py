"""Frames that come together, stacked: what concerns all of them is then one operation on one array."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import PLACES, FrameView
from undertow.detect.features.loss_trend import ANOTHER_TRAINING, Loss
from undertow.schema import Frame

Flags = NDArray[np.bool_]
_Scalar = TypeVar("_Scalar", bound=np.generic)


class _Stack:
    """The blocks of one stream: in which frames they are, and their values, stacked when first asked for."""

    __slots__ = ("_of", "_places", "_values", "at", "blocks", "ids")

    def __init__(self, ids: NDArray[np.int32]) -> None:
        self.ids = ids
        self.at: list[int] = []
        self.blocks: list[NDArray[np.float32]] = []
        self._values: NDArray[np.float32] | None = None
        self._places: NDArray[np.intp] | None = None
        self._of: tuple[_Stack, list[int]] | None = None  # the one that this is a part of, and which rows of it

    def values(self) -> NDArray[np.float32]:
        if self._values is None:
            if self._of is not None:
                whole, rows = self._of
                self._values = whole.values()[rows]
            else:
                self._values = np.concatenate(self.blocks).reshape(len(self.blocks), *self.blocks[0].shape)
        return self._values

    def places(self) -> NDArray[np.intp]:
        if self._places is None:
            self._places = np.array(self.at, np.intp)
        return self._places

    def part(self, new_place: dict[int, int]) -> _Stack:
        out, rows = _Stack(self.ids), [row for row, place in enumerate(self.at) if place in new_place]
        out.at = [new_place[self.at[row]] for row in rows]
        out._of = self, rows
        return out


class FrameBatch:
    """Successive frames whose blocks of a stream, where they have one, cover the same layers.

    `flags` and `changed` answer with one truth value per frame; frames without the stream get False.
    """

    def __init__(self, layout: LayerIndex) -> None:
        self.layout = layout
        self.frames: list[Frame] = []
        self.losses: list[Loss | None] = []  # of each frame; the engine puts them there
        self._stacks: dict[str, _Stack] = {}
        self._views: dict[int, FrameView] = {}
        self._kinds: tuple[NDArray[np.intp], list[frozenset[str]]] | None = None  # of each frame; names in each
        self._shared: dict[object, NDArray[Any]] = {}
        self._whole: FrameBatch | None = None
        self._places: list[int] = []

    def __len__(self) -> int:
        return len(self.frames)

    def take(self, frame: Frame) -> bool:
        """Add a frame; False, and nothing is added, when its layers are others, or another training begins with it."""
        stacks, place = self._stacks, len(self.frames)
        if place and frame.scalars.get(ANOTHER_TRAINING) == 1:
            return False
        for stream, block in frame.blocks.items():
            stack = stacks.get(stream)
            if stack is None:
                stack = stacks[stream] = _Stack(block.layer_ids)
            elif stack.ids is not block.layer_ids and not np.array_equal(stack.ids, block.layer_ids):
                self._give_back(place)
                return False
            stack.at.append(place)
            stack.blocks.append(block.values)
        self.frames.append(frame)
        self.losses.append(None)
        return True

    def _give_back(self, place: int) -> None:
        """Blocks of a frame that has turned out to be of others."""
        for stream, stack in [*self._stacks.items()]:
            if stack.at and stack.at[-1] == place:
                del stack.at[-1], stack.blocks[-1]
                if not stack.at:
                    del self._stacks[stream]

    def part(self, places: list[int]) -> FrameBatch:
        """Some of the frames, as a batch."""
        out = FrameBatch(self.layout)
        out.frames, out.losses = [self.frames[place] for place in places], [self.losses[place] for place in places]
        new_place = {place: number for number, place in enumerate(places)}
        stacks = {stream: stack.part(new_place) for stream, stack in self._stacks.items()}
        out._stacks = {stream: stack for stream, stack in stacks.items() if stack.at}
        out._whole, out._places = self, places
        return out

    @property
    def places(self) -> Sequence[int]:
        """Of the frames, in the batch of which this is a part."""
        return range(len(self.frames)) if self._whole is None else self._places

    def view(self, place: int) -> FrameView:
        """One of the frames, as `observe` takes it."""
        view = self._views.get(place)
        if view is None:
            if self._whole is not None:  # what is worked out for a frame is worked out once
                view = self._whole.view(self._places[place])
            else:
                view = FrameView(self, place)
            self._views[place] = view
        return view

    def with_any(self, names: frozenset[str]) -> Flags:
        """Frames that have any of these streams or scalars."""
        if self._kinds is None:
            known: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
            kinds = [known.setdefault((tuple(frame.scalars), tuple(frame.blocks)), len(known)) for frame in self.frames]
            self._kinds = np.array(kinds, np.intp), [frozenset((*scalars, *blocks)) for scalars, blocks in known]
        kind, has = self._kinds
        return np.array([not names.isdisjoint(one) for one in has], bool)[kind]

    def of(self, view: FrameView, stream: str, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """What belongs to one of the frames, of rows of all frames that have the stream."""
        at = self._stacks[stream].at
        return rows[view.place if len(at) == len(self.frames) else bisect_left(at, view.place)]

    def has(self, stream: str) -> bool:
        return stream in self._stacks and bool(self._stacks[stream].at)

    def ids(self, stream: str) -> NDArray[np.int32]:
        return self._stacks[stream].ids

    def frames_with(self, stream: str, first: int = 0, last: int | None = None) -> list[int]:
        """Places, from `first` up to, not including, `last`, of the frames that have a block of the stream."""
        if not self.has(stream):
            return []
        at = self._stacks[stream].at
        return at[bisect_left(at, first) : len(at) if last is None else bisect_left(at, last)]

    def at(self, stream: str) -> NDArray[np.intp]:
        """Places of the frames that have a block of the stream, one for each row of it."""
        return self._stacks[stream].places() if stream in self._stacks else np.zeros(0, np.intp)

    def row(self, name: str) -> NDArray[np.float32]:
        """(frames that have the stream × layers)."""
        stream, row = PLACES[name]
        return self._stacks[stream].values()[:, row]

    def latest(self, name: str, first: int, last: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The layers that some frames measure, and the value that is known last of each."""
        at = self._stacks[PLACES[name][0]].at
        values = self.row(name)[bisect_left(at, first) : bisect_left(at, last)]
        known = ~np.isnan(values)
        measured = known.any(axis=0)
        place = len(values) - 1 - known[::-1].argmax(axis=0)
        return self.ids(PLACES[name][0])[measured], values[place, np.arange(values.shape[1])][measured]

    def shared(self, name: object, work_out: Callable[[], NDArray[_Scalar]]) -> NDArray[_Scalar]:
        """What several conditions work out from all frames: once, under a name. Not to be written to."""
        known = self._shared.get(name)
        if known is None:
            known = self._shared[name] = work_out()
            known.setflags(write=False)
        return known

    def scalar(self, name: str, absent: float = np.nan) -> NDArray[np.float64]:
        """One number per frame."""

        def work_out() -> NDArray[np.float64]:
            return np.array([frame.scalars.get(name, absent) for frame in self.frames], np.float64)

        return self.shared((name, absent), work_out)

    def loss(self, name: str) -> NDArray[np.float64]:
        """One field of the losses; NaN for a frame without one."""
        field = attrgetter(name)

        def work_out() -> NDArray[np.float64]:
            return np.array([np.nan if loss is None else field(loss) for loss in self.losses], np.float64)

        return self.shared(f"loss {name}", work_out)

    def latest_loss(self, first: int, last: int) -> Loss | None:
        return next((loss for loss in reversed(self.losses[first:last]) if loss is not None), None)

    @property
    def steps(self) -> NDArray[np.int64]:
        return self.shared("steps", lambda: np.array([frame.step for frame in self.frames], np.int64))

    @property
    def skipped(self) -> Flags:
        """Steps that a loss scaler skipped."""
        return self.shared("skipped", lambda: self.scalar("step_skipped", 0.0) == 1.0)

    def none(self) -> Flags:
        return np.zeros(len(self.frames), bool)

    def flags(self, stream: str, layers: Flags) -> Flags:
        """Frames with any such layer, given (frames that have the stream × layers)."""
        out = self.none()
        out[self._stacks[stream].at] = layers.any(axis=1)
        return out

    def changed(self, stream: str, values: NDArray[Any]) -> Flags:
        """Frames in which a layer's value is not the latest known one; NaN is unknown. True for the first frame."""
        known = ~np.isnan(values)
        if known.all():
            before = values
        else:  # carry what is known over the frames that do not speak of the layer
            latest = np.maximum.accumulate(np.where(known, np.arange(len(values))[:, None], 0), axis=0)
            before = np.take_along_axis(values, latest, axis=0)
        new = np.ones(values.shape, bool)
        new[1:] = (values[1:] != before[:-1]) & known[1:]
        out = self.flags(stream, new)
        out[self._stacks[stream].at[0]] = True
        return out


def batches_of(frames: Sequence[Frame], layout: LayerIndex) -> Iterator[FrameBatch]:
    """All frames that speak of known layers only; of others nothing can be said."""
    batch = FrameBatch(layout)
    known: dict[int, bool] = {}  # by identity: frames of one layout share their layer ids
    for frame in frames:
        for block in frame.blocks.values():
            ids = block.layer_ids
            good = known.get(id(ids))
            if good is None:
                good = known[id(ids)] = not len(ids) or int(ids.max()) < layout.count
            if not good:
                break
        else:
            if not batch.take(frame):
                yield batch
                batch = FrameBatch(layout)
                batch.take(frame)
    if len(batch):
        yield batch
