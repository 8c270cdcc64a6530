"""GRD001: gradients fade with depth, or next to nothing passes a closed gate."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, Consecutive, Flags, FrameBatch, FrameView, Judgement, Limit, Stage, Wake
from undertow.detect.features.depth_trend import LEAST_FIT, LEAST_MATRICES, STEEP, DepthTrend, chains_of, logarithms
from undertow.detect.features.matrices import Values, matrices_of, middle
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.remedies import (
    ADD_NORMALISATION_OR_SHORTCUTS,
    INITIALISE_FOR_THE_ACTIVATION,
    USE_RELU_WITH_HE_INITIALISATION,
)
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Remedy, Severity

_GATE_THE_RECURRENCE = Remedy(
    "gate-the-recurrence",
    "Use an LSTM or a GRU in place of the plain recurrent layer, or start its recurrent weights orthogonal.",
    "for name, parameter in model.named_parameters():\n"
    '    if "weight_hh" in name:\n'
    "        torch.nn.init.orthogonal_(parameter)\n"
    "# or: torch.nn.GRU(inputs, hidden) in place of torch.nn.RNN",
    "A gated layer has three or four times the weights, and old checkpoints do not fit.",
    when_not="The model has no plain recurrent layer.",
)


def _of_deep_models(batch: FrameBatch) -> Flags:
    out = batch.none()
    if len(matrices_of(batch.layout)) >= LEAST_MATRICES:
        out[batch.frames_with("gradient")] = True
    return out


class VanishingGradient(Condition):
    """Gradients fade on their way from the loss to the first layers, or next to none passes some place.

    What it sees: A straight line through the logarithm of the typical gradient element (root mean square) of every
        weight matrix in execution order. It falls by three decades or more towards the input and stays so while the
        loss makes no progress: at five measured steps where the first layers hardly move, at twenty-five where the
        optimizer makes up for small gradients, as Adam does, or where it falls by 2.2 decades only. Or two matrices,
        wherever they are, with less than 1e-10 of the largest gradient and updates below rounding, at six steps.
    Why it is bad: The first layers learn a thousand times more slowly than the last: the network is no deeper than its
        last layers. Typical causes are sigmoids or tanhs one after another, weights that start too small, many layers
        without skip connections or normalisation, and a gate that is closed, a sigmoid far in saturation.
    When it is wrong: A plain network of a dozen layers can start like this and still learn under Adam; the finding then
        ends when the loss falls. A gate that starts nearly closed and opens by itself takes a few steps. Vanishing
        through time inside a recurrent layer cannot be seen: all steps share one gradient. In the zoo of healthy
        trainings the line falls by 1.3 decades at most.
    References: Hochreiter, "The vanishing gradient problem during learning recurrent neural nets", 1998.
        Glorot, Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010.
    """

    code, variant, formerly = "GRD001", "vanishing-gradient", "depth cut closed-gate"
    places = ("initialisation", "parameter")
    stage = Stage.STEP
    meaning = "The layers far from the loss get almost no gradient, so they keep their initial values"
    remedies = (
        USE_RELU_WITH_HE_INITIALISATION,
        _GATE_THE_RECURRENCE,
        ADD_NORMALISATION_OR_SHORTCUTS,
        INITIALISE_FOR_THE_ACTIVATION,
    )
    wakes_on = Wake(_of_deep_models)
    pace = ("gradient", 5)

    least_matrices, steep, least_fit = LEAST_MATRICES, STEEP, LEAST_FIT
    steep_in_doubt = Limit(2.2, "decades: six plain ReLU layers make this, and may learn yet")
    steep_still = Limit(2.0, "decades: what is open ends below it")
    starved = Limit(1e-4, "update over weight of the first layers; 99 % of healthy matrices move faster")
    patience = Limit.chance(5, "measured steps in a row where the first layers hardly move")
    patience_in_doubt = Limit.learning(25, "measured steps: Adam gets most deep plain networks out of it by then")
    at_one_place = Limit(0.6, "of the whole fall, between two neighbours: there, not at the input, is the cause")
    shut = Limit(1e-10, "of the largest gradient: what no optimizer makes up for")
    shut_update = Limit(1e-7, "update over weight: a weight changes by less than it is rounded by")
    shut_patience = Limit.learning(6, "measured steps in a row: a gate that opens by itself has begun to by then")

    def __init__(self) -> None:
        self._fading, self._shut = Consecutive(), Consecutive()
        self._is_starved = False  # the matrices furthest from the loss hardly move
        self._latest: tuple[Values, DepthTrend] | None = None  # logarithms of such a step, and their line

    @property
    def is_calm(self) -> bool:
        return not (self.is_open or self._fading.count or self._shut.count)

    def observe(self, view: FrameView) -> Judgement | None:
        matrices = matrices_of(view.layout)
        if view.skipped or len(matrices) < self.least_matrices:
            return None
        if view.ids("gradient") is not None:
            sizes = matrices.values(view, "gradient_rms")
            self._follow_depth(view, logarithms(sizes))
            if view.ids("update") is not None:
                self._follow_gates(view, sizes)
        if has_learnt(view.loss):
            self._shut.end()
            return self.end()
        if self._fading.count and self._latest is not None and len(self._latest[0]) == len(matrices):
            is_clear = self._is_starved and self._latest[1].rise > self.steep
            patience = self.patience if is_clear else self.patience_in_doubt
            # Where gradients are measured rarely, a few of them and a loss that stays where it is will do.
            is_rare = self._fading.count >= 3 and view.step - self._fading.since >= 4 * patience
            if self._fading.count >= patience or is_rare:
                sizes, trend = self._latest
                return self.hold("fading", lambda: self._describe_fading(view, sizes, trend))
        if self._shut.count >= self.shut_patience and view.ids("gradient") is not None:
            return self.hold("shut", lambda: self._describe_shut(view, matrices.values(view, "gradient_rms")))
        return self.stay() if self._fading.count or self._shut.count else self.end()

    def _follow_depth(self, view: FrameView, sizes: Values) -> None:
        # Of several networks that never meet, the one in which they fade most.
        trend, sizes = max(chains_of(view.layout).trends(sizes), key=lambda one: one[0].rise)
        if trend.size < self.least_matrices:
            return  # this step does not tell
        if trend.rise < self.steep_in_doubt or trend.fit < self.least_fit:
            if not (self.is_open and trend.rise > self.steep_still):
                self._fading.end()
            return
        self._fading.hold(view.step)
        self._latest = sizes, trend
        if view.ids("update") is not None:
            ratios = matrices_of(view.layout).update_ratios(view)[np.isfinite(sizes)]
            self._is_starved = middle(ratios[: max(len(ratios) // 3, 1)]) < self.starved

    def _follow_gates(self, view: FrameView, sizes: Values) -> None:
        if len(self._behind_gates(view, sizes)) < 2:
            self._shut.end()
        else:
            self._shut.hold(view.step)

    def _behind_gates(self, view: FrameView, sizes: Values) -> NDArray[np.int64]:
        """Places of the matrices that next to no gradient reaches."""
        shut = (sizes > 0) & (sizes < self.shut * float(np.fmax.reduce(sizes)))
        if shut.any():
            shut &= matrices_of(view.layout).update_ratios(view) < self.shut_update
        return np.flatnonzero(shut)

    def _describe_fading(self, view: FrameView, sizes: Values, trend: DepthTrend) -> Judgement:
        layout, ids = view.layout, matrices_of(view.layout).ids
        places = self._faded(sizes)
        layers = tuple(ids[places].tolist())
        last = layout.path(int(ids[np.nanargmax(sizes)]))
        evidence = [
            Evidence("gradient_rms", layout.path(layers[0]), float(10 ** sizes[places[0]]),
                     float(10 ** np.nanmax(sizes)),
                     f"RMS of the gradient, against that of {last} at the same step"),
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
        return Judgement(Severity.SEVERE, layers, self._fading.since, confidence, summary, tuple(evidence))

    def _describe_shut(self, view: FrameView, sizes: Values) -> Judgement:
        layout, ids, places = view.layout, matrices_of(view.layout).ids, self._behind_gates(view, sizes)
        layers = tuple(ids[places].tolist())
        how = f"RMS of the gradient, against that of {layout.path(int(ids[np.nanargmax(sizes)]))} at the same step"
        evidence = tuple(
            Evidence("gradient_rms", layout.path(int(ids[place])), float(sizes[place]), float(np.nanmax(sizes)), how)
            for place in places[:3]
        )
        summary = (
            f"Almost no gradient reaches {name_layers(layout, layers)}: less than 1e-10 of that of other layers. "
            "Something blocks it, such as a saturated gate."
        )
        return Judgement(Severity.SEVERE, layers, self._shut.since, 0.9, summary, evidence)

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
