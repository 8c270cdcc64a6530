"""GRD001: next to no gradient passes a closed gate."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.gradient_sizes import GradientSizes
from undertow.detect.features.matrices import Values, matrices_of
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.remedies import (
    ADD_NORMALISATION_OR_SHORTCUTS,
    INITIALISE_FOR_THE_ACTIVATION,
    USE_RELU_WITH_HE_INITIALISATION,
)
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class ClosedGate(Condition):
    """Next to no gradient reaches some layers, wherever they are, while others get what they need.

    What it sees: Two or more weight matrices whose gradients are less than 1e-10 of the largest one, though not zero,
        and whose updates are below rounding, at six measured steps without progress.
    Why it is bad: No optimizer makes up for that: the layers do not move. It is what a closed gate leaves, a sigmoid
        far in saturation on the way.
    When it is wrong: A gate that starts nearly closed and opens by itself takes a few steps. Where gradients fade
        evenly with depth, that is said instead.
    References: Hochreiter, "The vanishing gradient problem during learning recurrent neural nets", 1998.
    """

    code, variant, formerly = "GRD001", "closed-gate", "cut"
    stage = Stage.STEP
    _gradients = Shared(GradientSizes)
    meaning = "The layers behind it get next to no signal, so they keep their initial values"
    remedies = (USE_RELU_WITH_HE_INITIALISATION, ADD_NORMALISATION_OR_SHORTCUTS, INITIALISE_FOR_THE_ACTIVATION)
    pace = ("gradient", 5)

    share = Limit(1e-10, "of the largest gradient: what no optimizer makes up for")
    update = Limit(1e-7, "update over weight: a weight changes by less than it is rounded by")
    patience = Limit(6, "measured steps in a row: a gate that opens by itself has begun to by then")

    def __init__(self) -> None:
        self._steps = Consecutive()

    @property
    def is_calm(self) -> bool:
        return not self.is_open and not self._steps.count

    def observe(self, view: FrameView) -> Judgement | None:
        if not self._gradients.is_informed:
            return None
        if "vanishing-gradient" in self._gradients.open_variants or has_learnt(view.loss):
            self._steps.end()
            return self.end()
        sizes = self._gradients.sizes
        if sizes is None or view.ids("update") is None:
            return self.stay()
        shut = (sizes > 0) & (sizes < self.share * float(np.fmax.reduce(sizes)))
        if shut.any():
            shut &= matrices_of(view.layout).update_ratios(view) < self.update
        if shut.sum() < 2:
            self._steps.end()
            return self.end()
        if self._steps.hold(view.step) < self.patience:
            return None
        return self.hold(True, lambda: self._describe(view, np.flatnonzero(shut), sizes))

    def _describe(self, view: FrameView, places: NDArray[np.int64], sizes: Values) -> Judgement:
        layout, ids = view.layout, matrices_of(view.layout).ids
        layers = tuple(int(i) for i in ids[places])
        largest = layout.path(int(ids[np.nanargmax(sizes)]))
        evidence = tuple(
            Evidence("gradient_rms", layout.path(int(ids[place])), float(sizes[place]), float(np.nanmax(sizes)),
                     f"a typical gradient element, beside that of {largest} at the same step")
            for place in places[:3]
        )  # fmt: skip
        summary = (
            f"Next to no gradient reaches {name_layers(layout, layers)}: less than a ten-billionth of what other "
            "layers get. Something in their way is closed, as a saturated gate is."
        )
        return Judgement(Severity.SEVERE, layers, self._steps.since, 0.9, summary, evidence)
