"""Puts the signals of a step into its frame. Runs in the background thread, after the statistics are in."""

from __future__ import annotations

from undertow.probe.readings import RawFrame
from undertow.probe.signals.labels import LabelBook
from undertow.probe.signals.loss_numbers import loss_numbers
from undertow.schema.frames import Frame


class SignalAssembler:
    def __init__(self) -> None:
        self._labels = LabelBook()

    def complete(self, raw: RawFrame, frame: Frame) -> None:
        """Fill what the frame lacks; its scalars and blocks are still ours alone."""
        signals = raw.signals
        if signals is None:
            return
        scalars = frame.scalars
        assert isinstance(scalars, dict)
        if signals.loss is not None:
            scalars.update(loss_numbers(signals.loss, self._labels))
