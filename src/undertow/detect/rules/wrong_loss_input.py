"""LSS001."""

from __future__ import annotations

from typing import ClassVar

from undertow.detect.condition import Condition
from undertow.detect.engine.view import FrameView
from undertow.detect.features.output_layer import output_layers
from undertow.detect.rule import Verdict, Waiting
from undertow.schema.findings import Evidence
from undertow.schema.quantities import LossKind
from undertow.schema.severity import Severity

PATIENCE = 2  # measured steps; one batch of one row could sum to 1 by accident


class WrongLossInput(Waiting):
    """The loss is given probabilities where it takes logits, or logits where it takes probabilities.

    What it sees
    ------------
    What the loss function was called with, in the graph of the loss itself: rows of a cross-entropy that are not
    negative and sum to one (with a temperature or without, and likewise in a divergence), the output of a sigmoid in a
    binary cross-entropy that takes its own, and scores in `nll_loss` or `ctc_loss` whose exponentials do not sum to
    one over the classes, because they are raw, probabilities, or of a softmax over another dimension. Two measured
    steps in a row are needed.

    Why it is bad
    -------------
    A softmax of a softmax can never be sure: with ten classes the loss cannot fall below 1.46, and gradients are
    about ten times too small. `nll_loss` of raw scores has no lower bound: training drives it to minus infinity.

    When it is wrong
    ----------------
    Targets that are probabilities (distillation, label smoothing) are not meant and not looked at. Cross-entropy of
    log-probabilities is the same as of logits and is not reported.

    References
    ----------
    PyTorch documentation, `torch.nn.CrossEntropyLoss` and `torch.nn.NLLLoss`.
    Schoop et al., "UMLAUT: Debugging Deep Learning Programs using Program Structure and Model Behavior", 2021.
    """

    code: ClassVar[str] = "LSS001"
    waits_for: ClassVar[frozenset[str]] = frozenset({"loss_input_is_probability", "loss_input_is_logit"})

    def __init__(self) -> None:
        self._condition = Condition("input")
        self._lasting = 0
        self._first_step = 0

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    @property
    def resting(self) -> bool:
        return not self._condition.is_open

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        scalars = view.frame.scalars
        doubled, reverse = scalars.get("loss_input_is_probability"), scalars.get("loss_input_is_logit")
        if doubled != doubled:  # NaN: not known
            doubled = None
        if reverse != reverse:
            reverse = None
        if doubled is None and reverse is None:
            return self._condition.stay()
        if doubled != 1 and reverse != 1:
            self._lasting = 0
            return self._condition.end()
        if self._lasting == 0:
            self._first_step = view.step
        self._lasting += 1
        if self._lasting < PATIENCE:
            return ()
        return self._condition.hold(doubled == 1, lambda: self._verdict(view, doubled == 1))

    def _verdict(self, view: FrameView, doubled: bool) -> Verdict:
        kind = view.scalar("loss_kind")
        layout = view.layout
        layers = output_layers(view)
        path = layout.path(layers[0]) if layers else None
        if doubled:
            binary = kind == LossKind.BINARY_OF_LOGITS
            given, taken = ("a sigmoid's output", "a sigmoid") if binary else ("probabilities", "a softmax")
            summary = f"The loss is given {given} and takes {taken} of them once more: it expects logits."
            how = "each row of the loss function's input is a distribution: not negative, with a sum of 1"
            evidence = Evidence(
                "loss_input_is_probability", path, 1.0, 0.0, "the output of a sigmoid" if binary else how
            )
        elif kind == LossKind.CROSS_ENTROPY:
            summary = (
                "The softmax is taken over another dimension than that of the classes: it compares the wrong things."
            )
            how = "the probabilities that the loss function is given do not sum to 1 over the classes"
            evidence = Evidence("loss_input_is_logit", path, 1.0, 0.0, how)
        else:
            expected = "probabilities" if kind == LossKind.BINARY_OF_PROBABILITIES else "log-probabilities"
            summary = f"The loss takes {expected} and is given something else, such as raw logits."
            how = f"the loss function's input cannot be {expected}"
            evidence = Evidence("loss_input_is_logit", path, 1.0, 0.0, how)
        return Verdict("input", True, Severity.SEVERE, layers, self._first_step, 0.98, summary, (evidence,))
