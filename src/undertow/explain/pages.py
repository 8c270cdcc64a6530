"""The page of a code: from the rule's docstring, or an honest word that no rule speaks it yet."""

import difflib
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from undertow.detect.engine import Stage
from undertow.detect.engine.registry import conditions
from undertow.detect.false_alarms import sentence
from undertow.errors import UnknownNameError
from undertow.explain.traits import can_explain, stage_of
from undertow.explain.user_program import Program
from undertow.schema import Remedy
from undertow.schema.codes import CODES, SUMMARIES

SECTIONS = ("What it sees", "Why it is bad", "When it is wrong", "References")
_MOST_POINTS = 3  # of a section in brief


@dataclass(frozen=True, slots=True)
class VariantPage:
    """One of the conditions behind a code."""

    variant: str
    summary: str
    sections: tuple[tuple[str, str], ...]
    remedies: tuple[Remedy, ...] = ()


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
    variants: tuple[VariantPage, ...] = ()


def page_of(code: str) -> Page:
    wanted = code.strip().upper()
    if wanted not in CODES:
        by_name = {name.upper(): known for known, name in CODES.items()}
        if wanted in by_name:
            wanted = by_name[wanted]
        else:
            raise UnknownNameError(f"{code!r} is not a code of Undertow", way_out=_near(wanted))
    name = CODES[wanted]
    sources = [one for one in conditions() if one.code == wanted]
    if not sources:
        summary = f"{name.replace('-', ' ').capitalize()}: reserved. This version has no rule that reports it."
        return Page(wanted, name, summary, (), (), (), (), exists=False)
    variants = tuple(_variant(one) for one in sources)
    return Page(
        wanted,
        name,
        SUMMARIES[wanted],
        tuple((title, _section(title, variants, wanted)) for title in SECTIONS),
        _each_once(remedy for one in variants for remedy in one.remedies),
        *_neighbours(wanted),
        exists=True,
        variants=variants,
    )


def _variant(source: type[Any]) -> VariantPage:
    summary, sections = parse(inspect.cleandoc(source.__doc__ or ""))
    return VariantPage(getattr(source, "variant", ""), summary, sections, _each_once(source.remedies))


def _section(title: str, variants: Sequence[VariantPage], code: str) -> str:
    """One text for a code: of several conditions each with its name."""
    texts = [(one, dict(one.sections).get(title, "")) for one in variants]
    if title == "References":
        return "\n".join(dict.fromkeys(line.strip() for _, text in texts for line in text.splitlines()))
    if len(variants) == 1:
        text = texts[0][1]
    else:
        text = " ".join(f"{one.variant}: {text}" for one, text in texts if text)
    return f"{text} {sentence(code)}" if title == "When it is wrong" else text


def _each_once(remedies: Iterable[Remedy]) -> tuple[Remedy, ...]:
    return tuple({remedy.id: Program().fill(remedy) for remedy in remedies}.values())


def parse(docstring: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The first paragraph, and each section: it begins with its title and a colon, or with an underlined title."""
    summary, *parts = re.split(rf"^({'|'.join(SECTIONS)})(?::|\n-+$)", docstring, flags=re.MULTILINE)
    sections: list[tuple[str, str]] = []
    for title, text in zip(parts[::2], parts[1::2]):
        # References are a list, each of which ends with a full stop; everything else is prose to be wrapped anew.
        lines = re.split(r"(?<=\.)\n", text) if title == "References" else [text]
        sections.append((title, "\n".join(" ".join(line.split()) for line in lines if line.strip())))
    return " ".join(summary.split()), tuple(sections)


def page_of_variant(code: str, variant: str) -> Page:
    """The page of a code as if it had this condition alone."""
    page = page_of(code)
    chosen = next((one for one in page.variants if one.variant == variant.strip().lower()), None)
    if chosen is None:
        known = ", ".join(one.variant for one in page.variants)
        raise UnknownNameError(f"{variant!r} is not a condition of {page.code}", way_out=f"It has: {known or 'none'}")
    return replace(page, summary=chosen.summary, sections=chosen.sections, remedies=chosen.remedies, variants=(chosen,))


def in_brief(page: Page) -> Iterator[tuple[str, list[str]]]:
    """A page that fits a screen: titles, each with its points. Of several conditions what each is, and what all of them
    are bad for; the rest is on the page of each.
    """
    titles = SECTIONS[:3]
    points = {title: [_first_sentence(dict(one.sections).get(title, "")) for one in page.variants] for title in titles}
    if len(page.variants) > 1:
        points["What it sees"] = [f"{one.variant}: {one.summary}" for one in page.variants]
        points["When it is wrong"] = []
    points["When it is wrong"].append(sentence(page.code))
    points["What to do"] = [one.remedies[0].what for one in page.variants if one.remedies]
    for title, texts in points.items():
        most = len(texts) if title == "What it sees" else _MOST_POINTS
        yield title, [text for text in dict.fromkeys(texts) if text][:most]


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[^.][.])\s+(?=[A-Z`])", text, maxsplit=1)[0]


def told(page: Page) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A page as it is read: headings with their sections. Of several conditions each has its own, then what is said of
    the code as a whole.
    """
    whole = dict(page.sections)
    if len(page.variants) > 1:
        for one in page.variants:
            yield f"{one.variant}: {one.summary}", [part for part in one.sections if part[0] != "References"]
        yield "", [("How often it is wrong", sentence(page.code)), ("References", whole["References"])]
    else:
        yield "", list(page.sections)
    place = stage_of(page.code)
    explained = f"It can explain {', '.join(page.leads_to)}" if page.leads_to else "It explains nothing else"
    yield "", [("Among causes", f"Stage {place + 1} of {len(Stage)}, {place.name.lower()}. {explained}.")]


def _neighbours(code: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a code can bring about, and what can bring it about: by their stages."""
    after = tuple(other for other in CODES if can_explain(code, other))
    return after, tuple(other for other in CODES if can_explain(other, code))


def _near(wanted: str) -> str:
    family = [code for code in CODES if code.startswith(wanted[:3])] if len(wanted) >= 3 else []
    near = difflib.get_close_matches(wanted, CODES, 4, 0.6) or family[:4]
    by_name = difflib.get_close_matches(wanted.lower(), CODES.values(), 3, 0.6)
    near += [code for code, name in CODES.items() if name in by_name and code not in near]
    if near:
        return "Near: " + ", ".join(f"{code} ({CODES[code]})" for code in near)
    return "Codes look like NUM001; `undertow explain` without a code lists them all"
