"""The noise of a step's gradient, from the gradients of each rank's own batches: see `gradient_noise_scale`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from undertow.measure import sketches
from undertow.measure.partials import offsets_of
from undertow.probe.distributed.contribution import FOLD_WIDTH
from undertow.probe.distributed.messages import Measured, Part
from undertow.probe.distributed.rank_layout import RankLayout

Floats = NDArray[np.float64]
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
        folded = one.folds
        if folded is None and one.sketches is not None:
            folded = sketches.fold(one.sketches, offsets_of(ranks.layout.sizes[slots]), FOLD_WIDTH)
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
