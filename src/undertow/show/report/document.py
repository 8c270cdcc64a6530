"""The diagnosis as JSON: every object present, an unknown value null, no NaN or infinity."""

from __future__ import annotations

from typing import Any

import msgspec

from undertow.schema.findings import Diagnosis


def to_document(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain data, as `report --json` prints it."""
    return msgspec.json.decode(msgspec.json.encode(diagnosis))


def to_json(diagnosis: Diagnosis) -> str:
    # msgspec writes NaN and infinity as null: strict JSON has no word for them.
    return msgspec.json.format(msgspec.json.encode(diagnosis), indent=2).decode()
