"""MOD001: batch normalisation or dropout in evaluation mode while training."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, LayerStreak, LayerValues, Limit, Stage
from undertow.detect.features.module_structure import NONE, is_batch_normalisation, structure_of
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Remedy, Severity


class EvaluationMode(Condition):
    """Batch normalisation or dropout runs in evaluation mode while the model is trained.

    What it sees: The mode of every batch normalisation and dropout in the forward passes that lead to an optimizer
        step, at two sampled steps in a row: a normalisation whose running averages were never touched (its output is
        its input) although its scale is trained; a whole model in evaluation mode, from the start or since some step,
        when a validation did not switch it back; and a dropout in evaluation mode behind a trained layer that is in
        training mode.
    Why it is bad: In evaluation mode batch normalisation uses running averages that no longer follow the data (at the
        start they are 0 and 1, so nothing is normalised at all), and dropout does nothing. The loss may still fall, so
        the fault often goes unnoticed until evaluation.
    When it is wrong: Fine-tuning with frozen statistics is healthy: batch normalisations alone in evaluation mode, with
        averages that have been learnt, are not reported, nor are frozen models such as teachers. To turn dropout off on
        purpose, set its rate to 0 instead of calling `model.eval()`.
    References: PyTorch documentation, `torch.nn.Module.eval` and `torch.nn.BatchNorm2d`.
        Ioffe and Szegedy, "Batch Normalization", 2015 (arXiv 1502.03167).
    """

    code, variant, formerly = "MOD001", "evaluation-mode", "mode"
    places = ("evaluation mode",)
    stage, is_exact = Stage.PROGRAM, True
    needs = frozenset({"activation"})
    meaning = "Statistics or noise that training relies on are switched off"
    remedies = (
        Remedy(
            "switch-to-training-mode",
            "Call model.train() before training, and again after every validation.",
            "model.eval()\nvalidate(model)\nmodel.train()  # before the next training step",
            "None.",
            when_not="Normalisation is frozen on purpose, as in fine-tuning on small batches.",
        ),
    )

    patience = Limit.chance(2, "sampled steps in a row: a single one may be a look in evaluation mode")
    passes_on = Limit(0.02, "largest change of mean and deviation by a normalisation with untouched averages")

    _was_training = LayerValues(np.bool_, False)
    _untouched = LayerValues(np.bool_, False)

    def __init__(self) -> None:
        self._layout: LayerIndex | None = None
        self._norms: NDArray[np.int64] = np.zeros(0, np.int64)
        self._dropouts: NDArray[np.int64] = np.zeros(0, np.int64)
        self._feeders: NDArray[np.int64] = np.zeros(0, np.int64)  # of the dropouts
        self._trained: NDArray[np.int64] = np.zeros(0, np.int64)
        self._wrong = LayerStreak()
        self._all_evaluate = False  # the whole model was in evaluation mode
        self._all_train = False  # every module was seen in training mode, the last time too

    def observe(self, view: FrameView) -> Judgement | None:
        row = view.row("activation_training")
        if row is None:
            return None
        if view.layout is not self._layout:
            self._look(view.layout)
        elif self._all_train and not (row == 0).any():
            return None
        if not len(self._norms) and not len(self._dropouts):
            return None
        modes = view.all_layers("activation_training")
        if np.isnan(modes).all():
            return None
        judged = np.concatenate([self._norms, self._dropouts])
        self._all_evaluate = not (modes[self._trained] == 1).any()
        self._was_training |= modes == 1
        self._all_train = bool(self._was_training[judged].all()) and not (row == 0).any()
        wrong = self._find_wrong(view, modes)
        measured = judged[~np.isnan(modes[judged])].astype(np.int32)
        self._wrong.end(measured[~wrong[measured]])
        self._wrong.hold(measured[wrong[measured]], view.step)
        due = judged[self._wrong.length[judged] >= self.patience]
        members = tuple(view.layout.in_order(due))
        if not members:
            return self.end()
        return self.hold((members, self._all_evaluate), lambda: self._describe(view, members))

    def _find_wrong(self, view: FrameView, modes: NDArray[np.float32]) -> NDArray[np.bool_]:
        norms, dropouts = self._norms, self._dropouts
        wrong = np.zeros(view.layout.count, bool)
        self._untouched[norms] = (modes[norms] == 0) & (self._untouched[norms] | self._passes_on(view, modes))
        self._untouched &= ~self._was_training  # a single step in training mode touches them
        wrong[norms] = (modes[norms] == 0) & (self._all_evaluate | self._untouched[norms])
        # Averages that were learnt elsewhere are a choice, unless the model was in training mode in this very run.
        wrong[norms] &= self._untouched[norms] | self._was_training[norms]
        off = modes[dropouts] == 0
        if off.any():
            # What feeds it is in evaluation mode, too, where a part of a model rests: that may be meant.
            off &= self._all_evaluate | (modes[self._feeders] == 1)
            wrong[dropouts] = off & (view.all_layers("dropout_rate")[dropouts] > 0)
        return wrong

    def _look(self, layout: LayerIndex) -> None:
        """Only modules among parameters that are trained: a frozen part may be in any mode."""
        self._layout, self._all_train = layout, False
        structure = structure_of(layout)
        trained = {layer.group for layer in layout.layers.parameters if layer.trainable}
        types = {i: layout.layers[i].module_type for i in structure.sequence}
        self._trained = np.array([i for i in types if layout.path(i) in trained], np.int64)
        self._norms = np.array([i for i in self._trained if is_batch_normalisation(types[int(i)])], np.int64)
        fed = {i: structure.feeder(i) for i in types if "Dropout" in types[i] and structure.feeder(i) != NONE}
        fed = {i: feeder for i, feeder in fed.items() if layout.path(feeder) in trained}
        self._dropouts = np.array(list(fed), np.int64)
        self._feeders = np.array(list(fed.values()), np.int64)

    def _passes_on(self, view: FrameView, modes: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Whether a normalisation in evaluation mode changes nothing: its averages are still 0 and 1."""
        structure = structure_of(view.layout)
        deviation, mean = view.all_layers("activation_std"), view.all_layers("activation_mean")
        before = np.array([structure.before(int(i)) for i in self._norms], np.int64)
        first = before == NONE  # what it is given are the inputs, if they are what it passes on
        given = np.where(first, view.scalar("input_std"), deviation[before])
        shift = np.abs(mean[self._norms] - np.where(first, view.scalar("input_mean"), mean[before]))
        change = np.fmax(np.abs(deviation[self._norms] / given - 1), shift / given)
        return (modes[self._norms] == 0) & (change < self.passes_on)

    def _describe(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
        layout = view.layout
        first_step = self._wrong.began(members)
        late = any(self._was_training[i] for i in members)
        how = "runs in evaluation mode" + (", and was in training mode before" if late else "")
        evidence = tuple(Evidence("activation_training", layout.path(i), 0.0, 1.0, how) for i in members[:3])
        normalises = any(i in self._norms for i in members)
        if self._all_evaluate:
            scope = "The whole model is in evaluation mode while it is trained"
        elif len(members) == 1:
            scope = f"{name_layers(layout, members)} is in evaluation mode while it is trained"
        else:
            scope = f"{name_layers(layout, members)} are in evaluation mode while they are trained"
        when = f" since step {first_step}" if late else ""
        effect = "batch normalisation does not follow the data" if normalises else "dropout does nothing"
        severity = Severity.SEVERE if normalises else Severity.MODERATE
        return Judgement(severity, members, first_step, 0.97, f"{scope}{when}: {effect}.", evidence)
