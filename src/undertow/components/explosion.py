"""Which gradients of a set are too large."""

import numpy as np

from undertow.schema.reasons import Missing, record_of
from undertow.schema.seeds.weight_records import ExplodingLayer, ExplosionSeverity, GradientExplosionAnalysis


def explosion_analysis(
    names: list[str], norms: list[float], nonfinite: list[int], threshold: float
) -> GradientExplosionAnalysis:
    """A layer is listed when its norm exceeds the threshold or is not finite.

    Its severity compares it with the median of all finite norms, so the order of the layers does not matter.
    """
    finite = np.array([norm for norm in norms if np.isfinite(norm)], dtype=np.float64)
    median = float(np.median(finite)) if len(finite) else 0.0

    def severity(norm: float) -> ExplosionSeverity:
        limits = ((100, ExplosionSeverity.CRITICAL), (50, ExplosionSeverity.HIGH), (10, ExplosionSeverity.MEDIUM))
        above = (level for times, level in limits if norm > times * median or not np.isfinite(norm))
        return next(above, ExplosionSeverity.LOW)

    listed = [
        ExplodingLayer(place, norm, severity(norm), _action(norm, threshold), names[place], nonfinite[place])
        for place, norm in enumerate(norms)
        if norm > threshold or not np.isfinite(norm)
    ]
    bad = [place for place, norm in enumerate(norms) if not np.isfinite(norm)]
    ratio, largest = len(listed) / max(1, len(norms)), float(finite.max(initial=0.0))
    unit = largest or 1.0  # squares of huge norms would leave the range of numbers
    nothing = Missing("no gradient norm is finite" if norms else "no gradients were given")
    return record_of(
        GradientExplosionAnalysis,
        exploding_layers=listed,
        max_gradient_norm=largest if len(finite) else nothing,
        mean_gradient_norm=float((finite / unit).mean()) * unit if len(finite) else nothing,
        std_gradient_norm=float((finite / unit).std()) * unit if len(finite) else nothing,
        explosion_ratio=ratio if norms else nothing,
        overall_severity=_overall(ratio, largest, threshold, bool(bad)),
        mitigation_recommendations=_advice(ratio, largest, bool(bad)),
        nonfinite_layers=bad,
    )


def _action(norm: float, threshold: float) -> str:
    if not np.isfinite(norm):
        return "Find the operation that produces NaN or infinity before changing anything else"
    times = norm / threshold
    if times > 20:
        return f"{times:.3g} times the threshold: cut the learning rate tenfold and clip the gradient"
    if times > 2:
        return f"{times:.3g} times the threshold: lower the learning rate and clip the gradient"
    return f"{times:.3g} times the threshold: watch it, and consider clipping"


def _overall(ratio: float, largest: float, threshold: float, nonfinite: bool) -> ExplosionSeverity:
    if nonfinite or ratio > 0.5 or largest > 10 * threshold:
        return ExplosionSeverity.CRITICAL
    if ratio > 0.3 or largest > 5 * threshold:
        return ExplosionSeverity.HIGH
    if ratio > 0.1 or largest > 2 * threshold:
        return ExplosionSeverity.MEDIUM
    return ExplosionSeverity.LOW


def _advice(ratio: float, largest: float, nonfinite: bool) -> list[str]:
    advice: list[str] = []
    if nonfinite:
        advice.append("Non-finite gradients come first: skip the step, and find the operation that produced them")
    if ratio > 0.3:
        advice += ["Many layers are affected: lower the learning rate for the whole network",
                   "Check the scale of inputs, targets and initial weights"]  # fmt: skip
    if largest > 100:
        advice += ["Clip the gradient norm below 1.0", "Look at the batch that produced the largest gradient"]
    advice += ["Record gradient norms at every step", "Warm the learning rate up at the start of training"]
    return advice
