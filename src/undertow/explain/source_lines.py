"""Which lines of the user's program made a finding so: the places a condition asks for, among those recorded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from undertow.explain.origin import Origin
from undertow.explain.suggested_values import measured
from undertow.explain.traits import traits_of
from undertow.schema import Finding, LayerTable, RecordedPlace, SourcePlace

EVENT = "source"
MOST = 4  # places of a finding
_MOST_OF_ROLE = 2
_SAME_RATE = 1e-3  # relative
# What belongs to a layer is of interest only where the finding names that layer.
_OF_LAYERS = frozenset({"definition", "initialisation", "overwritten", "freeze", "cut"})
# Shown after the cause, where that is known.
_BESIDE = {"cut": ("optimizer",), "squash": ("loss",), "broadcast": (), "sign": ("total",)}


# Operations whose gradient can be infinite where their value is not.
_STEEP = frozenset({"Sqrt", "Rsqrt", "LinalgVectorNorm", "Std", "Acos", "Asin", "Atanh", "Log", "Atan2"})


class SourceLines:
    """All places that the journal of a run knows, and those of one finding among them."""

    def __init__(
        self, events: Sequence[Mapping[str, Any]], origin: Origin | None = None, layers: LayerTable | None = None
    ) -> None:
        self._by_role: dict[str, list[tuple[int, RecordedPlace]]] = {}
        self._origin, self._layers = origin, layers
        self._rate: float | None = None
        for step, place in _recorded(events):
            self._by_role.setdefault(place.place.role, []).append((step, place))

    def pointed(self, finding: Finding, rate: float | None = None) -> Finding:
        """The finding with its lines, the best first; as it was where none is known. `rate` is the learning rate at the
        step at which it was found."""
        if not self._by_role:
            return finding
        self._rate = (measured(finding, "lr") or (rate,))[0]
        chosen: list[SourcePlace] = []
        for role in traits_of(finding).places:
            found = list(self._places(role, finding))
            chosen += found[:_MOST_OF_ROLE]
            if found and not chosen[1:] and role in _BESIDE:
                chosen += [place for beside in _BESIDE[role] for place in self._places(beside, finding)][:1]
        return replace(finding, source=_distinct(chosen)[:MOST])

    def definition(self, path: str) -> SourcePlace | None:
        """Where a layer was made: it, or the nearest module around it that has a line."""
        known = {subject: one for _, one in self._by_role.get("definition", ()) for subject in one.subjects}
        while path:
            if path in known:
                return known[path].place
            path = path.rpartition(".")[0]
        return known[""].place if "" in known else None

    # -- one role -----------------------------------------------------------------------------------------

    def _places(self, role: str, finding: Finding) -> Iterator[SourcePlace]:
        if role == "parameter":
            known = {subject: one for _, one in self._of("definition") for subject in one.subjects}
            yield from (known[path].place for path in finding.layers[:_MOST_OF_ROLE] if self._is_its_own(path, known))
        elif role == "definition":
            found = (self.definition(path) for path in finding.layers[:_MOST_OF_ROLE])
            yield from (place for place in found if place is not None)
        elif role in ("rate", "rate change"):
            yield from self._rates(finding, role == "rate change")
        elif role == "unsafe":
            yield from self._unsafe(finding)
        elif role == "setting":
            yield from (one.place for one in self._settings(_SETTINGS.get(finding.variant, ())))
        else:
            yield from (one.place for one in self._best(role, finding))

    def _settings(self, names: Sequence[str]) -> list[RecordedPlace]:
        """Lines that set one of these, in functions that are known to have run, if there are any such."""
        ran = {one.place.function for role, known in self._by_role.items() if role != "setting" for _, one in known}
        found = [one for _, one in self._of("setting") if one.operation in names]
        return [one for one in found if one.place.function in ran] or found

    def _is_its_own(self, path: str, known: Mapping[str, RecordedPlace]) -> bool:
        """A parameter that has a line of its own, apart from its module."""
        layer = None if self._layers is None else self._layers.get(path)
        return layer is not None and not layer.is_module and path in known

    def _of(self, role: str) -> list[tuple[int, RecordedPlace]]:
        return self._by_role.get(role, [])

    def _best(self, role: str, finding: Finding) -> list[RecordedPlace]:
        """Those of its layers, by rank; of the same rank what happened last before it was found."""
        after = 0 if role in _CALLS else _AFTER
        known = [(step, one) for step, one in self._of(role) if step <= finding.detected_step + after]
        if role in _OF_LAYERS or role == "evaluation mode":
            known = [(step, one) for step, one in known if _overlap(one.subjects, finding.layers)]
        if role == "cut":
            return _by_coverage([one for _, one in known], finding.layers)
        return [one for _, one in sorted(known, key=lambda pair: (pair[1].rank, -pair[0]))]

    def _rates(self, finding: Finding, has_changed: bool) -> Iterator[SourcePlace]:
        """The line that gave the optimizer this rate: its own, unless the rate was changed afterwards."""
        optimizers = [one for _, one in self._of("optimizer")]
        changes = [one.place for one in self._settings(("lr",))]
        schedules = [one.place for _, one in self._of("schedule")]
        rate = self._rate
        built = [one.place for one in optimizers if rate is not None and _has_rate(one, rate)]
        if built and not has_changed:
            yield from built
        elif rate is not None or has_changed:
            yield from (*changes, *schedules)
        if not has_changed:
            yield from (one.place for one in optimizers)

    def _unsafe(self, finding: Finding) -> Iterator[SourcePlace]:
        """The operation that the first non-finite value came from: those of its kind in its module, or of its kind."""
        origin = self._origin
        if origin is None or not origin.operation or finding.first_step != origin.step:
            steep = [one.place for _, one in self._of("operation") if one.operation in _STEEP]
            if finding.code == "NUM001" and len(_distinct(steep)) <= _MOST_OF_ROLE:
                yield from steep
            return
        same = [one for _, one in self._of("operation") if one.operation == origin.operation]
        layer = None if self._layers is None or origin.layer is None else self._layers.get(origin.layer)
        kind = "" if layer is None else layer.module_type
        inside = [one for one in same if kind and one.place.function.split(".")[-2:-1] == [kind]]
        yield from (one.place for one in (inside or same))


# What is noted as it happens: a call after a finding did not cause it.
_CALLS = frozenset({"optimizer", "schedule", "loader", "scaler", "evaluation mode", "backward", "step"})
_AFTER = 400  # steps after a finding in which what was looked at for its sake may have been seen


def _recorded(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, RecordedPlace]]:
    """With the steps at which they were seen; what cannot be understood is passed over."""
    for event in events:
        if event.get("kind") != EVENT:
            continue
        step = event.get("step")
        for record in event.get("places") or ():
            try:
                place = msgspec.convert(record, SourcePlace)
                more = msgspec.convert(
                    {
                        "place": record,
                        "subjects": record.get("subjects", ()),
                        "operation": record.get("operation", ""),
                        "rank": record.get("rank", 0),
                    },
                    RecordedPlace,
                )
            except (msgspec.ValidationError, AttributeError):
                continue
            yield (step if isinstance(step, int) else 0), replace(more, place=place)


def _overlap(subjects: Sequence[str], layers: Sequence[str]) -> bool:
    """What concerns no layer in particular concerns all of them."""
    if not subjects:
        return True
    return any(_is_within(one, other) or _is_within(other, one) for one in subjects for other in layers)


def _is_within(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _by_coverage(cuts: list[RecordedPlace], layers: Sequence[str]) -> list[RecordedPlace]:
    """The cut that has the layers before it, and little else."""

    def fit(cut: RecordedPlace) -> tuple[int, float]:
        covered = sum(any(_is_within(one, layer) for one in cut.subjects) for layer in layers)
        other = sum(not any(_is_within(one, layer) for layer in layers) for one in cut.subjects)
        return cut.rank, other / max(1, len(cut.subjects)) - covered / max(1, len(layers))

    return sorted(cuts, key=fit)


def _has_rate(optimizer: RecordedPlace, rate: float) -> bool:
    try:
        return any(abs(float(one) - rate) <= _SAME_RATE * abs(rate) for one in optimizer.operation.split(",") if one)
    except ValueError:
        return False


_SETTINGS = {
    "eps-too-large": ("eps",),
    "momentum-too-large": ("momentum", "betas"),
    "second-moment-too-slow": ("betas",),
    "weight-decay-too-strong": ("weight_decay",),
}


def _distinct(places: Sequence[SourcePlace]) -> tuple[SourcePlace, ...]:
    return tuple({(one.file, one.line): one for one in reversed(places)}.values())[::-1]
