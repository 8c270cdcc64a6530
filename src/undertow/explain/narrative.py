"""The story: three sentences for a tired person."""

import re
from collections.abc import Sequence

from undertow.detect.features.remedies import LOWER_LEARNING_RATE
from undertow.explain.traits import meaning_of, traits_of
from undertow.schema import Finding, RunFacts, RunStatus, StepRange

_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")
_FEW_STEPS = 30  # rules that compare a step with those before it need about as many
_LIKELY = 0.7  # below this confidence a finding is called likely


def alarm(alarms: Sequence[Finding]) -> str:
    """What happened and since when; what it means; what to do next."""
    first, others = alarms[0], alarms[1:]
    what = _SENTENCE_END.split(first.summary, maxsplit=1)[0]
    return f"{what} {_meaning(first, others)} {_next(first)}"


def calm(findings: Sequence[Finding], steps: StepRange, layers_watched: int, unseen: Sequence[str] = ()) -> str:
    """No alarm. `unseen` is what could not be judged: then silence means less."""
    extent = f"{_count(steps)} of {layers_watched:,} layers" if steps.recorded != 1 else "one step"
    remarks = [finding for finding in findings if finding.severity.rank > 0]
    if remarks:
        return f"No alarm in {extent}. {remarks[0].summary} It is minor: look at it when you have the time."
    noted = (
        f"{findings[0].summary}" if findings else "All measured values were finite, and no rule had anything to report."
    )
    if steps.recorded < _FEW_STEPS:
        number = "one step shows" if steps.recorded == 1 else f"{steps.recorded} steps show"
        unseen = (*unseen, f"{number} only what is wrong at once: it takes {_FEW_STEPS} or more to judge a trend")
    end = f"But {unseen[0]}." if unseen else "There is nothing to do."
    return f"Nothing wrong was found in {extent}. {noted} {end}"


def cut_short(message: str, status: str, findings: Sequence[Finding], steps: StepRange) -> str:
    """The script failed, or Undertow stepped aside in the middle of a training."""
    remarks = [finding for finding in findings if finding.severity.rank > 0]
    found = remarks[0].summary if remarks else f"Nothing wrong was found in the {_count(steps)} before that."
    what_next = "The steps after it were not watched."
    if status == RunStatus.FAILED:
        what_next = "Mend what the script stumbled over, and run it again."
    return _three(_sentence(message), found, what_next)


def damage(problems: Sequence[str], facts: RunFacts, steps: StepRange) -> str:
    """Files are damaged or missing, and what can be read gives no alarm."""
    lost = (
        _sentence(problems[0])
        if len(problems) == 1
        else f"{_sentence(problems[0])[:-1]} (and {len(problems) - 1} more)."
    )
    if steps.recorded:
        known = f"Nothing wrong was found in what can be read of {_count(steps)}, but part of the run is lost."
    elif facts.steps_seen:
        known = f"The training took {facts.steps_seen:,} steps, but the record of them cannot be read."
    else:
        known = "This run cannot be judged, because part of it is lost."
    first = "Make room where the run is written" if facts.frames_dropped else "Restore the files from a copy"
    return f"{known} {lost} {first}, {'and' if facts.frames_dropped else 'or'} run the training again."


def nothing(facts: RunFacts, status: str) -> str:
    """A run without a single step."""
    reasons = why_zero_steps(facts, status)[:2]
    advice = "Check that the script reaches optimizer.step() with the watched model, and run it again."
    if facts.frames_dropped:
        advice = "Make room where the run is written, and run the script again."
    elif status == RunStatus.DETACHED:
        reasons, advice = reasons[:1], "The training itself went on."
    why = ", and ".join(reason.rstrip(".") for reason in reasons)
    return _three(
        "Nothing was recorded, so nothing can be said about this run.",
        _sentence(why),
        advice,
    )


def _meaning(first: Finding, others: Sequence[Finding]) -> str:
    if first.remedies and first.remedies[0].id == LOWER_LEARNING_RATE.id and first.code.startswith("NUM"):
        sentence = (
            "The values had grown out of all proportion before: the training diverged, and this is where it ended"
        )
    elif first.code == "NUM001" and not first.ongoing and not others:
        sentence = "It has not come back, but a gradient like that can destroy the weights at any step"
    elif any(evidence.quantity == "step_skipped" for evidence in first.evidence):
        sentence = "No step is taken while the scaler skips, so the model stands still"
    elif traits_of(first).is_momentary and traits_of(first).is_vague and not first.ongoing:
        sentence = "It has passed, and what caused it is not clear from what was measured"
    else:
        sentence = meaning_of(first)
    if first.confidence < _LIKELY:
        sentence += "; this is likely, not certain"
    beside = _beside(first, others)
    return f"{sentence} ({beside})." if beside else f"{sentence}."


def _beside(first: Finding, others: Sequence[Finding]) -> str:
    """What else was found: how much of it this explains, and what is a fault of its own."""
    followers = sum(finding.follows_from == first.code for finding in others)
    causes = list(dict.fromkeys(one.code for one in others if one.follows_from is None and one.code != first.code))
    parts: list[str] = []
    if followers:
        parts.append("another finding follows from it" if followers == 1 else f"{followers} findings follow from it")
    if causes:
        more = f" and {len(causes) - 2} more" if len(causes) > 2 else ""
        parts.append(f"{' and '.join(causes[:2]) if not more else ', '.join(causes[:2])}{more} found besides")
    return "; ".join(parts)


def _next(first: Finding) -> str:
    if not first.remedies:
        return f"Read more with: undertow explain {first.code}."
    return f"Next: {_lower(first.remedies[0].what)}"


def _lower(sentence: str) -> str:
    """Lower the first letter unless the word is a name or an abbreviation."""
    return sentence[:1].lower() + sentence[1:] if sentence[1:2].islower() else sentence


def _count(steps: StepRange) -> str:
    return "1 step" if steps.recorded == 1 else f"{steps.recorded:,} steps"


def _sentence(text: str) -> str:
    """With a capital, unless it begins with a name, and a full stop."""
    text = text.rstrip(". ")
    first = text.split(" ", 1)[0]
    return (text[:1].upper() + text[1:] if first.isalpha() else text) + "."


def _three(*parts: str) -> str:
    """At most three sentences: a message may bring two of its own."""
    whole = " ".join(parts)
    return whole if len(_SENTENCE_END.split(whole)) <= 3 else " ".join(parts[:-1])


def how_it_ended(facts: RunFacts, status: str) -> str:
    """The last word of a run, with who said it."""
    if status != RunStatus.FAILED:
        return facts.message
    return f"the script ended with {facts.message}"


def why_zero_steps(facts: RunFacts, status: str) -> list[str]:
    """Why a run holds no step, as far as its facts tell; then how it ended."""
    if status == RunStatus.DETACHED and facts.message:
        return [facts.message, *facts.reasons]
    known = list(facts.reasons)
    if facts.frames_dropped:
        known.append(f"none of {facts.frames_dropped:,} frames could be written, perhaps because the disk is full")
    elif facts.steps_seen:
        known.append(f"{facts.steps_seen:,} optimizer steps were counted, and none was recorded")
    elif status == "running":
        known.append("the run has only begun: no optimizer step has been taken yet")
    elif not known:
        known.append("no optimizer of the watched model ever took a step")
    if facts.message:
        known.append(how_it_ended(facts, status))
    return known
