"""How calm gradients are, whether that is changing, and what disturbs them."""

from dataclasses import dataclass

import numpy as np

from undertow.analyze.layer_numbers import LayerNumbers
from undertow.analyze.oscillation import turning_point_z
from undertow.analyze.series import Flags, Floats, LayerSeries
from undertow.components.regions import Extremes, severity_level
from undertow.schema.reasons import Missing, record_of
from undertow.schema.seeds.dynamics import (
    InstabilitySource,
    InstabilityType,
    StabilityAssessment,
    StabilityForecast,
    StabilityOutlook,
    StabilityTrend,
)

SEGMENTS = 8
SEGMENT_SAMPLES = 12
SPREAD_CHANGE = np.log(5)  # healthy trainings change by up to a factor of 4 as the gradient sinks into its noise
ERRORS = 4.0
UNSTABLE = 0.5


@dataclass(frozen=True, slots=True)
class Spread:
    """ln of the spread of ln-norm changes, median over layers, in eight stretches of time; and its uncertainty."""

    segments: Floats
    error: float


def spread_over_time(series: LayerSeries) -> Spread | None:
    """None when there are too few samples for eight stretches."""
    rows = (len(series.samples) - 1) // SEGMENTS
    if rows < SEGMENT_SAMPLES:
        return None
    segments: list[Floats] = []
    tails: list[Floats] = []
    for block in series.blocks():
        recent = series.samples[len(series.samples) - rows * SEGMENTS - 1 :, block]
        usable = np.isfinite(recent).all(axis=0) & (recent > 0).all(axis=0)
        steps = np.diff(np.log(recent[:, usable]), axis=0)
        table = steps.reshape(SEGMENTS, rows, -1)
        centred = table - table.mean(axis=1, keepdims=True)
        square = np.square(centred)
        variance = square.mean(axis=1)
        safe = np.where(variance > 0, variance, 1)
        segments.append(np.where(variance > 0, np.log(safe) / 2, np.nan))
        tails.append((np.square(square).mean(axis=1) / safe**2).max(axis=0))
    values = np.concatenate(segments, axis=1)
    values = values[:, ~np.isnan(values).any(axis=0)]
    if not values.shape[1]:
        return None
    tail = float(np.median(np.concatenate(tails)))
    # Var(ln s) = (kurtosis − 1) / 4n for independent changes; half as much again because they share samples.
    return Spread(np.median(values, axis=1), float(np.sqrt(1.5 * max(0.5, tail - 1) / (4 * rows))))


def stability_trend(spread: Spread) -> StabilityTrend:
    """Half the time against the other half."""
    half = SEGMENTS // 2
    change = float(spread.segments[half:].mean() - spread.segments[:half].mean())
    error = spread.error * np.sqrt(2 / half)
    if abs(change) < SPREAD_CHANGE or abs(change) < ERRORS * error:
        return StabilityTrend.STABLE
    return StabilityTrend.DEGRADING if change > 0 else StabilityTrend.IMPROVING


def assess_stability(
    series: LayerSeries, numbers: LayerNumbers, extremes: Extremes, threshold: float, dead: Flags
) -> StabilityAssessment:
    stable = numbers.stability[~np.isnan(numbers.stability)]
    overall = float(np.median(stable)) if len(stable) else None
    spread = spread_over_time(series)
    trend = None if spread is None else stability_trend(spread)
    short = Missing(f"a layer with {SEGMENTS * SEGMENT_SAMPLES + 1} positive samples without a gap is needed")
    return record_of(
        StabilityAssessment,
        overall_stability=Missing("no live layer has three finite samples") if overall is None else overall,
        stability_trend=trend or short,
        instability_sources=instability_sources(series, numbers, extremes, dead),
        stability_forecast=_forecast(overall, threshold, spread, trend),
    )


def _forecast(
    overall: float | None, threshold: float, spread: Spread | None, trend: StabilityTrend | None
) -> StabilityForecast:
    if overall is None or spread is None or trend is None:
        hint = ["Record more samples before trusting any forecast."]
        unsure = StabilityOutlook.UNCERTAIN
        return StabilityForecast(
            unsure, unsure, None, hint, {"confidence_level": "there are too few samples to try it"}
        )
    limit = max(SPREAD_CHANGE, ERRORS * np.sqrt(2) * spread.error)
    confidence = _back_test(spread.segments, limit)
    level = StabilityOutlook.STABLE if overall >= threshold else StabilityOutlook.UNCERTAIN
    change = float(spread.segments[-1] - spread.segments[-2])
    short = StabilityOutlook.DETERIORATING if change > 0 else StabilityOutlook.IMPROVING
    short = short if abs(change) >= limit else level
    long = {
        StabilityTrend.DEGRADING: StabilityOutlook.DETERIORATING,
        StabilityTrend.IMPROVING: StabilityOutlook.IMPROVING,
        StabilityTrend.STABLE: level,
    }[trend]
    if StabilityOutlook.DETERIORATING in (short, long):
        hints = ["Watch the gradient norm of every step, and clip it.", "Keep a checkpoint from before the change."]
    else:
        hints = ["Recording every few steps is enough."]
    return StabilityForecast(short, long, confidence, hints)


def _back_test(segments: Floats, limit: float) -> float:
    """How often 'the next stretch goes on as this one did' was right in this very run (with two imagined trials)."""
    moves = np.sign(np.diff(segments)) * (np.abs(np.diff(segments)) >= limit)
    hits = int((moves[1:] == moves[:-1]).sum())
    return (hits + 1) / (len(moves) - 1 + 2)


def instability_sources(
    series: LayerSeries, numbers: LayerNumbers, extremes: Extremes, dead: Flags
) -> list[InstabilitySource]:
    """One record per layer and cause; severities share one scale from 0 to 1."""
    exploding, above = extremes.exploding, extremes.decades_above
    vanishing, below = extremes.vanishing, extremes.decades_below
    sources: list[InstabilitySource] = []
    for layer, name in enumerate(series.names):
        count = int(numbers.count[layer])
        if not count:
            continue
        recent = min(count, 10)
        found: list[tuple[InstabilityType, float, str]] = []
        if exploding[-recent:, layer].any():
            share = (severity_level(float(above[layer])) + 1) / 4
            found.append((InstabilityType.GRADIENT_EXPLOSION, share, "gradient norms above 100"))
        if vanishing[-recent:, layer].all() and not dead[layer]:
            share = (severity_level(float(below[layer])) + 1) / 4
            found.append((InstabilityType.GRADIENT_VANISHING, share, "gradient norms below the vanishing limit"))
        if dead[layer]:
            found.append((InstabilityType.GRADIENT_VANISHING, 1.0, "no gradient at all"))
        if numbers.oscillating[layer]:
            length = min(count, 100)
            top = float(turning_point_z(np.array(length - 2), length))
            share = float(np.fmax(numbers.oscillation_z[layer] / top, -numbers.direction_cosine[layer]))
            found.append((InstabilityType.OSCILLATION, min(1.0, share), "it swings to and fro more than noise does"))
        if numbers.constant[layer]:
            newest = series.samples[-1, layer]
            share = float((np.abs(series.samples[:, layer] - newest) <= 1e-6 * newest).sum() / count)
            found.append((InstabilityType.STAGNATION, share, "the norm is the same in every sample"))
        if not found and numbers.stability[layer] < UNSTABLE:
            wild = 1 - float(numbers.stability[layer])
            found.append((InstabilityType.CHAOS, wild, "norms jump without a trend or a rhythm"))
        sources += [InstabilitySource(kind, [name], share, f"{name}: {text}") for kind, share, text in found]
    return sources
