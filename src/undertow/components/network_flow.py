"""Everything measured along the edges of a network: gains, shares, and the paths that follow from them."""

from dataclasses import dataclass, replace

import numpy as np

from undertow.analyze.gains import BLOCKED_GAIN, EdgeGains, edge_gains
from undertow.analyze.gradient_shares import GradientShares, shares_by_structure
from undertow.analyze.paths import Path, passing_shares, source_shares, strongest_paths
from undertow.analyze.series import Floats, LayerSeries, column_median
from undertow.analyze.topology import Topology
from undertow.schema.reasons import Missing

NO_GRAPH = Missing("no graph was given")
NO_SHARES = "what each of several users of a layer sends back of its gradient was not measured"
NO_GAIN = "no step at which both ends were finite and the consumer's gradient was not zero"


@dataclass(frozen=True, slots=True)
class NetworkFlow:
    """Everything measured along edges; one entry per layer, NaN where it has no say."""

    topology: Topology
    edges: EdgeGains  # of the part of the gradient that comes back along each
    gain: Floats
    bottleneck_score: Floats
    shares: GradientShares
    passing: Floats  # share of all gradient that passes through a layer
    paths: list[Path]
    log_gain: dict[tuple[int, int], float]  # of edges whose gain was measured
    unmeasured: str  # why shares are missing, where any are

    @property
    def main_path(self) -> Path | None:
        return self.paths[0] if self.paths else None


def network_flow(
    series: LayerSeries, topology: Topology, window: int, shares: GradientShares | None = None, unmeasured: str = ""
) -> NetworkFlow:
    """Without `shares`, those that follow from the structure: a layer that feeds one other has all from there."""
    shares = shares_by_structure(topology) if shares is None else shares
    ratios = edge_gains(series, topology, window)
    sizes = np.array([shares.sizes.get(edge, np.nan) for edge in topology.edges])
    # Where nothing arrives, nothing came from this side either; else what came along one of several edges is not known.
    edges = replace(ratios, gain=np.where(ratios.gain == 0, 0.0, ratios.gain * sizes))
    gain = _node_gains(topology, edges.gain, shares)
    floor = np.log(BLOCKED_GAIN)
    weights = {edge: max(floor, float(np.log(one))) if one else floor for edge, one in zip(topology.edges, edges.gain)
               if not np.isnan(one)}  # fmt: skip
    sources = source_shares(topology, _recent_strength(series, window))
    passing = passing_shares(topology, shares, sources)
    reference = np.minimum(1.0, _median_of_others(gain))
    with np.errstate(over="ignore", invalid="ignore"):
        score = np.clip(passing, 0, 1) * (1 - np.minimum(1.0, gain / np.where(reference > 0, reference, 1.0)))
    paths = strongest_paths(topology, shares, sources)
    return NetworkFlow(topology, edges, gain, score, shares, passing, paths, weights, unmeasured or NO_SHARES)


def _recent_strength(series: LayerSeries, window: int) -> Floats:
    """Median of the newest finite norms."""
    recent = series.values[np.flatnonzero(series.recorded.any(axis=1))[-window:]]
    return column_median(np.where(np.isfinite(recent), recent, np.nan))


def _node_gains(topology: Topology, gains: Floats, shares: GradientShares) -> Floats:
    """Of every layer the gains of the edges to those it feeds, each as much as its share counts."""
    total, weight = np.zeros((2, len(topology.names)))
    for (start, end), gain in zip(topology.edges, gains.tolist()):
        share = abs(shares.edges.get((start, end), 1.0 if len(topology.feeds[start]) == 1 else np.nan))
        if not np.isnan(gain) and share > 0:
            total[start] += share * gain
            weight[start] += share
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(weight > 0, total / np.where(weight > 0, weight, 1), np.nan)


def _median_of_others(values: Floats) -> Floats:
    """For every entry, the median of the other known ones; 1 where there are none."""
    known = np.flatnonzero(~np.isnan(values))
    result = np.ones(len(values))
    if len(known) < 2:
        return result
    order = np.sort(values[known])
    rank = np.searchsorted(order, values[known])
    low, high = (len(order) - 2) // 2, (len(order) - 1) // 2
    without = [order[place + (place >= rank)] for place in (low, high)]
    result[known] = (without[0] + without[1]) / 2
    return result
