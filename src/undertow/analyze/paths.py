"""Which ways the gradient takes from the loss to the inputs, and how much of it each carries."""

import heapq
import itertools
from dataclasses import dataclass

import numpy as np

from undertow.analyze.gains import BLOCKED_GAIN
from undertow.analyze.series import Floats
from undertow.analyze.topology import Topology


@dataclass(frozen=True, slots=True)
class Path:
    nodes: tuple[int, ...]  # first executed first
    log_gain: float  # sum of ln gain along the edges
    share: float  # of the gain of all paths together
    weakest: tuple[int, int] | None
    worst_log_gain: float


@dataclass(frozen=True, slots=True)
class FlowShares:
    """Share of all loss-to-input gain that passes through each node (1 for a chain), and its total (ln)."""

    node: Floats
    log_total: float


def log_gains(topology: Topology, gain: Floats) -> dict[tuple[int, int], float]:
    """ln gain per edge; what is blocked gets the smallest gain told from zero, what is unknown passes unchanged."""
    floor = np.log(BLOCKED_GAIN)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.maximum(np.log(gain), floor)
    return {edge: 0.0 if np.isnan(value) else float(value) for edge, value in zip(topology.edges, values)}


def flow_shares(topology: Topology, weights: dict[tuple[int, int], float]) -> FlowShares:
    """Two sweeps over the graph: gain of all ways down to a node, times that of all ways up from it."""
    count = len(topology.names)
    down, up = np.full(count, -np.inf), np.full(count, -np.inf)
    for node in topology.order:
        before = topology.fed_by[node]
        down[node] = _log_sum([down[other] + weights[other, node] for other in before]) if before else 0.0
    for node in reversed(topology.order):
        after = topology.feeds[node]
        up[node] = _log_sum([up[other] + weights[node, other] for other in after]) if after else 0.0
    connected = [n for n in range(count) if topology.feeds[n] or topology.fed_by[n]]
    total = _log_sum([up[node] for node in connected if not topology.fed_by[node]])
    share = np.exp(np.minimum(0.0, down + up - total)) if connected else np.full(count, np.nan)
    alone = np.ones(count, bool)
    alone[connected] = False
    share[alone] = np.nan
    return FlowShares(share, total)


def strongest_paths(topology: Topology, weights: dict[tuple[int, int], float], count: int = 3) -> list[Path]:
    """The paths with the largest product of gains, by dynamic programming over the order of execution."""
    total = flow_shares(topology, weights).log_total
    best: dict[int, list[tuple[float, int, int]]] = {}  # ln gain, the node before, its rank there
    for node in topology.order:
        candidates = [
            (value + weights[other, node], other, rank)
            for other in topology.fed_by[node]
            for rank, (value, _, _) in enumerate(best[other])
        ] or [(0.0, -1, 0)]
        best[node] = heapq.nsmallest(count, candidates, key=lambda item: (-item[0], item[1:]))
    ends = [
        (value, node, rank)
        for node in topology.order
        if not topology.feeds[node] and topology.fed_by[node]
        for rank, (value, _, _) in enumerate(best[node])
    ]
    chosen = heapq.nsmallest(count, ends, key=lambda item: (-item[0], item[1:]))
    paths: list[Path] = []
    for value, node, rank in chosen:
        nodes = [node]
        while (before := best[nodes[0]][rank])[1] >= 0:
            nodes.insert(0, before[1])
            rank = before[2]
        weakest = min(itertools.pairwise(nodes), key=lambda step: weights[step])
        share = float(np.exp(min(0.0, value - total)))
        paths.append(Path(tuple(nodes), value, share, weakest, weights[weakest]))
    return paths


def _log_sum(values: list[float]) -> float:
    return float(np.logaddexp.reduce(values)) if values else -np.inf
