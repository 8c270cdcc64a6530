"""Which layers move together, against each other, or after each other."""

from dataclasses import dataclass

import numpy as np

from undertow.analyze.series import Floats, LayerSeries
from undertow.analyze.topology import Topology
from undertow.schema.reasons import known, record_of
from undertow.schema.seeds.enhanced import InteractionType, LayerInteraction

WINDOW = 512  # newest steps looked at
ENOUGH = 20
ROWS = 512  # layers compared with all others at a time
MOST_DEVIATIONS = 4.0
RISK = 0.01  # that any of the reported pairs is chance


@dataclass(frozen=True, slots=True)
class Movements:
    """Standardised changes of ln norm: columns have mean 0 and length 1. `layers` are those with enough of them."""

    changes: Floats
    sizes: Floats  # the same for the absolute changes
    layers: list[int]


def movements(series: LayerSeries) -> Movements:
    recent = series.values[-WINDOW:]
    with np.errstate(divide="ignore", invalid="ignore"):
        changes = np.diff(np.log(recent), axis=0)
    usable = np.isfinite(changes)
    enough = usable.sum(axis=0) >= ENOUGH
    changes = np.where(usable, changes, np.nan)[:, enough]
    if not changes.size:
        return Movements(np.empty((0, 0)), np.empty((0, 0)), [])
    layers = np.flatnonzero(enough)
    moving = np.nanmax(np.abs(changes), axis=0) > 1e-12
    changes = _tamed(changes[:, moving])
    return Movements(_standardised(changes), _standardised(np.abs(changes)), [int(i) for i in layers[moving]])


def _tamed(changes: Floats) -> Floats:
    """Beyond four robust standard deviations a change counts as four: two rare jumps that coincide are no law."""
    if not changes.size:
        return changes
    middle = np.nanmedian(changes, axis=0)
    spread = np.nanmedian(np.abs(changes - middle), axis=0) / 0.6745
    reach = np.where(spread > 0, MOST_DEVIATIONS * spread, np.inf)
    return np.clip(changes, middle - reach, middle + reach)


def _standardised(values: Floats) -> Floats:
    centred = np.nan_to_num(values - np.nanmean(values, axis=0)) if values.size else values
    length = np.sqrt(np.square(centred).sum(axis=0))
    return centred / np.where(length > 0, length, 1)


def chance_limit(samples: int, pairs: int) -> float:
    """Correlation that chance exceeds in one of `pairs` pairs with a probability of about one in a hundred.

    Differences of independent values are correlated among themselves, which widens the limit by √1.5.
    """
    return float(np.sqrt(2 * np.log(max(2.0, 2 * pairs / RISK)) * 1.5 / max(1, samples)))


def layer_interactions(
    series: LayerSeries, topology: Topology | None, *, strongest: int, lags: int
) -> list[LayerInteraction]:
    """Neighbours in the graph, and the strongest other pairs; never all pairs."""
    moves = movements(series)
    samples = len(moves.changes)
    count = len(moves.layers)
    if count < 2:
        return []
    limit = chance_limit(samples, count * (count - 1) * (1 + lags))
    column = {layer: place for place, layer in enumerate(moves.layers)}
    pairs = dict.fromkeys(
        (column[a], column[b]) for a, b in (topology.edges if topology else ()) if a in column and b in column
    )
    neighbours = len(pairs)
    for a, b in _strongest_pairs(moves, limit, strongest, lags):
        if (b, a) not in pairs:
            pairs[a, b] = None
    near_limit = chance_limit(samples, max(1, neighbours) * (1 + 2 * lags))
    found = [
        _describe(series, moves, (a, b), near_limit if place < neighbours else limit, lags)
        for place, (a, b) in enumerate(pairs)
    ]
    kept = [item for place, item in enumerate(found) if place < neighbours or item.interaction_type != "Neutral"]
    return sorted(kept, key=lambda item: (-item.interaction_strength, item.layer1, item.layer2))


def _strongest_pairs(moves: Movements, limit: float, strongest: int, lags: int) -> list[tuple[int, int]]:
    """Pairs beyond the limit, strongest first, from blocks of rows so that no full matrix is kept."""
    found: list[tuple[float, int, int]] = []
    for lag in range(lags + 1):
        source = moves.changes if lag == 0 else moves.sizes
        before, after = source[: len(source) - lag].astype(np.float32), source[lag:].astype(np.float32)
        for start in range(0, before.shape[1], ROWS):
            table = before[:, start : start + ROWS].T @ after
            rows = np.arange(len(table))
            if lag == 0:
                table = np.abs(np.triu(table, k=start + 1))
            else:
                table[rows, start + rows] = 0  # a layer follows itself
            flat = table.ravel()
            best = np.argpartition(flat, -strongest)[-strongest:] if len(flat) > strongest else np.arange(len(flat))
            best = best[flat[best] > limit]
            found += [(float(flat[at]), start + int(at) // table.shape[1], int(at) % table.shape[1]) for at in best]
    found.sort(key=lambda item: (-item[0], item[1], item[2]))
    return list(dict.fromkeys((a, b) for _, a, b in found))[:strongest]


def _describe(
    series: LayerSeries, moves: Movements, pair: tuple[int, int], limit: float, lags: int
) -> LayerInteraction:
    """Cooperative and competitive by the sign; disruptive when large changes of one follow those of the other."""
    a, b = pair
    together = float(moves.changes[:, a] @ moves.changes[:, b])
    kind, lag, strength = InteractionType.NEUTRAL, 0, abs(together)
    if abs(together) > limit:
        kind = InteractionType.COOPERATIVE if together > 0 else InteractionType.COMPETITIVE
    large = moves.sizes
    for delay in range(1, lags + 1):
        for first, second in ((a, b), (b, a)):
            follows = float(large[: len(large) - delay, first] @ large[delay:, second])
            if follows > max(limit, strength):
                kind, strength, lag = InteractionType.DISRUPTIVE, follows, delay if first == a else -delay
    if lag < 0:
        a, b, lag = b, a, -lag
    first, second = moves.layers[a], moves.layers[b]
    total = series.sizes.sum()
    share = (series.sizes[first] + series.sizes[second]) / total if total > 0 else np.nan  # of all parameters
    return record_of(
        LayerInteraction,
        layer1=series.names[first],
        layer2=series.names[second],
        interaction_strength=min(1.0, strength),
        interaction_type=kind,
        impact_score=known(min(1.0, strength) * share, "the size of a layer is not known"),
        correlation=together,
        lag=lag,
    )
