"""The last line of a watched training."""

from pathlib import Path

from undertow.schema import Diagnosis
from undertow.schema.codes import CODES
from undertow.views.report_wording import health_words, percent


def closing_line(diagnosis: Diagnosis, folder: Path | str | None, frames_dropped: int = 0, is_kept: bool = True) -> str:
    """What was watched, what it cost, how it went, and what to type next."""
    steps = diagnosis.steps.recorded
    if not steps:
        reasons = [reason.rstrip(".") for reason in diagnosis.coverage.reasons[:2]]
        return f"nothing was recorded: {'; '.join(reasons)} ({folder})"
    count = "1 step" if steps == 1 else f"{steps:,} steps"
    verdict = health_words(diagnosis)
    if diagnosis.culprit is not None:
        where = f" in {diagnosis.culprit.layer}" if diagnosis.culprit.layer else ""
        code = diagnosis.culprit.code
        verdict = f"{verdict}: {code} {CODES[code]}{where}"
    fraction, milliseconds, cost = diagnosis.overhead.fraction_of_step, diagnosis.overhead.milliseconds_per_step, ""
    if fraction is not None and milliseconds is not None:
        cost = f", at {percent(fraction)} of the step time ({milliseconds:.2f} ms a step)"
    lost = f"; {frames_dropped:,} frames could not be written and are lost" if frames_dropped else ""
    watched = f"{verdict}; {count} watched{cost}{lost}"
    if not is_kept:
        return f"{watched}. Nothing of it is kept: {folder} was removed while the training ran"
    return f"{watched}. Read more: undertow report {folder}"
