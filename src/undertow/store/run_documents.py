"""The two small JSON documents of a run, replaced whole: `run.json` and `layers.json`."""

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import Any

import msgspec

from undertow.errors import UnreadableRunError
from undertow.schema import FORMAT_VERSION, Layer, LayerGraph, LayerTable, RunFacts

RUN_FILE = "run.json"
LAYERS_FILE = "layers.json"
_BLOCK, _SPARE = 4096, 1024  # bytes that a file system gives at once, and those to be left free in the last
# Bytes, before anything is decoded: Python objects take up to twenty times as much.
_LARGEST = {RUN_FILE: 1 << 24, LAYERS_FILE: 1 << 26}  # 200,000 layers
_LATEST = 253_402_300_799  # the last second of the year 9999: calendars end there


def file_mode(folder: Path) -> int:
    """Of a new file: whoever may enter the folder may read it."""
    return folder.stat().st_mode & 0o666


def replace_file(path: Path, *parts: bytes | bytearray, durable: bool = False) -> None:
    """Write beside the file and take its name: a reader finds the old one or the new one, never half.

    A `durable` one is on disk before it takes the name: what it replaces cannot be had again.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        mode = file_mode(path.parent)
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.writelines(parts)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_facts(folder: Path, facts: RunFacts) -> None:
    """On a full disk into the file that is there, which has room for a few more words: how the run ended, and how many
    frames were dropped, must not be lost with them."""
    path, data = folder / RUN_FILE, _indented(facts)
    room = -(-(len(data) + _SPARE) // _BLOCK) * _BLOCK
    try:
        replace_file(path, data.ljust(room))
    except OSError:
        if not path.is_file() or path.stat().st_size < len(data):
            raise
        with path.open("r+b") as file:
            file.write(data.ljust(path.stat().st_size))


def write_layers(folder: Path, layers: LayerTable, graph: LayerGraph) -> None:
    record = {"format": FORMAT_VERSION, "layers": [layer.to_dict() for layer in layers], "graph": graph}
    replace_file(folder / LAYERS_FILE, _indented(record))


def read_facts(folder: Path) -> RunFacts:
    record = _read(folder / RUN_FILE)
    version = record.get("format")
    if not isinstance(version, int):
        raise UnreadableRunError(f"{folder / RUN_FILE} does not say its format", way_out="It is no run of Undertow.")
    if version > FORMAT_VERSION:
        raise UnreadableRunError(
            f"the run {folder} has format {version}; this version of Undertow reads up to {FORMAT_VERSION}",
            way_out="Upgrade Undertow to open it.",
        )
    try:
        msgspec.convert(record, _Optimizers)
        facts = msgspec.convert(record, RunFacts)
    except msgspec.ValidationError as error:
        where = re.search(r"`\$\.(.*)`$", str(error))
        what = repr(where[1]) if where else "something"
        raise _damaged(folder / RUN_FILE, f"what it says of {what} cannot be understood") from None
    facts.created = facts.created if 0 <= facts.created <= _LATEST else 0.0  # as if it did not say
    return facts


def read_layers(folder: Path) -> tuple[LayerTable, LayerGraph]:
    """Both empty when the run ended before its layers were known."""
    if not (folder / LAYERS_FILE).exists():
        return LayerTable(), LayerGraph()
    record = _read(folder / LAYERS_FILE)
    entries = record.get("layers")
    if not isinstance(entries, list):
        raise _damaged(folder / LAYERS_FILE, "it holds no list of layers")
    try:
        layers = LayerTable(tuple(_layer(entry) for entry in entries))  # pyright: ignore[reportUnknownVariableType]
    except (LookupError, TypeError, ValueError, AttributeError):
        raise _damaged(folder / LAYERS_FILE, "its list of layers does not describe layers") from None
    try:
        return layers, msgspec.convert(record.get("graph"), LayerGraph)
    except msgspec.ValidationError:
        raise _damaged(folder / LAYERS_FILE, "it does not say how the layers are connected") from None


class _Optimizer(msgspec.Struct):
    type: str = ""
    groups: list[dict[str, Any]] | None = None


class _Optimizers(msgspec.Struct):
    """What `RunFacts` leaves open."""

    optimizers: list[_Optimizer] = []


class _LayerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The types that a layer's facts must have."""

    path: str
    id: int
    kind: str = "parameter"
    order: int | None = None
    parameter_count: int = 0
    group: str = ""
    shared_with: tuple[str, ...] = ()
    trainable: bool = True
    shape: tuple[int, ...] = ()
    dtype: str = ""
    module_type: str = ""


def _layer(entry: Any) -> Layer:
    return Layer.from_dict(msgspec.structs.asdict(msgspec.convert(entry, _LayerRecord)))


def _read(path: Path) -> dict[str, Any]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST[path.name]:
            raise UnreadableRunError(f"{path} is no ordinary file of a run")
        record = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise UnreadableRunError(
            f"no run in {path.parent}: there is no {path.name}", way_out="`undertow runs` lists the runs of a folder."
        ) from None
    except OSError as error:
        raise UnreadableRunError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, MemoryError) as error:
        raise _damaged(path, str(error) or type(error).__name__) from None
    if not isinstance(record, dict):
        raise _damaged(path, "it holds no JSON object")
    return record  # pyright: ignore[reportUnknownVariableType]


def _damaged(path: Path, why: object) -> UnreadableRunError:
    return UnreadableRunError(f"{path} is damaged: {why}", way_out="Restore the file, or remove the run.")


def _indented(record: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record, enc_hook=str), indent=1) + b"\n"
