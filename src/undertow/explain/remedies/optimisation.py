"""OPT: what to change about the optimizer and its schedule."""

from __future__ import annotations

import math

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
    Remedy(
        "step-the-schedule-per-epoch",
        "Step the schedule as often as its settings mean: once per epoch, not once per batch.",
        "for epoch in range(epochs):\n"
        "    for batch in loader:\n"
        "        train_step(batch)\n"
        "    scheduler.step()  # here, not in the inner loop",
        "None.",
        when_not="Its settings count steps, as those of a warm-up or a cosine over all steps do.",
    ),
    Remedy(
        "return-a-factor",
        "Let the schedule return a factor of the learning rate, not a rate: the two are multiplied.",
        "def factor(step: int) -> float:\n"
        "    return min(1.0, (step + 1) / 100)  # 1 is the rate of the optimizer\n"
        "schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)",
        "None.",
        when_not="The optimizer was made with a rate of 1 so that the schedule can set it.",
    ),
    Remedy(
        "remove-the-jump",
        "Take out what raises the learning rate at that step: a restart, a new stage, a reloaded optimizer.",
        "for group in optimizer.param_groups:\n    print(step, group['lr'])  # around the jump",
        "None; it only looks.",
        when_not="The restart is meant and the loss recovers from it.",
    ),
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
    Remedy(
        "balance-the-optimizers",
        "Bring the two learning rates to the same order, or let the slower side step more often.",
        "for group in faster_optimizer.param_groups:\n    group['lr'] /= 10",
        "The balance shifts at once: watch both losses.",
        when_not="One side is meant to be ahead, as a critic that is trained to convergence.",
    ),
    OVERFIT_ONE_BATCH,
)

BY_CODE: dict[str, tuple[str, ...]] = {
    "OPT001": (LOWER_RATE, "warm-up", "clip-gradients"),
    "OPT003": ("inspect-the-batch", "guard-against-spikes", "warm-up"),
    "OPT004": (LOWER_RATE, "shuffle-the-data", "usual-momentum"),
    "OPT005": ("overfit-one-batch", "check-the-labels", LOWER_RATE),
    "OPT007": (
        LOWER_RATE,
        RAISE_RATE,
        "step-the-schedule-per-epoch",
        "return-a-factor",
        "remove-the-jump",
        "warm-up",
        "balance-the-optimizers",
    ),
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
        case "OPT007":
            return _rate(finding)
        case "OPT008":
            return _setting(finding)
        case _:
            return None


def _rate(finding: Finding) -> tuple[str, ...]:
    """Too low or too high, and whether the schedule made it so: by what was measured beside what was expected."""
    words = finding.summary.lower()
    if "two optimizers" in words:
        return ("balance-the-optimizers",)
    schedule = "schedule" in words
    if "warm-up never end" in words:
        return (RAISE_RATE,)
    if "out of" in words:  # of the rate the optimizer was made with
        return ("return-a-factor", RAISE_RATE)
    if rate_is_too_low(finding):
        return ("step-the-schedule-per-epoch", RAISE_RATE) if schedule else (RAISE_RATE,)
    return ("remove-the-jump", LOWER_RATE) if schedule else (LOWER_RATE, "warm-up")


def rate_is_too_low(finding: Finding) -> bool:
    """Whether steps are too small, where a finding is about their size."""
    for evidence in finding.evidence:
        known = evidence.value is not None and evidence.expected is not None
        if known and evidence.quantity.startswith(_RATES):
            value, expected = evidence.value or 0.0, evidence.expected or 0.0
            if math.isfinite(value) and value != expected:
                return value < expected
    words = finding.summary.lower()
    return any(word in words for word in ("too low", "too small", "decay", "falls to", "fell to"))


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
