"""Finds the layers of a training, their order and their graph, and looks again for what has come since."""

from collections.abc import Callable
from threading import get_ident
from typing import Any

from torch.optim.optimizer import Optimizer

from undertow.probe.distributed.portions import gathers_parameters
from undertow.probe.forward import ForwardTap
from undertow.probe.readings import NewLayers
from undertow.probe.step_signals import StepSignals
from undertow.probe.step_state import StepState
from undertow.probe.subjects import Subjects

_MOST_WALKS = 20  # that show nothing new
_FIRST = 5  # steps after each of which there may be new layers


class LayerSearch:
    def __init__(
        self,
        subjects: Subjects,
        state: StepState,
        signals: StepSignals,
        forward: ForwardTap,
        post: Callable[[NewLayers], float],
    ) -> None:
        self._subjects, self._state, self._signals, self._forward, self._post = subjects, state, signals, forward, post
        self._attempts = [0, 0]  # from backward passes, and from steps
        self._walks_in_vain = 0

    def discover(self, loss: tuple[Any, ...], stepping: Optimizer | None) -> bool:
        """Look for something to watch; ever more rarely, because looking is slow and there may be nothing."""
        if stepping is None and loss and any(map(gathers_parameters, self._forward.roots_called)):
            return False  # such a model has other parameters by now than those that its optimizer holds
        self._attempts[stepping is not None] += 1
        attempts = self._attempts[stepping is not None]
        if attempts & (attempts - 1):
            return False
        self._forward.follow(get_ident())
        return self._subjects.discover(self._forward.roots_called, loss, stepping)

    def walk(self, roots: tuple[Any, ...]) -> None:
        """The graph of this loss shows what has a place in it."""
        if not self._state.want_walk or self._walks_in_vain >= _MOST_WALKS:
            return
        self._state.want_walk = False
        positions = {
            layer: reading.position
            for layer, reading in self._signals.module_readings().items()
            if reading.position is not None
        }
        if self._subjects.walk(roots, positions):
            self.post_layers()
        else:
            self._walks_in_vain += 1

    def look_again(self) -> None:
        """After a step: for parameters added since, and for those whose place is not known."""
        done, subjects = self._state.done, self._subjects
        due = subjects.due(done)
        if due:
            self.rescan()
        if (done < _FIRST or due) and subjects.unplaced():
            self._state.want_walk = True

    def rescan(self) -> None:
        if self._subjects.rescan():
            self._state.want_walk = True
            self.post_layers()

    def post_layers(self) -> None:
        layers = self._subjects.layers
        self._post(NewLayers(layers.table, layers.graph, self._subjects.facts()))
