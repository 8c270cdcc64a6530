"""Many layers in few words: a module stands for its tensors when all of them are meant."""

import re
from collections.abc import Sequence
from itertools import pairwise


def where(layers: Sequence[str], every: Sequence[str] = (), limit: int = 4) -> str:
    """The layers by name; beyond `limit`, by the modules they fill. `every` is all the tensors of the model."""
    if not layers:
        return "the training as a whole"
    if len(layers) <= limit:
        return ", ".join(layers)
    if set(layers) >= set(every) and every:
        return f"every layer ({len(layers):,} tensors)"
    places = _ranges(_modules(layers, every))
    if len(places) == len(layers):
        return f"{', '.join(layers[:limit])} and {len(layers) - limit:,} more"
    if len(places) > limit:
        return f"{', '.join(places[:limit])} and more ({len(layers):,} tensors in all)"
    named = places[0] if len(places) == 1 else f"{', '.join(places[:-1])} and {places[-1]}"
    return f"{named} ({len(layers):,} tensors)"


def _modules(layers: Sequence[str], every: Sequence[str]) -> list[str]:
    """The outermost paths of which no tensor is left out, in the order of the layers."""
    left_out = {path for other in set(every) - set(layers) for path in _with_parents(other)}
    known = set(every)
    found: dict[str, None] = {}
    for layer in layers:
        whole = [path for path in _with_parents(layer) if path not in left_out] if layer in known else []
        found[whole[0] if whole else layer] = None
    return list(found)


def _with_parents(path: str) -> list[str]:
    """`a`, `a.b`, `a.b.c`."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _ranges(places: Sequence[str]) -> list[str]:
    """Numbered siblings without a gap become one: `blocks.0–2`. It stands where the first of them stood."""
    numbered = [re.fullmatch(r"(?P<parent>.+\.)(?P<number>\d+)", place) for place in places]
    siblings: dict[str, list[int]] = {}
    for match in numbered:
        if match is not None:
            siblings.setdefault(match["parent"], []).append(int(match["number"]))
    span = {parent: _whole_span(numbers) for parent, numbers in siblings.items()}
    found: dict[str, None] = {}
    for place, match in zip(places, numbered):
        whole = None if match is None else span[match["parent"]]
        found[place if match is None or whole is None else f"{match['parent']}{whole}"] = None
    return list(found)


def _whole_span(numbers: Sequence[int]) -> str | None:
    """`0–2`, if no number in between is left out."""
    ordered = sorted(numbers)
    if len(ordered) < 2 or any(after - before != 1 for before, after in pairwise(ordered)):
        return None
    return f"{ordered[0]}–{ordered[-1]}"
