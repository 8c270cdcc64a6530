"""Layers in groups, groups in levels, and how levels move each other."""

from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from undertow.analyze.layer_numbers import LayerNumbers
from undertow.analyze.series import Floats, LayerSeries
from undertow.components.interactions import chance_limit, movements
from undertow.schema import seeds
from undertow.schema.reasons import Missing, record_of

BAND_GAP = 1.0  # decades of empty space between two bands
NOISE = (0.2, 0.5, 1.0)  # relative spread around the trend: easy, moderate, difficult, very difficult
LAGS = 3
ALL_PAIRS = 12  # levels; with more, only neighbours are compared
_NO_GRADIENT = Missing("no layer has gradient")


@dataclass(frozen=True, slots=True)
class Grouping:
    """Group → layers, and level → groups; both in order of execution."""

    groups: dict[str, list[int]]
    levels: dict[str, list[str]]


def group_layers(series: LayerSeries, mean: Floats, order: list[int]) -> Grouping:
    """By module path (embedding, block 0, block 1, head …); names without a path fall into bands of norm."""
    names = [series.names[layer] for layer in order]
    if not any("." in name for name in names):
        return _bands(mean, order)
    parts = [name.split(".") for name in names]
    alike = takewhile(lambda words: len(set(words)) == 1, zip(*(part[:-1] for part in parts)))
    shared = len(list(alike)) if len(parts) > 1 else 0  # leading words that all paths have in common
    groups: dict[str, list[int]] = {}
    levels: dict[str, list[str]] = {}
    for layer, part in zip(order, parts):
        modules = part[shared:-1] or ([] if shared else part)
        end = next((place + 1 for place, word in enumerate(modules) if word.isdigit()), 1)
        group = ".".join([*part[:shared], *modules[:end]])
        level = ".".join([*part[:shared], *(word for word in modules[:1] if not word.isdigit())]) or "layers"
        groups.setdefault(group, []).append(layer)
        if group not in levels.setdefault(level, []):
            levels[level].append(group)
    return Grouping(groups, levels)


def _bands(mean: Floats, order: list[int]) -> Grouping:
    """Layers whose mean norms are less than a decade from the next; largest first."""
    live = sorted((layer for layer in order if mean[layer] > 0), key=lambda layer: -float(mean[layer]))
    bands: list[list[int]] = []
    for layer in live:
        if bands and np.log10(mean[bands[-1][-1]]) - np.log10(mean[layer]) <= BAND_GAP:
            bands[-1].append(layer)
        else:
            bands.append([layer])
    groups = {f"norms from {mean[band[-1]]:.1e} to {mean[band[0]]:.1e}": band for band in bands}
    zero = [layer for layer in order if mean[layer] == 0]
    empty = [layer for layer in order if np.isnan(mean[layer])]
    groups |= {name: layers for name, layers in (("zero gradient", zero), ("no finite samples", empty)) if layers}
    return Grouping(groups, {name: [name] for name in groups})


def build_hierarchy(
    series: LayerSeries,
    numbers: LayerNumbers,
    grouping: Grouping,
    unhealthy: list[bool],
    *,
    learning_rate: Floats | None = None,
    update_ratio: Floats | None = None,
) -> seeds.GradientHierarchy:
    moves = movements(series)
    column = {layer: place for place, layer in enumerate(moves.layers)}
    groups = [
        _group(name, layers, series, numbers, moves.changes[:, [column[i] for i in layers if i in column]],
               sensitivity(update_ratio, learning_rate, layers))
        for name, layers in grouping.groups.items()
    ]  # fmt: skip
    size = np.nan_to_num(numbers.mean)
    power = (size / max(float(size.max(initial=0.0)), 1e-300)) ** 2
    total = float(power.sum())
    levels: list[seeds.HierarchyLevel] = []
    rows: list[list[int]] = []
    for place, (name, members) in enumerate(grouping.levels.items()):
        layers = [layer for member in members for layer in grouping.groups[member]]
        importance = float(power[layers].sum()) / total if total > 0 else _NO_GRADIENT
        ill = sum(unhealthy[layer] for layer in layers) / len(layers)
        impact = importance if isinstance(importance, Missing) else importance * ill
        levels.append(
            record_of(
                seeds.HierarchyLevel,
                level_id=place,
                level_name=name,
                layer_groups=list(members),
                level_importance=importance,
                optimization_impact=impact,
            )
        )
        rows.append([column[layer] for layer in layers if layer in column])
    return seeds.GradientHierarchy(groups, levels, _cross_level(moves.changes, rows))


