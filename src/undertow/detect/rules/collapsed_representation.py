"""ACT003."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.bottleneck import bottlenecks
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import LayerStreak, grown
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import PLACES, FrameView
from undertow.detect.features.between_steps import BetweenSteps
from undertow.detect.features.cadence import Cadence
from undertow.detect.features.loss_trend import actor_of
from undertow.detect.features.module_structure import NONE, structure_of
from undertow.detect.features.wording import known, name_layers
from undertow.detect.latent import LatentWatch
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import LossKind
from undertow.schema.severity import Severity

_OF_CLASSIFIERS = (
    LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD, LossKind.BINARY_OF_LOGITS,
    LossKind.BINARY_OF_PROBABILITIES,
)  # fmt: skip


@dataclass(slots=True)
class _Course:
    """How much samples differ at each layer, in the steps of one optimizer."""

    start: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    start_share: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    now: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    flat: LayerStreak = field(default_factory=LayerStreak)
    entered: float = np.nan  # deviation of the data, at the start
    told: bool = False

    def grow(self, count: int) -> None:
        self.start = grown(self.start, count, np.nan)
        self.start_share = grown(self.start_share, count, np.nan)
        self.now = grown(self.now, count, np.nan)
        self.flat.grow(count)


class CollapsedRepresentation:
    """A layer gives the same output for all samples, though it told them apart before, or though they come to it apart.

    What it sees
    ------------
    How much the output of each layer with a weight matrix differs between samples, in the steps in which activations
    are sampled, against the same layer at the start. Two things are reported, at two sampled steps in a row, over
    twelve steps at least (150 for a classifier, and for the last layer alone where targets are known): a layer of whose
    variance next to nothing lies between samples any more (0.3 %, and a tenth of what it was, while the differences
    themselves have halved at least: a bias that grows only hides them), and a layer whose differences have shrunk to 20
    % while those of the model's output have at least halved, so that what comes behind ignores it. The last layer
    counts only where those of the layer before it have shrunk, too, or where no targets are known: outputs follow the
    size of the targets. And a place where samples come in different and go out exactly alike from the first step on (a
    mean over the samples themselves, say) while no other way leads around it: at three sampled steps, over four steps
    at least. Of a variational autoencoder, which has the divergence of its code from a standard normal prior in the
    loss, that divergence in nats per sample: below 0.02, for forty steps (twelve, where it had told one bit and more),
    the code tells nothing, and where noise is added to it no other layer shows it.

    Why it is bad
    -------------
    What no longer differs between samples carries nothing about them: an encoder that maps everything to one point,
    a code that the decoder ignores (posterior collapse), a generator with one picture. The loss often looks good,
    because it rewards the collapse: a prior that is weighted too strongly, a contrastive loss without negatives.

    When it is wrong
    ----------------
    A classifier often learns first to give every sample the same answer, that of a guess, and stays there for a while
    before it begins to tell them apart; hence the long wait. A model that starts with huge outputs, and shrinks them in
    all layers, could be taken for collapsed; in healthy training the output learns to tell samples apart, so its
    differences grow. Where the program itself writes to the weights between steps (the clamped critic of a GAN) the
    comparison begins anew, and where optimizers step in turn, steps of each are compared with its own. Weights that
    decay to zero (WGT005) and dead units (ACT001) make collapsed layers, too, and are named before them. A summary of
    all samples that is added to each of them is fine, because a way leads around it; so are learnt queries, which no
    sample enters. Where the data themselves come in less different than they did, that much is no fault of the model.

    References
    ----------
    Bowman et al., "Generating Sentences from a Continuous Space", 2016 (arXiv 1511.06349), on posterior collapse.
    Chen and He, "Exploring Simple Siamese Representation Learning", 2021 (arXiv 2011.10566).
    """

    code: ClassVar[str] = "ACT003"

    def __init__(self) -> None:
        self._layout: LayerIndex | None = None
        self._judged: NDArray[np.int32] = np.zeros(0, np.int32)
        self._count = 0
        self._courses: dict[int, _Course] = {}  # by actor: what a critic is shown in its own steps is other than in
        self._cadence = Cadence()  # …those of the generator, where all is forged
        self._between = BetweenSteps()
        self._condition = Condition("collapsed")
        self._alike = LayerStreak()  # of those that let samples in different and out alike
        self._constant = Condition("constant")
        self._latent = LatentWatch()
        self._began: int | None = None  # the first sampled step
        self._classifies = self._has_targets = False

    def grow(self, count: int) -> None:
        self._count = max(count, self._count)
        for course in self._courses.values():
            course.grow(count)
        self._alike.grow(count)
        self._latent.grow(count)
        self._between.grow(count)

    @property
    def resting(self) -> bool:
        return not self._latent.is_open

    def news(self, batch: FrameBatch) -> Flags:
        out = self._between.news(batch, limit.COLLAPSED_ANEW)
        out |= ~np.isnan(batch.scalar("loss_kind"))
        for name in ("activation_sample_spread", "latent_nats"):
            out[batch.frames_with(PLACES[name][0])] = True
        return out

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        self._between.pass_over(batch, first, last)
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        kind = view.scalar("loss_kind")
        self._classifies |= kind in _OF_CLASSIFIERS
        self._has_targets |= kind > LossKind.UNKNOWN
        written = self._between.observe(view)
        if written is not None and bool((written > limit.COLLAPSED_ANEW).any()):
            self._begin_anew()
        latent = self._latent.observe(view)
        if view.row("activation_sample_spread") is None or not self._cadence.is_due(view.step):
            return latent
        if self._began is None:
            self._began = view.step
        return (*latent, *self._observe_start(view), *self._observe_alike(view))

    def _begin_anew(self) -> None:
        """The program has set weights anew (or clamped them, as a critic's are): all outputs have another size now."""
        self._courses.clear()

    def _observe_alike(self, view: FrameView) -> tuple[Verdict, ...]:
        spread, deviation = view.all_layers("activation_sample_spread"), view.all_layers("activation_std")
        zeros = view.all_layers("activation_zero_fraction")
        equal = (spread < limit.ALIKE) & (deviation > 0) & (zeros < 1)
        pairs = [] if not equal.any() or (zeros == 1).any() else list(
            bottlenecks(view.layout, lambda i: bool(spread[i] > limit.DIFFERENT), lambda i: bool(equal[i]))
        )  # fmt: skip
        held = np.array([before for before, _ in pairs], np.int32)
        everything = np.arange(view.layout.count, dtype=np.int32)
        self._alike.end(everything[~np.isin(everything, held)])
        self._alike.hold(held, view.step)
        due = (self._alike.length >= limit.ALIKE_FRAMES) & (self._alike.span >= limit.ALIKE_STEPS)
        due &= self._alike.since == self._began  # what becomes so has another cause
        members = tuple(view.layout.in_order(np.flatnonzero(due)))
        if not members:
            return self._constant.end()
        last = members[-1]  # what comes before it loses its differences there
        return self._constant.hold(None, lambda: self._verdict_alike(view, last, dict(pairs)[last], equal))

    def _verdict_alike(self, view: FrameView, before: int, behind: int, equal: NDArray[np.bool_]) -> Verdict:
        layout = view.layout
        path = layout.path(before)
        around = [i for i in np.flatnonzero(equal).tolist() if path.startswith(f"{layout.path(i)}.")]
        place = max(around, key=lambda i: len(layout.path(i)), default=before)
        spread = view.all_layers("activation_sample_spread")
        evidence = (
            Evidence("activation_sample_spread", path, known(spread[before]), None, "samples come in different"),
            Evidence("activation_sample_spread", layout.path(behind), known(spread[behind]), None, "and go out alike"),
        )
        summary = f"{layout.path(place)} gives exactly the same output for every sample, whatever comes in."
        first_step = int(self._alike.since[before])
        return Verdict("constant", True, Severity.SEVERE, (place,), first_step, 0.9, summary, evidence)

    def _observe_start(self, view: FrameView) -> tuple[Verdict, ...]:
        if view.layout is not self._layout:
            self._layout, structure = view.layout, structure_of(view.layout)
            self._judged = np.array([i for i in structure.sequence if structure.matrix[i] != NONE], np.int32)
        ids = self._judged
        share = view.all_layers("activation_sample_spread")[ids].astype(np.float64)
        signal = view.all_layers("activation_std")[ids] * np.sqrt(np.maximum(share, 0.0))
        measured = signal > 0  # exactly no difference is a single sample, or a dead layer before it (ACT001)
        if not measured.any():
            return ()
        course = self._course(actor_of(view.frame))
        new = measured & np.isnan(course.start[ids])
        course.start[ids[new]], course.start_share[ids[new]] = signal[new], share[new]
        course.now[ids[measured]] = signal[measured]
        left = signal / course.start[ids]
        # Samples may come in less different than they did: a game that is won looks the same each time.
        entered = view.scalar("input_std")
        course.entered = entered if np.isnan(course.entered) else course.entered
        if 0 < entered < course.entered:
            left = left * (course.entered / entered)
        flat = share < np.minimum(limit.COLLAPSED_SHARE, course.start_share[ids] * limit.COLLAPSED_SHARE_TO)
        flat &= left < limit.COLLAPSED_SIGNAL_TO
        # Outputs alone may shrink to the size of small targets; what is before them collapses with them.
        alone = len(ids) > 1 and not left[-2] < limit.COLLAPSED_BEFORE_OUTPUT
        flat[-1] &= not alone
        if left[-1] < limit.COLLAPSED_OUTPUT_TO:
            flat |= left < limit.COLLAPSED_TO
            flat[-1] &= not (alone and self._has_targets)
        flat &= measured
        course.flat.end(ids[measured & ~flat])
        course.flat.hold(ids[flat], view.step)
        alternates = view.loss is not None and view.loss.actors > 1  # an adversary's answers are no guess
        # As a classifier learns to guess first, so does the mean of all targets come before what tells them apart.
        falling = self._has_targets and view.loss is not None and view.loss.falling
        waits = (self._classifies or falling) and not alternates
        least = limit.COLLAPSED_STEPS_OF_CLASSIFIER if waits else limit.COLLAPSED_STEPS
        due = ids[(course.flat.length[ids] >= limit.COLLAPSED_FRAMES) & (course.flat.span[ids] >= least)]
        guesses = self._has_targets and due.tolist() == [ids[-1]]
        if guesses and not course.flat.span[ids[-1]] >= limit.COLLAPSED_STEPS_OF_CLASSIFIER:
            due = due[:0]
        course.told = len(due) > 0
        if not len(due):
            elsewhere = any(other.told for other in self._courses.values())
            return self._condition.stay() if elsewhere else self._condition.end()
        members = tuple(view.layout.in_order(due))
        return self._condition.hold(members, lambda: self._verdict(view, course, members))

    def _course(self, actor: int) -> _Course:
        if actor not in self._courses:
            self._courses[actor] = _Course()
            self._courses[actor].grow(self._count)
        return self._courses[actor]

    def _verdict(self, view: FrameView, course: _Course, members: tuple[int, ...]) -> Verdict:
        layout = view.layout
        how = "deviation between samples now, against that at the start"
        evidence = tuple(
            Evidence("activation_sample_spread", layout.path(i), known(course.now[i]), known(course.start[i]), how)
            for i in members[:3]
        )
        verb = "gives" if len(members) == 1 else "give"
        summary = f"{name_layers(layout, members)} {verb} nearly the same output for every sample, and did not before."
        first_step = int(course.flat.since[list(members)].min())
        return Verdict("collapsed", True, Severity.MODERATE, members, first_step, 0.8, summary, evidence)
