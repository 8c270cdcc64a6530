"""OPT: what to change about the optimizer and its schedule."""

from __future__ import annotations

import math

from undertow.detect.engine.registry import condition_of
from undertow.detect.features.remedies import (
    LOWER_LEARNING_RATE,
    LOWER_THE_WEIGHT_DECAY,
    OVERFIT_ONE_BATCH,
    RAISE_LEARNING_RATE,
    SMALL_EPS,
    USUAL_MOMENTUM,
    WARM_UP,
)
from undertow.schema.findings import Finding, Remedy

LOWER_RATE = "lower-the-learning-rate"
RAISE_RATE = "raise-the-learning-rate"

REMEDIES: tuple[Remedy, ...] = (
    LOWER_LEARNING_RATE,
    RAISE_LEARNING_RATE,
    WARM_UP,
    LOWER_THE_WEIGHT_DECAY,
    SMALL_EPS,
    USUAL_MOMENTUM,
    Remedy(
        "build-the-optimizer-once",
        "Build the optimizer once, before the loop: a new one forgets its moments and its schedule.",
        "optimizer = $build_call\nfor batch in loader:\n    train_step(batch, optimizer)",
        "None.",
        when_not="It is rebuilt rarely and on purpose, at a new stage of the training.",
    ),
    Remedy(
        "faster-second-moment",
        "Lower Adam's beta2 to 0.95, so that its scale follows when gradients change.",
        'for group in optimizer.param_groups:\n    group["betas"] = (group["betas"][0], 0.95)',
        "Steps are a little noisier.",
        when_not="The gradients are stable and only one batch was odd.",
    ),
    OVERFIT_ONE_BATCH,
)

BY_CODE: dict[str, tuple[str, ...]] = {
    "OPT001": (LOWER_RATE, "warm-up", "clip-gradients"),
    "OPT003": ("inspect-the-batch", "guard-against-spikes", "warm-up"),
    "OPT004": (LOWER_RATE, "shuffle-the-data", "usual-momentum"),
    "OPT005": ("overfit-one-batch", "check-the-labels", LOWER_RATE),
    "OPT008": (
        "build-the-optimizer-once",
        "lower-the-weight-decay",
        "small-eps",
        "usual-momentum",
        "faster-second-moment",
    ),
}

_RATES = ("lr", "optimizer_rate", "update_ratio")


def fitting(finding: Finding) -> tuple[str, ...] | None:
    match finding.code:
        case "OPT005":
            return ("overfit-one-batch", "check-the-labels")  # the cause is not known: look, change nothing yet
        case "OPT008":
            return _setting(finding)
        case _:
            return None


def rate_is_too_low(finding: Finding) -> bool:
    """Whether steps are too small, where a finding is about their size. Findings of old journals do not say which
    condition raised them: there the rate or the update that was measured beside what was expected tells it.
    """
    condition = condition_of(finding.code, finding.variant)
    if condition is not None:
        return condition.lowers_steps
    for evidence in finding.evidence:
        value, expected = evidence.value, evidence.expected
        if value is None or expected is None or not evidence.quantity.startswith(_RATES):
            continue
        if math.isfinite(value) and value != expected:
            return value < expected
    return False


def _setting(finding: Finding) -> tuple[str, ...]:
    """The one setting that the evidence names."""
    remedy_of = {
        "optimizer_rebuilt": "build-the-optimizer-once",
        "optimizer_step_count": "build-the-optimizer-once",
        "optimizer_weight_decay": "lower-the-weight-decay",
        "optimizer_eps_ratio": "small-eps",
        "optimizer_momentum": "usual-momentum",
        "optimizer_momentum_cosine": "usual-momentum",
        "optimizer_gradient_rms": "faster-second-moment",
    }
    named = [remedy_of[e.quantity] for e in finding.evidence if e.quantity in remedy_of]
    return tuple(dict.fromkeys(named)) or BY_CODE[finding.code]
