"""What work on batches of frames costs: for any frame, and what one adds that more was measured for."""

from __future__ import annotations

_REMEMBERED = 0.97  # of what was known before, at each batch
_PRIOR = 4.0  # a measured frame costs so many others, where batches do not tell
_MOST_AT_ONCE = 3.0  # times what is expected of a batch
_TELLING = 1e-4  # how much the shares of measured frames vary, as a variance, for batches to tell


class CostModel:
    """A line fitted to recent batches: seconds per frame, by the share of measured frames."""

    def __init__(self) -> None:
        self._weight = self._share = self._seconds = self._share_share = self._share_seconds = 0.0
        self.of_any = 0.0
        self.of_measured = 0.0  # on top of it

    def note(self, frames: int, measured: int, seconds: float) -> None:
        expected = self.of_any * frames + self.of_measured * measured
        if expected:  # one batch during which the machine had other things to do says nothing
            seconds = min(seconds, _MOST_AT_ONCE * expected)
        share, each = measured / frames, seconds / frames
        self._weight = _REMEMBERED * self._weight + frames
        known = frames / self._weight  # the part of what is known now that is new
        self._share += known * (share - self._share)
        self._seconds += known * (each - self._seconds)
        self._share_share += known * (share * share - self._share_share)
        self._share_seconds += known * (share * each - self._share_seconds)
        variance = self._share_share - self._share**2
        together = self._share_seconds - self._share * self._seconds
        slope = self._seconds / (self._share + 1 / _PRIOR)
        slope += (together - slope * variance) / (variance + _TELLING)
        most = self._seconds / self._share if self._share else self._seconds * _PRIOR
        self.of_measured = min(max(slope, 0.0), most)
        self.of_any = self._seconds - self.of_measured * self._share
