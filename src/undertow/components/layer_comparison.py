"""Every layer beside the others, and the shape of them all."""

import numpy as np
from numpy.typing import NDArray

from undertow.analyze.series import Flags, Floats, LayerSeries
from undertow.schema.reasons import Missing, known, number_or_none, record_of
from undertow.schema.seeds.enhanced import DistributionType, GradientDistribution
from undertow.schema.seeds.history import ComparativeAnalysis

SIMILAR = 1.2  # ratio of mean norms
MOST_SIMILAR = 10  # names listed per layer
ENOUGH_LAYERS = 8
# Limits that independent normal logarithms exceed in fewer than one of a hundred networks, all three together: skewness
# and kurtosis, at least and in standard errors; and Ashman's D of the best split, which chance makes large where there
# are few values (uniform ones, too).
ERRORS = 2.9
LEAST_SKEWNESS, LEAST_KURTOSIS = 1.0, 3.6


def separation_limit(count: int) -> float:
    return max(5.1, 3.4 + 75 / count)


def compare_layers(
    series: LayerSeries, mean: Floats, dead: Flags, speed: Floats | None = None
) -> list[ComparativeAnalysis]:
    """Rank 1 is the layer nearest to the typical one: too large is as bad as too small.

    Layers are compared by how fast they learn (`speed`: update over weight) when that is known of all live ones, else
    by RMS gradient when all sizes are known, else by norm. `optimization_potential` is
    1 − min(ratio, 1/ratio) with the ratio to the network's median; 1 for a dead layer.
    """
    count = len(mean)
    level = mean / np.sqrt(series.sizes) if (series.sizes > 0).all() else mean
    live = (level > 0) & ~dead
    if speed is not None and live.any() and (speed[live] > 0).all():
        level = np.where(live, speed, 0.0)
    typical = float(np.median(level[live])) if live.any() else np.nan
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = level / typical
        distance = np.where(level > 0, np.abs(np.log10(ratio)), np.inf)
        potential = np.where(dead | (level == 0), 1.0, 1 - np.minimum(ratio, 1 / ratio))
    distance = np.where(np.isnan(mean), np.nan, distance)
    rank = np.searchsorted(np.sort(distance[~np.isnan(distance)]), distance - 1e-12) + 1
    order = np.argsort(mean, kind="stable")
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    total, others = float(np.nansum(mean)), int((~np.isnan(mean)).sum()) - 1
    compared: list[ComparativeAnalysis] = []
    for layer, own in enumerate(mean.tolist()):
        if np.isnan(own) or others < 1:
            reason = "the layer has no finite sample" if np.isnan(own) else "there is no other layer to compare with"
            alone = Missing(reason) if np.isnan(own) else 1
            compared.append(
                record_of(ComparativeAnalysis, rank_among_layers=alone, similar_layers=[], otherwise=reason)
            )
            continue
        average = (total - own) / others
        average = 0.0 if average <= 1e-13 * total else average  # rounding of a difference
        nothing = Missing("the other layers have no gradient")
        compared.append(
            record_of(
                ComparativeAnalysis,
                relative_performance=own / average if average > 0 else nothing,
                rank_among_layers=int(rank[layer]),
                similar_layers=[series.names[other] for other in _similar(mean, order, int(place[layer]))],
                performance_gap=abs(own - average),
                optimization_potential=known(potential[layer], "no layer has gradient to compare with"),
            )
        )
    return compared


def _similar(mean: Floats, order: NDArray[np.int64], place: int) -> list[int]:
    """Neighbours in order of size within the ratio, in order of the layers; the nearest ten at most."""
    own = float(mean[order[place]])
    found: list[tuple[float, int]] = []
    for direction in (-1, 1):
        at = place + direction
        while 0 <= at < len(order) and len(found) < 2 * MOST_SIMILAR:
            other = float(mean[order[at]])
            ratio = max(own / (other + 1e-8), other / (own + 1e-8))
            if np.isnan(ratio) or ratio > SIMILAR:
                break
            found.append((ratio, int(order[at])))
            at += direction
    return sorted(layer for _, layer in sorted(found)[:MOST_SIMILAR])


