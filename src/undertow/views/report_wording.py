"""Words, numbers and signs that all media share."""

from undertow.schema import Diagnosis, Evidence, Finding, Health, Overhead, RunStatus, Severity

# Neither severity nor health is ever told by colour alone.
GLYPHS = {
    Severity.INFO: "·",
    Severity.MILD: "○",
    Severity.MODERATE: "▲",
    Severity.SEVERE: "■",
    Severity.CRITICAL: "✖",
}
HEALTH_GLYPHS = {Health.HEALTHY: "✔", Health.MINOR: "○", Health.PROBLEMS: "■", Health.CRITICAL: "✖", None: "?"}


def headline(diagnosis: Diagnosis) -> tuple[str, str]:
    """The verdict, and what it was made from."""
    verdict = f"{_glyph(diagnosis)} {health_words(diagnosis)}"
    steps = diagnosis.steps
    if steps.recorded == 0:
        extent = "no steps recorded"
    elif steps.recorded == 1:
        extent = f"step {steps.first}"
    else:
        extent = f"steps {steps.first:,}–{steps.last:,}, {steps.recorded:,} recorded"
    watched = diagnosis.coverage.layers_watched
    return verdict, f"{diagnosis.run} · {extent} · {watched:,} {'layer' if watched == 1 else 'layers'}"


def _glyph(diagnosis: Diagnosis) -> str:
    failed = diagnosis.status == RunStatus.FAILED
    return HEALTH_GLYPHS[Health.CRITICAL if failed else diagnosis.health]


def health_words(diagnosis: Diagnosis) -> str:
    """The health, no better than how the run ended and what was measured allow."""
    words = str(diagnosis.health or "no verdict")
    if diagnosis.health is Health.HEALTHY and diagnosis.complete is False:
        words = "healthy as far as seen"
    if diagnosis.status == RunStatus.FAILED:
        words = f"failed, {words} until then" if diagnosis.health is Health.HEALTHY else f"failed, {words}"
    return words


def when(finding: Finding) -> str:
    """`since step 7, detected at step 12, still going on`."""
    parts = [f"since step {finding.first_step:,}"]
    if finding.detected_step != finding.first_step:
        parts.append(f"detected at step {finding.detected_step:,}")
    parts.append("still there" if finding.ongoing else f"last seen at step {finding.last_step:,}")
    return ", ".join(parts)


def percent(fraction: float, digits: int = 1) -> str:
    return f"{100 * fraction:.{digits}f} %"


def cost(overhead: Overhead) -> str:
    parts: list[str] = []
    if overhead.fraction_of_step is not None:
        parts.append(f"{percent(overhead.fraction_of_step)} of the step time")
    if overhead.milliseconds_per_step is not None:
        parts.append(f"{overhead.milliseconds_per_step:.2f} ms per step")
    if overhead.bytes_per_step is not None:
        parts.append(f"{overhead.bytes_per_step / 1000:.1f} kB on disk per step")
    return ", ".join(parts) or "not measured"


# Evidence that is a sentence and no measurement, and quantities whose values are numbers for names.
_WORDS = ("consequence", "place", "first_nonfinite", "unsafe_operation")
_NAMES = (
    "gradient_state", "gradient_optimizer", "gradient_carried", "activation_training", "loss_broadcast",
    "loss_input_is_probability", "loss_input_is_logit", "loss_input_is_rectified", "optimizer_rebuilt",
)  # fmt: skip


def evidence_line(evidence: Evidence) -> str:
    """`how it is known (quantity of layer is 5, expected 0)`."""
    if evidence.quantity in _WORDS:
        return evidence.how + (f" ({evidence.layer})" if evidence.layer else "")
    subject = evidence.quantity + (f" of {evidence.layer}" if evidence.layer else "")
    number = "" if evidence.value is None else f" is {evidence.value:.4g}"
    expected = "" if evidence.expected is None else f", expected {evidence.expected:.4g}"
    return f"{evidence.how} ({subject}{number}{expected})"


def short_evidence(evidence: Evidence) -> str:
    """`how it is known (update ratio 5, expected 0)`: for somebody who wants to know what to do."""
    if evidence.quantity in (*_WORDS, *_NAMES) or evidence.value is None:
        return evidence.how
    expected = "" if evidence.expected is None else f", expected {evidence.expected:.3g}"
    return f"{evidence.how} ({evidence.quantity.replace('_', ' ')} {evidence.value:.3g}{expected})"
