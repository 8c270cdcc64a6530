"""A value, or why there is none."""

from dataclasses import fields
from math import isnan
from typing import Any, TypeVar

Record = TypeVar("Record")


class Missing(str):
    """Why a value could not be computed. It stands where the value would, until `record_of` files it."""

    __slots__ = ()


def known(value: float, reason: str) -> float | Missing:
    """The number, or the reason in place of NaN."""
    return Missing(reason) if isnan(value) else float(value)


def number_or_none(value: float) -> float | None:
    """None in place of NaN, where nobody asks why."""
    return None if isnan(value) else float(value)


def record_of(kind: type[Record], /, *, otherwise: str = "", **values: Any) -> Record:
    """A record in which missing values are None, and `unavailable` says why, by field name.

    Fields that are not given are missing because of `otherwise`, or have their defaults.
    """
    if otherwise:
        everything = [field.name for field in fields(kind) if field.name != "unavailable"]  # pyright: ignore[reportArgumentType]
        values = dict.fromkeys(everything, Missing(otherwise)) | values
    reasons = {name: str(value) for name, value in values.items() if isinstance(value, Missing)}
    values |= dict.fromkeys(reasons) | {"unavailable": reasons | values.get("unavailable", {})}
    return kind(**values)
