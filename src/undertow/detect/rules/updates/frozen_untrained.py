"""UPD003: layers that are frozen with random weights."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, LayerValues, Limit, Shared, Stage
from undertow.detect.features.parameter_updates import ParameterUpdates
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.remedies import UNFREEZE
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, GradientState, Severity


class FrozenUntrained(Condition):
    """Layers are frozen at their random initial weights.

    What it sees: Layers with `requires_grad` set to False that still hold the random weights PyTorch gives new ones: a
        few amid layers that train (after 30 steps); a deep part under a small head, all of whose normalisations have a
        scale of exactly one (30); several layers and blocks (100); a part at the front under a network that is trained
        (100), or from which nothing is learnt (55).
    Why it is bad: The layers never learn, and the rest has to make do with random features: the loss still falls. The
        usual causes are a checkpoint that was never loaded, a freeze by name that catches too much, and code from a
        fine-tuning script.
    When it is wrong: Frozen layers are left alone when they are a named part as a whole (a new one excepted that has
        normalisations, or with which nothing is learnt), a copy of a trained layer, the base of an adapter, more than
        half as many as the trained ones, released later, or of modules that no forward pass uses. A single layer of
        random features that is meant to stay random is reported.
    References: PyTorch documentation, "Autograd mechanics", section "Setting requires_grad".
    """

    code, variant, formerly = "UPD003", "frozen-untrained", "frozen"
    places = ("freeze",)
    stage, is_exact, is_local = Stage.PROGRAM, True, True
    _updates = Shared(ParameterUpdates)
    meaning = "These layers keep their random values while the rest learns around them, so the loss still looks fine"
    remedies = (UNFREEZE,)
    patience = Limit.chance(5, "measured steps, or three over four times as many: a freeze may be undone at once")
    steps = Limit.plan(30, "steps: a layer that waits for its turn has had it by then")
    steps_in_vain = Limit.learning(55, "steps in which nothing is learnt from what is frozen")
    steps_of_many = Limit.plan(100, "steps: who releases one layer after the other has released the first by then")

    _frozen = LayerValues(np.bool_, False)
    _known = LayerValues(np.bool_, False)  # whether it is frozen
    _ran = LayerValues(np.bool_, False)

    def __init__(self) -> None:
        self._found: list[int] = []
        self._since = 0  # the set of frozen layers is what it is
        self._measured = 0  # steps since then
        self._wanted = 0.0  # steps it must have been so, until there is more to say
        self._is_waiting = self._is_meant = False
        self._knows_calls = False  # some frame has told which modules run

    @property
    def is_calm(self) -> bool:
        return not self._is_waiting and not self.is_open

    @property
    def _may_run(self) -> NDArray[np.bool_]:
        """What no forward pass has used: nothing is learnt around it."""
        return self._ran if self._knows_calls else np.ones_like(self._ran)

    def _note_runs(self, view: FrameView) -> None:
        every = np.arange(view.layout.count, dtype=np.int32)
        calls = view.calls(every) if "activation" in view.frame.blocks else None
        if calls is not None:
            self._knows_calls = True
            self._ran |= calls > 0

    def observe(self, view: FrameView) -> Judgement | None:
        if self._is_waiting or not self._measured:
            self._note_runs(view)
        states, ids = view.row("gradient_state"), view.ids("gradient")
        if states is None or ids is None:
            return None
        before, now = self._frozen[ids], states == GradientState.FROZEN
        if not now.any() and not before.any():
            self._known[ids] = True
            return self.end()
        now = np.where(np.isnan(states), before, now)
        if not np.array_equal(now, before):
            # Who releases layers has a plan, and so has who freezes them while training.
            self._is_meant |= bool(((before != now) & self._known[ids]).any())
            self._frozen[ids] = now
            self._measured, self._since, self._wanted = 0, view.step, 0.0
            self._is_waiting = bool(now.any()) and not self._is_meant
            self._found = []
        self._known[ids] = True
        if self._is_waiting:
            self._measured += 1
            lasted = view.step - self._since
            long = self._measured >= 3 and lasted >= 4 * self.patience
            if self._updates.has_moved and (self._measured >= self.patience or long) and lasted >= self._wanted:
                self._judge(view, lasted)
        if not self._found:
            return self.end()
        layers = tuple(view.layout.in_order(self._found))
        return self.hold(layers, lambda: self._describe(view.layout, layers))

    def _judge(self, view: FrameView, lasted: int) -> None:
        """What there is to say after so many steps, and after how many there may be more."""
        layout, parts = view.layout, self._updates.parts
        frozen = self._frozen & self._may_run
        layers, steps = parts.unloaded_backbone(layout, frozen) or parts.single(layout, frozen), self.steps
        if not layers:
            layers, steps = parts.many(layout, frozen), self.steps_of_many
        if not layers:
            layers = parts.front(layout, frozen)
            if not parts.feeds_a_network(layout, frozen):
                # Random features on purpose are made so that the rest can learn from them.
                steps = self.steps_in_vain
                if lasted >= steps and (view.loss is None or has_learnt(view.loss)):
                    layers = []
        self._is_waiting = bool(layers) and lasted < steps
        self._wanted = float(steps) if self._is_waiting else 0.0
        self._found = [] if self._is_waiting else layers

    def _describe(self, layout: LayerIndex, layers: tuple[int, ...]) -> Judgement:
        verb = "is" if len(layers) == 1 else "are"
        summary = f"{name_layers(layout, layers)} {verb} frozen at random initial weights, while the rest learns."
        how = "requires_grad is False, and the weights are distributed like random initial values"
        if self._updates.parts.unloaded_backbone(layout, self._frozen & self._may_run):
            summary += " Was a checkpoint to be loaded?"
            how = "requires_grad is False, and every normalisation among them still has a scale of exactly one"
        evidence = tuple(
            Evidence("gradient_state", layout.path(i), float(GradientState.FROZEN), None, how) for i in layers[:5]
        )
        return Judgement(Severity.MODERATE, layers, self._since, 0.75, summary, evidence)
