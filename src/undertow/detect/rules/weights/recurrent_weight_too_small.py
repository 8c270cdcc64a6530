"""WGT003: the weight of a plain recurrence begins too small."""

import numpy as np

from undertow.detect.engine import FrameView, Judgement, LayerIndex, Limit
from undertow.detect.features.initial_scales import BadStart, plain_recurrences
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.remedies import INITIALISE_FOR_THE_ACTIVATION, REINITIALISE_THE_LAYER
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class RecurrentWeightTooSmall(BadStart):
    """The weight of a plain recurrence begins so small that what was read fades, and nothing is learned.

    What it sees: At the first measured step, the scale (RMS times the root of the fan-in) of the recurrent weight of an
        RNN without gates, or of the only square matrix of a cell that is written out: below 0.4, or below 0.75 where it
        was not drawn as PyTorch does. It is told when nothing is learned in sixty steps.
    Why it is bad: Each time step keeps about that share of the state. What was read ten steps ago is gone, and so is
        its gradient.
    When it is wrong: A task that needs no memory is learned all the same, and then nothing is said. Gates may hold what
        a cell has read, so cells with several square matrices do not count.
    References: Le et al., "A Simple Way to Initialize Recurrent Networks of Rectified Linear Units", 2015 (arXiv
        1504.00941).
    """

    variant = "recurrent-weight-too-small"
    meaning = "The network cannot remember what it read a few time steps ago"
    remedies = (REINITIALISE_THE_LAYER, INITIALISE_FOR_THE_ACTIVATION)

    small = Limit(0.4, "RMS × √fan-in; a new one of PyTorch has 0.58")
    small_if_set_by_hand = Limit(0.75, "RMS × √fan-in; an orthogonal start, the usual one, has 1")
    even_kurtosis = Limit(-0.6, "excess kurtosis, half way from evenly drawn numbers, as PyTorch's, to normal ones")

    def doubt(self, view: FrameView) -> Judgement | None:
        layout, scales, unrolled = view.layout, self._start.scales, self._start.unrolled(view)
        alone = [] if structure_of(layout).is_norm.any() else [i for i in unrolled if _is_alone(layout, i, unrolled)]
        set_by_hand = view.all_layers("weight_kurtosis") > self.even_kurtosis
        small = np.where(set_by_hand, self.small_if_set_by_hand, self.small)
        layers = tuple(layout.in_order({i for i in (*plain_recurrences(layout), *alone) if scales[i] < small[i]}))
        if not layers:
            return None
        how = "RMS × √fan-in at the start: about what is left of a signal after one step of time"
        evidence = tuple(Evidence("weight_rms", layout.path(i), float(scales[i]), 1.0, how) for i in layers[:3])
        verb = "begins" if len(layers) == 1 else "begin"
        summary = (
            f"The weight of {name_layers(layout, layers)} {verb} so small that what was read fades within a few "
            "steps of time, and the loss does not fall."
        )
        return Judgement(Severity.MODERATE, layers, 0, 0.7, summary, evidence)


def _is_alone(layout: LayerIndex, weight: int, unrolled: list[int]) -> bool:
    """Is it the only one in its cell? Several are gates, which may hold what the cell has read."""
    cell = layout.layers[weight].group.rpartition(".")[0]
    return sum(layout.layers[i].group.rpartition(".")[0] == cell for i in unrolled) == 1
