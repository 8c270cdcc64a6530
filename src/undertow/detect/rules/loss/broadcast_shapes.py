"""LSS002: prediction and target have different shapes."""

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Stage, having
from undertow.detect.features.output_layer import output_layers
from undertow.schema import Evidence, Remedy, Severity


class BroadcastShapes(Condition):
    """Prediction and target have different shapes, and the loss compares each with every other.

    What it sees: The shapes that met in an elementwise loss (squared or absolute error, binary cross-entropy), in the
        graph of the loss itself, at two measured steps in a row. In a loss of one's own, a column of N predictions that
        became a matrix of N by N where it met its targets. The layer whose output the loss was given is named.
    Why it is bad: A prediction of shape [N, 1] against a target of shape [N] makes N × N errors. The best answer to
        that is the mean of all targets, whatever the input; the loss stays at the variance of the targets and nothing
        looks broken.
    When it is wrong: Comparing all with all can be meant (pairwise distances); that is rarely written as the loss of a
        training. A single number as the target (a GAN's "all real") is not reported.
    References: PyTorch's own warning "Using a target size that is different to the input size", which only some losses
        give.
    """

    code, variant, formerly = "LSS002", "broadcast-shapes", "shapes"
    places = ("broadcast", "loss")
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    wakes_on = having("loss_broadcast")
    meaning = "The loss stops at a floor and stays there, however long you train"
    remedies = (
        Remedy(
            "match-the-shapes",
            "Give prediction and target the same shape before the loss.",
            "assert prediction.squeeze(-1).shape == target.shape\n"
            "loss = torch.nn.functional.mse_loss(prediction.squeeze(-1), target)",
            "None.",
            when_not="Every prediction is meant to be compared with every target.",
        ),
    )
    patience = Limit.chance(2, "measured steps: a last batch of one sample has every shape at once")

    def __init__(self) -> None:
        self._streak = Consecutive()

    def observe(self, view: FrameView) -> Judgement | None:
        flag = view.scalar("loss_broadcast")
        if flag != flag:
            return self.stay()
        if flag != 1:
            self._streak.end()
            return self.end()
        if self._streak.hold(view.step) < self.patience:
            return None
        return self.hold(None, lambda: self._describe(view))

    def _describe(self, view: FrameView) -> Judgement:
        rows = view.scalar("loss_rows")
        counted = f" ({rows:,.0f} rows)" if rows == rows else ""
        how = f"shapes differ{counted} and were broadcast against each other"
        evidence = Evidence("loss_broadcast", None, 1.0, 0.0, how)
        summary = (
            "Prediction and target have different shapes: the loss compares every prediction with every target, so "
            "the model can only learn the targets' mean."
        )
        layers = output_layers(view)[-1:]  # the one with a matrix: it decides on the shape
        return Judgement(Severity.SEVERE, layers, self._streak.since, 0.97, summary, (evidence,))
