"""LSS002."""

from __future__ import annotations

from typing import ClassVar

from undertow.detect.condition import Condition
from undertow.detect.engine.view import FrameView
from undertow.detect.features.output_layer import output_layers
from undertow.detect.rule import Verdict, Waiting
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity

PATIENCE = 2  # measured steps: a last batch of one sample has every shape at once


class BroadcastLoss(Waiting):
    """Prediction and target have different shapes, and the loss compares each with every other.

    What it sees
    ------------
    The shapes that met in an elementwise loss (squared or absolute error, binary cross-entropy), in the graph of the
    loss itself, at two measured steps in a row. In a loss of one's own, a column of N predictions that became a matrix
    of N by N where it met its targets. The layer whose output the loss was given is named.

    Why it is bad
    -------------
    A prediction of shape [N, 1] against a target of shape [N] makes N × N errors. The best answer to that is the mean
    of all targets, whatever the input; the loss stays at the variance of the targets and nothing looks broken.

    When it is wrong
    ----------------
    Comparing all with all can be meant (pairwise distances); that is rarely written as the loss of a training. A single
    number as the target (a GAN's "all real") is not reported.

    References
    ----------
    PyTorch's own warning "Using a target size that is different to the input size", which only some losses give.
    """

    code: ClassVar[str] = "LSS002"
    waits_for: ClassVar[frozenset[str]] = frozenset({"loss_broadcast"})

    def __init__(self) -> None:
        self._condition = Condition("shapes")
        self._lasting = 0
        self._first_step = 0

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    @property
    def resting(self) -> bool:
        return not self._condition.is_open

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        flag = view.frame.scalars.get("loss_broadcast")
        if flag is None or flag != flag:  # NaN: not known
            return self._condition.stay()
        if flag != 1:
            self._lasting = 0
            return self._condition.end()
        if self._lasting == 0:
            self._first_step = view.step
        self._lasting += 1
        if self._lasting < PATIENCE:
            return ()
        return self._condition.hold(None, lambda: self._verdict(view))

    def _verdict(self, view: FrameView) -> Verdict:
        rows = view.scalar("loss_rows")
        counted = f" ({rows:,.0f} rows)" if rows == rows else ""
        evidence = Evidence(
            "loss_broadcast", None, 1.0, 0.0, f"shapes differ{counted} and were stretched to one another"
        )
        summary = (
            "Prediction and target have different shapes: the loss compares every prediction with every target, so "
            "the model can only learn the targets' mean."
        )
        layers = output_layers(view)[-1:]  # the one with a matrix: it decides on the shape
        return Verdict("shapes", True, Severity.SEVERE, layers, self._first_step, 0.97, summary, (evidence,))
