"""Frames at which whole distributions are stored, beside the quantiles that every frame has."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from undertow.measure.histograms import stored_histograms
from undertow.probe.reading_batch import Placed
from undertow.probe.watched_layers import SlotLayout
from undertow.schema import Block
from undertow.schema.quantities import HISTOGRAM, STORED_HISTOGRAM_WIDTH

_OFTEN, _RARELY = 16, 64  # gradient frames between two of them
_EARLY = 1024  # gradient frames: distributions move most at the beginning


def is_histogram_frame(gradient_frame: int) -> bool:
    return gradient_frame % (_OFTEN if gradient_frame < _EARLY else _RARELY) == 0


def histograms(layout: SlotLayout, frames: Sequence[int], *kinds: Placed) -> dict[int, Block]:
    """Of gradients and of weights, at frames of a batch where either was read; one block for each of those."""
    ids = layout.parameter_ids
    out = np.full((len(frames), len(kinds), len(ids), STORED_HISTOGRAM_WIDTH), np.nan, np.float32)
    known: list[tuple[int, int]] = []
    exponents: list[NDArray[np.int64]] = []
    presents: list[NDArray[np.bool_]] = []
    for place, frame in enumerate(frames):
        for line, kind in enumerate(kinds):
            if kind.read is None or frame not in kind.places:
                continue
            at = kind.places.index(frame)
            counts, present = kind.read.partials(at).exponents, kind.read.present[at]
            if counts is not None:
                known.append((place, line))  # also where nothing is finite: it ends what held before
                exponents.append(counts[present])
                presents.append(present)
    if not known:
        return {}
    made = np.split(stored_histograms(np.concatenate(exponents)), np.cumsum([len(one) for one in exponents])[:-1])
    for (place, line), present, rows in zip(known, presents, made):
        out[place, line, layout.row_of_slot[present]] = rows
    return {
        frames[place]: Block(HISTOGRAM.name, ids, out[place].reshape(len(kinds), -1))
        for place in sorted({place for place, _ in known})
    }
