"""`.safetensors`: eight bytes of length, a JSON header, then the tensors. Read without torch, and trusted in nothing.

Our own reader, because the package hands bfloat16 and float8 only to frameworks, and maps the file: memory would
grow with every tensor touched, and a file cut short under us would kill the process.
"""

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

from undertow.checkpoints.checkpoint import Checkpoint, Entry, UnreadableCheckpointError, no_plain_floats
from undertow.checkpoints.elements import STORED, Elements
from undertow.checkpoints.naming import kind_of
from undertow.checkpoints.stored_bytes import open_regular, read_numbers, size_of
from undertow.schema.checkpoints import Skipped

LARGEST_HEADER = 1 << 25  # bytes; Python objects take up to twenty times as much
MOST_TENSORS = 100_000  # in one file; the largest models have as many in a hundred
LARGEST_RANK = 64
_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
# Bits of an element. These are no weights to us, or packed in a way that has no values without a scale.
_OTHERS = {"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64, "C64": 64}
_OTHERS |= {"F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    type: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_safetensors(path: Path) -> Checkpoint:
    places, start = _header(path)
    return Checkpoint.of(str(path), "safetensors", (_entry(path, place, start) for place in places))


def _entry(path: Path, place: _Place, start: int) -> Entry | Skipped:
    dtype = _NAMES.get(place.type)
    if dtype is None:
        return no_plain_floats(place.name, place.type)

    def load() -> Elements:
        try:
            raw = read_numbers(path, STORED[dtype], prod(place.shape), start + place.begin)
        except OSError as problem:
            raise _damaged(path, f"{problem.strerror or problem}") from problem
        except EOFError as problem:
            raise _damaged(path, f"it ends inside tensor {place.name!r}") from problem
        return Elements(raw.reshape(place.shape), dtype)

    return Entry(place.name, kind_of(place.name, place.shape), place.shape, dtype, load)


def _header(path: Path) -> tuple[list[_Place], int]:
    """The tensors by their place in the file, and where the data begins. Every number is checked before it is used."""
    with open_regular(path) as file:
        size = size_of(file)
        first = file.read(8)
        if len(first) < 8:
            raise _damaged(path, f"it has only {size} bytes")
        length = int.from_bytes(first, "little")
        if length > LARGEST_HEADER or length > size - 8:
            raise _damaged(path, f"its header would be {length:,} bytes long, in a file of {size:,}")
        text = file.read(length)
    try:
        header: Any = json.loads(text.decode("utf-8"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as problem:
        raise _damaged(path, f"its header is no JSON: {problem}") from problem
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no JSON object")
    table = cast(dict[str, Any], header)
    table.pop("__metadata__", None)
    if len(table) > MOST_TENSORS:
        raise _damaged(path, f"it names {len(table):,} tensors")
    places = [_place(path, name, record) for name, record in table.items()]
    _check_layout(path, places, size - 8 - length)
    return places, 8 + length


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name occurs twice")
    return table


def _place(path: Path, name: str, record: Any) -> _Place:
    fields = cast(dict[str, Any], record) if isinstance(record, dict) else {}
    kind, shape, offsets = fields.get("dtype"), _whole(fields.get("shape")), _whole(fields.get("data_offsets"))
    if not isinstance(kind, str) or shape is None or offsets is None or len(offsets) != 2:
        raise _damaged(path, f"the header's record of tensor {name!r} is not dtype, shape and data_offsets")
    if kind not in _NAMES and kind not in _OTHERS:
        raise UnreadableCheckpointError(
            f"tensor {name!r} of {path} has the unknown dtype {kind!r}",
            way_out=f"Undertow reads {', '.join(_NAMES)}",
        )
    if len(shape) > LARGEST_RANK:
        raise _damaged(path, f"tensor {name!r} has {len(shape)} dimensions")
    begin, end = offsets
    bits = _OTHERS[kind] if kind in _OTHERS else STORED[_NAMES[kind]].itemsize * 8
    if end - begin != (prod(shape) * bits + 7) // 8:
        raise _damaged(path, f"tensor {name!r} has {end - begin:,} bytes, not those of {kind} {shape}")
    return _Place(name, kind, tuple(shape), begin, end)


def _whole(value: Any) -> list[int] | None:
    """A list of whole numbers from 0 up, none of which numpy or the file system could not hold."""
    if not isinstance(value, list):
        return None
    numbers = cast(list[Any], value)
    return numbers if all(type(one) is int and 0 <= one < 1 << 62 for one in numbers) else None


def _check_layout(path: Path, places: list[_Place], available: int) -> None:
    """The data must be all of the file, without holes and without sharing."""
    at = 0
    for place in sorted(places, key=lambda place: (place.begin, place.end)):
        if place.begin != at:
            what = "overlaps the tensor before it" if place.begin < at else "leaves a hole before it"
            raise _damaged(path, f"tensor {place.name!r} {what}")
        if place.end > available:
            raise _damaged(path, f"it ends inside or before tensor {place.name!r}")
        at = place.end
    if at != available:
        raise _damaged(path, f"{available - at:,} bytes at its end belong to no tensor")


def _damaged(path: Path, why: str) -> UnreadableCheckpointError:
    return UnreadableCheckpointError(
        f"{path} is no intact safetensors file: {why}", way_out="Copy or download it again, and compare its size"
    )
