"""WGT003: the weight of a plain recurrence begins too large."""

from undertow.detect.engine import FrameView, Judgement, Limit
from undertow.detect.features.initial_scales import BadStart, plain_recurrences
from undertow.detect.features.remedies import INITIALISE_FOR_THE_ACTIVATION, REINITIALISE_THE_LAYER
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class RecurrentWeightTooLarge(BadStart):
    """The weight of a plain recurrence begins so large that every time step multiplies the signal.

    What it sees: At the first measured step, the scale (RMS times the root of the fan-in, about the spectral radius) of
        the recurrent weight of an RNN without gates, or of a square matrix whose module runs four times or more in one
        step.
    Why it is bad: The state is multiplied by that factor at every time step: over 32 of them, a factor of two becomes
        2**32. States saturate, and gradients explode.
    When it is wrong: Gates bound what LSTM and GRU layers carry on, so they do not count.
    References: Pascanu et al., "On the difficulty of training recurrent neural networks", 2013 (arXiv 1211.5063).
    """

    variant = "recurrent-weight-too-large"
    meaning = "States grow with every time step, and so do the gradients"
    remedies = (REINITIALISE_THE_LAYER, INITIALISE_FOR_THE_ACTIVATION)

    large = Limit(2, "RMS × √fan-in, about the spectral radius: 32 time steps multiply by 2**32")

    def judge_start(self, view: FrameView) -> Judgement | None:
        scales, layout = self._start.scales, view.layout
        recurrent = [*plain_recurrences(layout), *self._start.unrolled(view)]
        layers = tuple(i for i in recurrent if scales[i] > self.large)
        if not layers:
            return None
        how = "RMS × √fan-in at the start"
        evidence = tuple(Evidence("weight_rms", layout.path(i), float(scales[i]), 1.0, how) for i in layers[:3])
        verb = "begins" if len(layers) == 1 else "begin"
        summary = (
            f"The weight of {name_layers(layout, layers)} {verb} far too large: every time step multiplies the signal."
        )
        return Judgement(Severity.SEVERE, layers, view.step, 0.9, summary, evidence)
