"""LSS001: raw scores where (log-)probabilities belong."""

from undertow.detect.features.loss_input import WrongLossInput
from undertow.schema import LossKind, Remedy


class LogitsForProbabilities(WrongLossInput):
    """The loss is given logits where it takes probabilities or log-probabilities.

    What it sees: Scores in `nll_loss` or `ctc_loss` whose exponentials do not sum to one over the classes, because they
        are raw logits or plain probabilities; values in `binary_cross_entropy` that cannot be probabilities. Two
        measured steps in a row are needed.
    Why it is bad: `nll_loss` of raw scores has no lower bound: training drives it to minus infinity.
    When it is wrong: A loss of scores on purpose, as a margin written with `nll_loss`, is reported.
    References: PyTorch documentation, `torch.nn.NLLLoss`, `torch.nn.CTCLoss` and `torch.nn.BCELoss`.
    """

    variant = "logits-for-probabilities"
    remedies = (
        Remedy(
            "pass-probabilities",
            "Give the loss what it expects: log_softmax before NLLLoss, a sigmoid before BCELoss, or use the fused "
            "one.",
            "loss = torch.nn.functional.cross_entropy(logits, targets)\n"
            "# two classes: binary_cross_entropy_with_logits(logits, targets)",
            "None.",
            when_not="The values are log-probabilities already.",
        ),
    )

    def describe(self, kind: float) -> tuple[str, str, str]:
        expected = "probabilities" if kind == LossKind.BINARY_OF_PROBABILITIES else "log-probabilities"
        summary = f"The loss takes {expected} and is given something else, such as raw logits."
        return "loss_input_is_logit", summary, f"the loss function's input cannot be {expected}"
