"""DAT005: the same batch at every step."""

import math

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage, having
from undertow.detect.features.remedies import SHUFFLE_THE_DATA
from undertow.schema import Evidence, Remedy, Repeat, Severity

_INPUTS = ("input_mean", "input_std", "input_max_abs")


class RepeatedBatch(Condition):
    """Every batch is the same one, loaded anew each time.

    What it sees: Targets and inputs that are, bit for bit, those of the measured step before, in new tensors, at eight
        measured steps in a row. Tokens have no size to know them by, so inputs must be numbers.
    Why it is bad: The rest of the data is never seen. An iterator that is made anew in every step, or a sampler that is
        seeded anew, gives the first batch each time.
    When it is wrong: All data as one batch is a choice, and so is a batch that is kept in one tensor; neither is
        reported.
    References: PyTorch documentation, `torch.utils.data`.
    """

    code, variant, formerly = "DAT005", "repeated-batch", "repeated"
    places = ("loader", "batch")
    stage, is_standing = Stage.DATA, True
    wakes_on = having("targets_repeated", "input_mean")
    meaning = "The model memorises one batch, and the rest of the data is never seen"
    remedies = (
        Remedy(
            "make-the-iterator-once",
            "Make the iterator once per epoch, outside of the loop over steps, and seed the sampler once.",
            "for epoch in range(epochs):\n"
            "    for inputs, targets in loader:  # not next(iter(loader))\n"
            "        train_step(inputs, targets)",
            "None.",
            when_not="One batch is meant to be memorised, as a test.",
        ),
        SHUFFLE_THE_DATA,
    )

    patience = Limit.chance(8, "measured steps in a row with the same targets: short cycles are over by then")
    copies = Limit(0.4, "of them in another place than the time before; freed memory is often used again at once")
    inputs = Limit.chance(1, "measured steps at which the inputs were, to the last bit, the same as before")
    rows = Limit(300, "rows of a batch: more may be all the data there are")

    def __init__(self) -> None:
        self._repeats = self._copies = 0  # measured steps in a row with the same targets; those in another place
        self._since = 0
        self._inputs: tuple[float, ...] | None = None
        self._alike = self._moved = 0  # the same of inputs

    def observe(self, view: FrameView) -> Judgement | None:
        repeated = view.scalar("targets_repeated")
        inputs = tuple(view.scalar(name) for name in _INPUTS)
        if not math.isnan(inputs[0]):
            self._alike = self._alike + 1 if inputs == self._inputs else 0
            self._moved = self._moved + (view.scalar("input_moved") == 1.0) if self._alike else 0
            self._inputs = inputs
            if not self._alike:
                self._repeats = self._copies = 0
        if math.isnan(repeated):
            return self.stay()
        if repeated == Repeat.NEW or (view.loss is not None and view.loss.actors > 1):
            self._repeats = self._copies = 0
            return self.end()
        if self._repeats == 0:
            self._since = view.step
        self._repeats += 1
        self._copies += repeated == Repeat.SAME_VALUES
        if self._repeats < self.patience or self._copies < self.copies * self._repeats:
            return self.stay()
        # Of all data as one batch, targets may be picked anew in every step; inputs are not.
        if self._alike < self.inputs or self._moved < self.copies * self._alike:
            return self.stay()
        return self.stay() if view.scalar("loss_rows") > self.rows else self.hold(None, self._describe)

    def _describe(self) -> Judgement:
        how = f"at {self._repeats} measured steps in a row, each time in a new tensor"
        evidence = (Evidence("targets_repeated", None, Repeat.SAME_VALUES, Repeat.NEW, how),)
        summary = "Every batch is the same one, loaded anew at every step: the rest of the data is never seen."
        return Judgement(Severity.SEVERE, (), self._since, 0.85, summary, evidence)
