"""ACT001."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.consecutive import LayerStreak, grown
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.detect.features.module_structure import NONE, structure_of
from undertow.detect.features.wording import count_of
from undertow.detect.rectified_output import RectifiedOutput
from undertow.detect.rule import Verdict, Waiting
from undertow.schema.findings import Evidence
from undertow.schema.layers import LayerKind
from undertow.schema.severity import Severity

_ALWAYS_ALIVE = ("LeakyReLU", "PReLU", "RReLU")
_OTHERS_THAT_DIE = ("GELU", "Threshold", "Hardswish")  # exactly zero far enough below zero
_PREDICTING = (1.0, 3.0, 4.0, 6.0)  # values of `loss_kind` that compare the model's output with targets


class DeadUnits(Waiting):
    """The units of a ReLU are never active.

    What it sees
    ------------
    The outputs of ReLU modules (and of others that are exactly zero for negative inputs), and of ReLUs that are applied
    as functions to the output of a layer, in the steps in which activations are sampled. A layer is reported when every
    output was exactly zero at two sampled steps, or when nine of ten of its units (channels of a convolution) were
    silent for at least 1,000 samples, or for 250 of which the last three quarters woke none of them up: of units that
    speak rarely, more and more have spoken as samples come. Nine of ten outputs that are zero are enough, at two
    sampled steps, where the layer began with biases below zero by four times as much as its outputs differ. Named are
    the first such layer in execution order and the layer whose sums it receives; those behind it see a constant and
    often die as a consequence. For a ReLU behind the last layer (on the logits) half of the units are enough. Logits of
    a cross-entropy, or of a binary one, that come out of a ReLU are reported however many of them are zero: the graph
    of the loss tells.

    Why it is bad
    -------------
    A unit that is never active passes no gradient on: it cannot recover, and when a whole layer is dead everything
    before it stops learning. The usual causes are a large negative bias, a learning rate that once threw the
    weights far off, and inputs that are not scaled.

    When it is wrong
    ----------------
    The share of zeros alone says nothing: many healthy networks have 70–90 % zeros, so only units that never speak are
    counted. A ReLU applied as a function to anything but the output of a layer (or its sum with another one) is seen
    through the gradient only (GRD004).

    References
    ----------
    Lu et al., "Dying ReLU and Initialization: Theory and Numerical Examples", 2019 (arXiv 1903.06733).
    """

    code: ClassVar[str] = "ACT001"
    waits_for: ClassVar[frozenset[str]] = frozenset({"activation", "loss_input_is_rectified"})

    def __init__(self) -> None:
        self._layout: LayerIndex | None = None
        self._candidates: NDArray[np.int32] = np.zeros(0, np.int32)
        self._hidden: NDArray[np.bool_] = np.zeros(0, bool)
        self._owning: NDArray[np.bool_] = np.zeros(0, bool)  # layers whose function has no module of its own
        self._silent, self._dead = LayerStreak(), LayerStreak()
        self._rows: NDArray[np.float64] = np.zeros(0)  # samples seen while a layer's units were silent
        self._share: NDArray[np.float64] = np.zeros(0)
        self._spoke: NDArray[np.float64] = np.zeros(0)  # of those samples, how many had come when a unit last woke up
        self._samples = np.nan  # of a batch, when last known
        self._biased: NDArray[np.bool_] | None = None  # candidates whose layer began with biases far below zero
        self._held_down = LayerStreak()  # …and whose outputs are nearly all zero
        self._building = False  # some layer is silent, or was until this frame
        self._condition, self._rectified = Condition("dead"), RectifiedOutput()

    def grow(self, count: int) -> None:
        self._silent.grow(count)
        self._dead.grow(count)
        self._held_down.grow(count)
        self._rows = grown(self._rows, count, 0.0)
        self._share = grown(self._share, count, 0.0)
        self._spoke = grown(self._spoke, count, 0.0)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        return (*self._observe_units(view), *self._rectified.observe(view, self._condition.is_open))

    def _observe_units(self, view: FrameView) -> tuple[Verdict, ...]:
        zero_row, dead_row = view.row("activation_zero_fraction"), view.row("activation_dead_fraction")
        if zero_row is None or dead_row is None:
            return ()
        suspect = (zero_row >= limit.BIASED_ZEROS) | (dead_row >= limit.DEAD_SHARE_OF_OUTPUTS)
        if self._biased is not None and not self._building and not suspect.any():
            return ()
        if view.layout is not self._layout:
            self._look(view.layout)
        if self._biased is None and view.row("weight_mean") is not None:
            self._biased = self._begin_biased(view)
        ids = self._candidates
        zeros, dead = view.all_layers("activation_zero_fraction")[ids], view.all_layers("activation_dead_fraction")[ids]
        measured = ~np.isnan(zeros)
        if not measured.any():
            return ()
        kind, rows = view.scalar("loss_kind"), view.scalar("loss_rows")
        self._samples = rows = self._samples if np.isnan(rows) else rows
        # What stands last may be a hinge that is content: it counts only as a prediction.
        judged = measured & (self._hidden | (kind in _PREDICTING and not np.isnan(dead).all()))
        # A layer that puts out zeros itself (one that starts at zero, say) has no function to blame.
        judged &= ~self._owning | (zeros < limit.ZEROS_OF_A_LAYER)
        silent = judged & np.asarray(np.where(self._owning, dead == 1, zeros == 1), bool)
        mostly = judged & (dead >= np.where(self._hidden, limit.DEAD_SHARE, limit.DEAD_SHARE_OF_OUTPUTS))
        self._silent.end(ids[measured & ~silent])
        self._dead.end(ids[measured & ~mostly])
        self._rows[ids[measured & ~mostly]] = 0.0
        self._building = bool(self._silent.length[ids].any() or self._dead.length[ids].any())
        held = self._hold_down(view, measured, zeros, dead)
        if silent.any() or mostly.any():
            self._building = True
            self._silent.hold(ids[silent], view.step)
            self._dead.hold(ids[mostly], view.step)
            self._rows[ids[mostly]] += 0.0 if np.isnan(rows) else rows
            woken = ids[mostly & ((self._dead.length[ids] == 1) | (dead < self._share[ids]))]
            self._spoke[woken] = self._rows[woken]
            self._share[ids[mostly]] = dead[mostly]
            self._share[ids[silent]] = 1.0
        lasted = self._dead.length[ids]
        enough = (lasted >= limit.DEAD_FRAMES) & (self._rows[ids] >= limit.DEAD_ROWS)
        # Of units that speak rarely, more and more have spoken as samples come; of dead ones none, whatever comes.
        settled = self._hidden & (self._rows[ids] >= limit.DEAD_SETTLED * self._spoke[ids])
        enough |= settled & (lasted >= limit.DEAD_SETTLED_FRAMES) & (self._rows[ids] >= limit.DEAD_SETTLED_ROWS)
        due = ids[
            (self._silent.length[ids] >= limit.SILENT_FRAMES) | enough | (lasted >= limit.DEAD_FRAMES_ALONE) | held
        ]
        if not len(due):
            return self._condition.end()
        members = tuple(view.layout.in_order(due))
        # Which one is first decides the words: those behind it come and go.
        return self._condition.hold(members[0], lambda: self._verdict(view, members))

    def _hold_down(
        self, view: FrameView, measured: NDArray[np.bool_], zeros: NDArray[np.float32], dead: NDArray[np.float32]
    ) -> NDArray[np.bool_]:
        """Layers most of whose outputs are zero since they began with such biases: those units hardly ever speak."""
        ids = self._candidates
        if self._biased is None or not self._biased.any():
            return np.zeros(len(ids), bool)
        quiet = np.where(self._owning, dead >= limit.DEAD_SHARE_OF_OUTPUTS, zeros >= limit.BIASED_ZEROS)
        quiet = measured & self._biased & quiet
        self._held_down.end(ids[measured & ~quiet])
        self._held_down.hold(ids[quiet], view.step)
        unknown = quiet & (self._share[ids] == 0)
        self._share[ids[unknown]] = np.where(self._owning, dead, zeros)[unknown]
        self._building |= bool(quiet.any())
        return self._held_down.length[ids] >= limit.SILENT_FRAMES

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
                out[place] = largest[bias] > limit.BIASED * spread[source] and mean[bias] < -spread[source]
        return out

    def _look(self, layout: LayerIndex) -> None:
        self._layout, self._biased = layout, None
        structure = structure_of(layout)
        chosen = [
            i for i in structure.sequence
            if structure.owns(i) or (_can_die(layout.layers[i].module_type) and structure.source(i) != NONE)
        ]  # fmt: skip
        self._candidates = np.array(chosen, np.int32)
        self._hidden = np.array([structure.is_hidden(i) for i in chosen], bool)
        self._owning = np.array([structure.owns(i) for i in chosen], bool)

    def _verdict(self, view: FrameView, members: tuple[int, ...]) -> Verdict:
        layout, structure = view.layout, structure_of(view.layout)
        first, source = members[0], structure.source(members[0])
        whole = bool(self._share[first] == 1)
        if structure.owns(first):
            layers, place = (first,), f"the ReLU behind {layout.path(first)}"
        else:
            layers = (source, first) if structure.is_hidden(first) else (first, source)
            place = f"{layout.path(first)}, behind {layout.path(source)}"
        since = self._silent if whole and self._silent.length[first] else self._dead
        since = since if since.length[first] else self._held_down
        many = f", and of {count_of(len(members) - 1, 'layer')} after it" if len(members) > 1 else ""
        share = "Every unit" if whole else f"{self._share[first]:.0%} of the units"
        by_bias = self._held_down.length[first] > 0 and not (self._dead.length[first] or self._silent.length[first])
        if by_bias:
            summary = (
                f"{self._share[first]:.0%} of the outputs of {place} are zero: it began with biases far below zero."
            )
        else:
            summary = f"{share} of {place}{many}: never active."
        if not structure.is_hidden(first):
            summary += " It cuts off the model's own output."
        how = "share of units that were silent in all recent samples"
        evidence = tuple(
            Evidence("activation_dead_fraction", layout.path(i), float(self._share[i]), None, how) for i in members[:3]
        )
        severity = Severity.SEVERE if whole else Severity.MODERATE
        first_step = int(since.since[first])
        return Verdict("dead", True, severity, layers, first_step, 0.96 if whole else 0.85, summary, evidence)


def _can_die(module_type: str) -> bool:
    return (module_type.endswith(("ReLU", "ReLU6")) and module_type not in _ALWAYS_ALIVE) or (
        module_type in _OTHERS_THAT_DIE
    )
