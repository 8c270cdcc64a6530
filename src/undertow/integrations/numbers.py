"""What trackers are handed, as numbers that Undertow keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def single_numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Those entries that are one number each, tensors among them; `val/loss` and `val_loss` are the same name."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, (str, bytes)) or not name.startswith(prefix):
            continue
        try:
            numbers[name.replace("/", "_")] = float(value)
        except (TypeError, ValueError, RuntimeError):
            continue  # a picture, a table, a tensor of several elements
    return numbers
