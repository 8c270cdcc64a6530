"""The values of a quantity on the time axis: frames of one step laid over each other."""

import numpy as np
from numpy.typing import NDArray

from undertow.store.row_index import Integers, RowTable, passes


def overlay(
    table: RowTable, position: Integers, quantity: str, layer_ids: Integers, wanted: Integers, width: int
) -> NDArray[np.float32]:
    """(wanted positions × layers × width), NaN where nothing was measured. Where several frames of a
    step have a value, a measured one wins over NaN and a later one over an earlier one.

    `wanted` is increasing.
    """
    out = np.full((len(wanted), len(layer_ids), width), np.nan, np.float32)
    if not len(table) or not len(wanted) or not len(layer_ids):
        return out
    target = np.minimum(np.searchsorted(wanted, position), len(wanted) - 1)
    inside = wanted[target] == position
    if not inside.all():
        table, target = table.take(inside), target[inside]
    for segment, rows, places in passes(table, target):
        facts = segment.facts
        if quantity not in facts.quantities or facts.width != width:
            continue
        column = 3 + facts.quantities.index(quantity)
        source, here = find_layers(facts.layer_ids, layer_ids)
        if not len(here):
            continue
        low, high = int(source.min()), int(source.max()) + 1
        values = segment.read(column, rows, slice(low * width, high * width)).reshape(len(rows), -1, width)
        values = values[:, source - low]
        cells = np.ix_(places, here)
        out[cells] = np.where(np.isnan(values), out[cells], values)
    return out


def find_layers(stored: NDArray[np.int32], wanted: Integers) -> tuple[Integers, Integers]:
    """Places of the wanted layers among the stored ones, and which of the wanted ones those are."""
    order = np.argsort(stored, kind="stable")
    if not len(order):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    place = order[np.minimum(np.searchsorted(stored[order], wanted), len(order) - 1)]
    here = np.flatnonzero(stored[place] == wanted)
    return place[here], here
