"""A run as a page can carry it: documents and pictures, each compressed, one after the other.

First the number of parts and their lengths (32 bits each), then the parts: JSON, a picture for each quantity, and the
distributions of each kind, in the order in which the JSON names them. `embedded.js` reads what is written here.
"""

import gzip
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from undertow.explain.pages import page_of
from undertow.run import Run
from undertow.schema import Diagnosis
from undertow.show.page.densities import densities
from undertow.show.page.pictures import Allowance, Packed, pictures
from undertow.views import page_documents
from undertow.views.line_points import Line, line_of_layer, line_of_scalar
from undertow.views.page_documents import weights
from undertow.views.scale import usual_of
from undertow.views.verdict import Verdict

PAGES = ("run", "findings", "flow", "weights")
_IDENTITY = "report"
_MOST_LINES = 120  # of layers that findings rest on
_DIGITS = 7


@dataclass(frozen=True, slots=True)
class Extent:
    """What a page is to hold."""

    pages: Sequence[str] = PAGES
    allowance: Allowance = field(default_factory=Allowance)
    points: int = 1024  # of a curve
    scalars: int = 48


_EVERYTHING = Extent()


def snapshot(
    run: Run, verdict: Verdict, extent: Extent = _EVERYTHING, tell: Callable[[str], None] = lambda message: None
) -> bytes:
    """`tell` hears what is being done, as some of it takes a while."""
    tell("writing down what was found")
    document = _document(run, verdict, extent)
    shown: list[Packed] = []
    spreads: list[Packed] = []
    if len(run.steps):
        spreads = densities(run, extent.allowance.densities)
        spent = len(_packed(document)) + sum(len(one.data) for one in spreads)
        shown = list(pictures(run, verdict.diagnosis, extent.allowance, spent, tell))
    told = document | _carried(run, document, shown, spreads)
    parts = [_packed(told), *(one.data for one in (*shown, *spreads))]
    return struct.pack(f"<{1 + len(parts)}I", len(parts), *map(len, parts)) + b"".join(parts)


def _packed(document: dict[str, Any]) -> bytes:
    return gzip.compress(msgspec.json.encode(document), 6, mtime=0)


def _document(run: Run, verdict: Verdict, extent: Extent) -> dict[str, Any]:
    # The loss, then what belongs to it by name, as `val_loss`, then the rest.
    names = sorted(run.scalar_names, key=lambda name: (name != "loss", "loss" not in name, name != "lr"))
    names = names[: extent.scalars]
    told: dict[str, Any] = {
        "pages": extent.pages,
        "run": page_documents.described(_IDENTITY, run) | {"scalars": names},
        "diagnosis": page_documents.diagnosis(run, verdict),
        "colours": page_documents.colours(),
        "times": page_documents.times(run),
        "scalars": {name: _short(line_of_scalar(run.steps, run.scalars(name), extent.points)) for name in names},
        "lines": _lines(run, verdict.diagnosis, extent.points) if "findings" in extent.pages else {},
        "explain": {code: page_of(code) for code in sorted({one.code for one in verdict.diagnosis.findings})},
    }
    return told | {name: _annex(make, run) for name, make in _ANNEXES.items() if name in extent.pages}


def _carried(run: Run, document: dict[str, Any], shown: list[Packed], spreads: list[Packed]) -> dict[str, Any]:
    """What the page has to know of its pictures and distributions; it offers no others."""
    finest = {one.facts["quantity"]: one.facts["level"] for one in shown}
    described = document["run"]
    known = [one | {"finest": finest[one["name"]]} for one in described["quantities"] if one["name"] in finest]
    return {
        "run": described | {"quantities": known, "distributions": [one.facts["stream"] for one in spreads]},
        "pictures": [one.facts for one in shown],
        "usual": {name: _rounded(usual_of(run.reader, name).tolist()) for name in finest},
        "densities": [one.facts for one in spreads],
    }


_ANNEXES: dict[str, Callable[[Run], Any]] = {"flow": page_documents.flow, "weights": weights}


def _annex(make: Callable[[Run], Any], run: Run) -> Any:
    try:
        return make(run)
    except Exception as problem:  # a report must not fail for the sake of its annexes
        return {"problem": f"This could not be analysed: {problem}"}


def _lines(run: Run, diagnosis: Diagnosis, points: int) -> dict[str, Any]:
    """The curves that evidence speaks of, exact: the charts of findings."""
    found: dict[str, Any] = {}
    if not len(run.steps):
        return found
    first, last = int(run.steps[0]), int(run.steps[-1])
    for one in (one for finding in diagnosis.findings for one in finding.evidence):
        layer = run.layers.get(one.layer) if one.layer else None
        if layer is None or one.quantity not in run.quantities or len(found) >= _MOST_LINES:
            continue
        key = f"{one.quantity} {layer.id}"
        if key not in found:
            found[key] = _short(line_of_layer(run.reader.window(one.quantity, first, last, points, [layer.id])))
    return found


def _short(points: Line) -> dict[str, Any]:
    """No more digits than a float32 has; of equal parts, one is enough."""
    line = page_documents.line(points)
    line |= {part: _rounded(line[part]) for part in ("minimum", "mean", "maximum")}
    same = line["minimum"] == line["mean"] == line["maximum"]
    return {key: line[key] for key in ("steps", "mean", "nonfinite")} if same else line


def _rounded(values: list[float | None]) -> list[float | None]:
    return [None if value is None or value != value else float(f"{value:.{_DIGITS}g}") for value in values]
