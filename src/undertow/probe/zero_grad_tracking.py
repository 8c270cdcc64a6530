"""Whether gradients were cleared between two steps: what is left of an old one adds to the new one."""

import weakref
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.probe.readings import Slots, zeros

References = Sequence[weakref.ref[torch.Tensor]]  # to the watched tensors, by slot
_Left = tuple[int, weakref.ref[torch.Tensor], int]  # slot, gradient and its version


class ZeroGradTracker:
    """By slot. Arrays are slow for a few numbers, and most often all of this is forgotten before anybody asks: what
    has been stepped is noted down, and put into the array only when something of it is left.
    """

    def __init__(self) -> None:
        self._cleared: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._all = False
        self._added: NDArray[np.bool_] = np.empty(0, np.bool_)  # a backward pass has added to what was left
        self.waiting: list[_Left] = []  # what no backward pass has added to since
        self._stepped: list[Slots] = []  # since it was last known what is cleared

    def move(self, old: Iterable[int], new: Iterable[int]) -> None:
        """Slots stand for other tensors from now on: these, by id. Of tensors not seen before nothing is left."""
        self._settle()
        known = dict(zip(old, self._cleared.tolist()))
        self._cleared = np.array([known.get(identity, True) for identity in new], np.bool_)
        self._all = bool(self._cleared.all())
        self._added, self.waiting = np.zeros(len(self._cleared), np.bool_), []

    def is_known(self, present: bytes) -> bool:
        """True when all gradients are gone, by the flags of those that are there; else `left` says which to read."""
        if self._all and b"\1" not in present:
            self._stepped.clear()
            return True
        return self._all and not self._stepped

    def left(self, present: bytes) -> list[int]:
        """Slots that have been stepped and have a gradient still. They count as cleared until `put` says otherwise."""
        self._settle()
        left = [slot for slot in np.flatnonzero(~self._cleared).tolist() if present[slot]]
        self._cleared[:] = self._all = True
        return left

    def put(self, slots: Slots, is_zero: NDArray[np.bool_], tensors: References) -> None:
        """Called as a backward pass begins."""
        self._cleared[slots] = is_zero
        self._all = bool(is_zero.all())
        waiting = [(slot, _gradient(tensors[slot])) for slot in slots[~is_zero & ~self._added[slots]].tolist()]
        self.waiting = [(slot, weakref.ref(old), int(old._version)) for slot, old in waiting if old is not None]

    def note_added(self, tensors: References) -> None:
        """Called as a backward pass ends: to some of what is left it has added."""
        if self.waiting:
            self._added[[slot for slot, _, _ in self.waiting]] = True
            self.waiting = self._untouched(tensors)
            self._added[[slot for slot, _, _ in self.waiting]] = False

    def _untouched(self, tensors: References) -> list[_Left]:
        left = [(one, one[1](), _gradient(tensors[one[0]])) for one in self.waiting]
        return [one for one, old, now in left if old is not None and now is old and old._version == one[2]]

    def step(self, slots: Slots) -> None:
        """An optimizer has used the gradients of these."""
        if not self._stepped or self._stepped[-1] is not slots:
            self._stepped.append(slots)

    def take_back(self, slots: Slots) -> None:
        """These have not been used after all, and count as cleared."""
        self._settle()
        self._cleared[slots], self._added[slots] = True, False
        self._all = bool(self._cleared.all())
        self.waiting = [one for one in self.waiting if not self._cleared[one[0]]]

    def carried(self, slots: Slots, tensors: References) -> NDArray[np.float32]:
        """1 where something of an earlier step is in the gradient. What no backward pass added to counts when it is
        the gradient still: weights that are kept in another precision, say, get a new one from the program itself.
        """
        self._settle()
        if self._all:
            return zeros(len(slots))
        stays = self._added.copy()
        stays[[slot for slot, _, _ in self._untouched(tensors)]] = True
        return (~self._cleared & stays)[slots].astype(np.float32)

    def _settle(self) -> None:
        for slots in self._stepped:
            self._cleared[slots] = self._added[slots] = self._all = False
        self._stepped.clear()


def _gradient(parameter: weakref.ref[torch.Tensor]) -> torch.Tensor | None:
    tensor = parameter()
    return None if tensor is None else tensor.grad
