"""Many layers in few words: a module stands for its tensors when all of them are meant."""

from collections.abc import Sequence


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
    siblings: dict[str, list[int]] = {}
    for place in places:
        parent, _, last = place.rpartition(".")
        if parent and last.isdecimal():
            siblings.setdefault(parent, []).append(int(last))
    whole = {
        parent: f"{parent}.{min(numbers)}–{max(numbers)}"
        for parent, numbers in siblings.items()
        if len(numbers) > 1 and sorted(numbers) == list(range(min(numbers), max(numbers) + 1))
    }

    def named(place: str) -> str:
        parent, _, last = place.rpartition(".")
        return whole.get(parent, place) if last.isdecimal() else place

    return list(dict.fromkeys(map(named, places)))
