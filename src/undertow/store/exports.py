"""A run as one long table for other tools: a row per step and layer, a column per quantity.

Rows in which nothing was measured are left out. Everything is written in portions, so a run need
not fit into memory.
"""

import csv
import importlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from undertow.errors import UndertowError
from undertow.schema import QUANTITIES
from undertow.store.names import known_name
from undertow.store.reader import RunReader

_NUMBERS_AT_ONCE = 1 << 20


class MissingPackageError(UndertowError):
    """The table needs a package that is not installed."""

    code = "UT006"


def portions(
    reader: RunReader, layers: Sequence[int | str] | None = None, quantities: Sequence[str] | None = None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], dict[str, NDArray[np.float32]]]]:
    """Portions of the long table: step and layer id of each row, and the columns."""
    names = _quantities(reader, quantities)
    ids = _layer_ids(reader, layers)
    at_once = max(1, _NUMBERS_AT_ONCE // max(1, len(names) * len(ids)))
    for start in range(0, len(reader.steps), at_once):
        rows = slice(start, start + at_once)
        steps = reader.steps[rows]
        columns = {name: reader.matrix(name, ids, rows) for name in names}
        measured = np.zeros((len(steps), len(ids)), np.bool_)
        for values in columns.values():
            measured |= ~np.isnan(values)
        step, layer = np.nonzero(measured)
        yield steps[step], ids[layer], {name: values[measured] for name, values in columns.items()}


def export_csv(
    reader: RunReader,
    path: Path,
    layers: Sequence[int | str] | None = None,
    quantities: Sequence[str] | None = None,
) -> None:
    """Empty cells where nothing was measured; `inf` and `-inf` as they are."""
    names = _quantities(reader, quantities)
    paths = reader.layers.paths
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "layer", *names])
        for steps, ids, columns in portions(reader, layers, names):
            cells = [["" if math.isnan(value) else repr(value) for value in _shortest(columns[name])] for name in names]
            for step, layer, *values in zip(steps.tolist(), ids.tolist(), *cells):
                writer.writerow([step, paths[layer], *values])


def export_json(
    reader: RunReader,
    path: Path,
    layers: Sequence[int | str] | None = None,
    quantities: Sequence[str] | None = None,
) -> None:
    """One object: the run's facts, its scalars by step, and the rows of the table. Strict JSON: a
    number that JSON cannot hold is null, and a row with such numbers tells of them under `nonfinite`."""
    names = _quantities(reader, quantities)
    paths = reader.layers.paths
    with path.open("wb") as file:
        scalars = {name: _strict(reader.scalars(name).tolist()) for name in reader.scalar_names}
        head = {"facts": reader.facts, "steps": reader.steps.tolist(), "scalars": scalars}
        file.write(msgspec.json.encode(head)[:-1] + b',"rows":[')
        separator = b"\n"
        for steps, ids, columns in portions(reader, layers, names):
            cells = [_shortest(columns[name]) for name in names]
            for step, layer, *values in zip(steps.tolist(), ids.tolist(), *cells):
                row: dict[str, Any] = {"step": step, "layer": paths[layer], **dict(zip(names, _strict(values)))}
                infinite = {name: repr(value) for name, value in zip(names, values) if math.isinf(value)}
                if infinite:
                    row["nonfinite"] = infinite
                file.write(separator + msgspec.json.encode(row))
                separator = b",\n"
        file.write(b"\n]}\n")


def export_parquet(
    reader: RunReader,
    path: Path,
    layers: Sequence[int | str] | None = None,
    quantities: Sequence[str] | None = None,
) -> None:
    names = _quantities(reader, quantities)
    parquet = _need("pyarrow.parquet", "Parquet")
    with parquet.ParquetWriter(path, _arrow_schema(names), compression="zstd") as writer:
        for portion in portions(reader, layers, names):
            writer.write_table(_arrow_table(reader, names, portion))


def to_arrow(
    reader: RunReader, layers: Sequence[int | str] | None = None, quantities: Sequence[str] | None = None
) -> Any:
    """A pyarrow table."""
    names = _quantities(reader, quantities)
    arrow = _need("pyarrow", "an Arrow table")
    tables = [_arrow_table(reader, names, portion) for portion in portions(reader, layers, names)]
    return arrow.concat_tables([_arrow_schema(names).empty_table(), *tables])


def to_pandas(
    reader: RunReader, layers: Sequence[int | str] | None = None, quantities: Sequence[str] | None = None
) -> Any:
    """A pandas data frame; the layer column is categorical."""
    names = _quantities(reader, quantities)
    pandas = _need("pandas", "a pandas data frame")
    parts = list(portions(reader, layers, names))

    def joined(pieces: list[NDArray[Any]], dtype: str) -> NDArray[Any]:
        return np.concatenate(pieces or [np.empty(0, dtype)])

    layer = pandas.Categorical.from_codes(joined([ids for _, ids, _ in parts], "i8"), reader.layers.paths)
    columns = {name: joined([values[name] for _, _, values in parts], "f4") for name in names}
    return pandas.DataFrame({"step": joined([steps for steps, _, _ in parts], "i8"), "layer": layer, **columns})


def _quantities(reader: RunReader, wanted: Sequence[str] | None) -> list[str]:
    """Those of one number per layer, unless named; a sketch has no place in a table."""
    stored = [name for name in reader.quantities if name not in QUANTITIES or QUANTITIES[name].width == 1]
    return stored if wanted is None else [known_name(name, stored, "quantity") for name in wanted]


def _layer_ids(reader: RunReader, wanted: Sequence[int | str] | None) -> NDArray[np.int64]:
    if wanted is None:
        return np.arange(len(reader.layers))
    return np.array([reader.layer_id(layer) for layer in wanted], np.int64)


def _shortest(values: NDArray[np.float32]) -> list[float]:
    """The float64 with the fewest digits that gives the same float32: 0.1, not 0.10000000149011612."""
    return [float(text) for text in values.astype(str)]


def _strict(values: Sequence[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _arrow_schema(names: Sequence[str]) -> Any:
    arrow = _need("pyarrow", "an Arrow table")
    layer = arrow.dictionary(arrow.int32(), arrow.string())
    return arrow.schema([("step", arrow.int64()), ("layer", layer), *((name, arrow.float32()) for name in names)])


def _arrow_table(reader: RunReader, names: Sequence[str], portion: Any) -> Any:
    arrow = _need("pyarrow", "an Arrow table")
    steps, ids, columns = portion
    layer = arrow.DictionaryArray.from_arrays(ids.astype(np.int32), arrow.array(reader.layers.paths, arrow.string()))
    # NaN means "not measured" here, which Arrow calls null.
    values = [arrow.array(columns[name], arrow.float32(), mask=np.isnan(columns[name])) for name in names]
    return arrow.Table.from_arrays([arrow.array(steps), layer, *values], schema=_arrow_schema(names))


def _need(module: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingPackageError(
            f"{what} needs the package {module.partition('.')[0]!r}, which is not installed",
            way_out="pip install 'undertow[tables]'",
        ) from None
