"""LSS001: a softmax over another dimension than the classes."""

from undertow.detect.features.loss_input import WrongLossInput
from undertow.schema import Remedy


class SoftmaxOverWrongDimension(WrongLossInput):
    """The softmax before the loss runs over another dimension than that of the classes.

    What it sees: Probabilities in the graph of a cross-entropy that do not sum to one over the classes, at two measured
        steps in a row.
    Why it is bad: Samples, or places, compete with one another for probability instead of classes. The loss falls a
        little and stops.
    When it is wrong: Never so far: a distribution over the classes sums to one whatever the model does.
    References: PyTorch documentation, `torch.nn.functional.log_softmax` and `torch.nn.NLLLoss`.
    """

    variant = "softmax-over-wrong-dimension"
    remedies = (
        Remedy(
            "softmax-over-classes",
            "Take the softmax over the dimension of the classes, or let cross_entropy do it: it knows which one.",
            "# classes are dimension 1\n"
            "loss = torch.nn.functional.cross_entropy(logits, targets)\n"
            "# by hand: nll_loss(logits.log_softmax(dim=1), targets)",
            "None.",
            when_not="The classes really are in another dimension: move them to dimension 1 then.",
        ),
    )

    def describe(self, kind: float) -> tuple[str, str, str]:
        summary = "The softmax runs over another dimension than the classes: it compares the wrong things."
        how = "the probabilities that the loss function is given do not sum to 1 over the classes"
        return "loss_input_is_logit", summary, how
