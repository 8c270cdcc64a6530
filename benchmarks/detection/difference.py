"""Two versions of the rules on the same recorded runs: which diagnoses differ, and in what."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]
Diagnoses = dict[tuple[str, str, int], Line]

# What a user reads, as opposed to what was found: it may be said better without being judged differently.
WORDS = {"name", "summary", "how", "what", "risk", "when_not", "story", "reasons", "variant"}


def read(file: Path) -> Diagnoses:
    lines = map(json.loads, file.read_text().splitlines())
    return {(line["tier"], line["case"], line["seed"]): line for line in lines}


def compare(before: Diagnoses, after: Diagnoses) -> int:
    """Print what differs; 1 if anything but words does. Fields that only one of the two knows are left aside."""
    for name, missing in (("first", after.keys() - before.keys()), ("second", before.keys() - after.keys())):
        if missing:
            print(f"not in the {name} file: {', '.join('/'.join(map(str, run)) for run in sorted(missing))}")
    both = sorted(before.keys() & after.keys())
    judged = worded = 0
    for run in both:
        found = list(differences(before[run], after[run]))
        judgements = [difference for difference in found if not difference[1]]
        judged += bool(judgements)
        worded += bool(found) and not judgements
        if judgements:
            print("/".join(map(str, run)))
            for line, times in Counter(text for text, _ in judgements).items():
                print(f"    {line}" + (f"  ×{times}" if times > 1 else ""))
    same = len(both) - judged - worded
    print(f"{len(both)} runs in both: {same} the same, {worded} in other words, {judged} judged differently")
    mixed = _print_renamed([(before[run]["diagnosis"], after[run]["diagnosis"]) for run in both])
    return 1 if judged or mixed else 0


def _print_renamed(pairs: list[tuple[Line, Line]]) -> bool:
    """Conditions that got another name; True if they are not the same condition in all runs."""
    names: Counter[tuple[str, str, str]] = Counter()
    for one, other in pairs:
        first = dict(zip(_titles(one["findings"]), one["findings"]))
        for title, finding in zip(_titles(other["findings"]), other["findings"]):
            if title in first:
                names[finding["code"], first[title]["variant"], finding["variant"]] += 1
    mixed = False
    for (code, old, new), times in sorted(names.items()):
        is_mixed = sum(code == key[0] and (old == key[1] or new == key[2]) for key in names) > 1
        mixed |= is_mixed
        if old != new:
            print(f"{code} {old!r} is now {new!r}, {times} times{', NOT in all runs' if is_mixed else ''}")
    return mixed


def differences(before: Line, after: Line) -> Iterator[tuple[str, bool]]:
    """What differs between two diagnoses of one run, each with whether it is only words."""
    one, other = before["diagnosis"], after["diagnosis"]
    first, second = _titles(one["findings"]), _titles(other["findings"])
    if first != second:
        yield f"findings: {', '.join(first) or 'none'}  →  {', '.join(second) or 'none'}", False
    for title in first:
        if title in second:
            pair = one["findings"][first.index(title)], other["findings"][second.index(title)]
            yield from _fields(title, *pair)
    yield from _fields("", {**one, "findings": None}, {**other, "findings": None})
    for field in ("status", "recorded"):
        if before[field] != after[field]:
            yield f"{field}: {before[field]} → {after[field]}", False


def _titles(findings: list[Line]) -> list[str]:
    """The findings as named in a difference; a second one of a code is told from the first by a number."""
    seen: Counter[str] = Counter()
    titles: list[str] = []
    for finding in findings:
        seen[finding["code"]] += 1
        count = seen[finding["code"]]
        titles.append(finding["code"] + (f"#{count}" if count > 1 else ""))
    return titles


def _fields(place: str, before: Any, after: Any, is_words: bool = False) -> Iterator[tuple[str, bool]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() & after.keys():
            yield from _fields(f"{place}.{key}".lstrip("."), before[key], after[key], is_words or key in WORDS)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after)):
            yield from _fields(f"{place}[{number}]", one, other, is_words)
    elif before != after and not (before != before and after != after):  # not a number equals itself here
        yield f"{place}: {_short(before)} → {_short(after)}", is_words


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:97]}…"
