"""Frames at which whole distributions are stored, beside the quantiles that every frame has."""

from __future__ import annotations

import numpy as np

from undertow.measure.histograms import stored_histograms
from undertow.probe.catalogue import Layout
from undertow.probe.dense import Placed
from undertow.schema.frames import Block
from undertow.schema.quantities import HISTOGRAM, STORED_HISTOGRAM_WIDTH

_OFTEN, _RARELY = 16, 64  # gradient frames between two landmarks
_EARLY = 1024  # gradient frames: distributions move most at the beginning


def is_landmark(gradient_frame: int) -> bool:
    return gradient_frame % (_OFTEN if gradient_frame < _EARLY else _RARELY) == 0


def histograms(layout: Layout, frame: int, *kinds: Placed) -> dict[str, Block]:
    """Of gradients and of weights, at a frame of the batch. Empty if neither was read there."""
    ids = layout.parameter_ids
    out = np.full((len(kinds), len(ids), STORED_HISTOGRAM_WIDTH), np.nan, np.float32)
    is_known = False
    for line, kind in enumerate(kinds):
        if kind.read is None or frame not in kind.places:
            continue
        place = kind.places.index(frame)
        exponents, present = kind.read.partials(place).exponents, kind.read.present[place]
        if exponents is not None:
            is_known = True  # also where nothing is finite: it ends what held before
            out[line, layout.row_of_slot[present]] = stored_histograms(exponents[present])
    if not is_known:
        return {}
    return {HISTOGRAM.name: Block(HISTOGRAM.name, ids, out.reshape(len(kinds), -1))}
