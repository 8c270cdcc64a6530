"""Places as the training thread notes them, and what is made of them in the background: files are read there only."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undertow.probe.source import statements
from undertow.probe.source.frames import Site


@dataclass(slots=True)
class RawPlace:
    """`sites` are the user's lines that led there, the innermost first: more than one where a library was called."""

    role: str
    sites: Sequence[Site]
    subjects: Sequence[str] = ()  # layers
    operation: str = ""
    note: str = ""
    element: int | None = None  # which argument of the call is meant
    rank: int = 0


def described(places: Iterable[RawPlace], folder: str, read: set[str]) -> list[dict[str, Any]]:
    """For the journal; `folder` is the one that the program was started in, `read` the files that were read before."""
    found: list[dict[str, Any]] = []
    noted = list(places)
    files = {one.sites[0].file for one in noted if one.sites}
    noted += _settings(files - read)
    read |= files
    for place in noted:
        site = _deciding(place)
        if site is None:
            continue
        lines = statements.lines_of(site.file)
        first, last = site.line, min(site.end_line, site.line + _MOST_LINES)
        text = "".join(lines[first - 1 : last]).rstrip()
        record = {
            "role": place.role,
            "file": _relative(site.file, folder),
            "line": first,
            "end_line": last,
            "function": site.function,
            "code": text,
            "note": place.note,
            "before": lines[first - 2].rstrip() if 2 <= first <= len(lines) else "",
            "after": lines[last].rstrip() if last < len(lines) else "",
            "subjects": list(place.subjects),
            "operation": place.operation,
            "rank": place.rank,
        }
        found.append(record)
    return found


_MOST_LINES = 12


def _settings(files: Iterable[str]) -> Iterator[RawPlace]:
    """Nothing tells of a program that changes a setting of its optimizer, but its text."""
    for file in sorted(files):
        for name, first, last in statements.settings_assigned(file):
            site = Site(file, statements.function_at(file, first), first, last, -1, -1)
            yield RawPlace("setting", (site,), operation=name)


def _deciding(place: RawPlace) -> Site | None:
    """The line to point at: of a call with many arguments one of them, of a block without gradients its head."""
    if not place.sites:
        return None
    site = place.sites[0]
    if place.element is not None:
        return statements.argument(site, place.element) or site
    if place.operation in statements.HEADS:
        heads = (statements.block_head(one, place.operation) for one in place.sites)
        return next((head for head in heads if head is not None), site)
    return site


def working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return ""


def _relative(file: str, folder: str) -> str:
    try:
        path = Path(os.path.abspath(os.path.join(folder, file)))
        return path.relative_to(folder).as_posix()
    except ValueError:
        return file
