"""Which ways the gradient takes from the loss to the inputs, and how much of it each carries.

A way carries the product of the shares along it, times the part of all gradient that its first layer has. Over all ways
that makes 1. A share is negative where a branch works against the others; so is what a way through it carries.
"""

import heapq
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from undertow.analyze.gradient_shares import Edge, GradientShares
from undertow.analyze.series import Floats
from undertow.analyze.topology import Topology


@dataclass(frozen=True, slots=True)
class Path:
    nodes: tuple[int, ...]  # first executed first
    share: float  # of all gradient from the loss to the inputs

    @property
    def edges(self) -> list[Edge]:
        return list(itertools.pairwise(self.nodes))


def source_shares(topology: Topology, strength: Floats) -> dict[int, float]:
    """Of the layers that nothing feeds: squared gradient norm over that of all of them. Empty where one is unknown."""
    sources = [node for node in topology.order if topology.feeds[node] and not topology.fed_by[node]]
    if len(sources) == 1:
        return {sources[0]: 1.0}
    known = strength[sources]
    if not len(known) or not np.isfinite(known).all() or not known.max() > 0:
        return {}
    parts = np.square(known / known.max())
    return dict(zip(sources, (parts / parts.sum()).tolist()))


def passing_shares(topology: Topology, shares: GradientShares, sources: Mapping[int, float]) -> Floats:
    """The share of all gradient that passes through each layer; NaN where something before it is not known."""
    passing = np.full(len(topology.names), np.nan)
    for node in topology.order:
        before = topology.fed_by[node]
        if before:
            passing[node] = sum(passing[other] * shares.edges.get((other, node), np.nan) for other in before)
        elif node in sources:
            passing[node] = sources[node]
    return passing


def strongest_paths(
    topology: Topology, shares: GradientShares, sources: Mapping[int, float], count: int = 3
) -> list[Path]:
    """Those that carry most, by dynamic programming over the order of execution; none over edges without a share."""
    best: dict[int, list[tuple[float, int, int]]] = {}  # share so far, the node before, its rank there
    for node in topology.order:
        candidates = [
            (value * shares.edges[other, node], other, rank)
            for other in topology.fed_by[node]
            if (other, node) in shares.edges
            for rank, (value, _, _) in enumerate(best[other])
        ]
        if node in sources:
            candidates.append((sources[node], -1, 0))
        best[node] = heapq.nsmallest(count, candidates, key=_largest_first)
    ends = [
        (value * shares.to_loss.get(node, 0.0), node, rank)
        for node in topology.order
        if topology.fed_by[node]
        for rank, (value, _, _) in enumerate(best[node])
    ]
    paths: list[Path] = []
    for value, node, rank in heapq.nsmallest(count, [end for end in ends if end[0]], key=_largest_first):
        nodes = [node]
        while (before := best[nodes[0]][rank])[1] >= 0:
            nodes.insert(0, before[1])
            rank = before[2]
        paths.append(Path(tuple(nodes), value))
    return paths


def _largest_first(item: tuple[float, int, int]) -> tuple[float, int, int]:
    return -abs(item[0]), item[1], item[2]
