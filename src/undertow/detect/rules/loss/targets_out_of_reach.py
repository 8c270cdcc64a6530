"""LSS003: the last activation cannot reach the targets."""

from undertow.detect.engine import FrameView, Judgement, Stage
from undertow.detect.features.output_layer import output_layers
from undertow.detect.features.target_range import TargetsOutOfRange
from undertow.schema import Evidence, Remedy, Severity


class TargetsOutOfReach(TargetsOutOfRange):
    """The model ends in an activation whose range does not hold the targets.

    What it sees: Of errors between numbers: an output that a ReLU, a sigmoid or the like made, and targets outside of
        the range of that function, by a tenth of their variance or more, at two measured steps in a row.
    Why it is bad: What lies outside of the range of an output stays an error for ever.
    When it is wrong: A target that is now and then outside of a range on purpose is not told apart.
    References: Humbatova et al., "Taxonomy of Real Faults in Deep Learning Systems", 2020 (arXiv 1910.11015).
    """

    variant, formerly = "targets-out-of-reach", "reach"
    stage, is_exact, is_standing = Stage.SIGNAL, True, True
    of_probabilities = False
    meaning = "Part of what is asked for can never be learnt"
    remedies = (
        Remedy(
            "free-the-output",
            "Let the model end in a linear layer, or bring the targets into the range of the function it ends in.",
            "prediction = head(hidden)  # no ReLU, sigmoid or tanh behind it\n"
            "loss = torch.nn.functional.mse_loss(prediction, targets)",
            "Predictions can then be anything, also below zero.",
            when_not="The targets themselves are wrong: then mend those.",
        ),
    )

    def describe(self, view: FrameView, share: float) -> Judgement:
        how = "of the targets' variance lies outside of what the last function can put out"
        evidence = Evidence("targets_beyond_reach", None, share, 0.0, how)
        summary = (
            f"The model's last activation cannot reach the targets: {min(share, 1.0):.0%} of their variance lies "
            "outside of its range."
        )
        return Judgement(Severity.SEVERE, output_layers(view), self._streak.since, 0.95, summary, (evidence,))
