"""ACT001: units of a ReLU that are never active."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, LayerStreak, LayerValues, Limit, Stage
from undertow.detect.features.module_structure import NONE, structure_of
from undertow.detect.features.remedies import FREE_THE_LAST_LAYER, LOWER_LEARNING_RATE, REVIVE_THE_UNITS
from undertow.detect.features.wording import count_of
from undertow.schema import Evidence, Finding, LayerKind, LossKind, Remedy, Severity

_ALWAYS_ALIVE = ("LeakyReLU", "PReLU", "RReLU")
_OTHERS_THAT_DIE = ("GELU", "Threshold", "Hardswish")  # exactly zero far enough below zero
_PREDICTING = (LossKind.CROSS_ENTROPY, LossKind.MEAN_SQUARE, LossKind.ABSOLUTE, LossKind.BINARY_OF_LOGITS)


class DeadUnits(Condition):
    """The units of a ReLU are never active.

    What it sees: The outputs of ReLU modules (and of others that are exactly zero for negative inputs), and of ReLUs
        applied as functions to the output of a layer. A layer is reported when every output was exactly zero at two
        sampled steps, or when nine of ten of its units (channels of a convolution), or half of the model's own outputs,
        were silent for 1,000 samples, or for 250 of which the last three quarters woke none of them up. Nine of ten
        zero outputs are enough where the biases began far below zero. Named are the first such layer in execution order
        and the layer that feeds it.
    Why it is bad: A unit that is never active passes no gradient on: it cannot recover, and when a whole layer is dead
        everything before it stops learning. The usual causes are a large negative bias, a learning rate that once threw
        the weights far off, inputs that are not scaled, and a ReLU on the model's own outputs.
    When it is wrong: The share of zeros alone says nothing: many healthy networks have 70–90 % zeros, so only units
        that are never active are counted. A ReLU applied as a function to anything but the output of a layer (or its
        sum with another one) is seen through the gradient only (GRD004). A hinge that is content stands last, too, and
        is not judged.
    References: Lu et al., "Dying ReLU and Initialization: Theory and Numerical Examples", 2019 (arXiv 1903.06733).
    """

    code, variant, formerly = "ACT001", "dead-units", "dead rectified dead-outputs rectified-logits"
    places = ("initialisation", "parameter")
    stage, needs_growth = Stage.SIGNAL, True
    needs = frozenset({"activation"})
    meaning = "Dead units pass no gradient: neither they nor the layers before them can learn"
    remedies = (REVIVE_THE_UNITS, LOWER_LEARNING_RATE, FREE_THE_LAST_LAYER)

    share = Limit(
        0.9, "of a layer's units; sparse networks have 70 to 90 % zeros, yet nearly every unit speaks at times"
    )
    share_of_outputs = Limit(0.5, "of the logits behind a ReLU: half of the classes can never win")
    silent_frames = Limit.chance(2, "sampled steps at which every output was zero: no healthy ReLU does that twice")
    rows = Limit(1000, "samples for which the units must have been silent")
    frames = Limit.sample(4, "sampled steps at least over which these samples came")
    settled = Limit(4.0, "times as many samples as when a unit last woke up: rare units would have woken up meanwhile")
    settled_rows = Limit(250, "samples that are enough where no unit woke up for so long")
    settled_frames = Limit.sample(5, "sampled steps at least over which these came")
    frames_alone = Limit.sample(20, "sampled steps that are enough where the number of samples is not known")
    biased = Limit(4.0, "times what differs between samples, by which the first biases lie below zero")
    biased_zeros = Limit(0.9, "of the outputs of such a layer: these units hardly ever speak")
    zeros_of_a_layer = Limit(0.5, "of a layer's own outputs: sums are exactly zero only where the weights are")

    _rows = LayerValues(np.float64, 0.0)  # samples seen while a layer's units were silent
    _share = LayerValues(np.float64, 0.0)
    _spoke = LayerValues(np.float64, 0.0)  # of those samples, how many had come when a unit last woke up

    def __init__(self) -> None:
        self._layout: LayerIndex | None = None
        self._candidates: NDArray[np.int32] = np.zeros(0, np.int32)
        self._hidden: NDArray[np.bool_] = np.zeros(0, bool)
        self._owning: NDArray[np.bool_] = np.zeros(0, bool)  # layers whose function has no module of its own
        self._silent, self._dead = LayerStreak(), LayerStreak()
        self._held_down = LayerStreak()  # outputs nearly all zero, behind biases far below zero
        self._biased: NDArray[np.bool_] | None = None  # candidates whose layer began with such biases
        self._samples = self._kind = np.nan  # samples of a batch and kind of the loss, when last known
        self._building = False  # some layer is silent, or was until this frame

    def observe(self, view: FrameView) -> Judgement | None:
        zero_row, dead_row = view.row("activation_zero_fraction"), view.row("activation_dead_fraction")
        if zero_row is None or dead_row is None:
            return None
        suspect = (zero_row >= self.biased_zeros) | (dead_row >= self.share_of_outputs)
        if self._biased is not None and not self._building and not suspect.any():
            return None
        if view.layout is not self._layout:
            self._find_candidates(view.layout)
        if self._biased is None and view.row("weight_mean") is not None:
            self._biased = self._begin_biased(view)
        ids = self._candidates
        zeros, dead = view.all_layers("activation_zero_fraction")[ids], view.all_layers("activation_dead_fraction")[ids]
        measured = ~np.isnan(zeros)
        if not measured.any():
            return None
        # What stands last may be a hinge that is content: it counts only as a prediction.
        kind = view.scalar("loss_kind")
        self._kind = self._kind if np.isnan(kind) else kind
        is_prediction = self._kind in _PREDICTING and not np.isnan(dead).all()
        judged = measured & (self._hidden | is_prediction)
        # A layer that puts out zeros itself (one that starts at zero, say) has no function to blame.
        judged &= ~self._owning | (zeros < self.zeros_of_a_layer)
        silent = judged & np.asarray(np.where(self._owning, dead == 1, zeros == 1), bool)
        mostly = judged & (dead >= np.where(self._hidden, self.share, self.share_of_outputs))
        self._count(view, measured, silent, mostly, dead)
        held = self._hold_down(view, measured, zeros, dead)
        due = ids[(self._silent.length[ids] >= self.silent_frames) | self._dead_for_long(ids) | held]
        members = tuple(view.layout.in_order(due))
        # Which one is first decides the words: those behind it come and go.
        return self.hold(members[0], lambda: self._describe(view.layout, members)) if members else self.end()

    def _count(
        self,
        view: FrameView,
        measured: NDArray[np.bool_],
        silent: NDArray[np.bool_],
        mostly: NDArray[np.bool_],
        dead: NDArray[np.float32],
    ) -> None:
        ids, rows = self._candidates, view.scalar("loss_rows")
        self._samples = rows = self._samples if np.isnan(rows) else rows
        self._silent.end(ids[measured & ~silent])
        self._dead.end(ids[measured & ~mostly])
        self._rows[ids[measured & ~mostly]] = 0.0
        self._building = bool(self._silent.length[ids].any() or self._dead.length[ids].any())
        if silent.any() or mostly.any():
            self._building = True
            self._silent.hold(ids[silent], view.step)
            self._dead.hold(ids[mostly], view.step)
            self._rows[ids[mostly]] += 0.0 if np.isnan(rows) else rows
            woken = ids[mostly & ((self._dead.length[ids] == 1) | (dead < self._share[ids]))]
            self._spoke[woken] = self._rows[woken]
            self._share[ids[mostly]] = dead[mostly]
            self._share[ids[silent]] = 1.0

    def _dead_for_long(self, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        lasted, rows = self._dead.length[ids], self._rows[ids]
        enough = (lasted >= self.frames) & (rows >= self.rows)
        # Of units that speak rarely, more and more have spoken as samples come; of dead ones none, whatever comes.
        settled = self._hidden & (rows >= self.settled * self._spoke[ids])
        enough |= settled & (lasted >= self.settled_frames) & (rows >= self.settled_rows)
        return enough | (lasted >= self.frames_alone)

    def _hold_down(
        self, view: FrameView, measured: NDArray[np.bool_], zeros: NDArray[np.float32], dead: NDArray[np.float32]
    ) -> NDArray[np.bool_]:
        """Layers most of whose outputs are zero since they began with such biases: those units hardly ever speak."""
        ids = self._candidates
        if self._biased is None or not self._biased.any():
            return np.zeros(len(ids), bool)
        quiet = np.where(self._owning, dead >= self.share_of_outputs, zeros >= self.biased_zeros)
        quiet = measured & self._biased & quiet
        self._held_down.follow(ids, measured, quiet, view.step)
        unknown = quiet & (self._share[ids] == 0)
        self._share[ids[unknown]] = np.where(self._owning, dead, zeros)[unknown]
        self._building |= bool(quiet.any())
        return self._held_down.length[ids] >= self.silent_frames

    def _begin_biased(self, view: FrameView) -> NDArray[np.bool_]:
        """Whether the biases of what each candidate receives began below zero by far more than samples differ."""
        layout, structure = view.layout, structure_of(view.layout)
        biases = {layer.group: layer.id for layer in layout.layers.parameters if layer.kind is LayerKind.BIAS}
        mean, largest = view.all_layers("weight_mean"), view.all_layers("weight_max_abs")
        spread = view.all_layers("activation_std") * np.sqrt(view.all_layers("activation_sample_spread"))
        out = np.zeros(len(self._candidates), bool)
        for place, module in enumerate(self._candidates.tolist()):
            source = module if self._owning[place] else structure.source(module)
            bias = biases.get(layout.path(source))
            if bias is not None and self._hidden[place] and structure.matrix[source] != NONE:
                out[place] = largest[bias] > self.biased * spread[source] and mean[bias] < -spread[source]
        return out

    def _find_candidates(self, layout: LayerIndex) -> None:
        self._layout, self._biased = layout, None
        structure = structure_of(layout)
        chosen = [
            i for i in structure.sequence
            if structure.owns(i) or (_can_die(layout.layers[i].module_type) and structure.source(i) != NONE)
        ]  # fmt: skip
        self._candidates = np.array(chosen, np.int32)
        self._hidden = np.array([structure.is_hidden(i) for i in chosen], bool)
        self._owning = np.array([structure.owns(i) for i in chosen], bool)

    def _describe(self, layout: LayerIndex, members: tuple[int, ...]) -> Judgement:
        """The first dead layer: those behind it see a constant and often die as a consequence."""
        structure = structure_of(layout)
        first, source = members[0], structure.source(members[0])
        share, whole = self._share[first], bool(self._share[first] == 1)
        if structure.owns(first):
            layers, place = (first,), f"the ReLU behind {layout.path(first)}"
        else:
            layers = (source, first) if structure.is_hidden(first) else (first, source)
            place = f"{layout.path(first)}, behind {layout.path(source)}"
        since = self._silent if whole and self._silent.length[first] else self._dead
        since = since if since.length[first] else self._held_down
        if self._dead.length[first] or self._silent.length[first]:
            many = f", and of {count_of(len(members) - 1, 'layer')} after it" if len(members) > 1 else ""
            summary = f"{'All units' if whole else f'{share:.0%} of the units'} of {place}{many} are never active."
        else:
            summary = f"{share:.0%} of the outputs of {place} are zero: its biases started far below zero."
        how = "share of units with zero output for all recent samples"
        evidence = tuple(
            Evidence("activation_dead_fraction", layout.path(i), float(self._share[i]), None, how) for i in members[:3]
        )
        if not structure.is_hidden(first):
            summary += " It cuts off the model's own output."
            cut_off = "what the loss is given comes out of a ReLU"
            evidence += (Evidence("loss_input_is_rectified", layout.path(first), 1.0, 0.0, cut_off),)
        severity, confidence = (Severity.SEVERE, 0.96) if whole else (Severity.MODERATE, 0.85)
        return Judgement(severity, layers, int(since.since[first]), confidence, summary, evidence)

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        if any(evidence.quantity == "loss_input_is_rectified" for evidence in finding.evidence):
            return (FREE_THE_LAST_LAYER, REVIVE_THE_UNITS)
        return cls.remedies[:2]


def _can_die(module_type: str) -> bool:
    if module_type.endswith(("ReLU", "ReLU6")):
        return module_type not in _ALWAYS_ALIVE
    return module_type in _OTHERS_THAT_DIE
