"""Regions and dead zones in words: how bad, how long, and what matches the cause.

Plain arrays are judged by the original's limits, a run by its findings.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from undertow.analyze.series import LayerSeries
from undertow.analyze.topology import Topology
from undertow.components.regions import (
    PERSISTENCE,
    Extremes,
    Region,
    dead_flags,
    is_ongoing,
    recent_regions,
    runs_of,
    severity_level,
)
from undertow.components.run_verdicts import DEAD, EXPLODING, VANISHING, RunVerdicts, covers, level
from undertow.schema import Finding, seeds
from undertow.schema.reasons import Missing, record_of

NO_ACTIVATIONS = "activations around the layer are not known: recovery is judged by whether earlier dead runs ended"
_Judged = tuple[Region, int, list[str]]  # with its severity (0 mild … 3 critical) and what to do


def problem_regions(
    series: LayerSeries, window: int, current_step: int | None, topology: Topology | None
) -> tuple[list[seeds.VanishingRegion], list[seeds.ExplodingRegion]]:
    extremes = Extremes.of(series)
    where: dict[str, Any] = {"window": window, "current_step": current_step, "topology": topology}
    small = recent_regions(series, extremes.vanishing, extremes.decades_below, persistence=PERSISTENCE, **where)
    large = recent_regions(series, extremes.exploding, extremes.decades_above, persistence=(1, 1), **where)
    whole = sum(len(region.layers) for region in small) == len(series.names) > 1
    return _described(
        series,
        [(one, severity_level(one.decades), _against_vanishing(series, one, whole)) for one in small],
        [(one, severity_level(one.decades), _against_exploding(series, one)) for one in large],
    )


def diagnosed_regions(
    series: LayerSeries, verdicts: RunVerdicts
) -> tuple[list[seeds.VanishingRegion], list[seeds.ExplodingRegion]]:
    """One region for each finding of vanishing and of exploding gradients that these steps still see."""
    found: list[tuple[str, _Judged]] = []
    for finding in verdicts.findings:
        layers = tuple(layer for layer, name in enumerate(series.names) if covers(finding, name))
        if layers and _seen(series, finding):
            samples = max(_samples(series, layer, finding) for layer in layers)
            region = Region(layers, finding.first_step, finding.last_step, samples, finding.ongoing, 0.0)
            found.append((finding.code, (region, level(finding), [one.what for one in finding.remedies])))
    small, large = ([one for code, one in found if code in codes] for codes in (VANISHING, EXPLODING))
    return _described(series, small, large)


def _described(
    series: LayerSeries, small: Sequence[_Judged], large: Sequence[_Judged]
) -> tuple[list[seeds.VanishingRegion], list[seeds.ExplodingRegion]]:
    def names(region: Region) -> list[str]:
        return [series.names[layer] for layer in region.layers]

    mild, bad = list(seeds.VanishingSeverity), list(seeds.ExplodingSeverity)
    return (
        [seeds.VanishingRegion(f"vanishing_{place}", names(one), mild[severity], _extent(series, one), advice)
         for place, (one, severity, advice) in enumerate(small, 1)],
        [seeds.ExplodingRegion(f"exploding_{place}", names(one), bad[severity], _extent(series, one), advice)
         for place, (one, severity, advice) in enumerate(large, 1)],
    )  # fmt: skip


def _extent(series: LayerSeries, region: Region) -> seeds.RegionExtent:
    first, last = series.names[region.layers[0]], series.names[region.layers[-1]]
    size = series.sizes[list(region.layers)].sum()
    return record_of(
        seeds.RegionExtent,
        start_layer=first,
        end_layer=last,
        affected_parameters=Missing("the size of a layer is not known") if np.isnan(size) else int(size),
        duration_steps=region.samples,
        start_step=region.start_step,
        end_step=region.end_step,
        ongoing=region.ongoing,
    )


def _against_vanishing(series: LayerSeries, region: Region, whole_network: bool) -> list[str]:
    advice: list[str] = []
    if np.isposinf(region.decades):
        advice.append("The gradient is exactly zero: look for a detached tensor, a dead activation or a zero weight.")
    if whole_network:
        advice.append("Every layer is affected: check the scale of the loss and, in mixed precision, the loss scale.")
    elif len(region.layers) > 1:
        advice.append("Several layers in a row are affected: a skip connection around them would keep gradient alive.")
    if region.start_step <= int(series.steps[0]):
        return [*advice, "It was so from the first sample: check the initialisation of these layers."]
    return [*advice, "It began during training: look for saturated or dead activations at the step where it began."]


def _against_exploding(series: LayerSeries, region: Region) -> list[str]:
    if np.isposinf(region.decades):
        return ["The gradient is infinite: find the operation that overflows before changing anything else."]
    clip = "Clip the gradient norm, for example to 1.0."
    if region.start_step <= int(series.steps[0]):
        return [clip, "It was so from the first sample: check the initialisation and the scale of inputs and targets."]
    return [clip, "It began during training: lower the learning rate, or warm it up for longer."]


def dead_zones(
    series: LayerSeries, window: int, current_step: int | None, unit_activity: Mapping[str, float] | None
) -> list[seeds.GradientDeadZone]:
    """Layers whose norm is below 1e-8 in more than half of their samples.

    `unit_activity` is the share of live units among the activations of a layer, for those where it is known.
    """
    flags = dead_flags(series)
    runs = runs_of(flags, series)
    share = runs.total / np.maximum(1, series.counts)
    return [
        seeds.GradientDeadZone(
            zone_id=f"dead_zone_{place}",
            affected_layers=[series.names[layer]],
            dead_duration=int(runs.total[layer]),
            intervention_required=bool(share[layer] > 0.8),
            current_run=int(runs.current[layer]),
            longest_run=int(runs.longest[layer]),
            first_step=int(series.sample_steps[np.argmax(flags[:, layer]), layer]),
            ongoing=is_ongoing(series, flags, int(layer), current_step),
            **_recovery(
                series,
                int(layer),
                runs_total=int(runs.total[layer]),
                current=int(runs.current[layer]),
                recoveries=int(runs.ended[layer]),
                window=window,
                unit_activity=unit_activity,
            ),
        )
        for place, layer in enumerate(np.flatnonzero(share > 0.5), 1)
    ]


def diagnosed_dead_zones(
    series: LayerSeries, window: int, verdicts: RunVerdicts, unit_activity: Mapping[str, float] | None
) -> list[seeds.GradientDeadZone]:
    """One zone for each layer that a finding says gets no gradient."""
    zones: list[seeds.GradientDeadZone] = []
    for layer, name in enumerate(series.names):
        found = [one for one in verdicts.of(name, DEAD) if _seen(series, one)]
        if not found:
            continue
        samples, ongoing = max(_samples(series, layer, one) for one in found), any(one.ongoing for one in found)
        zones.append(
            seeds.GradientDeadZone(
                zone_id=f"dead_zone_{len(zones) + 1}",
                affected_layers=[name],
                dead_duration=samples,
                intervention_required=any(one.severity.is_alarm for one in found),
                current_run=samples if ongoing else 0,
                longest_run=samples,
                first_step=min(one.first_step for one in found),
                ongoing=ongoing,
                **_recovery(
                    series,
                    layer,
                    runs_total=samples,
                    current=samples if ongoing else 0,
                    recoveries=int(not ongoing),
                    window=window,
                    unit_activity=unit_activity,
                ),
            )
        )
    return zones


def _recovery(
    series: LayerSeries, layer: int, *, runs_total: int, current: int, recoveries: int, window: int,
    unit_activity: Mapping[str, float] | None,
) -> dict[str, Any]:  # fmt: skip
    """Whether gradient can come back: by the activations where they are known, otherwise by the past.

    High: came back to life twice or more. None: not one live sample in the newest whole window.
    """
    activity, count = (unit_activity or {}).get(series.names[layer]), int(series.counts[layer])
    if activity is not None and activity <= 0:
        potential = seeds.RecoveryPotential.LOW if recoveries else seeds.RecoveryPotential.NONE
    elif activity is not None:
        potential = seeds.RecoveryPotential.HIGH if recoveries else seeds.RecoveryPotential.MEDIUM
    elif recoveries >= 2:
        potential = seeds.RecoveryPotential.HIGH
    elif current >= window:
        potential = seeds.RecoveryPotential.NONE
    else:
        potential = seeds.RecoveryPotential.LOW if runs_total > 0.9 * count else seeds.RecoveryPotential.MEDIUM
    unavailable = {} if activity is not None else {"unit_activity": NO_ACTIVATIONS}
    return {"recovery_potential": potential, "unit_activity": activity, "unavailable": unavailable}


def _seen(series: LayerSeries, finding: Finding) -> bool:
    return bool(len(series.steps)) and finding.last_step >= int(series.steps[0])


def _samples(series: LayerSeries, layer: int, finding: Finding) -> int:
    steps = series.column(layer)[0]
    return int(((steps >= finding.first_step) & (steps <= finding.last_step)).sum())
