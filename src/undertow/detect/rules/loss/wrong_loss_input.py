"""LSS001: probabilities where the loss takes logits, or the reverse."""

import math
from collections.abc import Sequence

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Stage, having
from undertow.detect.features.output_layer import output_layers
from undertow.schema import Evidence, Finding, LossKind, Remedy, Severity

_PROBABILITY, _LOGIT = "loss_input_is_probability", "loss_input_is_logit"
_PASS_LOGITS = Remedy(
    "pass-logits",
    "Give the loss the logits: cross-entropy takes the softmax, and BCEWithLogits the sigmoid, itself.",
    "logits = model(inputs)  # no softmax, no sigmoid at the end\n"
    "loss = torch.nn.functional.cross_entropy(logits, targets)\n"
    "probabilities = logits.softmax(-1)  # only where you need them",
    "Predictions elsewhere that expect probabilities need the softmax there.",
    when_not="The loss is one that takes probabilities, such as KL divergence in distillation.",
)
_PASS_PROBABILITIES = Remedy(
    "pass-probabilities",
    "Give the loss what it expects: log_softmax before NLLLoss, a sigmoid before BCELoss, or use the fused one.",
    "loss = torch.nn.functional.cross_entropy(logits, targets)\n"
    "# two classes: binary_cross_entropy_with_logits(logits, targets)",
    "None.",
    when_not="The values are log-probabilities already.",
)
_SOFTMAX_OVER_CLASSES = Remedy(
    "softmax-over-classes",
    "Take the softmax over the dimension of the classes, or let cross_entropy do it: it knows which one.",
    "# classes are dimension 1\n"
    "loss = torch.nn.functional.cross_entropy(logits, targets)\n"
    "# by hand: nll_loss(logits.log_softmax(dim=1), targets)",
    "None.",
    when_not="The classes really are in another dimension: move them to dimension 1 then.",
)
_SOFTEN_THE_TARGETS = Remedy(
    "soften-the-targets",
    "Give the divergence probabilities as targets: the softmax of the teacher's logits.",
    "target = (teacher_logits / temperature).softmax(-1)\n"
    "said = (logits / temperature).log_softmax(-1)\n"
    "loss = torch.nn.KLDivLoss(reduction='batchmean')(said, target)",
    "None.",
    when_not="The targets are log-probabilities: then pass log_target=True.",
)


class WrongLossInput(Condition):
    """The loss is given probabilities where it takes logits, the reverse, or a softmax over the wrong dimension.

    What it sees: What the loss function was called with, in the graph of the loss, at two measured steps in a row: rows
        of a cross-entropy (or a divergence) that are not negative and sum to one, or do so over another dimension than
        the classes; the output of a sigmoid in a binary cross-entropy that takes its own; scores in `nll_loss` or
        `ctc_loss` whose exponentials do not sum to one; values in `binary_cross_entropy` that are no probabilities. And
        a divergence that is NaN while all of its gradients are finite: only the logarithm of the targets can have made
        it so, which are below zero and no probabilities.
    Why it is bad: A softmax of a softmax can never be sure: with ten classes the loss cannot fall below 1.46, and
        gradients are about ten times too small. `nll_loss` of raw scores has no lower bound. Over the wrong dimension,
        samples compete with one another instead of classes.
    When it is wrong: Targets that are probabilities (distillation, label smoothing) are not judged. Cross-entropy of
        log-probabilities is the same as of logits and is not reported. A loss of scores on purpose, as a margin written
        with `nll_loss`, is reported.
    References: PyTorch documentation, `torch.nn.CrossEntropyLoss`, `BCEWithLogitsLoss`, `NLLLoss` and `CTCLoss`.
        Schoop et al., "UMLAUT: Debugging Deep Learning Programs using Program Structure and Model Behavior", 2021.
    """

    code, variant = "LSS001", "wrong-loss-input"
    places = ("squash", "loss")
    formerly = "input probabilities-for-logits logits-for-probabilities softmax-over-wrong-dimension"
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    wakes_on = having(_PROBABILITY, _LOGIT)
    meaning = "The loss cannot fall as far as it should, and its gradients are far too flat"
    remedies = (_PASS_LOGITS, _PASS_PROBABILITIES, _SOFTMAX_OVER_CLASSES, _SOFTEN_THE_TARGETS)
    patience = Limit.chance(2, "measured steps: one batch of one row could sum to 1 by accident")

    def __init__(self) -> None:
        self._streak = Consecutive()

    def observe(self, view: FrameView) -> Judgement | None:
        flags = view.scalar(_PROBABILITY), view.scalar(_LOGIT)
        if all(flag != flag for flag in flags):
            return self.stay()
        kind, is_of_targets = view.scalar("loss_kind"), _has_negative_targets(view)
        if is_of_targets is None:
            return self.stay()
        if 1 not in flags and not is_of_targets:
            self._streak.end()
            return self.end()
        if self._streak.hold(view.step) < self.patience:
            return None
        if is_of_targets:
            return self.hold("targets", lambda: self._describe_targets(view))
        is_probability = flags[0] == 1
        return self.hold((is_probability, kind), lambda: self._describe(view, is_probability, kind))

    def _describe(self, view: FrameView, is_probability: bool, kind: float) -> Judgement:
        if is_probability:
            summary = "The loss is given probabilities and applies a softmax again: it expects logits."
            how = "each row of the loss function's input is a distribution: not negative, with a sum of 1"
            if kind == LossKind.BINARY_OF_LOGITS:
                summary = "The loss is given the output of a sigmoid and applies a sigmoid again: it expects logits."
                how = "the output of a sigmoid"
        elif kind == LossKind.CROSS_ENTROPY:
            summary = "The softmax runs over another dimension than the classes: it compares the wrong things."
            how = "the probabilities that the loss function is given do not sum to 1 over the classes"
        else:
            expected = "probabilities" if kind == LossKind.BINARY_OF_PROBABILITIES else "log-probabilities"
            summary = f"The loss takes {expected} and is given something else, such as raw logits."
            how = f"the loss function's input cannot be {expected}"
        layers = output_layers(view)
        path = view.layout.path(layers[0]) if layers else None
        evidence = (Evidence(_PROBABILITY if is_probability else _LOGIT, path, 1.0, 0.0, how),)
        return Judgement(Severity.SEVERE, layers, self._streak.since, 0.98, summary, evidence)

    def _describe_targets(self, view: FrameView) -> Judgement:
        summary = "The targets of the divergence are no probabilities: some are below zero, as raw logits are."
        how = "NaN, while all of its gradients are finite: only the logarithm of the targets can have made it so"
        evidence = (Evidence("loss", None, view.scalar("loss"), None, how),)
        return Judgement(Severity.SEVERE, (), self._streak.since, 0.95, summary, evidence)

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        if any(one.quantity == "loss" for one in finding.evidence):
            return (_SOFTEN_THE_TARGETS,)
        return cls.remedies[:1] if any(one.quantity == _PROBABILITY for one in finding.evidence) else cls.remedies[1:3]


def _has_negative_targets(view: FrameView) -> bool | None:
    """Of a divergence by its value: where the prediction itself is not finite, its gradients are not either. None where
    they were not measured.
    """
    if view.scalar("loss_kind") != LossKind.DIVERGENCE or not math.isnan(view.frame.scalars.get("loss", 0.0)):
        return False
    counts = view.row("gradient_nonfinite_count")
    return None if counts is None else bool((counts == 0).any()) and not bool((counts > 0).any())
