"""One batch again and again, loaded anew each time: the training sees no more than that."""

from __future__ import annotations

import math

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.view import FrameView
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import Repeat
from undertow.schema.severity import Severity

_INPUTS = ("input_mean", "input_std", "input_max_abs")


class RepeatedBatch:
    """Of targets that come again bit for bit with their inputs. Tokens have no size to know them by."""

    def __init__(self) -> None:
        self._condition = Condition("repeated")
        self._looks = self._copies = 0  # looks in a row at the same targets; those in another place
        self._since = 0
        self._inputs: tuple[float, ...] | None = None
        self._alike = self._moved = 0  # looks in a row at the same inputs; those in another place

    @property
    def is_open(self) -> bool:
        return self._condition.is_open

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        repeated = view.scalar("targets_repeated")
        inputs = tuple(view.scalar(name) for name in _INPUTS)
        if not math.isnan(inputs[0]):
            self._alike = self._alike + 1 if inputs == self._inputs else 0
            self._moved = self._moved + (view.scalar("input_moved") == 1.0) if self._alike else 0
            self._inputs = inputs
            if not self._alike:
                self._looks = self._copies = 0
        if math.isnan(repeated):
            return self._condition.stay()
        if repeated == Repeat.NEW or (view.loss is not None and view.loss.actors > 1):
            self._looks = self._copies = 0
            return self._condition.end()
        if self._looks == 0:
            self._since = view.step
        self._looks += 1
        self._copies += repeated == Repeat.SAME_VALUES
        if self._looks < limit.REPEATED_LOOKS or self._copies < limit.REPEATED_COPIES * self._looks:
            return self._condition.stay()
        # Of all data as one batch, targets may be picked anew in every step; inputs are not.
        if self._alike < limit.REPEATED_INPUTS or self._moved < limit.REPEATED_COPIES * self._alike:
            return self._condition.stay()
        if view.scalar("loss_rows") > limit.REPEATED_ROWS:
            return self._condition.stay()
        return self._condition.hold(None, self._verdict)

    def _verdict(self) -> Verdict:
        how = f"at {self._looks} looks in a row, each time in a new tensor"
        evidence = Evidence("targets_repeated", None, Repeat.SAME_VALUES, Repeat.NEW, how)
        summary = (
            "Every batch is the same one, loaded anew: the rest of the data is never seen. Make the iterator once, "
            "outside of the loop, and seed the sampler once."
        )
        return Verdict("repeated", True, Severity.SEVERE, (), self._since, 0.85, summary, (evidence,))
