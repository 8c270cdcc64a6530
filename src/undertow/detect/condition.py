"""One condition of a rule over time: it opens, is said again while nothing about it changes, and ends."""

from __future__ import annotations

from collections.abc import Callable

from undertow.detect.rule import Verdict


class Condition:
    """Keeps the verdict that is open, so that it is put into words only when its members change."""

    __slots__ = ("_members", "key", "verdict")

    def __init__(self, key: str) -> None:
        self.key = key
        self.verdict: Verdict | None = None
        self._members: object = None

    @property
    def is_open(self) -> bool:
        return self.verdict is not None

    def hold(self, members: object, describe: Callable[[], Verdict]) -> tuple[Verdict, ...]:
        """`members` is whatever decides whether the old words still fit."""
        if self.verdict is None or members != self._members:
            self.verdict, self._members = describe(), members
        return (self.verdict,)

    def stay(self) -> tuple[Verdict, ...]:
        """Nothing new: what is open stays open."""
        return () if self.verdict is None else (self.verdict,)

    def end(self) -> tuple[Verdict, ...]:
        if self.verdict is None:
            return ()
        self.verdict = self._members = None
        return (Verdict(self.key, holds=False),)
