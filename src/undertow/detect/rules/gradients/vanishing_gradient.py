"""GRD001: gradients fade with depth."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.gradient_sizes import (
    LEAST_FIT,
    LEAST_MATRICES,
    STEEP,
    STEEP_IN_DOUBT,
    GradientSizes,
    logarithms,
)
from undertow.detect.features.matrices import DepthTrend, Values, depth_trend, matrices_of, middle
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.remedies import (
    ADD_NORMALISATION_OR_SHORTCUTS,
    INITIALISE_FOR_THE_ACTIVATION,
    USE_RELU_WITH_HE_INITIALISATION,
)
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class VanishingGradient(Condition):
    """Gradients fade on their way from the loss to the first layers.

    What it sees: A straight line through the logarithm of the typical gradient element (root mean square) of every
        weight matrix in execution order. It falls by three decades or more towards the input and stays so while the
        loss makes no progress: at five measured steps where the first layers hardly move, at twenty-five where the
        optimizer makes up for small gradients, as Adam does, or where it falls by 2.2 decades only.
    Why it is bad: The first layers learn a thousand times more slowly than the last: the network is no deeper than its
        last layers. Typical causes are sigmoids or tanhs one after another, weights that start too small, and many
        layers without skip connections or normalisation.
    When it is wrong: A plain network of a dozen layers can start like this and still learn under Adam; the finding then
        ends when the loss falls. Vanishing through time inside a recurrent layer cannot be seen: all steps share one
        gradient. In the zoo of healthy trainings the line falls by 1.3 decades at most.
    References: Hochreiter, "The vanishing gradient problem during learning recurrent neural nets", 1998.
        Glorot, Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010.
    """

    code, variant, formerly = "GRD001", "vanishing-gradient", "depth"
    stage = Stage.STEP
    _gradients = Shared(GradientSizes)
    meaning = "The layers far from the loss get next to no signal, so they keep their initial values"
    remedies = (USE_RELU_WITH_HE_INITIALISATION, ADD_NORMALISATION_OR_SHORTCUTS, INITIALISE_FOR_THE_ACTIVATION)
    pace = ("gradient", 5)

    least_matrices, steep, steep_in_doubt, least_fit = LEAST_MATRICES, STEEP, STEEP_IN_DOUBT, LEAST_FIT
    steep_still = Limit(2.0, "decades: what is open ends below it")
    starved = Limit(1e-4, "update over weight of the first layers; 99 % of healthy matrices move faster")
    patience = Limit(5, "measured steps in a row where the first layers hardly move")
    patience_in_doubt = Limit(25, "measured steps: Adam gets some deep plain networks out of it, most of them by then")
    at_one_place = Limit(0.6, "of the whole fall, between two neighbours: there, not at the input, is the cause")

    def __init__(self) -> None:
        self._steps = Consecutive()
        self._is_starved = False  # the matrices furthest from the loss hardly move
        self._latest: tuple[Values, DepthTrend] | None = None  # logarithms of such a step, and their line

    @property
    def is_calm(self) -> bool:
        return not self.is_open and not self._steps.count

    def observe(self, view: FrameView) -> Judgement | None:
        if not self._gradients.is_informed:
            return None
        if self._gradients.sizes is not None and not self._fades(view, logarithms(self._gradients.sizes)):
            return self.end()
        if not self._steps.count:
            return None
        if has_learnt(view.loss):
            return self.end()
        is_clear = self._is_starved and self._latest is not None and self._latest[1].rise > self.steep
        patience = self.patience if is_clear else self.patience_in_doubt
        # Where gradients are measured rarely, a few of them and a loss that stays where it is will do.
        is_rare = self._steps.count >= 3 and view.step - self._steps.since >= 4 * patience
        if self._latest is None or (self._steps.count < patience and not is_rare):
            return self.stay()
        sizes, trend = self._latest
        if len(sizes) != len(matrices_of(view.layout)):
            return self.stay()
        return self.hold(True, lambda: self._describe(view, sizes, trend))

    def _fades(self, view: FrameView, sizes: Values) -> bool:
        trend = depth_trend(sizes)
        if trend.size < self.least_matrices:
            return True  # this step does not tell
        if trend.rise < self.steep_in_doubt or trend.fit < self.least_fit:
            if self.is_open and trend.rise > self.steep_still:
                return True
            self._steps.end()
            return False
        self._steps.hold(view.step)
        self._latest = sizes, trend
        if view.ids("update") is not None:
            ratios = matrices_of(view.layout).update_ratios(view)
            self._is_starved = middle(ratios[: max(len(ratios) // 3, 1)]) < self.starved
        return True

    def _describe(self, view: FrameView, sizes: Values, trend: DepthTrend) -> Judgement:
        layout, ids = view.layout, matrices_of(view.layout).ids
        places = self._faded(sizes)
        layers = tuple(int(i) for i in ids[places])
        last = layout.path(int(ids[np.nanargmax(sizes)]))
        evidence = [
            Evidence("gradient_rms", layout.path(layers[0]), float(10 ** sizes[places[0]]),
                     float(10 ** np.nanmax(sizes)),
                     f"a typical gradient element, beside that of {last} at the same step"),
            Evidence("gradient_rms", None, trend.rise, None,
                     f"decades lost over {trend.size} matrices; a straight line explains {trend.fit:.0%} of it"),
        ]  # fmt: skip
        if view.loss is not None:
            how = "the loss is about where it started"
            evidence.append(Evidence("loss", None, view.loss.level, view.loss.start, how))
        summary = (
            f"Gradients fade by a factor of 10^{trend.rise:.1f} from the loss to the first layers: "
            f"{name_layers(layout, layers)} hardly learn."
        )
        confidence = 0.9 if self._is_starved else 0.8
        return Judgement(Severity.SEVERE, layers, self._steps.since, confidence, summary, tuple(evidence))

    def _faded(self, sizes: Values) -> NDArray[np.int64]:
        """Places of the matrices with the smallest gradients; where most is lost at one place, what lies just before
        that place comes first.
        """
        known = np.flatnonzero(np.isfinite(sizes))
        values = sizes[known]
        drops = np.diff(values)
        place = int(drops.argmax())
        if drops[place] > self.at_one_place * (values.max() - values.min()):
            return known[: place + 1][::-1]
        small = known[values < values.max() - self.steep_in_doubt]
        return small if len(small) else known[[int(values.argmin())]]
