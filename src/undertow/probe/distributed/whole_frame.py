"""One frame from the parts of all ranks, and the noise of its gradient from each rank's own batches."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from undertow.probe.distributed.merging import Floats, Gathered, gather
from undertow.probe.distributed.rank_layout import Holding, RankLayout
from undertow.probe.distributed.rank_messages import FOLD_WIDTH, Measured, Part
from undertow.probe.readings import RanksApart, RawFrame


class Merged:
    """What the parts of a step say together: of all ranks, or of those that send by way of one."""

    def __init__(self, parts: Sequence[Part], ranks: Holding) -> None:
        """`parts` are those of the ranks that have sent any, in their order."""
        self.exposed, self.flags = _flags(parts, ranks)
        self.has_gradient = any(part.has_gradient for part in parts)
        self.before_is_previous = all(part.before_is_previous for part in parts if "weights" in part.kinds)
        self.kinds = {
            kind: gather(parts, ranks, lambda part, kind=kind: part.kinds.get(kind, ()))
            for kind in ("gradients", "weights_before", "weights")
        }
        # Where one rank's optimizer got other gradients than backward left, every rank's are told as it got them.
        self.stepped_as_they_were = all(part.stepped_as_they_were for part in parts)
        if not self.stepped_as_they_were:
            self.kinds["stepped"] = gather(
                parts, ranks, lambda part: part.kinds.get("gradients" if part.stepped_as_they_were else "stepped", ())
            )
        self.gradient = self.kinds.get("stepped", self.kinds["gradients"])
        self.weight = self.kinds["weights"]
        self.bad = {*self.gradient.bad, *self.weight.bad, *(rank for part in parts for rank in part.bad)}
        self.losses = {rank: loss for part in parts for rank, loss in part.losses.items()}
        self.ranks = sum(part.ranks for part in parts)


def whole_frame(own: RawFrame, parts: Sequence[Part], ranks: RankLayout) -> RawFrame:
    """`parts` are those of all ranks that have sent any, this rank's first."""
    merged = Merged(parts, ranks.holding)
    readings = {kind: gathered.reading() for kind, gathered in merged.kinds.items()}
    frame = replace(own, layout=ranks.layout, scalars=dict(parts[0].scalars), exposed=merged.exposed, local=[])
    if merged.has_gradient:
        frame.has_gradient = True
        frame.state, frame.carried, frame.optimizer = merged.flags
    frame.gradients, frame.stepped = readings["gradients"], readings.get("stepped")
    frame.weights, frame.weights_before = readings["weights"], readings["weights_before"]
    frame.before_is_previous = merged.before_is_previous
    if merged.losses:  # each rank's loss is of its own share of the batch
        frame.scalars["loss"] = sum(merged.losses.values()) / len(merged.losses)
    noise = noise_of(parts, ranks)
    if noise is not None:
        frame.noise, frame.scalars["gradient_batches"] = noise[0], float(noise[1])
        frame.micro_gradients = []
    else:
        frame.micro_gradients = [gathered.reading() for gathered in micro_of(parts, ranks.holding)]
    frame.modules = {int(ranks.own_ids[layer]): reading for layer, reading in own.modules.items()}
    slots = ranks.by_rank[0].slots
    frame.held = [replace(held, slots=slots[held.slots]) for held in own.held]
    _compare(frame, merged)
    return frame


def _flags(parts: Sequence[Part], ranks: Holding) -> tuple[np.ndarray, np.ndarray]:
    """Which slots the frame speaks of, and state, carried and optimizer of each, by the lowest rank that has it.

    A rank with an empty shard may have no gradient where the others have one.
    """
    count = len(ranks.layout.sizes)
    flags = np.full((3, count), np.nan, np.float32)
    exposed = np.zeros(count, np.bool_)
    for part in reversed(parts):
        rank_slots = ranks.by_rank[part.rank]
        slots, held = rank_slots.slots[part.exposed], rank_slots.held[part.exposed]
        held |= ~exposed[slots]
        exposed[slots] = True
        if part.has_gradient:
            flags[:, slots[held]] = np.stack([part.state, part.carried, part.optimizer])[:, held]
    shown = np.flatnonzero(exposed)
    return shown, flags[:, shown]


