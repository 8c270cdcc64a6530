"""What the training thread hands to the background thread: readings, not yet turned into quantities.

Partial sums may still be on a device; `host` brings them over, away from the training thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.partials import Partials
from undertow.probe.cuda_events import Events
from undertow.probe.flow_graph import FlowReading
from undertow.probe.forward import ModuleReading
from undertow.probe.signals.loss import LossReading
from undertow.probe.watched_layers import SlotLayout
from undertow.schema import LayerGraph, LayerTable


@dataclass(slots=True)
class SignalReadings:
    loss: LossReading | None = None
    numbers: dict[str, float] = field(default_factory=dict)  # scalars of the frame, as they are
    data_address: int = 0
    data: Any = None  # Partials of the data that enters the model, or the same still on a device

    @property
    def nbytes(self) -> int:
        return self.loss.nbytes if self.loss is not None else 0


@dataclass(slots=True)
class HeldReading:
    """What is known of the parameters one optimizer has just stepped, beside their statistics."""

    slots: NDArray[np.int64]
    state: NDArray[np.float32]  # quantities of the stream `optimizer` × slots
    row_spread: NDArray[np.float32]
    rows_unused: NDArray[np.float32]


Number = float | torch.Tensor  # a tensor when reading it now would make the training wait for its device

Slots = NDArray[np.int64]
_LEAST_SCALE = torch.finfo(torch.float32).tiny


def number(value: Number) -> float:
    return float(value.item()) if isinstance(value, torch.Tensor) else float(value)


def number_now(value: Any, default: float) -> Number:
    """A number that may be a tensor: read at once on the CPU, kept as it is elsewhere."""
    if value is None:
        return default
    if isinstance(value, torch.Tensor):
        return float(value.item()) if value.device.type == "cpu" else value.detach().clone()
    return float(value)


def is_lost(scale: float) -> bool:
    """A loss scale that has fallen so far: no factor brings back what was multiplied by it."""
    return abs(scale) < _LEAST_SCALE


def inverse(value: Number) -> Number:
    return 1.0 if isinstance(value, float) and is_lost(value) else 1.0 / value


def factor_now(factor: Number) -> float:
    """In the background: that of a lost scale, which a device could not be asked about, is infinite."""
    known = number(factor)
    return known if isfinite(known) else 1.0


def host(partials: Any) -> Partials:
    return partials if isinstance(partials, Partials) else partials.to_host()


@dataclass(slots=True)
class Reading:
    """Partial sums of some watched tensors, as if each had been multiplied by `factor`."""

    slots: Slots
    partials: Any
    factor: Number = 1.0
    terms: dict[int, Any] | None = None  # by slot: of tensors that are a sum over ranks nobody has taken yet


NO_SLOTS: Slots = np.empty(0, np.int64)
_NO_FLAGS: NDArray[np.float32] = np.empty(0, np.float32)


@lru_cache(maxsize=64)
def zeros(count: int) -> NDArray[np.float32]:
    """One array for all frames that need one like it; not to be written to."""
    values = np.zeros(count, np.float32)
    values.flags.writeable = False
    return values


def _none() -> Slots:
    return NO_SLOTS


def _no_flags() -> NDArray[np.float32]:
    return _NO_FLAGS


@dataclass(slots=True)
class RanksApart:
    """Per slot: how far the replicas of different ranks are from each other, and which rank's is the farthest."""

    weight: NDArray[np.float64]
    gradient: NDArray[np.float64]
    farthest: NDArray[np.float64]


@dataclass(slots=True)
class RawFrame:
    """One step (or one optimizer's part of it). Readings of a kind cover disjoint slots.

    Many of these wait at a time, so what is mostly empty is no object of its own: Python's collector counts those.
    """

    step: int
    time: float
    layout: SlotLayout
    scalars: dict[str, Number]
    exposed: Slots = field(default_factory=_none)  # the slots this frame speaks of
    has_gradient: bool = False
    state: NDArray[np.float32] = field(default_factory=_no_flags)  # per exposed slot, as are the next two
    carried: NDArray[np.float32] = field(default_factory=_no_flags)
    optimizer: NDArray[np.float32] = field(default_factory=_no_flags)
    gradients: list[Reading] = field(default_factory=list)  # before clipping
    # What had accumulated by the end of each backward pass, when there were several.
    micro_gradients: Sequence[Sequence[Reading]] = ()
    stepped: list[Reading] | None = None  # None: the optimizer used the gradients as they were
    weights_before: Sequence[Reading] = ()
    weights: Sequence[Reading] = ()
    before_is_previous: bool = False  # the weights before this step are those measured after the one before
    modules: dict[int, ModuleReading] = field(default_factory=dict)  # by layer id
    flow: FlowReading | None = None
    output_gradient_factor: Number = 1.0
    joined: bool = False
    signals: SignalReadings | None = None
    held: Sequence[HeldReading] = ()
    local: Sequence[Reading] = ()  # gradients of this rank alone, before an average
    apart: RanksApart | None = None  # in a distributed training
    complete: Events = ()  # on devices that work by themselves: when all of this is there
    noise: NDArray[np.float64] | None = None  # per slot, where it comes from the gradients of several ranks
    is_manual: bool = False  # no optimizer reported it: which gradients the update used is unknown
    loss_is_weighted: bool = False  # and no loss: what a stage of a pipeline was given to begin its backward pass with

    @property
    def nbytes(self) -> int:
        """Roughly, what this frame holds in memory while it waits: mostly histograms and sketches."""
        readings = len(self.gradients) + len(self.weights) + len(self.weights_before) + len(self.micro_gradients)
        signals = self.signals.nbytes if self.signals is not None else 0
        return 1000 + signals + readings * self.layout.reading_bytes

    def absorb(self, other: RawFrame) -> None:
        """Take in another optimizer's part of the same step (optimizers that step inside a backward pass)."""
        mine = np.isin(other.exposed, self.exposed, invert=True)
        self.joined = True
        self.exposed = np.concatenate([self.exposed, other.exposed[mine]])
        if self.has_gradient:
            held = np.isin(self.exposed, np.concatenate([_none(), *(reading.slots for reading in other.gradients)]))
            self.state = np.concatenate([self.state, other.state[mine]])
            self.carried = np.concatenate([self.carried, other.carried[mine]])
            self.optimizer = np.concatenate([self.optimizer, other.optimizer[mine]])
            self.state[held] = 0.0
        self.gradients += other.gradients
        self.weights_before = [*self.weights_before, *other.weights_before]
        self.weights = [*self.weights, *other.weights]
        self.held = [*self.held, *other.held]


@dataclass(slots=True)
class NewLayers:
    table: LayerTable
    graph: LayerGraph
    facts: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class Note:
    """A line for the run's journal."""

    kind: str
    step: int | None
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
