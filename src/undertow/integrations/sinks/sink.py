"""What a sink is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from undertow.schema import Finding


class Sink(Protocol):
    """Each has a thread of its own, in which it is made, called and closed: it may take its time, and it may raise."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """What is known of a step, by the names of `digest.py`; not every step has every name."""
        ...

    def finding(self, finding: Finding) -> None:
        """Something was found, or a finding became worse."""
        ...

    def close(self) -> None: ...
