"""DAT006: classes that never occur."""

import math

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage, having
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.output_layer import output_layers
from undertow.detect.features.remedies import FIT_THE_TABLE_TO_THE_DATA
from undertow.schema import Evidence, Severity


class UnusedClasses(Condition):
    """Most classes never occur among the labels, or all labels are the same.

    What it sees: The number of classes that the labels amount to (by their entropy), against the number of outputs: one
        in two hundred, or one single class, is a hint; one single class of a classifier for forty steps is an alarm.
    Why it is bad: Most outputs are never the target: often the wrong column or label mapping is in use.
        Of a single class there is nothing to learn.
    When it is wrong: Contrastive losses give every row the same label by design; a classifier, which has an output for
        every class, does so only by mistake. Entropy counts rare classes for less than one: English text amounts to
        1,000 of 50,000 tokens.
    References: PyTorch documentation, `torch.nn.CrossEntropyLoss`.
    """

    code, variant, formerly = "DAT006", "unused-classes", "classes"
    places = ("target",)
    stage, is_standing = Stage.DATA, True
    wakes_on = having("label_entropy_pooled")
    meaning = "Most outputs are never the target, so they only learn to stay low"
    remedies = (FIT_THE_TABLE_TO_THE_DATA,)

    share = Limit(0.005, "of the classes in use, by entropy; English text: 0.02")
    labels = Limit(50, "labels to each class in use: enough to have met what there is to meet")
    least_labels = Limit(500, "labels in all")
    single = Limit(1e-3, "nats of entropy: one class alone")
    single_for = Limit.learning(40, "steps: of data that are sorted, the second class may come late")

    def __init__(self) -> None:
        self._labels = 0.0  # seen so far, at measured steps
        self._first_step: int | None = None

    @property
    def is_calm(self) -> bool:
        return self._first_step is not None and super().is_calm

    def observe(self, view: FrameView) -> Judgement | None:
        first = self._first_step = view.step if self._first_step is None else self._first_step
        pooled, classes, rows = (view.scalar(n) for n in ("label_entropy_pooled", "loss_classes", "loss_rows"))
        if not pooled >= 0 or not classes >= 2:
            return self.stay()
        self._labels += 0.0 if math.isnan(rows) else rows
        used = math.exp(pooled)
        if self._labels < max(self.least_labels, self.labels * used):
            return None
        if pooled > self.single and used > self.share * classes:
            return self.end()
        # A classifier has an output for every class; a contrastive loss, whose labels are all alike, has none of it.
        heads = [int(structure_of(view.layout).matrix[i]) for i in output_layers(view)]
        asked = any(i >= 0 and view.layout.layers[i].shape[0] == classes for i in heads)
        alone = pooled == 0 and asked and view.step - first >= self.single_for
        return self.hold(alone, lambda: self._describe(used, classes, first, alone))

    def _describe(self, used: float, classes: float, first: int, alone: bool) -> Judgement:
        how = f"{used:.3g} classes in use of {classes:.0f}, estimated from the entropy of {self._labels:,.0f} labels"
        evidence = (Evidence("label_entropy_pooled", None, math.log(used), math.log(classes), how),)
        if alone:
            summary = f"All labels seen are the same one of {classes:.0f} classes: there is nothing to learn."
            return Judgement(Severity.SEVERE, (), first, 0.9, summary, evidence)
        summary = f"Only {used:.3g} of {classes:.0f} classes occur in the labels: most outputs are never used."
        return Judgement(Severity.MILD, (), first, 0.75, summary, evidence)
