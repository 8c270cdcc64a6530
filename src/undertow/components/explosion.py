"""Which gradients of a set are too large.

How bad it is follows from two ratios, and what to do follows from how bad it is: so the three never contradict.
"""

import numpy as np

from undertow.analyze.series import Floats
from undertow.schema.reasons import Missing, record_of
from undertow.schema.seeds.weight_records import ExplodingLayer, ExplosionSeverity, GradientExplosionAnalysis

SEVERITIES = list(ExplosionSeverity)  # from low to critical
BESIDE_OTHERS = (10, 50, 100)  # times the median of the other layers: medium, high, critical
ABOVE_THRESHOLD = (2, 5, 10)  # times the threshold
SHARE_LISTED = (0.1, 0.3, 0.5)  # of the layers: for the whole network only

ACTIONS = {
    ExplosionSeverity.LOW: "watch it, and consider clipping",
    ExplosionSeverity.MEDIUM: "clip the gradient",
    ExplosionSeverity.HIGH: "lower the learning rate and clip the gradient",
    ExplosionSeverity.CRITICAL: "cut the learning rate tenfold and clip the gradient",
}
FIND_IT = "Not finite: find the operation that produces NaN or infinity before changing anything else"
NONFINITE_ADVICE = "Non-finite gradients come first: skip the step, and find the operation that produced them"
# Those of a severity hold for the ones above it, too.
ADVICE = {
    ExplosionSeverity.CRITICAL: (
        "Cut the learning rate tenfold, and warm it up again",
        "Look at the batch that produced the largest gradient",
    ),
    ExplosionSeverity.HIGH: (
        "Lower the learning rate for the whole network",
        "Check the scale of inputs, targets and initial weights",
    ),
    ExplosionSeverity.MEDIUM: ("Clip the gradient norm below the threshold",),
    ExplosionSeverity.LOW: (
        "Record gradient norms at every step",
        "Warm the learning rate up at the start of training",
    ),
}


def explosion_analysis(
    names: list[str], norms: list[float], nonfinite: list[int], threshold: float
) -> GradientExplosionAnalysis:
    """A layer is listed when its norm exceeds the threshold or is not finite.

    Its severity is the worse of two: beside the median of the other finite norms, and in multiples of the threshold.
    The network is as bad as its worst layer, or worse where many are listed.
    """
    finite = np.sort(np.array([norm for norm in norms if np.isfinite(norm)], dtype=np.float64))
    listed: list[ExplodingLayer] = []
    for place, norm in enumerate(norms):
        if norm > threshold or not np.isfinite(norm):
            severity = _severity(norm, finite, threshold)
            action = _action(norm, threshold, severity)
            listed.append(ExplodingLayer(place, norm, severity, action, names[place], nonfinite[place]))
    bad = [place for place, norm in enumerate(norms) if not np.isfinite(norm)]
    ratio, largest = len(listed) / max(1, len(norms)), float(finite.max(initial=0.0))
    overall = max([_level(ratio, SHARE_LISTED), *(layer.severity for layer in listed)], key=SEVERITIES.index)
    unit = largest or 1.0  # squares of huge norms would leave the range of numbers
    nothing = Missing("no gradient norm is finite" if norms else "no gradients were given")
    return record_of(
        GradientExplosionAnalysis,
        exploding_layers=listed,
        max_gradient_norm=largest if len(finite) else nothing,
        mean_gradient_norm=float((finite / unit).mean()) * unit if len(finite) else nothing,
        std_gradient_norm=float((finite / unit).std()) * unit if len(finite) else nothing,
        explosion_ratio=ratio if norms else nothing,
        overall_severity=overall,
        mitigation_recommendations=_advice(overall, bool(bad)),
        nonfinite_layers=bad,
    )


def _severity(norm: float, finite: Floats, threshold: float) -> ExplosionSeverity:
    if not np.isfinite(norm):
        return ExplosionSeverity.CRITICAL
    usual = _median_of_others(norm, finite)
    beside = _level(norm / usual, BESIDE_OTHERS) if usual > 0 else ExplosionSeverity.LOW
    return max(beside, _level(norm / threshold, ABOVE_THRESHOLD), key=SEVERITIES.index)


def _median_of_others(norm: float, ordered: Floats) -> float:
    """Of the sorted norms without this one; 0 where it is the only one."""
    count, place = len(ordered), int(np.searchsorted(ordered, norm))
    if count < 2:
        return 0.0
    low, high = (ordered[middle + (middle >= place)] for middle in ((count - 2) // 2, (count - 1) // 2))
    return float(low / 2 + high / 2)


def _level(value: float, limits: tuple[float, ...]) -> ExplosionSeverity:
    return SEVERITIES[sum(value > limit for limit in limits)]


def _action(norm: float, threshold: float, severity: ExplosionSeverity) -> str:
    return f"{norm / threshold:.3g} times the threshold: {ACTIONS[severity]}" if np.isfinite(norm) else FIND_IT


def _advice(overall: ExplosionSeverity, nonfinite: bool) -> list[str]:
    first = [NONFINITE_ADVICE] if nonfinite else []
    reached = SEVERITIES.index(overall)
    return first + [one for severity, sentences in ADVICE.items() if SEVERITIES.index(severity) <= reached
                    for one in sentences]  # fmt: skip
