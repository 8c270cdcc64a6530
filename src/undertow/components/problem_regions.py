"""Regions and dead zones in words: how bad, how long, and what matches the cause."""

from collections.abc import Mapping

import numpy as np

from undertow.analyze.series import LayerSeries
from undertow.analyze.topology import Topology
from undertow.components.regions import (
    PERSISTENCE,
    Region,
    dead_flags,
    exploding_flags,
    is_ongoing,
    recent_regions,
    runs_of,
    vanishing_flags,
)
from undertow.schema.seeds.flow_records import (
    ExplodingRegion,
    ExplodingSeverity,
    GradientDeadZone,
    RecoveryPotential,
    RegionExtent,
    VanishingRegion,
    VanishingSeverity,
)

NO_ACTIVATIONS = "activations around the layer are not known: recovery is judged by whether earlier dead runs ended"
HALF_A_DIGIT = 1e-9  # 1e-6 is one decade below 1e-5, whatever rounding says


def severity_level(decades: float) -> int:
    """0 mild (less than a decade beyond the limit) … 3 critical (three or more, or infinitely far)."""
    return 3 if np.isnan(decades) else int(np.clip(np.floor(min(decades, 9.0) + HALF_A_DIGIT), 0, 3))


def vanishing_regions(
    series: LayerSeries,
    window: int,
    current_step: int | None = None,
    topology: Topology | None = None,
) -> list[VanishingRegion]:
    flags, decades = vanishing_flags(series)
    found = recent_regions(
        series, flags, decades, persistence=PERSISTENCE, window=window, current_step=current_step, topology=topology
    )
    whole = sum(len(region.layers) for region in found) == len(series.names) > 1
    return [
        VanishingRegion(
            region_id=f"vanishing_{place}",
            affected_layers=[series.names[layer] for layer in region.layers],
            severity_level=list(VanishingSeverity)[severity_level(region.decades)],
            extent=extent_of(series, region),
            mitigation_suggestions=_against_vanishing(series, region, whole),
        )
        for place, region in enumerate(found, 1)
    ]


def exploding_regions(
    series: LayerSeries, window: int, current_step: int | None = None, topology: Topology | None = None
) -> list[ExplodingRegion]:
    flags, decades = exploding_flags(series)
    found = recent_regions(
        series, flags, decades, persistence=(1, 1), window=window, current_step=current_step, topology=topology
    )
    return [
        ExplodingRegion(
            region_id=f"exploding_{place}",
            affected_layers=[series.names[layer] for layer in region.layers],
            severity_level=list(ExplodingSeverity)[severity_level(region.decades)],
            extent=extent_of(series, region),
            mitigation_suggestions=_against_exploding(series, region),
        )
        for place, region in enumerate(found, 1)
    ]


def extent_of(series: LayerSeries, region: Region) -> RegionExtent:
    counts = [series.parameter_counts[layer] for layer in region.layers]
    return RegionExtent(
        start_layer=series.names[region.layers[0]],
        end_layer=series.names[region.layers[-1]],
        affected_parameters=None if None in counts else sum(count or 0 for count in counts),
        duration_steps=region.samples,
        start_step=region.start_step,
        end_step=region.end_step,
        ongoing=region.ongoing,
    )


def _since_start(series: LayerSeries, region: Region) -> bool:
    return region.start_step <= int(series.steps[0])


def _against_vanishing(series: LayerSeries, region: Region, whole_network: bool) -> list[str]:
    advice: list[str] = []
    if np.isposinf(region.decades):
        advice.append("The gradient is exactly zero: look for a detached tensor, a dead activation or a zero weight.")
    if whole_network:
        advice.append("Every layer is affected: check the scale of the loss and, in mixed precision, the loss scale.")
    elif len(region.layers) > 1:
        advice.append("Several layers in a row are affected: a skip connection around them would keep gradient alive.")
    if _since_start(series, region):
        advice.append("It was so from the first sample: check the initialisation of these layers.")
    else:
        advice.append("It began during training: look for saturated or dead activations at the step where it began.")
    return advice


def _against_exploding(series: LayerSeries, region: Region) -> list[str]:
    if np.isposinf(region.decades):
        return ["The gradient is infinite: find the operation that overflows before changing anything else."]
    advice = ["Clip the gradient norm, for example to 1.0."]
    if _since_start(series, region):
        advice.append("It was so from the first sample: check the initialisation and the scale of inputs and targets.")
    else:
        advice.append("It began during training: lower the learning rate, or warm it up for longer.")
    return advice


def dead_zones(
    series: LayerSeries,
    window: int,
    current_step: int | None = None,
    unit_activity: Mapping[str, float] | None = None,
) -> list[GradientDeadZone]:
    """Layers whose norm is below 1e-8 in more than half of their samples.

    `unit_activity` is the share of live units among the activations of a layer, for those where it is known.
    """
    activity = [(unit_activity or {}).get(name) for name in series.names]
    flags = dead_flags(series)
    runs = runs_of(flags, series)
    share = runs.total / np.maximum(1, series.counts)
    return [
        GradientDeadZone(
            zone_id=f"dead_zone_{place}",
            affected_layers=[series.names[layer]],
            dead_duration=int(runs.total[layer]),
            recovery_potential=recovery(
                float(share[layer]), int(runs.ended[layer]), int(series.counts[layer]), window, activity[layer]
            ),
            intervention_required=bool(share[layer] > 0.8),
            current_run=int(runs.current[layer]),
            longest_run=int(runs.longest[layer]),
            first_step=int(series.sample_steps[np.argmax(flags[:, layer]), layer]),
            ongoing=is_ongoing(series, flags, int(layer), current_step),
            unit_activity=activity[layer],
            unavailable={} if activity[layer] is not None else {"unit_activity": NO_ACTIVATIONS},
        )
        for place, layer in enumerate(np.flatnonzero(share > 0.5), 1)
    ]


def recovery(
    share: float, recoveries: int, count: int, window: int, activity: float | None = None
) -> RecoveryPotential:
    """By the activations where they are known: without them no gradient comes back, with them it can.

    Otherwise by the past. High: came back to life twice or more. None: not one live sample in a whole window.
    """
    if activity is not None and activity <= 0:
        return RecoveryPotential.LOW if recoveries else RecoveryPotential.NONE
    if activity is not None:
        return RecoveryPotential.HIGH if recoveries else RecoveryPotential.MEDIUM
    if recoveries >= 2:
        return RecoveryPotential.HIGH
    if share == 1.0 and count >= window:
        return RecoveryPotential.NONE
    return RecoveryPotential.LOW if share > 0.9 else RecoveryPotential.MEDIUM
