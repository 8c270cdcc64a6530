"""What a rank has measured, in the form in which it travels."""

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from undertow.measure import sketches
from undertow.measure.partials import Moment, Partials
from undertow.probe.distributed.portions import Portion, Spread, Summand
from undertow.probe.distributed.rank_messages import FOLD_WIDTH, LayerFacts, Measured, Part, Roster, SlotFacts
from undertow.probe.readings import NewLayers, RawFrame, Reading, host, number
from undertow.probe.watched_layers import SlotLayout
from undertow.schema import Layer, LayerTable

KINDS = ("gradients", "stepped", "weights_before", "weights")

_STEP_MARKS = frozenset({"step_time", "backward_count", "lr"})


def belongs_to_a_step(frame: RawFrame) -> bool:
    """False for numbers that the user logs, on whatever rank."""
    return bool(len(frame.exposed)) or not _STEP_MARKS.isdisjoint(frame.scalars)


def facts_of(layer: Layer) -> LayerFacts:
    record = {name: getattr(layer, name) for name in LayerFacts.__struct_fields__}
    return LayerFacts(**record)


def roster_of(rank: int, table: LayerTable, layout: SlotLayout, new: NewLayers | None) -> Roster:
    spread = layout.spread or Spread((None,) * len(layout.sizes), frozenset())
    slots: list[SlotFacts] = []
    for slot, row in enumerate(layout.row_of_slot.tolist()):
        layer, portion = table[int(layout.parameter_ids[row])], spread.portions[slot]
        shape = tuple(int(size) for size in layer.shape)
        block = portion or Portion(shape, (0,) * len(shape), shape)
        slots.append(SlotFacts(layer.path, block, portion is not None, portion is None and slot in spread.wrapped))
    facts = {} if new is None else new.facts
    return Roster(
        rank, [facts_of(layer) for layer in table], slots, facts.get("optimizers", []), facts.get("device", "")
    )


def part_of(frame: RawFrame, rank: int, key: tuple[int, int], witness: NDArray[np.bool_] | None = None) -> Part:
    """Waits for the device, if there is one. Slots marked in `witness` are cut down to what a comparison needs."""
    kinds = {kind: measured_of(getattr(frame, kind) or (), witness) for kind in KINDS}
    kinds["local"] = measured_of(frame.local, np.ones(len(frame.layout.sizes), np.bool_))  # to compare; nothing adds up
    scalars = {name: number(value) for name, value in frame.scalars.items()}
    return Part(
        rank=rank,
        step=key[0],
        number=key[1],
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
        whole = np.ones(len(reading.slots), np.bool_)  # which of them are sent as they are
        if reading.terms:
            out.append(_summands(reading.terms, factor))
            whole = ~np.isin(reading.slots, list(reading.terms))
        elif witness is not None:
            whole = ~witness[reading.slots]
        if whole.all():
            out.append(Measured(reading.slots, partials.moments, partials.exponents, partials.sketches))
        elif whole.any():
            some = chosen(partials, np.flatnonzero(whole))
            out.append(Measured(reading.slots[whole], some.moments, some.exponents, some.sketches))
        if not whole.all() and not reading.terms:
            folds = None
            if partials.sketches is not None:
                folds = sketches.fold(partials.sketches, partials.offsets, FOLD_WIDTH)[~whole]
            out.append(Measured(reading.slots[~whole], partials.moments[~whole], folds=folds))
    return out


def _summands(summands: Mapping[int, Summand], factor: float) -> Measured:
    known = {
        slot: msgspec.structs.replace(summand, values=summand.values * factor)
        for slot, summand in summands.items()
        if summand.values is not None
    }
    return Measured(np.empty(0, np.int64), np.empty((0, len(Moment))), terms=known)


def chosen(partials: Partials, places: NDArray[np.int64]) -> Partials:
    """Those of some of the tensors."""
    begins, ends = partials.offsets[places], partials.offsets[places + 1]
    sketched = None
    if partials.sketches is not None:
        stretches = [partials.sketches[begin:end] for begin, end in zip(begins, ends)]
        sketched = np.concatenate([np.empty(0), *stretches])
    exponents = None if partials.exponents is None else partials.exponents[places]
    return Partials(partials.moments[places], exponents, sketched, np.cumsum([0, *(ends - begins)], dtype=np.int64))
