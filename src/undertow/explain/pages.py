"""The page of a code: from the rule's docstring, or an honest word that no rule speaks it yet."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass

from undertow.detect.false_alarms import sentence
from undertow.detect.rules import RULES
from undertow.errors import UnknownNameError
from undertow.explain.causes import neighbours
from undertow.explain.remedies import BY_CODE, REMEDIES
from undertow.schema.codes import CODES
from undertow.schema.findings import Remedy

SECTIONS = ("What it sees", "Why it is bad", "When it is wrong", "References")


@dataclass(frozen=True, slots=True)
class Page:
    code: str
    name: str
    summary: str
    sections: tuple[tuple[str, str], ...]  # title and text
    remedies: tuple[Remedy, ...]
    leads_to: tuple[str, ...]  # codes that it can bring about, directly
    follows_from: tuple[str, ...]
    exists: bool  # False: the code is reserved and no rule reports it yet


def page_of(code: str) -> Page:
    wanted = code.strip().upper()
    if wanted not in CODES:
        by_name = {name.upper(): known for known, name in CODES.items()}
        if wanted in by_name:
            wanted = by_name[wanted]
        else:
            raise UnknownNameError(f"{code!r} is not a code of Undertow", way_out=_near(wanted))
    name = CODES[wanted]
    rule = next((rule for rule in RULES if rule.code == wanted), None)
    if rule is None:
        summary = f"{name.replace('-', ' ').capitalize()}: reserved. This version has no rule that reports it."
        return Page(wanted, name, summary, (), (), (), (), exists=False)
    summary, sections = parse(inspect.cleandoc(rule.__doc__ or ""))
    sections = tuple(
        (title, f"{text} {sentence(wanted)}" if title == "When it is wrong" else text) for title, text in sections
    )
    remedies = tuple(REMEDIES[identity] for identity in BY_CODE.get(wanted, ()))
    return Page(wanted, name, summary, sections, remedies, *neighbours(wanted), exists=True)


def parse(docstring: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The first paragraph, and each underlined section with its paragraphs joined to lines."""
    lines = docstring.splitlines()
    starts = [i for i in range(len(lines) - 1) if lines[i] in SECTIONS and lines[i + 1] == "-" * len(lines[i])]
    summary = " ".join(lines[: starts[0] if starts else len(lines)]).strip()
    sections: list[tuple[str, str]] = []
    for start, end in zip(starts, [*starts[1:], len(lines)]):
        title, body = lines[start], lines[start + 2 : end]
        # References are a list, one to a line; everything else is prose to be wrapped anew.
        text = "\n".join(body).strip() if title == "References" else " ".join(" ".join(body).split())
        sections.append((title, text))
    return summary, tuple(sections)


def _near(wanted: str) -> str:
    family = [code for code in CODES if code.startswith(wanted[:3])] if len(wanted) >= 3 else []
    near = difflib.get_close_matches(wanted, CODES, 4, 0.6) or family[:4]
    by_name = difflib.get_close_matches(wanted.lower(), CODES.values(), 3, 0.6)
    near += [code for code, name in CODES.items() if name in by_name and code not in near]
    if near:
        return "Near: " + ", ".join(f"{code} ({CODES[code]})" for code in near)
    return "Codes look like NUM001; `undertow explain` without a code lists them all"
