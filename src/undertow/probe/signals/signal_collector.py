"""Collects the signals of the step that is under way, on the training thread, within a share of the budget."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import Optimizer

from undertow.probe.autograd_graph import Owners
from undertow.probe.forward import ModuleReading
from undertow.probe.readings import NO_SLOTS, HeldReading, SignalReadings, Slots
from undertow.probe.signals.embedding_rows import MOST_ROWS, RowBook, memory_of, row_spread
from undertow.probe.signals.graph_signals import GraphSignals
from undertow.probe.signals.loss import read_loss
from undertow.probe.signals.micro_batches import MicroBatches
from undertow.probe.signals.modules import ModeWatch
from undertow.probe.signals.optimizer_state import Holders, group_numbers, read_optimizer
from undertow.probe.signals.unregistered_parameters import UnregisteredParameters

_ALWAYS = 16  # the first steps are always read: a broken contract shows at once
_SHARE = 0.2  # of the budget
_ELSE_EVERY = 32  # steps between two readings where the user has set how often to measure; twice as many after
_LASTS = 1024  # steps
_LOGITS_EVERY = 8  # readings of a loss
_ALWAYS_STATE = 4  # readings of optimizer state
_MOST_FED = 16  # choices of parameters with a gradient that are told apart


class Allowance:
    """Lets a measurement happen again once the budget of the steps since has paid for the last one."""

    def __init__(self) -> None:
        self._owed = 0.0
        self._steps = 0
        self._costs: deque[float] = deque(maxlen=9)

    def step(self, has_read: bool, spent_seconds: float, allowed_seconds: float) -> None:
        self._steps += 1
        if has_read:  # one slow step on a busy machine says nothing: the median counts
            self._costs.append(spent_seconds)
            self._owed += median(self._costs)
        self._owed = max(0.0, self._owed - _SHARE * allowed_seconds) if self._steps > _ALWAYS else 0.0

    @property
    def is_paid(self) -> bool:
        return self._owed == 0.0


class SignalCollector:
    def __init__(self, layer_of: Callable[[int], int | None] = lambda identity: None) -> None:
        """`layer_of`: the layer of a parameter, by the id of its tensor."""
        self._layer_of = layer_of
        self._modes = ModeWatch()
        self._fed: dict[bytes, set[bytes]] = {}  # of each choice of layers, which of them had a gradient
        self._fed_anew = False
        self._graph = GraphSignals()
        self._holders = Holders()
        self._unregistered = UnregisteredParameters()
        self._rows = RowBook(layer_of)
        self._embeddings: tuple[Slots, Slots] = (NO_SLOTS, NO_SLOTS)  # those among an optimizer's slots
        self._now = SignalReadings()
        self._parts: MicroBatches | None = None
        self._steps = 0
        self._state_reads = 0
        self._has_read = False
        self._losses_read = 0  # after the first steps
        self._asked = 0  # backward passes of this step
        self._counts: set[int] = set()  # of the steps so far
        self._counts_anew = False
        self._allowance = Allowance()
        self.seconds_behind = 0.0  # that the background thread needs for one reading

    def wants_loss(self, planned: bool, governed: bool) -> bool:
        """Whether to read the loss that is about to be differentiated: the first one of a step, and what the
        others of it count in the first steps. After a step with another number of backward passes than ever before
        their losses may count for more or less."""
        self._asked += 1
        if self._now.loss is not None:
            return self._steps < _ALWAYS
        if self._steps < _ALWAYS or self._counts_anew:
            return True
        # An interval that the user has set is one for gradients, weights and updates; signals keep their own.
        return (planned or governed) and self._is_due(governed)

    @property
    def _interval(self) -> int:
        return _ELSE_EVERY if self._steps < _LASTS else 2 * _ELSE_EVERY

    def _is_due(self, governed: bool) -> bool:
        return self._allowance.is_paid if governed else self._steps % self._interval == 0

    def read_loss(self, roots: tuple[Any, ...], scaler: GradScaler | None) -> None:
        root = next((one for one in roots if _is_plain(one)), None)
        if root is None:
            return
        self._has_read = True
        if self._now.loss is None:
            self._now.loss = read_loss(root, _address(scaler), with_logits=self._losses_read % _LOGITS_EVERY == 0)
            self._losses_read += self._steps >= _ALWAYS
            source = self._now.loss.source
            layer = None if source is None else self._layer_of(source)
            if layer is not None:
                self._now.numbers["loss_layer"] = float(layer)
        if self._steps < _ALWAYS:
            self._parts = self._parts or MicroBatches()
            self._parts.note(root, _address(scaler))

    def note_modes(self, modules: Iterable[ModuleReading]) -> None:
        """The mode of each module that took part, as the backward pass begins: validation may have come before."""
        there = [(one, module) for one in modules if (module := one.module) is not None]
        for one, module in there:
            if one.position is not None:
                one.training = module.training and one.training is not False
        self._modes.know(module for _, module in there)

    def note_unregistered(
        self, ran: Mapping[int, ModuleReading], known: Collection[int], roots: list[nn.Module]
    ) -> None:
        """Modules that ran and that no watched model holds, by id; in the first steps only."""
        if self._steps < _ALWAYS:
            there = {identity: module for identity, one in ran.items() if (module := one.module) is not None}
            self._unregistered.note(there, known, roots)

    def is_unregistered(self, parameter: torch.Tensor) -> bool:
        """Whether it was noted so: it is there by mistake, and no model to be watched."""
        return self._unregistered.knows(id(parameter))

    def read_graph(self, roots: tuple[Any, ...], modules: Iterable[ModuleReading]) -> None:
        """Attention and gates, in steps in which modules are sampled."""
        plain = [root for root in roots if _is_plain(root)]
        if plain:
            self._now.numbers |= self._graph.read(plain, modules)

    @property
    def sees_graph(self) -> bool:
        """Whether there is anything in the graph to read again."""
        return not self._graph.is_empty

    def modes_changed(self) -> bool:
        """True when normalisations or dropouts are in a mode not seen before, or an optimizer stepped other parameters
        with a gradient than ever before: time to sample which modules run."""
        fed_anew, self._fed_anew = self._fed_anew, False
        return self._modes.is_new() or fed_anew

    def note_data(self, partials: Any, address: int) -> None:
        self._now.data, self._now.data_address = partials, address

    def skips_step(self, slots: Slots, whole: bool, governed: bool) -> bool:
        """Whether `read_step` would do nothing, after one more step of the same optimizer."""
        if self._steps < _ALWAYS or slots is not self._embeddings[0] or len(self._embeddings[1]):
            return False
        return not whole or (self._state_reads >= _ALWAYS_STATE and not self._is_due(governed))

    def idle_steps(self, slots: Slots, governed: bool) -> int:
        """For how many steps of the same optimizer, from the one that comes next on, there is nothing to read: known
        only where the user has set how often to measure. Whoever then asks for nothing tells `rest` so."""
        if governed or self._state_reads < _ALWAYS_STATE or not self.skips_step(slots, whole=False, governed=False):
            return 0
        return -self._steps % self._interval

    def rest(self, steps: int) -> None:
        """Steps have ended in which nothing was read."""
        self._steps += steps

    def read_step(
        self,
        optimizer: Optimizer,
        slots: Slots,
        layers: NDArray[np.int32],
        tensors_of: Callable[[Slots], list[torch.Tensor]],
        owners: Owners,
        whole: bool,
        governed: bool,
    ) -> HeldReading | None:
        """After an optimizer has stepped these parameters, of these layers; `whole` when their weights are measured."""
        rebuilt = self._holders.is_rebuilt(optimizer, layers)
        if rebuilt:
            self._now.numbers["optimizer_made_anew"] = 1.0
        if self._holders.begins_another:
            self._now.numbers["another_training"] = 1.0
        if self._steps < _ALWAYS:
            self._now.numbers |= group_numbers(optimizer)
            self._now.numbers["unregistered_parameters"] = self._unregistered.untrained(optimizer, owners)
        if slots is not self._embeddings[0]:
            owned = [(tensor.dim() == 2, owners.get(id(tensor), ())) for tensor in tensors_of(slots)]
            is_table = [flat and any(owner.is_embedding for owner in each) for flat, each in owned]
            self._embeddings = (slots, slots[is_table])
        embeddings = self._embeddings[1]
        for tensor in tensors_of(embeddings) if len(embeddings) else ():
            if len(tensor) <= MOST_ROWS and memory_of(optimizer, tensor) is None:
                self._rows.note_gradient(tensor)
        if whole:
            self._note_fed(layers, tensors_of(slots))
        if not (whole or rebuilt):
            return None
        # A new optimizer is read even where the weights are not measured.
        if self._state_reads >= (_ALWAYS if rebuilt else _ALWAYS_STATE) and not self._is_due(governed):
            return None
        self._state_reads += 1
        self._has_read = True
        tensors = tensors_of(slots)
        spread, unused = np.full((2, len(slots)), np.nan, np.float32)
        tables: list[int] = np.flatnonzero(np.isin(slots, embeddings)).tolist()
        for place, tensor in enumerate(tensors):
            # The units of a table are its columns: rows part by themselves, since each is looked up by itself.
            spread[place] = row_spread(tensor.T if place in tables and tensor.dim() == 2 else tensor)
        for place in tables:
            self._rows.note_state(optimizer, tensors[place])
            unused[place] = self._rows.unused(tensors[place])
        return HeldReading(slots, read_optimizer(optimizer, tensors, rebuilt), spread, unused)

    def _note_fed(self, layers: NDArray[np.int32], tensors: list[torch.Tensor]) -> None:
        flags = bytes(tensor.grad is not None for tensor in tensors)
        known = self._fed.setdefault(layers.tobytes(), set()) if len(self._fed) < _MOST_FED else {flags}
        if flags not in known and len(known) < _MOST_FED:
            self._fed_anew |= bool(known)
            known.add(flags)

    def read_parts(self, optimizer: Optimizer, slots: Slots, tensors: Sequence[torch.Tensor]) -> HeldReading:
        """The same where this process holds only parts of the parameters: rows are not read."""
        unknown = np.full(len(slots), np.nan, np.float32)
        return HeldReading(slots, read_optimizer(optimizer, tensors, rebuilt=False), unknown, unknown)

    def forget_tensors(self) -> None:
        """Nothing refers to any of them afterwards."""
        self._unregistered = UnregisteredParameters()

    def begin_anew(self) -> None:
        """Layers stand for other models from now on."""
        self._holders, self._rows = Holders(), RowBook(self._layer_of)

    def forget(self) -> None:
        """What has been seen since the last step was not of a watched model."""
        self._now, self._parts = SignalReadings(), None

    def take(self, spent_seconds: float, allowed_seconds: float) -> SignalReadings:
        """The signals of the step that ends, and what they have cost."""
        self._steps += 1
        self._allowance.step(self._has_read, spent_seconds + self.seconds_behind, allowed_seconds)
        self._has_read = False
        count, self._asked = self._asked, 0
        self._counts_anew = 0 < len(self._counts) < _MOST_FED and count > 0 and count not in self._counts
        if count and len(self._counts) < _MOST_FED:
            self._counts.add(count)
        now, self._now = self._now, SignalReadings()
        spread = self._parts.spread() if self._parts is not None else None
        if spread is not None:
            now.numbers["micro_batch_spread"] = spread
        self._parts = None
        return now


def _is_plain(root: Any) -> bool:
    return type(root) in (torch.Tensor, nn.Parameter) and root.grad_fn is not None and root.device.type != "meta"


def _address(scaler: GradScaler | None) -> int | None:
    scale = getattr(scaler, "_scale", None)
    return scale.data_ptr() if isinstance(scale, torch.Tensor) else None
