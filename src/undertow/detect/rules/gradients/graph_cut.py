"""GRD003: the graph is cut."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, Limit, Shared, Stage
from undertow.detect.features.missing_gradients import MissingGradients
from undertow.detect.features.remedies import FREEZE_OPENLY
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, GradientState, Remedy, Severity


class GraphCut(Condition):
    """No gradient reaches parameters that run and that an optimizer holds.

    What it sees: Parameters whose gradient is None at the steps of their optimizer, although their module ran in the
        forward pass. They are listed nearest to the cut first; the evidence names the first layer in execution order
        that does receive a gradient.
    Why it is bad: Everything before the cut keeps its initial values while the layers after it learn to live with
        random features: the loss still falls, and nothing looks wrong.
    When it is wrong: A head that joins the loss later, hence 20 steps of patience, and 100 for heads beside others that
        nobody saw run. In a compiled model nobody sees what runs: several modules count as cut off when everything
        declared behind them has a gradient. Where nothing that an optimizer holds gets a gradient, and something else
        does, no graph is cut: that is UPD003. Layers meant to be fixed should say so with `requires_grad_(False)`: they
        are then UPD004.
    References: PyTorch documentation, "Autograd mechanics": `detach`, `no_grad`, leaf tensors.
        Jiang et al., "Training with Confidence: Catching Silent Errors in Deep Learning Training" (TrainCheck), 2025.
    """

    code, variant, formerly = "GRD003", "graph-cut", "cut"
    places = ("cut",)
    stage, is_exact, is_local = Stage.PROGRAM, True, True
    _gradients = Shared(MissingGradients)
    meaning = "These layers keep their initial values while the rest learns around them, so the loss still looks fine"
    remedies = (
        Remedy(
            "remove-the-cut",
            "Remove what cuts the graph before the first layer that has a gradient: detach(), .data, torch.no_grad(), "
            ".item(), or a trip through numpy.",
            "hidden = encoder(x)  # not encoder(x).detach(), not under no_grad()\nout = head(hidden)",
            "Memory and time for the backward pass of the layers that were cut off.",
            when_not="The layers before the cut are meant to stay as they are: then freeze them openly.",
        ),
        FREEZE_OPENLY,
    )
    certain_after = Limit.plan(50, "measured steps without a gradient: no schedule of losses is that long")

    def observe(self, view: FrameView) -> Judgement | None:
        if not self._gradients.is_informed:
            return None
        if not self._gradients.cut.any() or self._gradients.goes_elsewhere:
            return self.end()
        return self.hold(self._gradients.cut.tobytes(), lambda: self._describe(view.layout))

    def _describe(self, layout: LayerIndex) -> Judgement:
        gradients = self._gradients
        members = layout.in_order(np.flatnonzero(gradients.cut))
        placed = [i for i in members if np.isfinite(layout.order[i])]
        # Nearest to the cut first: that is where to look. What never showed when it runs comes last.
        layers = (*reversed(placed), *(i for i in reversed(members) if i not in placed))
        is_guess = not gradients.knows_calls and not placed
        those = "it runs and the optimizer holds it" if len(layers) == 1 else "they run and the optimizer holds them"
        if is_guess:
            those = "the optimizer holds them and all that comes behind them has one"
        summary = f"No gradient reaches {name_layers(layout, layers)}, though {those}"
        evidence = gradients.evidence(layout, layers)
        behind = self._first_behind(layout, placed)
        if behind is not None:
            summary += f"; the graph is cut before {layout.path(behind)}"
            how = (
                f"the graph is cut between {layout.path(layers[0])} and {layout.path(behind)}, "
                "the first in execution order that does receive a gradient"
            )
            evidence = (Evidence("gradient_state", layout.path(behind), GradientState.PRESENT, None, how), *evidence)
        shortest = int(gradients.streak.length[list(layers)].min())
        confidence = 0.75 if is_guess else 0.97 if shortest < self.certain_after else 0.99
        return Judgement(Severity.SEVERE, layers, gradients.since(layers), confidence, f"{summary}.", evidence)

    def _first_behind(self, layout: LayerIndex, placed: list[int]) -> int | None:
        """The first layer in execution order, behind those cut off, that does receive a gradient."""
        flowing = layout.in_order(np.flatnonzero(self._gradients.flowing))
        last = max((layout.order[i] for i in placed), default=-np.inf)
        return next((i for i in flowing if layout.order[i] > last), next(iter(flowing), None))
