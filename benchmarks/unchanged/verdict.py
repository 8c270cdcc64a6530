"""What three trainings of a program say: did watching change anything?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Result(StrEnum):
    IDENTICAL = "identical"
    PARTLY = "not deterministic in itself"
    MISSING = "package not installable"
    UNSEEN = "not watched"
    BROKEN = "fails by itself"
    DIFFERS = "DIFFERS"


FAILURES = frozenset({Result.UNSEEN, Result.BROKEN, Result.DIFFERS})


@dataclass(frozen=True, slots=True)
class Verdict:
    name: str
    result: Result
    detail: str = ""

    @property
    def is_failure(self) -> bool:
        return self.result in FAILURES


def judge(trial: dict[str, Any]) -> Verdict:
    """Only what two plain trainings agree in can be compared with the watched one."""
    name = trial["name"]
    if "missing" in trial:
        return Verdict(name, Result.MISSING, trial["missing"])
    plain, again, watched = (trial[mode]["parts"] for mode in ("plain", "plain again", "watched"))
    if plain["exit status"] != 0:
        return Verdict(name, Result.BROKEN, _last_line(plain["stderr"]) or f"exit status {plain['exit status']}")
    unsteady = _differing(plain, again)
    changed = [part for part in _differing(plain, watched) if part not in unsteady]
    if changed:
        return Verdict(name, Result.DIFFERS, "; ".join(_difference(part, plain, watched) for part in changed))
    recorded, status = trial["watched"]["recorded"], trial["watched"]["status"]
    if recorded < trial["steps"] or status != "finished":
        return Verdict(name, Result.UNSEEN, f"{recorded} of {trial['steps']} steps recorded, the run is {status}")
    if unsteady:
        return Verdict(name, Result.PARTLY, f"{', '.join(unsteady)}; all else identical, {recorded} steps watched")
    return Verdict(name, Result.IDENTICAL, f"{recorded} steps watched" if recorded else "")


def _differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return sorted(part for part in one.keys() | other.keys() if one.get(part) != other.get(part))


def _difference(part: str, plain: dict[str, Any], watched: dict[str, Any]) -> str:
    """The name of the part, and what is new in it where it can be read."""
    before, now = plain.get(part, ""), watched.get(part, "")
    if part == "warnings":
        return f"warnings ({' | '.join([line for line in now if line not in before] or ['fewer'])})"
    if part in ("stdout", "stderr"):
        known = set(before.splitlines())
        return f"{part} ({' | '.join(line for line in now.splitlines() if line not in known) or 'less'})"
    return f"{part} ({now})" if part == "exit status" else part


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
