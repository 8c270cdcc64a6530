"""What a rule is, and what it may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect.view import View
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rule's word on one condition at one frame: it holds, with these details, or it has ended.

    A rule says nothing about a frame that does not measure what it needs. `key` tells apart conditions
    of the same code; each becomes one finding, however often it comes and goes.
    """

    key: str
    holds: bool = True
    severity: Severity = Severity.INFO
    layers: tuple[int, ...] = ()
    first_step: int = 0
    confidence: float = 1.0
    summary: str = ""
    evidence: tuple[Evidence, ...] = ()


class Rule(Protocol):
    """One code. The docstring has the sections "What it sees", "Why it is bad", "When it is wrong",
    "References": `undertow explain CODE` prints them.
    """

    code: ClassVar[str]

    def grow(self, count: int) -> None:
        """Make room for layers up to `count`; what is known of the old ones stays."""
        ...

    def observe(self, view: View) -> tuple[Verdict, ...]: ...


_Scalar = TypeVar("_Scalar", bound=np.generic)


def grown(values: NDArray[_Scalar], count: int, fill: float | bool) -> NDArray[_Scalar]:
    """The array with room for `count` layers, new places set to `fill`."""
    if count <= len(values):
        return values
    out = np.full(count, fill, values.dtype)
    out[: len(values)] = values
    return out
