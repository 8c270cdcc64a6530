"""Part of MOD001: a dropout that erases nearly everything, as one does that is given the share to keep."""

from __future__ import annotations

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.view import FrameView
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class HeavyDropout:
    """Dropouts in training mode with a rate that no training has on purpose."""

    def __init__(self) -> None:
        self._condition = Condition("dropout")
        self._settings = b""

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        modes, rates, ids = view.row("activation_training"), view.row("dropout_rate"), view.ids("activation")
        if modes is None or rates is None or ids is None:
            return ()
        settings = modes.tobytes() + rates.tobytes()
        if settings == self._settings:  # as they nearly always are
            return self._condition.stay()
        self._settings = settings
        heavy = (modes == 1) & (rates >= limit.LARGE_DROPOUT)
        if not heavy.any():
            return self._condition.end()
        members = tuple(view.layout.in_order(ids[heavy]))
        rate = float(rates[heavy][0])
        return self._condition.hold(members, lambda: self._verdict(view, members, rate))

    @staticmethod
    def _verdict(view: FrameView, members: tuple[int, ...], rate: float) -> Verdict:
        how = "as it is set; PyTorch's rate is the share that is dropped, not the share that is kept"
        evidence = tuple(Evidence("dropout_rate", view.layout.path(i), rate, 0.5, how) for i in members[:3])
        summary = f"{name_layers(view.layout, members)}: a rate of {rate:.3g} erases nearly everything."
        return Verdict("dropout", True, Severity.MODERATE, members, view.step, 0.97, summary, evidence)
