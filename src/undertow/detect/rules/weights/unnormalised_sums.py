"""WGT003: the signal grows between layers whose weights begin as usual."""

import numpy as np

from undertow.detect.engine import FrameView, Judgement, Limit
from undertow.detect.features.initial_scales import BadStart
from undertow.detect.features.remedies import ADD_NORMALISATION_OR_SHORTCUTS
from undertow.schema import Remedy, Severity


class UnnormalisedSums(BadStart):
    """The signal grows without bound through layers whose weights start as usual: sums are not divided.

    What it sees: At the first measured step, what differs between samples grows by three decades from the input to the
        last layer, although no weight matrix begins large and nothing normalises. Besides, the first loss is a hundred
        times chance level, or the first errors a hundred times the targets. One module is named where most of the
        growth happens.
    Why it is bad: The weights are not at fault, so another initialisation does not help: a sum over neighbours,
        positions or steps of time grows with their number. Outputs and gradients grow with it until the loss overflows.
    When it is wrong: Inputs of a very large scale would look alike, but the growth is measured from what the first
        layer received.
    References: Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", 2017 (arXiv
        1609.02907).
    """

    variant = "unnormalised-sums"
    meaning = "Every such sum multiplies the signal, and the gradients with it"
    remedies = (
        Remedy(
            "divide-what-is-summed",
            "Divide every sum over neighbours, positions or steps of time by their number, so that it keeps its scale.",
            "messages = adjacency @ features  # a sum over neighbours\n"
            "messages = messages / adjacency.sum(dim=1, keepdim=True)",
            "Sums that tell how many there are lose that.",
            when_not="Normalisation layers keep the scale already.",
        ),
        ADD_NORMALISATION_OR_SHORTCUTS,
    )

    most_at_once = Limit(0.8, "of the growth, in one module: it is the one")

    def judge_start(self, view: FrameView) -> Judgement | None:
        start = self._start
        if start.is_normalised or not start.decades > self.least_decades_of_usual or not self.is_hopeless(view):
            return None
        summary = (
            f"The signal grows 10^{start.decades:.0f}-fold on its way through layers whose weights start as usual: "
            "something sums or multiplies, and nothing divides"
        )
        layers: tuple[int, ...] = ()
        steps = np.diff(np.log10([start.received, *start.signals[start.known]]))
        if steps.max() > self.most_at_once * steps[steps > 0].sum():
            layers = (start.modules[int(start.known[steps.argmax()])],)
            summary += f", most of it in {view.layout.path(layers[0])}"
        return Judgement(Severity.SEVERE, layers, view.step, 0.93, f"{summary}.", start.evidence(1.0))
