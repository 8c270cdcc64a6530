"""UPD003: weights that the optimizer holds and does not move."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, LayerStreak, Limit, Shared, Stage
from undertow.detect.features.parameter_updates import ParameterUpdates
from undertow.detect.features.remedies import (
    CLEAR_GRADIENTS,
    FREEZE_OPENLY,
    GIVE_IT_TO_THE_OPTIMIZER,
    KEEP_A_FLOAT32_MASTER_COPY,
    RAISE_LEARNING_RATE,
    RAISE_THE_GROUP_RATE,
)
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Finding, Remedy, Severity


class UnmovedWeights(Condition):
    """Weights get a gradient, an optimizer holds them, and they do not change.

    What it sees: Parameters in an optimizer whose weights were bit for bit the same after five measured steps with a
        non-zero gradient, while other weights moved. The reason is said where it is known: a parameter group with a
        learning rate of zero, or updates too small for the number format.
    Why it is bad: The layer keeps its values. The rest of the model learns around it, so the loss looks healthy. Where
        no weight moves, the gradients are gone when the optimizer steps: `zero_grad` is called after `backward`.
    When it is wrong: Steps that a loss scaler skipped and steps with a learning rate of zero do not count. A parameter
        group with a rate of zero may rest by plan: that is mild, unless its weights were never trained either, as new
        ones that have rested for a hundred steps.
    References: Jiang et al., "Training with Confidence: Catching Silent Errors in Deep Learning Training"
        (TrainCheck), 2025.
    """

    code, variant, formerly = "UPD003", "unmoved-weights", "still standstill no-weight-moves"
    places = ("overwritten", "optimizer")
    stage, is_exact, is_local = Stage.PROGRAM, True, True
    _updates = Shared(ParameterUpdates)
    meaning = "The layer keeps its initial values while the rest learns around it, so the loss still looks fine"
    remedies = (RAISE_THE_GROUP_RATE, GIVE_IT_TO_THE_OPTIMIZER, KEEP_A_FLOAT32_MASTER_COPY, RAISE_LEARNING_RATE,
                FREEZE_OPENLY, CLEAR_GRADIENTS)  # fmt: skip
    patience = Limit.chance(5, "measured steps")
    patience_of_all = Limit.arithmetic(10, "measured steps, or four over 20: an optimizer may accumulate some itself")
    patience_with_rounding = Limit.chance(50, "measured steps: single updates round away in health, too")
    rested = Limit.plan(100, "steps: a group that waits for its turn with a rate of zero has had it by then")

    def __init__(self) -> None:
        self._still, self._all_still = LayerStreak(), Consecutive()

    @property
    def is_calm(self) -> bool:
        return not self.is_open and not self._still.length.any() and not self._all_still.count

    def observe(self, view: FrameView) -> Judgement | None:
        moves, ids = view.row("update_norm"), view.ids("update")
        if moves is None or ids is None or (self.is_calm and not (moves == 0).any()):
            return None
        pushed = self._updates.unmoved(view)
        if pushed is None:
            return None
        if not self._updates.has_moved:
            return self._observe_all(view, pushed)
        self._all_still.end()
        self._still.end(ids[(moves != 0) & ~np.isnan(moves)])
        if (moves > 0).any():
            # A bias before a normalisation has next to no gradient: that it stands still is no news.
            pushed = pushed[~(view.layout.is_bias[pushed] & self._updates.rounds_away(view, pushed))]
            self._still.hold(pushed, view.step)
        patience = np.where(view.layout.is_low_precision, self.patience_with_rounding, self.patience).astype(np.int64)
        lasted = self._still.lasted(patience)
        if not lasted.any():
            return self.end()
        has_rested = int(self._still.span[lasted].max()) >= self.rested
        layers = tuple(view.layout.in_order(np.flatnonzero(lasted)))
        return self.hold((layers, has_rested), lambda: self._describe(view, layers, has_rested))

    def _observe_all(self, view: FrameView, pushed: NDArray[np.int32]) -> Judgement | None:
        if not view.scalar("lr") > 0 or not len(pushed) or self._updates.rounds_away(view, pushed).any():
            self._all_still.end()
            return self.stay()
        count = self._all_still.hold(view.step)
        is_rare = count >= 4 and view.step - self._all_still.since >= 2 * self.patience_of_all
        if count < self.patience_of_all and not is_rare:
            return self.stay()
        return self.hold(True, lambda: self._describe_all(view, pushed))

    def _describe(self, view: FrameView, layers: tuple[int, ...], has_rested: bool) -> Judgement:
        layout, chosen, updates = view.layout, np.array(layers, np.int32), self._updates
        first_step = int(self._still.since[chosen].min())
        named = name_layers(layout, layers)
        how = f"the largest weight; the format drops changes below {layout.rounding[layers[0]]:.1e} of it"
        rounding = Evidence("weight_max_abs", layout.path(layers[0]), float(updates.size[layers[0]]), None, how)
        because: tuple[Evidence, ...] = ()
        if any(value == 0 for name, value in view.frame.scalars.items() if name.startswith("lr_")):
            severity, confidence = Severity.MILD, 0.8
            summary = f"The weights of {named} do not change: a parameter group has a learning rate of zero."
            if self._is_forgotten(view, layers, has_rested):
                severity, confidence = Severity.MODERATE, 0.75
                summary += " They still have their random initial values."
            because = (Evidence("lr", None, 0.0, None, "the learning rate of one parameter group"),)
        elif bool(layout.is_low_precision[chosen].all()):
            severity, confidence = Severity.MODERATE, 0.9
            kind = layout.layers[layers[0]].dtype.removeprefix("torch.") or "low precision"
            summary, because = f"The weights of {named} do not change: their updates round away in {kind}.", (rounding,)
        elif bool(updates.rounds_away(view, chosen).all()):
            severity, confidence = Severity.INFO, 0.8
            summary = f"The weights of {named} do not change: their updates are too small for the number format."
            because = (rounding,)
        else:
            severity, confidence = Severity.SEVERE, 0.9
            summary = f"The weights of {named} have not changed since step {first_step}, though gradients arrive."
        evidence = tuple(
            Evidence("update_norm", layout.path(i), 0.0, None,
                     f"exactly zero at {int(self._still.length[i])} measured steps with a gradient; others moved")
            for i in layers[:5]
        )  # fmt: skip
        return Judgement(severity, layers, first_step, confidence, summary, (*evidence, *because))

    def _describe_all(self, view: FrameView, pushed: NDArray[np.int32]) -> Judgement:
        sizes = self._updates.pushed[pushed]
        largest, layer = float(sizes.max()), view.layout.path(int(pushed[np.argmax(sizes)]))
        how = f"largest element of a gradient at step {view.step}, before the optimizer came to use it"
        moves = f"of every weight, at {self._all_still.count} measured steps and all before"
        evidence = (
            Evidence("update_norm", None, 0.0, None, moves),
            Evidence("gradient_max_abs", layer, largest, None, how),
            Evidence("lr", None, view.scalar("lr"), None, "the learning rate is not zero"),
        )
        summary = (
            "No weight has ever moved: gradients arrive, but are gone when the optimizer steps. "
            "Is zero_grad called between backward and step?"
        )
        return Judgement(Severity.CRITICAL, (), self._all_still.since, 0.95, summary, evidence)

    def _is_forgotten(self, view: FrameView, layers: tuple[int, ...], has_rested: bool) -> bool:
        """Weights that nobody has trained, with a rate of zero for long, or in a place where none rests on purpose."""
        parts, layout = self._updates.parts, view.layout
        resting = np.zeros(layout.count, bool)
        resting[list(layers)] = True
        if (has_rested and parts.are_new(layout, layers)) or self._updates.fills_a_gap(view, layers):
            return True
        return bool(parts.unloaded_backbone(layout, resting) or parts.single(layout, resting, drawn=True))

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        shown = {evidence.quantity for evidence in finding.evidence}
        if "gradient_max_abs" in shown:
            return (CLEAR_GRADIENTS,)
        if "weight_max_abs" in shown:
            return (KEEP_A_FLOAT32_MASTER_COPY, RAISE_LEARNING_RATE)
        return (RAISE_THE_GROUP_RATE, FREEZE_OPENLY if "lr" in shown else GIVE_IT_TO_THE_OPTIMIZER)
