"""Results that are kept to the letter, so that a change shows what it changes.

WRITE_GOLDEN=1 python -m pytest -n 0 FILE     after a change that is meant; then read the difference
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np


def assert_as_before(path: Path, text: str) -> None:
    if os.environ.get("WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path} is missing: see the head of {__file__}"
    assert text == path.read_text(encoding="utf-8"), f"is that meant? See the head of {__file__}"


def text_of(record: Any) -> str:
    """Any record as JSON, numbers with three digits: what is beyond them differs between machines."""
    return json.dumps(_plain(msgspec.to_builtins(record, enc_hook=_arrays)), indent=1, ensure_ascii=False) + "\n"


def _arrays(value: Any) -> Any:
    if isinstance(value, Sequence):
        return [len(value), *value[:3]]  # made when asked for: there are many
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        thinned = [len(value), *value[:: len(value) // 20]] if len(value) > 60 and isinstance(value[0], dict) else value
        plain = [_plain(one) for one in thinned]
        is_long = len(plain) > 4 and not any(isinstance(one, dict | list) for one in plain)
        return " ".join(map(str, plain)) if is_long else plain  # on one line
    if isinstance(value, float):
        return float(f"{value:.3g}") if math.isfinite(value) else str(value)
    return value.value if isinstance(value, Enum) else value
