"""Lists of watched tensors by their slots, worked out once for what comes again at every step.

Equal slots are the same array, and equal lists the same list, so that whoever keeps one knows it by identity.
"""

from collections.abc import Sequence

import numpy as np

from undertow.probe.distributed.spread_list import list_of
from undertow.probe.readings import Slots
from undertow.probe.tensor_list import TensorList, are_trainable, have_gradient
from undertow.probe.watched_layers import WatchedLayers

_MOST_REMEMBERED = 64
_ALL: Slots = np.empty(0, np.int64)  # stands for the slots of all tensors, without naming them


class SlotLists:
    def __init__(self, layers: WatchedLayers) -> None:
        self._layers = layers
        self.forget()

    def forget(self) -> None:
        """Slots stand for other tensors from now on."""
        self._same: dict[tuple[int, ...], Slots] = {}
        # By the identity of slots, and by flags of all tensors.
        self._lists: dict[tuple[int, bool], TensorList] = {}
        self._chosen: dict[tuple[int, bytes], Slots] = {}
        self.all_gradients: TensorList | None = None  # if, when last asked, every tensor had one

    def one(self, slots: Sequence[int]) -> Slots:
        """The one array that stands for these slots."""
        key = tuple(slots)
        array = self._same.get(key)
        if array is None:
            array = self._same[key] = np.array(key, np.int64)
        return array

    def gradients_now(self) -> TensorList:
        """Of all tensors that have one."""
        have = have_gradient(self._layers.references)
        found = self.gradients(self._pick(_ALL, have))
        self.all_gradients = found if b"\0" not in have else None
        return found

    def _pick(self, slots: Slots, flags: bytes) -> Slots:
        """Those of some slots whose tensors are flagged; the same array object whenever the answer is the same."""
        chosen = self._chosen.get((id(slots), flags))
        if chosen is None:
            candidates = range(len(flags)) if slots is _ALL else slots.tolist()
            chosen = self.one([slot for slot in candidates if flags[slot]])
            if len(self._chosen) < _MOST_REMEMBERED:
                self._chosen[id(slots), flags] = chosen
        return chosen

    def with_gradient(self, slots: Slots) -> Slots:
        return self._pick(slots, have_gradient(self._layers.references))

    def trainable_flags(self) -> bytes:
        """One for each slot."""
        flags, free = are_trainable(self._layers.references), self._layers.free
        return bytes(flag or slot in free for slot, flag in enumerate(flags)) if free else flags

    def trainable(self, slots: Slots) -> Slots:
        flags = self.trainable_flags()
        return self._pick(slots, flags) if b"\0" in flags else slots

    def gradients(self, slots: Slots) -> TensorList:
        """Of slots that have one."""
        return self._list(slots, of_gradients=True)

    def weights(self, slots: Slots) -> TensorList:
        return self._list(slots, of_gradients=False)

    def _list(self, slots: Slots, of_gradients: bool) -> TensorList:
        known = self._lists.get((id(slots), of_gradients))
        if known is None:
            references = self._layers.references
            chosen = [references[slot] for slot in slots.tolist()]
            known = list_of(slots, chosen, of_gradients, self._layers.layout.spread)
            if not known.is_spread:
                known.sizes, known.resized = self._layers.elements(slots), self._layers.note_gone
            if len(self._lists) < _MOST_REMEMBERED:
                self._lists[id(slots), of_gradients] = known
        return known
