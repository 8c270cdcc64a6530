"""Which quantities a report carries as pictures, in how many columns, so that the file stays small."""

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.run import Run
from undertow.schema import Diagnosis
from undertow.show.page.quantise import quantise
from undertow.views.cell_codes import Codes
from undertow.views.scale import scale_of
from undertow.views.tiles import COLUMNS, STATISTICS, drawable, subjects, tile_of

_USUAL = ("gradient_norm", "update_ratio", "gradient_cosine", "weight_norm", "activation_std")
_SPREAD = ("gradient_abs_p05", "gradient_abs_p50", "gradient_abs_p95")
_USUAL_BYTES = 5  # compressed, of a number of seven digits
_LEAST_TILES = 1  # below one tile of columns a picture says too little


@dataclass(frozen=True, slots=True)
class Allowance:
    """Bytes, compressed, that a page may carry, and tiles of 256 columns that a picture may have.

    A file of 5 MB has room for 3.5 MB: three bytes become four letters, and scripts and words come beside them.
    """

    everything: int = 3_500_000
    others: int = 1_200_000  # quantities that nobody asks for first come in while all together take less than this
    first_tiles: int = 8
    asked_tiles: int = 2
    other_tiles: int = 1
    most: int | None = None  # pictures
    densities: int = 450_000  # of everything, for distributions

    def tiles(self, place: int, asked: int) -> int:
        return self.first_tiles if place == 0 else self.asked_tiles if place < asked else self.other_tiles


@dataclass(frozen=True, slots=True)
class Packed:
    """A part of what a page carries, and what it has to know of it."""

    facts: dict[str, Any]
    data: bytes  # compressed


def pictures(
    run: Run, diagnosis: Diagnosis, allowance: Allowance, spent: int, tell: Callable[[str], None]
) -> Iterator[Packed]:
    """The most telling first, until the allowance is spent; `spent` bytes of it are gone already."""
    asked = _asked(run, diagnosis)
    names = asked + [name for name in drawable(run.reader) if name not in asked]
    for place, name in enumerate(names[: allowance.most]):
        limit = allowance.everything if place < len(asked) else allowance.others
        if spent >= limit:
            return
        tell(f"drawing {name.replace('_', ' ')}")
        tiles = allowance.tiles(place, len(asked))
        while tiles >= _LEAST_TILES:
            picture = _picture(run, name, tiles)
            # Each row has a usual number, too, which the documents hold.
            cost = len(picture.data) + _USUAL_BYTES * int(picture.facts["rows"])
            if spent + cost <= limit:
                spent += cost
                yield picture
                break
            tiles //= 2


def _asked(run: Run, diagnosis: Diagnosis) -> list[str]:
    """What a reader looks for first: the usual ones, those that findings rest on, and the spread of gradients."""
    evidence = [one.quantity for finding in diagnosis.findings for one in finding.evidence]
    known = drawable(run.reader)
    return [name for name in dict.fromkeys((*_USUAL, *evidence, *_SPREAD)) if name in known]


def _picture(run: Run, quantity: str, most_tiles: int) -> Packed:
    first, last = int(run.steps[0]), int(run.steps[-1])
    level = 0
    while _tiles(first, last, level)[1] > most_tiles:
        level += 1
    index, count = _tiles(first, last, level)
    scale = scale_of(run.reader, quantity)
    tiles = [tile_of(run.reader, quantity, level, index + place, STATISTICS[0]).codes for place in range(count)]
    codes = np.concatenate(tiles, axis=1)
    columns = min(codes.shape[1], (last >> level) + 1 - index * COLUMNS)  # none after the end of the run
    codes = codes[:, :columns]
    packed = quantise(codes, scale.kind, None if level else _exact(run, quantity, index * COLUMNS, codes))
    facts = {
        "quantity": quantity,
        "level": level,
        "first": index * COLUMNS,  # column
        "rows": packed.cells.shape[0],
        "columns": columns,
        "kind": str(packed.kind),
        "unit": packed.unit,
        "scale": scale,
    }
    return Packed(facts, gzip.compress(packed.to_bytes(), 6, mtime=0))


def _exact(run: Run, quantity: str, first: int, codes: Codes) -> NDArray[np.float32]:
    """The numbers of a picture with a column for each step: a code tells two that are near each other not apart."""
    exact = np.full(codes.shape, np.nan, np.float32)
    place = {layer.id: column for column, layer in enumerate(run.layers)}
    rows = [place[layer] for layer in subjects(run.reader, quantity)]
    exact[:, run.steps - first] = run.matrix(quantity)[:, rows].T
    return exact


def _tiles(first: int, last: int, level: int) -> tuple[int, int]:
    """The first tile of the run at a level, and how many there are."""
    index = (first >> level) // COLUMNS
    return index, (last >> level) // COLUMNS - index + 1
