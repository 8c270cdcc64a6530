"""The diagnosis as JSON: every object present, an unknown value null, no NaN or infinity."""

from collections.abc import Mapping
from typing import Any

import msgspec

from undertow.schema import Diagnosis


def to_json(diagnosis: Diagnosis, sections: Mapping[str, Any] | None = None) -> str:
    """`sections` are further objects by name, after those of the diagnosis."""
    document = {**msgspec.to_builtins(diagnosis), **(sections or {})}
    # msgspec writes NaN and infinity as null: strict JSON has no word for them.
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
