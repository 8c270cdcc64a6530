"""DAT006: rows of an embedding table that are never used."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage, having, where
from undertow.detect.features.remedies import FIT_THE_TABLE_TO_THE_DATA
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class UnusedRows(Condition):
    """Most rows of an embedding table are never used.

    What it sees: The share of an embedding's rows that never had a gradient, once it has stopped falling for half of
        the run: one in ten used is a hint, one in a hundred an alarm.
    Why it is bad: A table much larger than the data wastes memory and often means that the wrong vocabulary or column
        is in use.
    When it is wrong: A large vocabulary is met little by little: it is not reported while new rows still come into use.
        A fine-tuning on a narrow text uses a small part of a large vocabulary for good reason; that is a hint at most.
    References: PyTorch documentation, `torch.nn.Embedding`.
    """

    code, variant, formerly = "DAT006", "unused-rows", "rows"
    places = ("data",)
    stage, is_standing = Stage.DATA, True
    wakes_on = where("weight_rows_unused", lambda unused: ~np.isnan(unused)) | having("loss_rows")
    meaning = "Most of these parameters are never trained"
    remedies = (FIT_THE_TABLE_TO_THE_DATA,)

    hint = Limit(0.1, "of the rows in use")
    alarm = Limit(0.01, "of the rows in use: no vocabulary fits so badly by choice")
    grows = Limit(1.02, "times the share in use before: new rows still come into use")
    patience = Limit.sample(20, "steps without growth, and half of the run so far")
    patience_after_many = Limit(6, "the same, once every row in use was looked up many times")
    lookups = Limit(10, "lookups to each row in use: what there is to meet has been met")

    def __init__(self) -> None:
        self._used: dict[int, tuple[float, int]] = {}  # layer: share used, and since which step it has not grown
        self._rows_per_step = 0.0
        self._first_step: int | None = None

    @property
    def is_calm(self) -> bool:
        return self._first_step is not None and super().is_calm

    def observe(self, view: FrameView) -> Judgement | None:
        first = self._first_step = view.step if self._first_step is None else self._first_step
        seen = view.scalar("loss_rows")
        self._rows_per_step = seen if seen > 0 else self._rows_per_step
        unused, ids = view.row("weight_rows_unused"), view.ids("weight")
        if unused is None or ids is None or np.isnan(unused).all():
            return self.stay()
        members: list[int] = []
        for place in np.flatnonzero(~np.isnan(unused)):
            layer, used = int(ids[place]), 1.0 - float(unused[place])
            before, since = self._used.get(layer, (0.0, view.step))
            if used > self.grows * before:
                since = view.step
                self._used[layer] = (used, since)
            # At least one row is looked up to a label.
            lookups, rows = self._rows_per_step * (view.step - first), view.layout.layers[layer].shape[0]
            patience = self.patience_after_many if lookups > self.lookups * used * rows else self.patience
            settled = view.step - since >= max(patience, 0.5 * (view.step - first))
            if settled and 0 < used < self.hint:
                members.append(layer)
        return self.hold(tuple(members), lambda: self._describe(view, members, first)) if members else self.end()

    def _describe(self, view: FrameView, members: list[int], first: int) -> Judgement:
        layout = view.layout
        least = min(self._used[layer][0] for layer in members)
        severity = Severity.MODERATE if least < self.alarm else Severity.MILD
        how = "share of rows never used; no new ones come into use"
        evidence = tuple(
            Evidence("weight_rows_unused", layout.path(layer), 1 - self._used[layer][0], 0.0, how)
            for layer in members[:3]
        )
        summary = f"Only {least:.1%} of the rows of {name_layers(layout, members)} are ever used."
        return Judgement(severity, tuple(members), first, 0.7, summary, evidence)
