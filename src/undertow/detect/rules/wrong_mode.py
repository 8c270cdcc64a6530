"""MOD001."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.consecutive import LayerStreak, grown
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.detect.features.module_structure import NONE, is_batch_normalisation, structure_of
from undertow.detect.features.wording import name_layers
from undertow.detect.heavy_dropout import HeavyDropout
from undertow.detect.redrawn_masks import RedrawnMasks
from undertow.detect.rule import Verdict, Waiting
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class WrongMode(Waiting):
    """Batch normalisation or dropout runs in evaluation mode while the model is trained, or drops nearly everything.

    What it sees
    ------------
    The mode of every batch normalisation and dropout in the forward passes that lead to an optimizer step. It is
    reported at two sampled steps in a row: a normalisation whose running averages were never touched (its output is
    its input) although its scale is trained; a whole model in evaluation mode, from the start or since some step, when
    a validation did not switch it back; and a dropout in evaluation mode behind a trained layer that is in training
    mode. Also a dropout (or anything else that draws random numbers) which runs once more in the backward pass, because
    of checkpointing, and does not begin with the same state of the random generator as before. And, at the
    first sampled step, a dropout in training mode that erases 90 % and more: it was given the share to keep.

    Why it is bad
    -------------
    In evaluation mode batch normalisation uses running averages that no longer follow the data (at the start they
    are 0 and 1, so nothing is normalised at all), and dropout does nothing. The loss may still fall: the fault is
    silent until it is not. With masks that are drawn again, the gradient is that of another network than the one that
    the loss was computed with. Dropout of nearly everything leaves too little signal to learn from.

    When it is wrong
    ----------------
    Fine-tuning with frozen statistics is healthy: batch normalisations alone in evaluation mode, with averages that
    have been learnt, are not reported, nor are frozen models such as teachers. Somebody who turns dropout off on
    purpose by `model.eval()` is better served by a rate of 0.

    References
    ----------
    PyTorch documentation, `torch.nn.Module.eval` and `torch.nn.BatchNorm2d`.
    Ioffe and Szegedy, "Batch Normalization", 2015 (arXiv 1502.03167).
    """

    code: ClassVar[str] = "MOD001"
    waits_for: ClassVar[frozenset[str]] = frozenset({"activation"})

    def __init__(self) -> None:
        self._layout: LayerIndex | None = None
        self._norms: NDArray[np.int64] = np.zeros(0, np.int64)
        self._dropouts: NDArray[np.int64] = np.zeros(0, np.int64)
        self._feeders: NDArray[np.int64] = np.zeros(0, np.int64)  # of the dropouts
        self._workers: NDArray[np.int64] = np.zeros(0, np.int64)
        self._wrong = LayerStreak()
        self._was_training: NDArray[np.bool_] = np.zeros(0, bool)
        self._untouched: NDArray[np.bool_] = np.zeros(0, bool)
        self._asleep = False  # the whole model was in evaluation mode
        self._all_awake = False  # every module was seen in training mode, the last time too
        self._condition = Condition("mode")
        self._redrawn, self._heavy = RedrawnMasks(), HeavyDropout()

    def grow(self, count: int) -> None:
        self._redrawn.grow(count)
        self._wrong.grow(count)
        self._was_training = grown(self._was_training, count, False)
        self._untouched = grown(self._untouched, count, False)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        return (*self._redrawn.observe(view), *self._heavy.observe(view), *self._observe_modes(view))

    def _observe_modes(self, view: FrameView) -> tuple[Verdict, ...]:
        row = view.row("activation_training")
        if row is None:
            return ()
        if view.layout is not self._layout:
            self._look(view.layout)
        elif self._all_awake and not (row == 0).any():
            return ()
        if not len(self._norms) and not len(self._dropouts):
            return ()
        modes = view.all_layers("activation_training")
        if np.isnan(modes).all():
            return ()
        judged = np.concatenate([self._norms, self._dropouts])
        self._asleep = not (modes[self._workers] == 1).any()
        self._was_training |= modes == 1
        self._all_awake = bool(self._was_training[judged].all()) and not (row == 0).any()
        self._untouched[self._norms] = (modes[self._norms] == 0) & (
            self._untouched[self._norms] | self._passes_on(view, modes)
        )
        self._untouched &= ~self._was_training  # a single step in training mode touches them
        wrong = np.zeros(view.layout.count, bool)
        wrong[self._norms] = (modes[self._norms] == 0) & (self._asleep | self._untouched[self._norms])
        # Averages that were learnt elsewhere are a choice, unless the model was in training mode in this very run.
        wrong[self._norms] &= self._untouched[self._norms] | self._was_training[self._norms]
        off = modes[self._dropouts] == 0
        if off.any():
            # What feeds it is in evaluation mode, too, where a part of a model rests: that may be meant.
            off &= self._asleep | (modes[self._feeders] == 1)
            wrong[self._dropouts] = off & (view.all_layers("dropout_rate")[self._dropouts] > 0)
        measured = judged[~np.isnan(modes[judged])].astype(np.int32)
        self._wrong.end(measured[~wrong[measured]])
        self._wrong.hold(measured[wrong[measured]], view.step)
        due = judged[self._wrong.length[judged] >= limit.WRONG_MODE_FRAMES]
        if not len(due):
            return self._condition.end()
        members = tuple(view.layout.in_order(due))
        return self._condition.hold((members, self._asleep), lambda: self._verdict(view, members))

    def _look(self, layout: LayerIndex) -> None:
        """Only modules among parameters that are trained: a frozen part may be in any mode."""
        self._layout, self._all_awake = layout, False
        structure = structure_of(layout)
        trained = {layer.group for layer in layout.layers.parameters if layer.trainable}
        types = {i: layout.layers[i].module_type for i in structure.sequence}
        self._workers = np.array([i for i in types if layout.path(i) in trained], np.int64)
        self._norms = np.array([i for i in self._workers if is_batch_normalisation(types[int(i)])], np.int64)
        fed = {i: structure.feeder(i) for i in types if "Dropout" in types[i] and structure.feeder(i) != NONE}
        fed = {i: feeder for i, feeder in fed.items() if layout.path(feeder) in trained}
        self._dropouts = np.array(list(fed), np.int64)
        self._feeders = np.array(list(fed.values()), np.int64)

    def _passes_on(self, view: FrameView, modes: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Whether a normalisation in evaluation mode changes nothing: its averages are still 0 and 1."""
        structure = structure_of(view.layout)
        deviation, mean = view.all_layers("activation_std"), view.all_layers("activation_mean")
        before = np.array([structure.before(int(i)) for i in self._norms], np.int64)
        with np.errstate(invalid="ignore", divide="ignore"):
            change = np.abs(deviation[self._norms] / deviation[before] - 1)
            change = np.fmax(change, np.abs(mean[self._norms] - mean[before]) / deviation[before])
        return (before != NONE) & (modes[self._norms] == 0) & (change < limit.PASSES_ON)

    def _verdict(self, view: FrameView, members: tuple[int, ...]) -> Verdict:
        layout = view.layout
        first_step = int(self._wrong.since[list(members)].min())
        late = any(self._was_training[i] for i in members)
        how = "runs in evaluation mode" + (", and was in training mode before" if late else "")
        evidence = [Evidence("activation_training", layout.path(i), 0.0, 1.0, how) for i in members[:3]]
        normalising = [i for i in members if i in self._norms]
        severity = Severity.SEVERE if normalising else Severity.MODERATE
        scope = "The whole model" if self._asleep else name_layers(layout, members)
        when = f" since step {first_step}" if late else ""
        effect = "batch normalisation does not follow the data" if normalising else "dropout does nothing"
        summary = f"{scope} is in evaluation mode while it is trained{when}: {effect}."
        if not self._asleep and len(members) > 1:
            summary = summary.replace(" is in ", " are in ").replace("while it is", "while they are")
        return Verdict("mode", True, severity, members, first_step, 0.97, summary, (*evidence,))