def _group(
    name: str, layers: list[int], series: LayerSeries, numbers: LayerNumbers, changes: Floats, rate: float | Missing
) -> seeds.LayerGroup:
    means = numbers.mean[layers]
    finite, positive = means[~np.isnan(means)], means[means > 0]
    count = changes.shape[1]
    together = Missing("two layers that were measured at the same 20 steps are needed")
    if count >= 2:  # the mean correlation of all pairs, from the length of the sum: no pair is visited
        together = float((np.square(changes.sum(axis=1)).sum() - count) / (count * (count - 1)))
    spread = 1 / numbers.stability[layers] - 1
    noise = spread[~np.isnan(spread)]
    unknown = Missing("no live layer with three finite samples")
    characteristics = record_of(
        seeds.GroupCharacteristics,
        average_gradient_norm=float(finite.mean()) if len(finite) else Missing("no finite samples"),
        gradient_synchronization=together,
        learning_rate_sensitivity=rate,
        optimization_difficulty=difficulty(float(np.median(noise))) if len(noise) else unknown,
    )
    few = Missing("two layers with gradient are needed")
    return record_of(
        seeds.LayerGroup,
        group_name=name,
        layers=[series.names[layer] for layer in layers],
        group_characteristics=characteristics,
        internal_coherence=1 / (1 + float(np.std(np.log10(positive)))) if len(positive) >= 2 else few,
    )


def difficulty(noise: float) -> seeds.OptimizationDifficulty:
    return list(seeds.OptimizationDifficulty)[sum(noise >= limit for limit in NOISE)]


def sensitivity(update_ratio: Floats | None, learning_rate: Floats | None, layers: list[int]) -> float | Missing:
    """Slope of ln(update/weight) against ln(learning rate): 1 when updates follow the rate; or why it is unknown."""
    if update_ratio is None or learning_rate is None:
        return Missing("update-to-weight ratios and the learning rate are needed")
    table = update_ratio[:, layers]
    usable = np.isfinite(table) & (table > 0)
    rows = usable.all(axis=1) & np.isfinite(learning_rate) & (learning_rate > 0)
    if rows.sum() < 20:
        return Missing("20 steps with updates and a learning rate are needed")
    rate = np.log(learning_rate[rows])
    if float(np.ptp(rate)) < np.log(1.1):
        return Missing("the learning rate did not change")
    response = np.log(table[rows]).mean(axis=1)
    rate = rate - rate.mean()
    return float(rate @ (response - response.mean()) / (rate @ rate))


def _cross_level(changes: Floats, rows: list[list[int]]) -> list[seeds.CrossLevelInteraction]:
    """Lagged correlation of the levels' mean movements; the one that leads gives the direction."""
    usable = [place for place, columns in enumerate(rows) if columns]
    if len(usable) < 2:
        return []
    means = np.stack([changes[:, rows[place]].mean(axis=1) for place in usable], axis=1)
    means = means - means.mean(axis=0)
    length = np.sqrt(np.square(means).sum(axis=0))
    means /= np.where(length > 0, length, 1)
    far = len(usable) if len(usable) <= ALL_PAIRS else 2
    pairs = [(a, b) for a in range(len(usable)) for b in range(a + 1, min(len(usable), a + far))]
    limit = chance_limit(len(means), len(pairs) * (2 * LAGS + 1))
    found: list[seeds.CrossLevelInteraction] = []
    for a, b in pairs:
        strengths = {lag: _lagged(means, a, b, lag) for lag in range(-LAGS, LAGS + 1)}
        best = max(strengths, key=lambda lag: (abs(strengths[lag]), -abs(lag)))
        if abs(strengths[best]) <= limit:
            continue
        leader, follower = (a, b) if best >= 0 else (b, a)
        direction = seeds.InteractionDirection.BOTTOM_UP if best > 0 else seeds.InteractionDirection.TOP_DOWN
        direction = direction if best else seeds.InteractionDirection.BIDIRECTIONAL
        size = min(1.0, abs(strengths[best]))
        found.append(seeds.CrossLevelInteraction(usable[leader], usable[follower], size, direction, abs(best)))
    return found


def _lagged(means: Floats, a: int, b: int, lag: int) -> float:
    """Correlation of level a with level b `lag` samples later."""
    if lag < 0:
        return _lagged(means, b, a, -lag)
    return float(means[: len(means) - lag, a] @ means[lag:, b])
