"""LSS003: the targets are the inputs themselves."""

import math

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Stage, having
from undertow.schema import Evidence, Remedy, Severity


class TargetsAreInputs(Condition):
    """Labels are the very tokens that the model is given: a shift by one was forgotten, or went the wrong way.

    What it sees: Labels that are, at every place, the token that the model is given at that place, or at the one
        before, at two measured steps in a row.
    Why it is bad: A model that is asked for what it is given learns to copy, with a loss near zero, and can predict
        nothing.
    When it is wrong: Copying as a task is told from a forgotten shift where a decoder is given its targets one place
        late; through a code of the whole sequence it must be learnt at once to be reported.
    References: Hugging Face documentation, "Causal language modeling": who shifts the labels.
    """

    code, variant, formerly = "LSS003", "targets-are-inputs", "copying"
    places = ("loss", "target")
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    is_of_one_training = True
    wakes_on = having("targets_are_inputs")
    meaning = "The model learns to copy its input, and can predict nothing"
    remedies = (
        Remedy(
            "shift-the-targets",
            "Predict the next token: shift the targets one position ahead of the inputs.",
            "inputs, targets = tokens[:, :-1], tokens[:, 1:]\n"
            "logits = model(inputs).flatten(0, 1)\n"
            "loss = torch.nn.functional.cross_entropy(logits, targets.flatten())",
            "None.",
            when_not="The library shifts them itself (models that take `labels`).",
        ),
    )
    patience = Limit.chance(2, "measured steps")
    learnt_within = Limit.learning(100, "losses: nobody learns a code of a whole sequence so soon")
    learnt_to = Limit(0.2, "of the first loss")

    def __init__(self) -> None:
        self._streak = Consecutive()
        self._by_places = self._from_before = False

    @property
    def is_calm(self) -> bool:
        return self._streak.count < self.patience and not self.is_open

    def observe(self, view: FrameView) -> Judgement | None:
        copied = view.scalar("targets_are_inputs")
        if not math.isnan(copied):
            if not copied:
                self._streak.end()
                return self.end()
            self._streak.hold(view.step)
            self._by_places, self._from_before = copied >= 1, copied == 2
        if self._streak.count < self.patience:
            return self.stay() if math.isnan(copied) else None
        # Copying through a code of the whole sequence is a task, and one that takes its time.
        loss = view.loss
        at_once = loss is not None and loss.seen <= self.learnt_within and loss.remaining < self.learnt_to
        return self.hold(None, self._describe) if self.is_open or self._by_places or at_once else None

    def _describe(self) -> Judgement:
        where = "one position earlier" if self._from_before else "at the same position"
        how = f"every label is the token {where}"
        evidence = Evidence("targets_are_inputs", None, 1.0 + self._from_before, 0.0, how)
        summary = "The targets are the inputs themselves, position by position: the shift by one token is missing."
        if self._from_before:
            summary = "The targets are the previous tokens: they are shifted the wrong way, and the model only copies."
        return Judgement(Severity.SEVERE, (), self._streak.since, 0.9, summary, (evidence,))
