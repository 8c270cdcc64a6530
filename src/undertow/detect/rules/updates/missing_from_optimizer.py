"""UPD003: parameters that get a gradient and that no optimizer holds."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import (
    Condition,
    FrameView,
    Judgement,
    LayerStreak,
    LayerValues,
    Limit,
    Shared,
    Stage,
    grown,
)
from undertow.detect.features.parameter_updates import ParameterUpdates
from undertow.detect.features.progress import has_fallen, has_learnt
from undertow.detect.features.remedies import FREEZE_OPENLY, GIVE_IT_TO_THE_OPTIMIZER
from undertow.detect.features.untrained_parts import model_of
from undertow.detect.features.wording import count_of, name_layers
from undertow.schema import Evidence, Finding, GradientState, Remedy, Severity

_KEEP_PARAMETERS_IN_A_LIST = Remedy(
    "keep-parameters-in-a-list",
    "Make a list of the parameters before you count or print them: parameters() can be read only once.",
    "parameters = list(model.parameters())  # or those of a part\n"
    "print(sum(p.numel() for p in parameters))\n"
    "optimizer = $optimizer(parameters, lr=$rate)",
    "The layers begin to move: a schedule tuned without them may need a new look.",
    when_not="The group is filled later, by add_param_group or by hand.",
)


class MissingFromOptimizer(Condition):
    """A trainable parameter gets a gradient, and no optimizer holds it.

    What it sees: A parameter that gets a non-zero gradient at five measured steps while no optimizer holds it, and that
        the program does not move by itself either. Where the program moves all weights by itself: one that the loss
        depends on, for which it asks no gradient and that never moves.
    Why it is bad: The layer keeps its initial values. The rest of the model learns around it, so the loss looks
        healthy. The usual causes are a layer left out of the optimizer, a head replaced after the optimizer was built,
        or an optimizer built before the model was wrapped or moved.
    When it is wrong: When most of the model, or a whole model beside the trained one, is in no optimizer, training only
        the rest is probably meant (a head on features, a student of a teacher): the finding is then mild. It is not
        meant where what is trained gets its data from there and nothing is learnt, as with a GAN's generator that was
        forgotten; where a parameter group without a parameter shows that its generator had been read before; nor with
        weights as PyTorch makes them, with trained layers both before and behind them, or in a model that nothing
        trained gives to or takes from, as a critic: a loss of it is of no use but to train it.
    References: Jiang et al., "Training with Confidence: Catching Silent Errors in Deep Learning Training"
        (TrainCheck), 2025.
        PyTorch documentation, `torch.optim.Optimizer.add_param_group`.
    """

    code, variant, formerly = "UPD003", "missing-from-optimizer", "outside"
    places = ("optimizer",)
    stage, is_exact, is_local = Stage.PROGRAM, True, True
    _updates = Shared(ParameterUpdates)
    meaning = "The layer keeps its initial values while the rest learns around it, so the loss still looks fine"
    remedies = (GIVE_IT_TO_THE_OPTIMIZER, FREEZE_OPENLY, _KEEP_PARAMETERS_IN_A_LIST)
    patience = Limit.plan(5, "measured steps: an optimizer for it may be made after the first ones")
    patience_unseen = Limit.plan(20, "measured steps, where the program may move the weight by itself")
    meant = Limit(0.6, "of all tensors: beyond it, training only the rest is more likely meant than forgotten")

    stalled = Limit.learning(60, "steps without any progress, where what is missing was never trained")
    stalled_if_trained = Limit.learning(300, "steps without any progress, where it may have been trained before")

    _rests = LayerValues(np.bool_, False)  # the weight was seen at the same place twice
    _is_moved = LayerValues(np.bool_, False)  # by the program itself
    _passed_over = LayerValues(np.bool_, False)  # by a program that moves the others by itself

    def __init__(self) -> None:
        self._fed = LayerStreak()
        self._empty_groups = 0.0  # of any optimizer
        self._is_another = False  # nothing that an optimizer holds gets a gradient
        self._level = math.nan  # of the loss when members were first seen
        self._place: NDArray[np.float32] = np.zeros((2, 0), np.float32)  # where a weight is: its norm and its drift

    def grow(self, count: int) -> None:
        super().grow(count)
        self._place = np.stack([grown(row, count, np.nan) for row in self._place])

    def observe(self, view: FrameView) -> Judgement | None:
        self._empty_groups = max(self._empty_groups, view.frame.scalars.get("optimizer_empty_groups", 0.0))
        holders, ids = view.row("gradient_optimizer"), view.ids("gradient")
        states, zeros = view.row("gradient_state"), view.row("gradient_zero_fraction")
        if holders is None or ids is None or states is None or zeros is None:
            return None
        outside = holders == -1
        if not outside.any() and not self.is_open:
            return None
        fed = outside & (states == GradientState.PRESENT) & (zeros < 1)
        self._is_another = not ((holders >= 0) & (states == GradientState.PRESENT)).any()
        stale = fed & self._is_stale(view)
        passed_over = self._is_passed_over(view, outside & (states == GradientState.NONE))
        self._passed_over[ids] = passed_over
        fed |= passed_over
        self._forget(ids[(holders >= 0) | (states == GradientState.FROZEN) | stale])
        self._fed.hold(ids[fed & ~stale], view.step)
        self._follow_weights(view)
        members = (self._fed.lasted(int(self.patience)) & self._rests & ~self._passed_over) | (
            self._fed.lasted(int(self.patience_unseen)) & ~self._is_moved
        )
        if not members.any():
            self._level = math.nan
            return self.end()
        layers = tuple(view.layout.in_order(np.flatnonzero(members)))
        own = tuple(i for i in layers if not self._is_a_model_beside(view, i))
        layers = own or layers
        holds_up = self._holds_up(view, layers)
        return self.hold((layers, holds_up), lambda: self._describe(view, layers, holds_up, not own))

    def _forget(self, ids: NDArray[np.int32]) -> None:
        self._fed.end(ids)
        self._place[:, ids] = np.nan
        self._rests[ids] = self._is_moved[ids] = False

    def _is_stale(self, view: FrameView) -> NDArray[np.bool_]:
        """What nobody uses any more keeps its last gradient, the same to the last bit, while others change."""
        norms, before = np.asarray(view.row("gradient_norm")), self._updates.norm_before
        others_change = ((norms != before) & np.isfinite(norms) & np.isfinite(before)).any()
        return (norms == before) & bool(others_change)

    def _is_passed_over(self, view: FrameView, missing: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Where the program moves the others by itself: the loss depends on it, and it has no gradient and rests."""
        ids, moves, updated = view.ids("gradient"), view.row("update_norm"), view.ids("update")
        by_hand = math.isnan(view.scalar("lr"))  # no optimizer steps
        if ids is None or moves is None or updated is None or not by_hand or not (moves > 0).any():
            return np.zeros_like(missing)
        return missing & np.isin(ids, updated[moves == 0]) & np.isfinite(view.layout.order[ids])

    def _follow_weights(self, view: FrameView) -> None:
        """Of those outside: weights that are at another place than before have an update of the program's own."""
        ids, norms, drifts = view.ids("weight"), view.row("weight_norm"), view.row("weight_drift")
        if ids is None or norms is None or drifts is None:
            return
        outside = self._fed.length[ids] > 0
        chosen, now = ids[outside], np.stack([norms, drifts])[:, outside]
        before = self._place[:, chosen]
        known = ~np.isnan(now[0]) & ~np.isnan(before[0])
        moved = known & ((now != before) & ~np.isnan(now) & ~np.isnan(before)).any(axis=0)
        self._place[:, chosen] = np.where(np.isnan(now[0]), before, now)
        self._rests[chosen] = (self._rests[chosen] | known) & ~moved
        self._is_moved[chosen] |= moved
        self._fed.end(chosen[moved])

    def _held(self) -> list[int]:
        return np.flatnonzero(self._updates.held).tolist()

    def _is_a_model_beside(self, view: FrameView, layer: int) -> bool:
        """Whether it is of a model of which no optimizer holds anything: a teacher, or one that judges results."""
        return model_of(view.layout, layer) not in {model_of(view.layout, i) for i in self._held()}

    def _holds_up(self, view: FrameView, layers: tuple[int, ...]) -> bool:
        """What is trained gets its data from these, and nothing has been learnt since they were left out."""
        layout, loss = view.layout, view.loss
        if loss is None:
            return False
        self._level = loss.level if math.isnan(self._level) else self._level
        steps = view.step - int(self._fed.since[list(layers)].min())
        if steps < self.stalled or has_learnt(loss) or has_fallen(loss, self._level):
            return False
        if steps < self.stalled_if_trained and not self._updates.parts.are_new(layout, layers):
            return False
        trained = {layout.layers[i].group for i in self._held()}
        return layout.feeds({layout.layers[i].group for i in layers}, trained)

    def _is_of_no_use(self, view: FrameView, layers: tuple[int, ...]) -> bool:
        """A new model gets gradients, and shares no path of data with anything that is trained."""
        layout, own = view.layout, {view.layout.layers[i].group for i in layers}
        trained = {layout.layers[i].group for i in self._held()}
        if not self._updates.parts.are_new(layout, layers) or not trained or not own <= layout.paths_in_graph:
            return False
        return not layout.feeds(own, trained) and not layout.feeds(trained, own)

    def _describe(self, view: FrameView, layers: tuple[int, ...], holds_up: bool, is_beside: bool) -> Judgement:
        layout = view.layout
        first_step = int(self._fed.since[list(layers)].min())
        is_passed_over = bool(self._passed_over[list(layers)].all())
        got = "no gradient was asked for and it did not move" if is_passed_over else "got a non-zero gradient"
        evidence = tuple(
            Evidence("gradient_optimizer", layout.path(i), -1.0, 0.0,
                     f"{got} at {int(self._fed.length[i])} measured steps; no optimizer holds it")
            for i in layers[:5]
        )  # fmt: skip
        named, verb = name_layers(layout, layers), "is" if len(layers) == 1 else "are"
        if self._empty_groups:
            summary = f"{named} {verb} in no optimizer: a parameter group that was made for them is empty."
            how = "groups without a parameter: a generator, as parameters() returns, is empty once it has been read"
            empty = Evidence("optimizer_empty_groups", None, self._empty_groups, 0.0, how)
            return Judgement(Severity.SEVERE, layers, first_step, 0.98, summary, (*evidence, empty))
        if holds_up:
            summary = (
                f"{named} {verb} in no optimizer: gradients arrive and are never used. What is trained gets its data "
                "from there, and the loss has not fallen."
            )
            if view.loss is not None:
                how = f"the level of the loss; it began at {view.loss.start:.3g}"
                evidence = (*evidence, Evidence("loss", None, view.loss.level, None, how))
            return Judgement(Severity.SEVERE, layers, first_step, 0.95, summary, evidence)
        if self._is_another and self._held():
            summary = (
                f"{named} {verb} in no optimizer, and nothing that the optimizer holds gets a gradient: it was made "
                "from another model than the one that is trained."
            )
            return Judgement(Severity.SEVERE, layers, first_step, 0.97, summary, evidence)
        if is_beside and self._is_of_no_use(view, layers):
            summary = (
                f"{named} {verb} in no optimizer: a loss is computed of a new model, its gradients arrive, and nothing "
                "uses them."
            )
            return Judgement(Severity.MODERATE, layers, first_step, 0.75, summary, evidence)
        if is_beside or (self._is_most(view, layers) and not self._updates.fills_a_gap(view, layers)):
            part = "a whole model" if is_beside else "most of the model"
            summary = (
                f"{count_of(len(layers), 'trainable tensor')}, {part}, are in no optimizer ({named}); "
                "if that is meant, requires_grad_(False) would save their gradients."
            )
            return Judgement(Severity.MILD, layers, first_step, 0.6, summary, evidence)
        summary = f"{named} {verb} in no optimizer: gradients arrive and are never used."
        if is_passed_over:  # who writes the update writes the list, too: it may be meant
            summary = f"{named} {verb} not among the weights that the program moves, though the loss depends on them."
            return Judgement(Severity.MODERATE, layers, first_step, 0.75, summary, evidence)
        return Judgement(Severity.SEVERE, layers, first_step, 0.98, summary, evidence)

    def _is_most(self, view: FrameView, layers: tuple[int, ...]) -> bool:
        """Of the tensors and of their elements: biases and scales are many tensors, and few numbers."""
        held = self._updates.held
        if len(layers) <= self.meant * max(1, len(layers) + int(held.sum())):
            return False
        sizes = np.zeros(view.layout.count)
        for layer in view.layout.layers.parameters:
            sizes[layer.id] = layer.parameter_count
        return sizes[list(layers)].sum() > sizes[held].sum()

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        if any(evidence.quantity == "optimizer_empty_groups" for evidence in finding.evidence):
            return (_KEEP_PARAMETERS_IN_A_LIST, GIVE_IT_TO_THE_OPTIMIZER)
        return (GIVE_IT_TO_THE_OPTIMIZER, FREEZE_OPENLY) if finding.severity.is_alarm else (FREEZE_OPENLY,)
