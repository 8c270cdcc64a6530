"""What the operations of a step, and of what came before the first one, say about lines of the program."""

from collections.abc import Iterable, Iterator

from undertow.probe.discovery import Found
from undertow.probe.source.definitions import Definitions, storage_of
from undertow.probe.source.frames import Site
from undertow.probe.source.operations import HANDING_ON, LOSSES
from undertow.probe.source.places import RawPlace
from undertow.probe.source.xray import Known, Mark, XRay

_MOST_OF_A_KIND = 24
# Cuts in the order in which they are likely to be a mistake; what is not here (a comparison, a rounding) comes last.
_CUTTING = {
    "detach": 0,
    "data": 0,
    "no_grad": 0,
    "numpy": 1,
    "item": 1,
    "tolist": 1,
    "tensor": 1,
    "argmax": 2,
    "long": 2,
}
_LAST = 3


def of_set_up(set_up: XRay, found: Found) -> list[RawPlace]:
    """Who filled the weights before the first step, and who froze them."""
    places = _written(set_up, found, "initialisation")
    lowered = [one for one in set_up.marks if one.kind == "precision"]
    places += [RawPlace("precision", one.sites, operation=one.operation) for one in lowered]
    frozen: dict[tuple[Site, ...], list[str]] = {}
    for one in found.parameters:
        tensor = one.reference()
        if tensor is not None and not tensor.requires_grad and id(tensor) in set_up.frozen:
            frozen.setdefault(set_up.frozen[id(tensor)], []).append(one.path)
    return [*places, *(RawPlace("freeze", sites, paths, note="frozen here") for sites, paths in frozen.items())]


def of_step(xray: XRay, found: Found, names: dict[int, str], definitions: Definitions) -> list[RawPlace]:
    places: list[RawPlace] = []
    for mark in xray.marks:
        if mark.kind == "cut" and mark.feeds:
            cut = sorted({names[one] for one in mark.parameters if one in names})
            rank = _CUTTING.get(mark.operation, _LAST)
            places.append(RawPlace("cut", mark.sites, cut, mark.operation, mark.note, rank=rank))
        elif mark.kind == "squash" and mark.order:
            places.append(_squash(mark, names, definitions))
        elif mark.kind in ("zero_grad", "clip", "precision") or (
            mark.kind in ("loss", "broadcast", "sign", "operation") and mark.feeds
        ):
            places.append(RawPlace(mark.kind, mark.sites, operation=mark.operation, note=mark.note))
    sums = [one for one in xray.totals[:_MOST_OF_A_KIND] if one.operation not in LOSSES]
    places += [RawPlace("total", one.sites, operation=one.operation) for one in sums]
    places += _origins("data", xray.inputs)
    places += _origins("target", xray.targets)
    places += _taken(xray.inputs)
    places += _written(xray, found, "overwritten")
    return places


def _squash(mark: Mark, names: dict[int, str], definitions: Definitions) -> RawPlace:
    """At the line that put the module there, if it is one of torch's."""
    module = None if mark.module is None else mark.module()
    if module is None:
        return RawPlace("squash", mark.sites, operation=mark.operation, note=mark.note)
    sites, element = definitions.of(module)
    path = names.get(id(module), "")
    subjects = [path] if path else []
    return RawPlace("squash", sites or mark.sites, subjects, mark.operation, mark.note, element if sites else None)


def _origins(role: str, tensors: Iterable[Known]) -> Iterator[RawPlace]:
    """Where their values come from, and where this step took them."""
    for known in list(tensors)[:2]:
        made = next((one for one in known.lineage() if one.operation not in HANDING_ON), None)
        if made is not None:
            yield RawPlace(role, made.sites, operation=made.operation, note=f"made here, by {made.operation}")
        if made is None or made.sites[:1] != known.sites[:1]:
            yield RawPlace(role, known.sites, operation=known.operation, rank=1)


def _taken(tensors: Iterable[Known]) -> Iterator[RawPlace]:
    """Where the batch of this step was chosen."""
    for known in list(tensors)[:1]:
        index = next((one.index for one in known.lineage() if one.index is not None), None)
        if index is not None:
            yield RawPlace("batch", index.sites, operation=index.operation)
        yield RawPlace("batch", known.sites, operation=known.operation, rank=1)


def _written(seen: XRay, found: Found, role: str) -> list[RawPlace]:
    written: dict[tuple[tuple[Site, ...], str], list[str]] = {}
    for one in found.parameters:
        tensor = one.reference()
        writer = None if tensor is None else seen.written.get(storage_of(tensor))
        if writer is not None:
            written.setdefault(writer, []).append(one.path)
    return [RawPlace(role, sites, paths, operation, f"{operation}_ writes it here")
            for (sites, operation), paths in written.items()]  # fmt: skip