def gradient_distribution(series: LayerSeries, mean: Floats) -> GradientDistribution:
    """Moments of the layers' mean norms; the type from their logarithms."""
    finite = mean[~np.isnan(mean)]
    if not len(finite):
        reason = "no layer has a finite sample"
        return record_of(
            GradientDistribution,
            layer_gradient_ratios=dict.fromkeys(series.names),
            otherwise=reason,
            unavailable={"layer_gradient_ratios": reason} if series.names else {},
        )
    centre, variance, skewness, kurtosis = _moments(finite)
    ratios = {name: number_or_none(value / centre) if centre > 0 else None for name, value in zip(series.names, mean)}
    lacking = "every layer's mean norm is zero" if centre <= 0 else "a layer without a finite sample has none"
    return record_of(
        GradientDistribution,
        mean_gradient_norm=centre,
        gradient_variance=variance,
        gradient_skewness=skewness,
        gradient_kurtosis=kurtosis,
        layer_gradient_ratios=ratios,
        distribution_type=distribution_type(finite),
        unavailable={"layer_gradient_ratios": lacking} if None in ratios.values() else {},
    )


def distribution_type(values: Floats) -> DistributionType | Missing:
    """Degenerate: no spread. Then, on a logarithmic scale: two separate groups, skew, heavy tails, or normal."""
    positive = np.log10(values[values > 0])
    if len(values) >= 2 and float(np.ptp(values)) <= 1e-6 * float(values.max()):
        return DistributionType.DEGENERATE
    if len(positive) < ENOUGH_LAYERS:
        return Missing(f"{ENOUGH_LAYERS} layers with a gradient are needed")
    _, _, skewness, kurtosis = _moments(positive)
    if _separation(positive) > separation_limit(len(positive)):
        return DistributionType.MULTIMODAL
    if abs(skewness) > max(LEAST_SKEWNESS, ERRORS * np.sqrt(6 / len(positive))):
        return DistributionType.SKEWED
    if kurtosis > max(LEAST_KURTOSIS, ERRORS * np.sqrt(24 / len(positive))):
        return DistributionType.HEAVY_TAILED
    return DistributionType.NORMAL


def _moments(values: Floats) -> tuple[float, float, float, float]:
    unit = float(np.abs(values).max()) or 1.0
    scaled = values / unit
    apart = scaled - scaled.mean()
    variance = float(np.square(apart).mean())
    centre = float(scaled.mean()) * unit
    if variance <= 0:
        return centre, 0.0, 0.0, 0.0
    skewness, kurtosis = float((apart**3).mean()) / variance**1.5, float((apart**4).mean()) / variance**2 - 3
    return centre, variance * unit * unit, skewness, kurtosis


def _separation(values: Floats) -> float:
    """Ashman's D of the best split into two groups of at least a tenth (and two) of the values each."""
    ordered = np.sort(values)
    count = len(ordered)
    least = max(2, count // 10)
    sizes = np.arange(least, count - least + 1)
    if not len(sizes):
        return 0.0
    sums, squares = np.cumsum(ordered), np.cumsum(ordered**2)
    low, high = sums[sizes - 1] / sizes, (sums[-1] - sums[sizes - 1]) / (count - sizes)
    low_spread = squares[sizes - 1] / sizes - low**2
    high_spread = (squares[-1] - squares[sizes - 1]) / (count - sizes) - high**2
    within = sizes * low_spread + (count - sizes) * high_spread
    best = int(np.argmin(within))
    spread = max(1e-12, float(low_spread[best] + high_spread[best]))
    return float(np.sqrt(2) * (high[best] - low[best]) / np.sqrt(spread))
