"""The story: three sentences for a tired person."""

from __future__ import annotations

from collections.abc import Sequence

from undertow.schema.facts import RunFacts
from undertow.schema.findings import Finding, StepRange
from undertow.schema.severity import Health


def story(
    findings: Sequence[Finding], health: Health | None, steps: StepRange, layers_watched: int, reasons: Sequence[str]
) -> str:
    """What happened and since when; what it means; what to do next."""
    if health is None:
        reason = reasons[0].rstrip(".") if reasons else "no optimizer step was seen"
        return (
            f"Nothing was recorded, so nothing can be said about this run. The reason: {_lower(reason)}. "
            "Check that the script reaches optimizer.step() with the watched model, and run it again."
        )
    alarms = [finding for finding in findings if finding.severity.is_alarm]
    if not alarms:
        return _calm(findings, steps, layers_watched)
    first, others = alarms[0], alarms[1:]
    return f"{first.summary} {_meaning(first, others)} {_next(first)}"


def _calm(findings: Sequence[Finding], steps: StepRange, layers_watched: int) -> str:
    remarks = [finding for finding in findings if finding.severity.rank > 0]
    extent = f"{steps.recorded:,} steps of {layers_watched:,} layers" if steps.recorded != 1 else "one step"
    if remarks:
        return f"No alarm in {extent}. {remarks[0].summary} It is minor: look at it when you have the time."
    noted = (
        f"{findings[0].summary}" if findings else "All measured values were finite, and no rule had anything to report."
    )
    return f"Nothing wrong was found in {extent}. {noted} There is nothing to do."


_MEANING = {
    "NUM001": "The optimizer writes such a gradient into the weights, and from there nothing recovers",
    "NUM002": "Every gradient of such a loss is NaN too, so the next step destroys the weights",
    "NUM003": "Weights do not recover from that: every later output and checkpoint is lost",
    "GRD003": "These layers keep their initial values while the rest learns around them, so the loss still looks fine",
    "GRD004": "These layers do not learn",
    "GRD007": "The steps follow old gradients of weights long gone, more of them every time",
    "UPD003": "The layer keeps its initial values while the rest learns around it, so the loss still looks fine",
}


def _meaning(first: Finding, others: Sequence[Finding]) -> str:
    if first.code == "NUM001" and not first.ongoing and not others:
        sentence = "It has not come back, but a gradient like that can destroy the weights at any step"
    elif any(evidence.quantity == "step_skipped" for evidence in first.evidence):
        sentence = "No step is taken while the scaler skips, so the model stands still"
    else:
        sentence = _MEANING.get(first.code, "The model learns less than it could")
    if others:
        codes = ", ".join(dict.fromkeys(finding.code for finding in others))
        sentence += f" (also found, and ranked below: {codes})"
    return sentence + "."


def _next(first: Finding) -> str:
    if not first.remedies:
        return f"Read more with: undertow explain {first.code}."
    return f"Next: {_lower(first.remedies[0].what)}"


def _lower(sentence: str) -> str:
    """Lower the first letter unless the word is a name or an abbreviation."""
    return sentence[:1].lower() + sentence[1:] if sentence[1:2].islower() else sentence


def why_zero_steps(facts: RunFacts, status: str) -> list[str]:
    """Why a run holds no step, as far as its facts tell."""
    known = list(facts.reasons)
    if facts.message:
        known.append(facts.message)
    if facts.frames_dropped:
        known.append(f"{facts.frames_dropped:,} frames could not be written: is the disk full?")
    elif facts.steps_seen:
        known.append(f"{facts.steps_seen:,} optimizer steps were counted, and none was recorded")
    elif status == "running":
        known.append("the run has only begun: no optimizer step has been taken yet")
    elif not known:
        known.append("no optimizer of the watched model ever took a step")
    return known