def micro_of(parts: Sequence[Part], ranks: Holding) -> list[Gathered]:
    counts = {len(part.micro) for part in parts}
    unsure = len(parts) == 1 and ranks.own is not None and any(slot.wrapped for slot in ranks.own.slots)
    if len(counts) > 1 or unsure:  # alone, a rank does not know which of them were exchanged
        return []
    return [gather(parts, ranks, lambda part, place=place: part.micro[place]) for place in range(counts.pop())]


def _compare(frame: RawFrame, merged: Merged) -> None:
    frame.scalars["ranks"] = float(merged.ranks)
    bad = {rank for rank, loss in merged.losses.items() if not math.isfinite(loss)}
    if len(bad) == len(merged.losses):
        bad = set()  # all the same: no rank is to blame
    alone = bad | merged.bad
    if alone:
        frame.scalars["ranks_nonfinite"] = float(len(alone))
        frame.scalars["rank_nonfinite"] = float(min(alone))
    gradient, weight = merged.gradient, merged.weight
    if not (np.isnan(gradient.distance).all() and np.isnan(weight.distance).all()):
        farthest = np.where(weight.farthest >= 0, weight.farthest, gradient.farthest).astype(np.float64)
        frame.apart = RanksApart(weight.distance, gradient.distance, np.where(farthest >= 0, farthest, np.nan))


_ALIKE = 1e-6  # relative; ranks that have exchanged their gradients have the same


def noise_of(parts: Sequence[Part], ranks: RankLayout) -> tuple[Floats, int] | None:
    """The noise scale of each slot, and how many batches the gradient of the step is an average of.

    None where the ranks' own gradients are not known, or have been exchanged before they were read: what is left then
    are passes that all ranks have exchanged, one by one.
    """
    count_of_ranks = sum(part.ranks for part in parts)
    parts = [part for part in parts if part.ranks == 1]  # others have been merged on their way; these are enough
    if len(parts) < 2 or len({len(part.micro) for part in parts}) > 1:
        return None
    count = len(parts[0].micro)
    if count > 1 and any(ranks.by_rank[part.rank].is_sharded for part in parts):
        if any(len(measured.slots) for part in parts for measured in part.micro[0]):
            return None  # shards of an average; before that there are none
    elif count > 1:
        # All but the last pass, after which the gradients are exchanged.
        held = [[_folds(part, measured, ranks) for measured in part.micro[:-1]] for part in parts]
        if _agree([passes[-1] for passes in held]):
            return None
        samples = [after - before for one in held for before, after in zip([np.zeros_like(one[0]), *one], one)]
        return _scale(np.stack(samples)), count_of_ranks * count
    if not all(part.kinds.get("local") for part in parts):
        return None
    samples = [_folds(part, part.kinds["local"], ranks) for part in parts]
    return _scale(np.stack(samples)), count_of_ranks * max(count, 1)


def _folds(part: Part, measured: Sequence[Measured], ranks: RankLayout) -> Floats:
    """slots × width; NaN where this rank has none."""
    out = np.full((len(ranks.layout.sizes), FOLD_WIDTH), np.nan)
    for one in measured:
        slots = ranks.by_rank[part.rank].slots[one.slots]
        folded = one.folded(ranks.layout.sizes[slots])
        if folded is not None:
            out[slots] = folded
    return out


def _agree(ranks: Sequence[Floats]) -> bool:
    first = np.nan_to_num(ranks[0])
    length = np.sqrt(np.square(first).sum())
    return all(np.sqrt(np.square(np.nan_to_num(other) - first).sum()) <= _ALIKE * length for other in ranks[1:])


def _scale(samples: Floats) -> Floats:
    """Trace of the covariance over the squared mean, without the part of the latter that is noise."""
    count = len(samples)
    mean = samples.mean(axis=0)
    variance = np.square(samples - mean).sum(axis=(0, 2)) / (count - 1)
    signal = np.square(mean).sum(axis=1) - variance / count
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(signal > 0, variance / signal, np.where(variance > 0, np.inf, np.nan))
    return np.where(np.isnan(variance), np.nan, scale)
