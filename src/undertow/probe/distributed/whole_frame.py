"""One frame from the parts of all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from undertow.probe.distributed.merging import Comparison, Gathered, Holding, gather
from undertow.probe.distributed.messages import Part
from undertow.probe.distributed.noise import noise_of
from undertow.probe.distributed.rank_layout import RankLayout
from undertow.probe.readings import RanksApart, RawFrame


def whole_frame(own: RawFrame, parts: Sequence[Part], ranks: RankLayout) -> RawFrame:
    """`parts` are those of all ranks that have sent any, this rank's first."""
    frame = replace(own, layout=ranks.layout, scalars=_scalars(parts))
    frame.exposed, flags = flags_of(parts, ranks)
    if any(part.has_gradient for part in parts):
        frame.has_gradient = True
        frame.state, frame.carried, frame.optimizer = flags
    gradients = gather(parts, "gradients", ranks)
    frame.gradients = gradients.reading()
    stepped = stepped_of(parts, ranks)
    frame.stepped = None if stepped is None else stepped.reading()
    weights = gather(parts, "weights", ranks)
    frame.weights = weights.reading()
    frame.weights_before = gather(parts, "weights_before", ranks).reading()
    frame.before_is_previous = all(part.before_is_previous for part in parts if "weights" in part.kinds)
    frame.local = []
    noise = noise_of(parts, ranks)
    if noise is not None:
        frame.noise, frame.scalars["gradient_batches"] = noise[0], float(noise[1])
        frame.micro_gradients = []
    else:
        frame.micro_gradients = [gathered.reading() for gathered in micro_of(parts, ranks)]
    frame.modules = {int(ranks.own_ids[layer]): reading for layer, reading in own.modules.items()}
    slots = ranks.by_rank[0].slots
    frame.held = [replace(held, slots=slots[held.slots]) for held in own.held]
    used = (gradients if stepped is None else stepped).comparison
    _compare(frame, parts, used, weights.comparison)
    return frame


def flags_of(parts: Sequence[Part], ranks: Holding) -> tuple[np.ndarray, np.ndarray]:
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


def stepped_of(parts: Sequence[Part], ranks: Holding) -> Gathered | None:
    """Where one rank's optimizer got other gradients than backward left, every rank's are told as it got them."""
    if all(part.stepped_as_they_were for part in parts):
        return None
    gathered = Gathered(ranks)
    for part in parts:
        kind = "gradients" if part.stepped_as_they_were else "stepped"
        for measured in part.kinds.get(kind, ()):
            gathered.add(part.rank, ranks.by_rank[part.rank], measured)
    return gathered


def micro_of(parts: Sequence[Part], ranks: Holding) -> list[Gathered]:
    counts = {len(part.micro) for part in parts}
    unsure = len(parts) == 1 and ranks.own is not None and any(slot.wrapped for slot in ranks.own.slots)
    if counts == {0} or len(counts) > 1 or unsure:  # alone, a rank does not know which of them were exchanged
        return []
    out: list[Gathered] = []
    for place in range(counts.pop()):
        gathered = Gathered(ranks)
        for part in parts:
            for measured in part.micro[place]:
                gathered.add(part.rank, ranks.by_rank[part.rank], measured)
        out.append(gathered)
    return out


def _scalars(parts: Sequence[Part]) -> dict[str, float]:
    scalars = dict(parts[0].scalars)
    losses = losses_of(parts)
    if losses:  # each rank's loss is of its own share of the batch
        scalars["loss"] = sum(losses.values()) / len(losses)
    return scalars


def losses_of(parts: Sequence[Part]) -> dict[int, float]:
    """By rank."""
    return {rank: loss for part in parts for rank, loss in part.losses.items()}


def _compare(frame: RawFrame, parts: Sequence[Part], gradient: Comparison, weight: Comparison) -> None:
    frame.scalars["ranks"] = float(sum(part.ranks for part in parts))
    losses = losses_of(parts)
    bad = [rank for rank, loss in losses.items() if not math.isfinite(loss)]
    if len(bad) == len(losses):
        bad = []  # all the same: no rank is to blame
    alone = sorted({*bad, *gradient.bad, *weight.bad, *(rank for part in parts for rank in part.bad)})
    if alone:
        frame.scalars["ranks_nonfinite"] = float(len(alone))
        frame.scalars["rank_nonfinite"] = float(alone[0])
    if not (np.isnan(gradient.distance).all() and np.isnan(weight.distance).all()):
        farthest = np.where(weight.farthest >= 0, weight.farthest, gradient.farthest).astype(np.float64)
        frame.apart = RanksApart(weight.distance, gradient.distance, np.where(farthest >= 0, farthest, np.nan))
