"""What a rank has measured, in the form in which it travels."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from undertow.measure import sketches
from undertow.measure.partials import Moment, Partials
from undertow.probe.distributed.messages import LayerFacts, Measured, Part, Roster, SlotFacts, Summand
from undertow.probe.distributed.portions import Term
from undertow.probe.readings import NewLayers, RawFrame, Reading, host, number
from undertow.probe.watched_layers import SlotLayout
from undertow.schema import Layer, LayerTable

KINDS = ("gradients", "stepped", "weights_before", "weights")
FOLD_WIDTH = 64  # of the sketches by which equal tensors of two ranks are compared

_STEP_MARKS = frozenset({"step_time", "backward_count", "lr"})


def belongs_to_a_step(frame: RawFrame) -> bool:
    """False for numbers that the user logs, on whatever rank."""
    return bool(len(frame.exposed)) or not _STEP_MARKS.isdisjoint(frame.scalars)


class Numbering:
    """Numbers the frames of a step, the same on all ranks."""

    def __init__(self) -> None:
        self._step, self._number = -1, -1

    def next(self, step: int) -> int:
        self._number = self._number + 1 if step == self._step else 0
        self._step = step
        return self._number


def facts_of(layer: Layer) -> LayerFacts:
    record = {name: getattr(layer, name) for name in LayerFacts.__struct_fields__}
    return LayerFacts(**record)


def roster_of(rank: int, table: LayerTable, layout: SlotLayout, new: NewLayers | None) -> Roster:
    slots: list[SlotFacts] = []
    for slot, row in enumerate(layout.row_of_slot.tolist()):
        layer = table[int(layout.parameter_ids[row])]
        portion = layout.spread.portions[slot] if layout.spread is not None else None
        wrapped = layout.spread is not None and slot in layout.spread.wrapped
        shape = tuple(int(size) for size in layer.shape)
        if portion is None:
            slots.append(SlotFacts(layer.path, shape, (0,) * len(shape), shape, False, wrapped))
        else:
            slots.append(SlotFacts(layer.path, portion.shape, portion.begin, portion.extent, True))
    facts = {} if new is None else new.facts
    return Roster(
        rank, [facts_of(layer) for layer in table], slots, facts.get("optimizers", []), facts.get("device", "")
    )


def part_of(frame: RawFrame, rank: int, step_number: int, witness: NDArray[np.bool_] | None = None) -> Part:
    """Waits for the device, if there is one. Slots marked in `witness` are cut down to what a comparison needs."""
    kinds = {kind: measured_of(getattr(frame, kind) or (), witness) for kind in KINDS}
    kinds["local"] = measured_of(frame.local, np.ones(len(frame.layout.sizes), np.bool_))  # to compare; nothing adds up
    scalars = {name: number(value) for name, value in frame.scalars.items()}
    return Part(
        rank=rank,
        step=frame.step,
        number=step_number,
        scalars=scalars,
        exposed=frame.exposed,
        state=frame.state,
        carried=frame.carried,
        optimizer=frame.optimizer,
        kinds={kind: measured for kind, measured in kinds.items() if measured},
        micro=[measured_of(readings, witness) for readings in frame.micro_gradients],
        has_gradient=frame.has_gradient,
        stepped_as_they_were=frame.stepped is None,
        before_is_previous=frame.before_is_previous,
        losses={rank: scalars["loss"]} if "loss" in scalars and not frame.loss_is_weighted else {},
    )


def measured_of(readings: Iterable[Reading], witness: NDArray[np.bool_] | None) -> list[Measured]:
    out: list[Measured] = []
    for reading in readings:
        partials, factor = host(reading.partials), number(reading.factor)
        if factor != 1.0:
            partials = partials.scaled(factor)
        if reading.terms:
            out.append(_terms(reading.terms, factor))
            left = np.flatnonzero(~np.isin(reading.slots, list(reading.terms)))
            if len(left):
                out.append(_chosen(reading.slots, partials, left))
            continue
        short = None if witness is None else witness[reading.slots]
        if short is None or not short.any():
            out.append(Measured(reading.slots, partials.moments, partials.exponents, partials.sketches))
            continue
        rest = np.flatnonzero(~short)
        if len(rest):
            out.append(_chosen(reading.slots, partials, rest))
        chosen = np.flatnonzero(short)
        out.append(Measured(reading.slots[chosen], partials.moments[chosen], folds=folds_of(partials, chosen)))
    return out


def _terms(terms: Mapping[int, Term], factor: float) -> Measured:
    known = {
        slot: Summand(term.number, term.count, term.values * factor)
        for slot, term in terms.items()
        if term.values is not None
    }
    return Measured(np.empty(0, np.int64), np.empty((0, len(Moment))), terms=known)


def folds_of(partials: Partials, places: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32] | None:
    if partials.sketches is None:
        return None
    return sketches.fold(partials.sketches, partials.offsets, FOLD_WIDTH)[places]


def _chosen(slots: NDArray[np.int64], partials: Partials, places: NDArray[np.int64]) -> Measured:
    stretches = [slice(partials.offsets[place], partials.offsets[place + 1]) for place in places.tolist()]
    return Measured(
        slots[places],
        partials.moments[places],
        None if partials.exponents is None else partials.exponents[places],
        None if partials.sketches is None else np.concatenate([partials.sketches[one] for one in stretches]),
    )
