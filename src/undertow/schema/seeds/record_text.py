"""A record as a text to read: its values in a column, lists of records as tables, and why something is not there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, cast

import numpy as np

WIDTH = 110
ROWS = 12  # of a table
NUMBERS = 8  # of a list


def text_of(record: Any) -> str:
    return "\n".join([type(record).__name__, *_lines(record, "  ")])


def _lines(record: Any, indent: str) -> Iterable[str]:
    names = [field.name for field in fields(record) if field.name != "unavailable"]
    reasons: Mapping[str, str] = getattr(record, "unavailable", {})
    width = max(map(len, names))
    for name in names:
        value: Any = getattr(record, name)
        label = f"{indent}{name:{width}}  "
        if is_dataclass(value):
            yield f"{indent}{name}"
            yield from _lines(value, indent + "  ")
            continue
        cell = _cell(value, reasons.get(name))
        if cell is not None and (len(label) + len(cell) <= WIDTH or not (_is_list(value) and value)):
            yield label + cell
        else:
            yield f"{indent}{name} ({len(list(value))})"
            yield from (f"{indent}  {line}" for line in _block(value, WIDTH - len(indent) - 2))
    for name, reason in reasons.items():
        if name not in names:
            yield f"{indent}no {name}: {reason}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence | set) and not isinstance(value, str)


def _cell(value: Any, reason: str | None = None) -> str | None:
    """On one line, or None where it takes several."""
    if value is None or (reason and not isinstance(value, Mapping) and _is_list(value) and not value):
        return f"not available: {reason}" if reason else "none"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Enum | str | int):
        return str(value)
    items = [one for _, one in _items(value)]
    if not items:
        return "none"
    if isinstance(value, Mapping) or any(is_dataclass(one) or _is_list(one) for one in items):
        return None
    if all(isinstance(one, int | float | None) for one in items):
        shown = ", ".join(str(_cell(one)) for one in items[:NUMBERS])
        return shown + (f", … ({len(items):,})" if len(items) > NUMBERS else "")
    return ", ".join(str(_cell(one)) for one in items)


def _block(value: Any, width: int) -> Iterable[str]:
    """Texts and pairs a line each; records as a table."""
    items = _items(value)
    if is_dataclass(items[0][1]):
        yield from _table(items[:ROWS], width)
    else:
        yield from (f"{name}{' ' if name == '-' else ': '}{_cell(one)}" for name, one in items[:ROWS])
    if len(items) > ROWS:
        yield f"… and {len(items) - ROWS:,} more"


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return list(cast("Mapping[str, Any]", value).items())
    return [("-", one) for one in value]


def _table(items: Sequence[tuple[str, Any]], width: int) -> Iterable[str]:
    """As many columns as there is room for: names and verdicts, then numbers."""
    rows = [dict(_flat(one)) for _, one in items]
    if all(name not in ("-", *row.values()) for (name, _), row in zip(items, rows)):
        rows = [{"": name} | row for (name, _), row in zip(items, rows)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    known = [name for name in names if any(row.get(name) is not None for row in rows)] or names[:1]
    known.sort(key=lambda name: not any(isinstance(row.get(name), str) for row in rows))
    used, columns = 0, list[list[str]]()
    for name in known:
        column = [name, *("—" if row.get(name) is None else str(_cell(row[name])) for row in rows)]
        size = max(map(len, column))
        if columns and used + 2 + size > width:
            continue
        used += size + 2 * bool(columns)
        numbers = all(isinstance(row.get(name), int | float | None) for row in rows)
        columns.append([f"{one:>{size}}" if numbers else f"{one:{size}}" for one in column])
    yield from ("  ".join(cells).rstrip() for cells in zip(*columns))


def _flat(record: Any) -> Iterable[tuple[str, Any]]:
    """Single values, its own first, then those of records inside."""
    values = [(field.name, getattr(record, field.name)) for field in fields(record)]
    yield from (
        (name, one) for name, one in values if not (is_dataclass(one) or isinstance(one, Mapping) or _is_list(one))
    )
    for _, inner in values:
        if is_dataclass(inner):
            yield from _flat(inner)
