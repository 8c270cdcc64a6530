"""LSS003: targets of a binary cross-entropy that are no probabilities."""

from undertow.detect.engine import FrameView, Judgement
from undertow.detect.features.remedies import MIND_THE_SIGN
from undertow.detect.features.target_range import TargetsOutOfRange
from undertow.schema import Evidence, Severity


class TargetsNotProbabilities(TargetsOutOfRange):
    """The targets of a binary cross-entropy lie outside of 0 to 1.

    What it sees: Targets outside of 0 to 1 by a tenth of their variance or more, at two measured steps in a row.
    Why it is bad: The loss takes them for probabilities; with others it has no lower bound, and training follows them
        for ever.
    When it is wrong: Never so far: a binary cross-entropy has no other use.
    References: PyTorch documentation, `torch.nn.BCEWithLogitsLoss`.
    """

    variant = "targets-not-probabilities"
    of_probabilities = True
    meaning = "The loss asks for the wrong thing, and that is what the model learns"
    remedies = (MIND_THE_SIGN,)

    def describe(self, view: FrameView, share: float) -> Judgement:
        how = "mean square of what the targets lie outside of 0 to 1, over their variance"
        evidence = Evidence("targets_beyond_reach", None, share, 0.0, how)
        summary = (
            "The targets of the binary cross-entropy are not between 0 and 1, so it has no floor. Give it 0 and 1, not "
            "-1 and 1 or 0 and 255."
        )
        return Judgement(Severity.SEVERE, (), self._streak.since, 0.95, summary, (evidence,))
