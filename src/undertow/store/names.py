"""A name that a run may have or not."""

import difflib
from collections.abc import Iterable

from undertow.errors import UnknownNameError

_LISTED = 8


def known_name(name: str, names: Iterable[str], noun: str) -> str:
    """The name if it is one of them; otherwise an error that lists the nearest ones."""
    known = list(names)
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, 5, 0.5) or [other for other in known if name in other][:5]
    if near:
        way_out = f"Near: {', '.join(near)}"
    elif known:
        more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
        way_out = f"There are: {', '.join(known[:_LISTED])}{more}"
    else:
        way_out = f"The run has no {noun} at all"
    raise UnknownNameError(f"this run has no {noun} {name!r}", way_out=way_out)
