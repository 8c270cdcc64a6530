"""How gradients change with depth: what makes them vanish or explode."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import LayerIndex, Limit
from undertow.detect.features.matrices import Values, matrices_of

LEAST_MATRICES = Limit(4, "weight matrices; fewer make no line")
STEEP = Limit(3.0, "decades from end to end; healthy trainings: within 1.3")
LEAST_FIT = Limit(0.6, "of the variance that a straight line through the logarithms explains")


class DepthTrend(NamedTuple):
    """A straight line through logarithms of gradient sizes from the first matrix to the last."""

    rise: float  # decades from the first to the last matrix: positive when gradients fade towards the input
    fit: float  # share of the variance that the line explains
    size: int  # matrices in it


def depth_trend(logarithms: Values) -> DepthTrend:
    """Matrices without a finite logarithm are left out."""
    known = np.isfinite(logarithms)
    y = logarithms[known]
    count = len(y)
    if count < 3:
        return DepthTrend(0.0, 0.0, count)
    x = np.flatnonzero(known).astype(np.float64)
    x -= x.mean()
    away = y - y.mean()
    slope = float(x @ away) / float(x @ x)
    variance = float(away @ away)
    fit = slope * slope * float(x @ x) / variance if variance > 0 else 0.0
    return DepthTrend(slope * float(x[-1] - x[0]), fit, count)


def logarithms(sizes: Values) -> Values:
    return np.log10(sizes)


class Chains:
    """Which matrices data pass one after another: those of two networks that meet in a loss only are two chains."""

    def __init__(self, layout: LayerIndex) -> None:
        """By place in `matrices_of`."""
        ids: list[int] = matrices_of(layout).ids.tolist()
        part = _parts(layout)
        parts = [part.get(layout.layers[i].group, -1) for i in ids]
        self.places: list[NDArray[np.int64]] = [np.flatnonzero(np.array(parts) == one) for one in dict.fromkeys(parts)]

    def trends(self, logarithms: Values) -> list[tuple[DepthTrend, Values]]:
        """The line through each chain, and its logarithms: NaN for matrices of others."""
        found: list[tuple[DepthTrend, Values]] = []
        for places in self.places:
            own = np.full(len(logarithms), np.nan)
            own[places] = logarithms[places]
            found.append((depth_trend(logarithms[places]), own))
        return found


def _parts(layout: LayerIndex) -> dict[str, int]:
    """By module: the connected part of the graph that it is in. Merges that no module follows are those of a loss."""
    nodes = layout.graph.nodes
    leads_on = {node.id: not node.is_merge for node in nodes}
    for source, target in sorted(layout.graph.edges, reverse=True):  # edges point to later nodes
        leads_on[source] |= leads_on[target]
    part = {node.id: node.id for node in nodes}

    def first(node: int) -> int:
        while part[node] != node:
            node = part[node]
        return node

    for source, target in layout.graph.edges:
        if leads_on[source] and leads_on[target]:
            part[first(target)] = first(source)
    return {node.path: first(node.id) for node in nodes if not node.is_merge}


def chains_of(layout: LayerIndex) -> Chains:
    """The same one for all rules that ask about the same layout."""
    return layout.derived(Chains)
