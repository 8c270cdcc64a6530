"""LSS001: a softmax or a sigmoid is taken twice."""

from undertow.detect.features.loss_input import WrongLossInput
from undertow.schema import LossKind, Remedy


class ProbabilitiesForLogits(WrongLossInput):
    """The loss is given probabilities where it takes logits.

    What it sees: What the loss function was called with, in the graph of the loss itself: rows of a cross-entropy that
        are not negative and sum to one (with a temperature or without, and likewise in a divergence), or the output of
        a sigmoid in a binary cross-entropy that takes its own. Two measured steps in a row are needed.
    Why it is bad: A softmax of a softmax can never be sure: with ten classes the loss cannot fall below 1.46, and
        gradients are about ten times too small.
    When it is wrong: Targets that are probabilities (distillation, label smoothing) are not meant and not looked at.
        Cross-entropy of log-probabilities is the same as of logits and is not reported.
    References: PyTorch documentation, `torch.nn.CrossEntropyLoss` and `torch.nn.BCEWithLogitsLoss`.
        Schoop et al., "UMLAUT: Debugging Deep Learning Programs using Program Structure and Model Behavior", 2021.
    """

    variant, formerly = "probabilities-for-logits", "input"
    remedies = (
        Remedy(
            "pass-logits",
            "Give the loss the logits: cross-entropy takes the softmax, and BCEWithLogits the sigmoid, itself.",
            "logits = model(inputs)  # no softmax, no sigmoid at the end\n"
            "loss = torch.nn.functional.cross_entropy(logits, targets)\n"
            "probabilities = logits.softmax(-1)  # only where you need them",
            "Predictions elsewhere that expect probabilities need the softmax there.",
            when_not="The loss is one that takes probabilities, such as KL divergence in distillation.",
        ),
    )

    def describe(self, kind: float) -> tuple[str, str, str]:
        quantity = "loss_input_is_probability"
        if kind == LossKind.BINARY_OF_LOGITS:
            summary = "The loss is given the output of a sigmoid and applies a sigmoid again: it expects logits."
            return quantity, summary, "the output of a sigmoid"
        summary = "The loss is given probabilities and applies a softmax again: it expects logits."
        return (
            quantity,
            summary,
            "each row of the loss function's input is a distribution: not negative, with a sum of 1",
        )
