"""Where gradients vanish, explode or are dead in a run: as its diagnosis says."""

from collections.abc import Mapping

from undertow.analyze.series import LayerSeries
from undertow.components.problem_regions import NO_ACTIVATIONS, extent_of, recovery
from undertow.components.regions import Region
from undertow.components.run_verdicts import DEAD, EXPLODING, VANISHING, RunVerdicts, covers, level
from undertow.schema import Finding
from undertow.schema.seeds.flow_records import (
    ExplodingRegion,
    ExplodingSeverity,
    GradientDeadZone,
    VanishingRegion,
    VanishingSeverity,
)


def diagnosed_regions(
    series: LayerSeries, verdicts: RunVerdicts
) -> tuple[list[VanishingRegion], list[ExplodingRegion]]:
    """One region for each finding of vanishing and of exploding gradients that these steps still see."""
    vanishing: list[VanishingRegion] = []
    exploding: list[ExplodingRegion] = []
    for finding in verdicts.findings:
        layers = tuple(layer for layer, name in enumerate(series.names) if covers(finding, name))
        if finding.code not in (*VANISHING, *EXPLODING) or not layers or not _seen(series, finding):
            continue
        names, remedies = [series.names[layer] for layer in layers], [one.what for one in finding.remedies]
        samples = max(_samples(series, layer, finding) for layer in layers)
        extent = extent_of(series, Region(layers, finding.first_step, finding.last_step, samples, finding.ongoing, 0.0))
        if finding.code in VANISHING:
            severity = list(VanishingSeverity)[level(finding)]
            vanishing.append(VanishingRegion(f"vanishing_{len(vanishing) + 1}", names, severity, extent, remedies))
        else:
            worst = list(ExplodingSeverity)[level(finding)]
            exploding.append(ExplodingRegion(f"exploding_{len(exploding) + 1}", names, worst, extent, remedies))
    return vanishing, exploding


def diagnosed_dead_zones(
    series: LayerSeries, window: int, verdicts: RunVerdicts, unit_activity: Mapping[str, float] | None
) -> list[GradientDeadZone]:
    """One zone for each layer that a finding says gets no gradient."""
    zones: list[GradientDeadZone] = []
    for layer, name in enumerate(series.names):
        found = [one for one in verdicts.of(name, DEAD) if _seen(series, one)]
        if not found:
            continue
        samples, count = max(_samples(series, layer, one) for one in found), int(series.counts[layer])
        ongoing, activity = any(one.ongoing for one in found), (unit_activity or {}).get(name)
        zones.append(
            GradientDeadZone(
                zone_id=f"dead_zone_{len(zones) + 1}",
                affected_layers=[name],
                dead_duration=samples,
                recovery_potential=recovery(samples / max(1, count), int(not ongoing), count, window, activity),
                intervention_required=any(one.severity.is_alarm for one in found),
                current_run=samples if ongoing else 0,
                longest_run=samples,
                first_step=min(one.first_step for one in found),
                ongoing=ongoing,
                unit_activity=activity,
                unavailable={} if activity is not None else {"unit_activity": NO_ACTIVATIONS},
            )
        )
    return zones


def _seen(series: LayerSeries, finding: Finding) -> bool:
    return bool(len(series.steps)) and finding.last_step >= int(series.steps[0])


def _samples(series: LayerSeries, layer: int, finding: Finding) -> int:
    steps = series.column(layer)[0]
    return int(((steps >= finding.first_step) & (steps <= finding.last_step)).sum())
