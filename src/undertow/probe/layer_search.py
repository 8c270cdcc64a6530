"""Finds the layers of a training, their order and their graph, and searches again for what has come since."""

from collections.abc import Callable
from threading import get_ident
from typing import Any

from torch.optim.optimizer import Optimizer

from undertow.probe.autograd_graph import leaves
from undertow.probe.discovery import live_optimizers, optimizer_tensors
from undertow.probe.distributed.portions import gathers_parameters
from undertow.probe.forward import ForwardTap
from undertow.probe.readings import NewLayers
from undertow.probe.step_signals import StepSignals
from undertow.probe.step_state import StepState
from undertow.probe.subjects import Subjects

_MOST_WALKS = 20  # that show nothing new
_SEARCHES = 12  # backward passes in a row whose graphs are searched for unknown models
_MOST_KINDS = 16
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
        signals.flow.announce = self.post_layers
        self._attempts = [0, 0]  # from backward passes, and from steps
        self._walks_in_vain = 0
        self._searches_left = _SEARCHES
        self._kinds: set[tuple[Any, ...]] = set()  # of losses
        self._generation = subjects.layers.generation

    def discover(self, loss: tuple[Any, ...], stepping: Optimizer | None, by: tuple[Any, ...] | None) -> bool:
        """Search for something to watch, ever more rarely: it is slow, and there may be nothing."""
        if stepping is None and loss and any(map(gathers_parameters, self._forward.roots_called)):
            return False  # such a model has other parameters by now than those that its optimizer holds
        if not self._is_due(stepping is not None):
            return False
        self._forward.follow(get_ident())
        return self._subjects.discover(self._forward.roots_called, loss, stepping, by)

    def is_held(self, loss: tuple[Any, ...]) -> bool:
        """Whether an optimizer has come that holds what this loss reaches."""
        reached = leaves(loss) if self._is_due(stepping=False) else set()
        return bool(reached) and any(id(tensor) in reached for tensor in optimizer_tensors(live_optimizers()))

    def _is_due(self, stepping: bool) -> bool:
        self._attempts[stepping] += 1
        return not self._attempts[stepping] & (self._attempts[stepping] - 1)

    def start_over(self) -> None:
        self._attempts, self._walks_in_vain = [0, 0], 0

    def walk(self, roots: tuple[Any, ...]) -> None:
        """The graph of this loss shows what has a place in it."""
        if not self._state.want_walk or self._walks_in_vain >= _MOST_WALKS:
            return
        self._state.want_walk = False
        positions = (
            {
                layer: reading.position
                for layer, reading in self._signals.module_readings().items()
                if reading.position is not None
            }
            if self._forward.sample is None
            else {}
        )  # of some modules it would be another order
        if self._subjects.walk(roots, positions):
            self.post_layers()
        else:
            self._walks_in_vain += 1

    def search_soon(self) -> None:
        """At the next backward pass: it may be that of another model."""
        self._searches_left = max(self._searches_left, 1)

    def find_more(self, roots: tuple[Any, ...]) -> bool:
        """Models that no optimizer holds: in the first passes, some after each rescan, and for losses of a new kind.
        True when there are any."""
        kind = tuple(_kind(root) for root in roots)
        if not self._searches_left and (kind in self._kinds or len(self._kinds) >= _MOST_KINDS):
            return False
        self._kinds.add(kind)
        self._searches_left = max(self._searches_left - 1, 0)
        if not self._subjects.take_in(roots, self._signals.collector.is_unregistered):
            return False
        self._state.want_walk = True
        self._state.now.forget_gradients()
        self.post_layers()
        return True

    def rescan_if_due(self) -> None:
        """After a step: for parameters added since, and for those whose place is not known."""
        done, subjects = self._state.done, self._subjects
        due = subjects.due(done)
        if due:
            self._searches_left = _SEARCHES
            self.rescan()
        if (done < _FIRST or due) and subjects.unplaced():
            self._state.want_walk = True

    def rescan(self) -> None:
        if self._subjects.rescan():
            self._state.want_walk = True
            self.post_layers()

    def post_layers(self) -> None:
        self._walks_in_vain, layers = 0, self._subjects.layers
        if layers.generation != self._generation:
            self._generation = layers.generation
            self._signals.collector.begin_anew()
        self._post(NewLayers(layers.table, layers.graph, self._subjects.facts()))


def _kind(root: Any) -> tuple[str, ...]:
    """What a loss was made by, at a glance."""
    node = getattr(root, "grad_fn", None)
    if node is None:
        return ()
    return (node.name(), *("" if up is None else up.name() for up, _ in node.next_functions))
