"""LSS003: targets outside of what the last activation can put out, or of what the loss is made for."""

import math
from collections.abc import Sequence

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Stage, having
from undertow.detect.features.output_layer import output_layers
from undertow.detect.features.remedies import MIND_THE_SIGN
from undertow.schema import Evidence, Finding, LossKind, Remedy, Severity

_BINARY = (LossKind.BINARY_OF_LOGITS, LossKind.BINARY_OF_PROBABILITIES)


class TargetsOutOfReach(Condition):
    """The targets lie outside of the range of the last activation, or those of a binary cross-entropy of 0 to 1.

    What it sees: In the graph of the loss, at two measured steps in a row: of errors between numbers, an output that a
        ReLU, a sigmoid or the like made, and targets outside of the range of that function, by a tenth of their
        variance or more; of a binary cross-entropy, targets outside of 0 to 1 by as much.
    Why it is bad: What lies outside of the range of an output stays an error for ever. A binary cross-entropy takes its
        targets for probabilities; with others it has no lower bound, and training follows them for ever.
    When it is wrong: Targets that are now and then outside of a range on purpose are reported, too.
    References: Humbatova et al., "Taxonomy of Real Faults in Deep Learning Systems", 2020 (arXiv 1910.11015).
        PyTorch documentation, `torch.nn.BCEWithLogitsLoss`.
    """

    code, variant, formerly = "LSS003", "targets-out-of-reach", "reach targets-not-probabilities"
    places = ("target", "loss")
    stage, is_exact, is_standing = Stage.SIGNAL, True, True
    is_of_one_training = True
    wakes_on = having("targets_beyond_reach")
    meaning = "Part of the targets can never be predicted"
    remedies = (
        Remedy(
            "free-the-output",
            "Let the model end in a linear layer, or bring the targets into the range of the function it ends in.",
            "prediction = head(hidden)  # no ReLU, sigmoid or tanh behind it\n"
            "loss = torch.nn.functional.mse_loss(prediction, targets)",
            "Predictions can then be anything, also below zero.",
            when_not="The targets themselves are wrong: then fix those.",
        ),
        MIND_THE_SIGN,
    )
    share = Limit(0.1, "of the targets' variance: noise around a limit is less")
    patience = Limit.chance(2, "measured steps")

    def __init__(self) -> None:
        self._streak = Consecutive()

    def observe(self, view: FrameView) -> Judgement | None:
        share = view.scalar("targets_beyond_reach")
        if math.isnan(share):
            return self.stay()
        if share < self.share or (view.loss is not None and view.loss.actors > 1):
            self._streak.end()
            return self.end()
        if self._streak.hold(view.step) < self.patience:
            return None
        return self.hold(None, lambda: self._describe(view, share))

    def _describe(self, view: FrameView, share: float) -> Judgement:
        layers = () if view.scalar("loss_kind") in _BINARY else output_layers(view)
        if layers:
            how = "of the targets' variance lies outside of what the last function can put out"
            summary = (
                f"The model's last activation cannot reach the targets: {min(share, 1.0):.0%} of their variance lies "
                "outside of its range."
            )
        else:
            how = "mean square of what the targets lie outside of 0 to 1, over their variance"
            summary = (
                "The targets of the binary cross-entropy are not between 0 and 1, so it has no floor. Give it 0 and 1, "
                "not -1 and 1 or 0 and 255."
            )
        evidence = Evidence("targets_beyond_reach", None, share, 0.0, how)
        return Judgement(Severity.SEVERE, layers, self._streak.since, 0.95, summary, (evidence,))

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        return cls.remedies[:1] if finding.layers else cls.remedies[1:]
