"""How much of the gradient gets across every edge of the network."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undertow.analyze.series import Flags, Floats, LayerSeries, column_median
from undertow.analyze.topology import Topology

BLOCKED_GAIN = 1e-12
LARGEST_GAIN = 1e300  # more is beyond all numbers
MOST_WINDOWS = 1 << 21  # elements of the (samples × edges) table worked on at a time


@dataclass(frozen=True, slots=True)
class EdgeGains:
    """One entry per edge, over the newest samples at which both ends were measured. NaN where there are none."""

    gain: Floats  # median of gradient at the producer over gradient at the consumer; 0 when mostly blocked
    consistency: Floats
    blocked_share: Floats
    switches: NDArray[np.int64]  # between open and blocked
    blocked_now: Flags


def edge_gains(series: LayerSeries, topology: Topology, window: int) -> EdgeGains:
    edges = np.array(topology.edges, np.int64).reshape(-1, 2)
    gain, consistency, blocked = (np.full(len(edges), np.nan) for _ in range(3))
    switches, shut_now = np.zeros(len(edges), np.int64), np.zeros(len(edges), bool)
    recent = np.flatnonzero(series.recorded.any(axis=1))[-window:]
    values = series.values[recent]
    width = max(1, MOST_WINDOWS // max(1, len(recent)))
    for start in range(0, len(edges), width):
        part = slice(start, start + width)
        producer, consumer = values[:, edges[part, 0]], values[:, edges[part, 1]]
        measured = _measure(producer, consumer)
        gain[part], consistency[part], blocked[part], switches[part], shut_now[part] = measured
    return EdgeGains(gain, consistency, blocked, switches, shut_now)


def _measure(producer: Floats, consumer: Floats) -> tuple[Floats, Floats, Floats, NDArray[np.int64], Flags]:
    usable = np.isfinite(producer) & np.isfinite(consumer) & (consumer > 0)
    count = usable.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(usable, np.minimum(producer / consumer, LARGEST_GAIN), np.nan)
    shut = usable & (ratio <= BLOCKED_GAIN)
    share = np.where(count > 0, shut.sum(axis=0) / np.maximum(1, count), np.nan)
    middle = column_median(ratio)
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.abs(np.diff(np.log(ratio), axis=0))
    change[~np.isfinite(change)] = np.nan
    change[shut[1:] & shut[:-1]] = 0
    switches = ((shut[1:] != shut[:-1]) & usable[1:] & usable[:-1]).sum(axis=0)
    newest = len(usable) - 1 - np.argmax(usable[::-1], axis=0) if len(usable) else 0
    blocked_now = shut[newest, np.arange(shut.shape[1])] if len(shut) else np.zeros(shut.shape[1], bool)
    return middle, 1 / (1 + column_median(change)), share, switches, blocked_now
