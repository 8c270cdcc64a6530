"""WGT006."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import grown
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.detect.features.between_steps import BetweenSteps
from undertow.detect.features.initial_weights import InitialWeights, norms_before
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.wording import known, name_layers
from undertow.detect.rule import Said, Verdict
from undertow.detect.set_back import SetBack
from undertow.schema.findings import Evidence
from undertow.schema.layers import LayerKind
from undertow.schema.quantities import GradientState
from undertow.schema.severity import Severity

_CROSS_ENTROPY = 1.0


class WeightDrift:
    """Weights leave a place where they should stay.

    What it sees
    ------------
    Four things. A model that was trained before (its first loss is far below that of a guess) whose loss is then
    well above where it began, while half of its matrices have moved away from their start. And an embedding and an
    output layer of the same shape that start with exactly the same numbers but are two tensors: a weight that was
    meant to be tied, was copied instead, and drifts apart from the first step on; or from the step on in which the
    copy came. And single layers that the program itself writes to between two steps, again and again, with a leap
    of the loss right after it: a head that is initialised anew in every epoch. And most weights at once that are
    suddenly nearer to their start than their own updates could have taken them, while the optimizer stays the same
    one: an old state is loaded again in every epoch.

    Why it is bad
    -------------
    Fine-tuning that moves the weights far forgets what they had learnt; the learning rate is too high for it. A
    copy in place of a tied weight doubles the parameters and breaks what the model assumes, and no error tells. A layer
    that is set anew loses what it has learnt, and what the others have learnt with it.

    When it is wrong
    ----------------
    Starting an output layer as a copy of the embedding and letting the two part on purpose looks the same, unless the
    two have learning rates of their own: then nothing is said. Distance from a random start is healthy and not
    reported. Weights that are clamped or projected after every step are left alone, and so is a model that is set back
    together with its optimizer, as for another fold, or in a new phase in which other layers train than before.

    References
    ----------
    Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017 (arXiv 1608.05859).
    Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", 2017 (arXiv 1612.00796).
    """

    code: ClassVar[str] = "WGT006"

    def __init__(self) -> None:
        self._start = InitialWeights()
        self._layout: LayerIndex | None = None
        self._pairs: list[tuple[int, int]] = []  # embeddings and output layers of the same shape
        self._met: dict[tuple[int, int], bool] = {}  # whether they were the same when first measured together
        self._apart_on_purpose: dict[tuple[int, int], bool] = {}
        self._trained_before: bool | None = None
        self._forgetting, self._copied = Condition("forgetting"), Condition("copied")
        self._overwritten = Condition("overwritten")
        self._between = BetweenSteps()
        self._set_back, self._back, self._returns = Condition("set back"), SetBack(), list[int]()
        self._is_trained: NDArray[np.int8] = np.zeros(0, np.int8)  # -1: not known yet
        self._surprise = self._rebuilt_step = -1.0  # largest jump of the loss since weights were measured last
        self._written: NDArray[np.int64] = np.zeros(0, np.int64)  # the step before which a layer was last written to
        self._times: NDArray[np.int32] = np.zeros(0, np.int32)
        self._first: NDArray[np.int64] = np.zeros(0, np.int64)  # the first of these times

    def grow(self, count: int) -> None:
        self._start.grow(count)
        self._between.grow(count)
        self._back.grow(count)
        self._is_trained = grown(self._is_trained, count, -1)
        self._first = grown(self._first, count, -1)
        self._written, self._times = grown(self._written, count, -limit.OVERWRITTEN_AGAIN), grown(self._times, count, 0)

    @property
    def resting(self) -> bool:
        conditions = (self._forgetting, self._copied, self._overwritten, self._set_back)
        return not (self._pairs or any(one.is_open for one in conditions))

    def news(self, batch: FrameBatch) -> Flags:
        out = batch.scalar("optimizer_made_anew") == 1
        if self._trained_before is None:
            out |= ~np.isnan(batch.scalar("loss"))
        elif self._trained_before:
            out |= batch.loss("level") > limit.FORGETTING * batch.loss("first")
        if batch.has("gradient"):
            holders, states = batch.row("gradient_optimizer"), batch.row("gradient_state")
            trained = ((holders >= 0) & (states != GradientState.FROZEN)).astype(np.float32)
            out |= batch.changed("gradient", np.where(np.isnan(holders), np.float32(np.nan), trained))
        if not batch.has("weight"):
            return out
        if batch.layout is not self._layout or not self._start.knows(batch.ids("weight")):
            return np.ones(len(batch), bool)
        return out | self._between.news(batch, limit.WRITTEN) | self._back.news(batch)

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        self._between.pass_over(batch, first, last)
        if batch.has("weight"):
            self._back.pass_over(batch, last)
            self._surprise = -1.0
        else:
            losses = (batch.view(place).loss for place in range(first, last))
            self._surprise = max([self._surprise, *(loss.jump for loss in losses if loss is not None)])
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        return (*self._judge_start(view), *self._judge_writing(view), *self._judge_return(view))

    def _judge_return(self, view: FrameView) -> tuple[Verdict, ...]:
        """The whole model is set back, to its start or to another state of before."""
        if view.loss is not None:
            self._surprise = max(self._surprise, view.loss.jump)
        if view.frame.scalars.get("optimizer_made_anew") == 1 or self._trains_others(view):
            self._returns.clear()
            self._rebuilt_step = view.step
        if view.ids("weight") is None:
            return self._set_back.stay()
        measured_before = self._back.step
        back, fresh = self._back.observe(view)
        surprise, self._surprise = self._surprise, -1.0
        leapt = surprise > limit.OVERWRITTEN_JUMP
        if (measured_before or 0) < self._rebuilt_step <= view.step:
            return self._set_back.stay()
        if fresh < limit.SET_BACK_SHARE and not (leapt and back >= limit.SET_BACK_SHARE):
            return self._set_back.stay()
        self._returns.append(view.step)
        if len(self._returns) < limit.SET_BACK_TIMES and not (leapt and fresh >= limit.SET_BACK_SHARE):
            return self._set_back.stay()
        times = len(self._returns)
        return self._set_back.hold(times, lambda: self._set_back_verdict(view, fresh >= limit.SET_BACK_SHARE))

    def _trains_others(self, view: FrameView) -> bool:
        """Whether a layer is trained that was not before, or the other way round: another phase, with new parts."""
        ids, states, holders = view.ids("gradient"), view.row("gradient_state"), view.row("gradient_optimizer")
        if ids is None or states is None or holders is None:
            return False
        measured = ~np.isnan(holders)  # of optimizers in turn, each knows its own parameters only
        chosen = ids[measured]
        now = ((holders >= 0) & (states != GradientState.FROZEN))[measured].astype(np.int8)
        before = self._is_trained[chosen]
        self._is_trained[chosen] = now
        return bool(((before >= 0) & (before != now)).any())

    def _set_back_verdict(self, view: FrameView, to_start: bool) -> Verdict:
        drift = float(np.nanmedian(view.all_layers("weight_drift")[structure_of(view.layout).matrices]))
        how = (
            f"distance from the start over the weight at step {view.step}, median: nearer than their own updates could "
            f"have taken them. Seen at step{'s' * (len(self._returns) > 1)} {', '.join(map(str, self._returns[-5:]))}"
        )
        evidence = [Evidence("weight_drift", None, known(drift), None, how)]
        if view.loss is not None:
            evidence.append(
                Evidence("loss", None, view.loss.value, view.loss.best, "the loss after it, and at its best")
            )
        where = "where they began" if to_start else "an earlier state"
        summary = (
            f"All weights are set back to {where} while training goes on: what was learnt is lost. Is an old state "
            "loaded inside the loop?"
        )
        return Verdict("set back", True, Severity.SEVERE, (), self._returns[0], 0.9, summary, tuple(evidence))

    def _judge_writing(self, view: FrameView) -> tuple[Verdict, ...]:
        """Single layers that are set anew between steps, some time after they were before."""
        change, ids = self._between.observe(view), view.ids("weight")
        if change is None or ids is None or not (change > limit.WRITTEN).any():
            return self._overwritten.stay()
        matrices = structure_of(view.layout).matrices
        written = np.intersect1d(ids[change > limit.WRITTEN], matrices)
        again = written[view.step - self._written[written] >= limit.OVERWRITTEN_AGAIN]
        self._written[written] = view.step
        if not len(again) or len(written) > len(matrices) / 2:
            return self._overwritten.stay()
        self._times[again] += 1
        self._first[again[self._times[again] == 1]] = view.step
        members = again[self._times[again] >= 2]
        if not len(members) or view.loss is None or not view.loss.jump > limit.OVERWRITTEN_JUMP:
            return self._overwritten.stay()
        layers = tuple(view.layout.in_order(members))
        return self._overwritten.hold(layers, lambda: self._overwritten_verdict(view, layers))

    def _overwritten_verdict(self, view: FrameView, layers: tuple[int, ...]) -> Verdict:
        loss = view.loss
        assert loss is not None
        times = int(self._times[list(layers)].max())
        how = f"the loss of step {view.step}, against the level before it"
        evidence = (
            Evidence("weight_norm", view.layout.path(layers[0]), known(view.all_layers("weight_norm")[layers[0]]), None,
                     f"changed between two steps, without an optimizer, {times} times"),
            Evidence("loss", None, loss.value, loss.value / loss.ratio if loss.ratio > 0 else None, how),
        )  # fmt: skip
        verb = "is" if len(layers) == 1 else "are"
        summary = (
            f"{name_layers(view.layout, layers)} {verb} set anew between steps, again and again. Each time the loss "
            "leaps up, and what was learnt is lost."
        )
        since = int(self._first[list(layers)].min())
        return Verdict("overwritten", True, Severity.SEVERE, layers, since, 0.9, summary, evidence)

    def _judge_start(self, view: FrameView) -> tuple[Verdict, ...]:
        if self._trained_before is None:
            self._learn(view)
        if not self._start.take(view):
            return ()
        if view.layout is not self._layout:
            self._look(view.layout)
        said = self._judge_copies(view) if self._pairs else ()
        return (*said, *self._judge_forgetting(view)) if self._trained_before else said

    def _learn(self, view: FrameView) -> None:
        if view.loss is None:
            return
        classes, right = view.scalar("loss_classes"), view.scalar("output_accuracy")
        factor = abs(view.scalar("loss_factor"))  # a scaled loss is no better one
        surprise = view.loss.first / factor if factor > 0 else view.loss.first
        guess = math.log(classes) if classes > 1 else math.nan
        entropy, rows = view.scalar("label_entropy"), view.scalar("loss_rows")
        # One label for all, or one of its own for each: places in a batch, by which pairs are told from others.
        of_pairs = entropy == 0 or (rows == classes and entropy > 0.99 * guess)
        self._trained_before = (
            view.scalar("loss_kind") == _CROSS_ENTROPY
            and not of_pairs
            and surprise < limit.TRAINED_BEFORE * guess
            and right > max(0.5, 3 / classes)
        )

    def _judge_forgetting(self, view: FrameView) -> tuple[Verdict, ...]:
        loss = view.loss
        matrices = structure_of(view.layout).matrices
        drift = view.all_layers("weight_drift")[matrices]
        if loss is None or loss.seen < 10 or np.isnan(drift).all():
            return self._forgetting.stay()
        if loss.level > limit.FORGETTING * loss.first and np.nanmedian(drift) > limit.FORGETTING_DRIFT:
            return self._forgetting.hold(True, lambda: self._forgotten(view, float(np.nanmedian(drift))))
        return self._forgetting.end() if loss.level < loss.first else self._forgetting.stay()

    def _forgotten(self, view: FrameView, drift: float) -> Verdict:
        assert view.loss is not None
        evidence = (
            Evidence("weight_drift", None, drift, None, "distance from the start over its norm, median over matrices"),
            Evidence("loss", None, view.loss.level, view.loss.first, "the loss now, against the very first one"),
        )  # fmt: skip
        summary = "The model was trained before and now forgets: its weights have left their start, and the loss rose."
        return Verdict("forgetting", True, Severity.MODERATE, (), 0, 0.8, summary, evidence)

    def _look(self, layout: LayerIndex) -> None:
        self._layout = layout
        trained = [layer for layer in layout.layers.parameters if layer.trainable and not layer.shared_with]
        tables = [layer for layer in trained if layer.kind is LayerKind.EMBEDDING]
        heads = [layer for layer in trained if layer.kind is LayerKind.WEIGHT and len(layer.shape) == 2]
        self._pairs = [(table.id, head.id) for table in tables for head in heads if table.shape == head.shape]

    def _judge_copies(self, view: FrameView) -> tuple[Verdict, ...]:
        start, drift = self._start.norm, view.all_layers("weight_drift")
        self._meet(view)
        for table, head in self._pairs:
            same = start[table] > 0 and abs(start[table] / start[head] - 1) < limit.COPIED
            copied = (same or self._met.get((table, head), False)) and (drift[table] > 0 or drift[head] > 0)
            if copied and not self._are_set_apart(view, table, head):
                return self._copied.hold((table, head), lambda pair=(table, head): self._apart(view, *pair))
        return self._copied.stay()

    def _are_set_apart(self, view: FrameView, table: int, head: int) -> bool:
        """Who trains the two at rates of their own knows that they are two."""
        if view.ids("optimizer") is not None:
            rates = view.all_layers("optimizer_rate")[[table, head]]
            if not np.isnan(rates).any():
                self._apart_on_purpose[table, head] = bool(rates[0] != rates[1])
        return self._apart_on_purpose.get((table, head), False)

    def _meet(self, view: FrameView) -> None:
        """A weight that was tied until now may get its copy in the middle of a training."""
        if all(pair in self._met for pair in self._pairs):
            return
        norms = np.full(view.layout.count, np.nan)
        norms[view.ids("weight")] = norms_before(view)
        for table, head in self._pairs:
            if (table, head) not in self._met and not np.isnan(norms[[table, head]]).any():
                # A table that has become longer by training has a length of its own, and its copy may be seen late.
                grown_by = abs(norms[table] / self._start.norm[table] - 1)
                within = limit.COPIED_LATE if grown_by > limit.COPIED_LATE_FROM else limit.COPIED
                self._met[table, head] = bool(norms[table] > 0 and abs(norms[table] / norms[head] - 1) < within)

    def _apart(self, view: FrameView, table: int, head: int) -> Verdict:
        layout, drift = view.layout, view.all_layers("weight_drift")
        how = "distance from its own start over its norm"
        evidence = tuple(Evidence("weight_drift", layout.path(i), known(drift[i]), None, how) for i in (head, table))
        summary = (
            f"{layout.path(head)} began as an exact copy of {layout.path(table)} and is trained apart from it: "
            "it was meant to be tied."
        )
        return Verdict("copied", True, Severity.MODERATE, (head, table), view.step, 0.85, summary, evidence)
