"""WGT006: single layers are set anew between steps."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerValues, Limit, Shared, Stage
from undertow.detect.features.between_steps import WRITTEN, WrittenWeights, written_between
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.remedies import LET_ONLY_THE_OPTIMIZER_WRITE
from undertow.detect.features.wording import known, name_layers
from undertow.schema import Evidence, Severity


class _WeightsBetweenSteps(WrittenWeights):
    wakes_on = written_between(WRITTEN)


class LayerReset(Condition):
    """Single layers are set anew between steps, again and again.

    What it sees: Weight matrices whose norm changes between two steps of their optimizer, some steps after it did
        before, with a leap of the loss right after it: a head that is initialised anew in every epoch.
    Why it is bad: A layer that is set anew loses what it has learned, and what the others have learned with it.
    When it is wrong: Weights that are clamped or projected after every step are left alone, and so are writes to most
        layers at once.
    References: PyTorch documentation, "torch.nn.init" and `Module.reset_parameters`.
    """

    code, variant, formerly = "WGT006", "layer-reset", "overwritten"
    stage = Stage.COURSE
    meaning = "Each time, what the layer and those around it have learned together is lost"
    remedies = (LET_ONLY_THE_OPTIMIZER_WRITE,)
    _weights = Shared(_WeightsBetweenSteps)

    apart = Limit(5, "steps since the time before: what is projected or clamped is written to at every step")
    leap = Limit(3, "deviations of the loss, right after it")
    most = Limit(0.5, "of the matrices: a layer is set anew, not the model")
    times = Limit(2, "times, some steps after the time before: once may be meant")

    _written = LayerValues(np.int64, -int(apart))  # the step before which a layer was last written to
    _times = LayerValues(np.int32, 0)
    _first = LayerValues(np.int64, -1)  # the first of these times

    def observe(self, view: FrameView) -> Judgement | None:
        change, ids = self._weights.change, view.ids("weight")
        if change is None or ids is None or not (change > WRITTEN).any():
            return self.stay()
        matrices = structure_of(view.layout).matrices
        written = np.intersect1d(ids[change > WRITTEN], matrices)
        again = written[view.step - self._written[written] >= self.apart]
        self._written[written] = view.step
        if not len(again) or len(written) > self.most * len(matrices):
            return self.stay()
        self._times[again] += 1
        self._first[again[self._times[again] == 1]] = view.step
        members = again[self._times[again] >= self.times]
        loss = view.loss
        if not len(members) or loss is None or not loss.jump > self.leap:
            return self.stay()
        layers = tuple(view.layout.in_order(members))
        return self.hold(layers, lambda: self._describe(view, layers, loss))

    def _describe(self, view: FrameView, layers: tuple[int, ...], loss: Loss) -> Judgement:
        times = int(self._times[list(layers)].max())
        how = f"the loss of step {view.step}, against the level before it"
        evidence = (
            Evidence("weight_norm", view.layout.path(layers[0]), known(view.all_layers("weight_norm")[layers[0]]), None,
                     f"changed between two steps, without an optimizer, {times} times"),
            Evidence("loss", None, loss.value, loss.value / loss.ratio if loss.ratio > 0 else None, how),
        )  # fmt: skip
        verb = "is" if len(layers) == 1 else "are"
        summary = (
            f"{name_layers(view.layout, layers)} {verb} set anew between steps, again and again. Each time the loss "
            "leaps up, and what was learned is lost."
        )
        since = int(self._first[list(layers)].min())
        return Judgement(Severity.SEVERE, layers, since, 0.9, summary, evidence)
