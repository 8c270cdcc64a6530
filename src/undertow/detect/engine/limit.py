"""A number that a condition decides by, together with the reason for its size."""

from __future__ import annotations


class Limit(float):
    """Compares and computes as the number it is. `why` says what a healthy training shows, or what the number means.

    Limits are attributes of the condition's class: the page of its code lists them, so a bare number in a comparison
    is a limit that nobody can look up.
    """

    why: str

    def __new__(cls, value: float, why: str) -> Limit:
        limit = super().__new__(cls, value)
        limit.why = why
        return limit

    def __repr__(self) -> str:
        return f"{float(self):g}"
