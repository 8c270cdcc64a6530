"""ACT003: a layer that no longer tells samples apart."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import (
    Condition,
    FrameView,
    Judgement,
    LayerIndex,
    LayerStreak,
    LayerValues,
    Limit,
    PerLayer,
    Shared,
    Stage,
    having,
)
from undertow.detect.features.between_steps import WrittenWeights, written_between
from undertow.detect.features.cadence import Cadence
from undertow.detect.features.loss_trend import actor_of
from undertow.detect.features.module_structure import NONE, structure_of
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.remedies import ANNEAL_THE_PRIOR, KEEP_THE_OUTPUTS_APART, LOWER_LEARNING_RATE
from undertow.detect.features.wording import known, name_layers
from undertow.schema import Evidence, Finding, LossKind, Remedy, Severity

_OF_CLASSIFIERS = (
    LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD, LossKind.BINARY_OF_LOGITS,
    LossKind.BINARY_OF_PROBABILITIES,
)  # fmt: skip


class _Rewriting(WrittenWeights):
    anew = Limit(0.3, "change of a weight's norm between two steps: its outputs are no longer those of the start")
    wakes_on = having("activation", "loss_kind") | written_between(anew)

    @property
    def is_anew(self) -> bool:
        """The program has set weights anew, or clamped them, as a critic's are."""
        return self.change is not None and bool((self.change > self.anew).any())


class _Spread(PerLayer):
    """How much samples differ at each layer, in the steps of one optimizer."""

    start = LayerValues(np.float64, np.nan)
    start_share = LayerValues(np.float64, np.nan)
    now = LayerValues(np.float64, np.nan)

    def __init__(self) -> None:
        self.flat = LayerStreak()
        self.entered = np.nan  # deviation of the data, at the start
        self.is_collapsed = False


class CollapsedRepresentation(Condition):
    """A layer gives nearly the same output for all samples, though it told them apart before.

    What it sees: How much the output of each layer with a weight matrix differs between samples, against the same layer
        at the start. Reported is, over twelve steps at least (150 for a classifier), a layer of whose variance less
        than 0.3 % lies between samples, a tenth of what it was; or one whose differences have shrunk to 20 % while
        those of the model's output have halved. The last layer counts only where the one before it has shrunk, too.
    Why it is bad: What does not differ between samples carries nothing about them: an encoder that maps everything to
        one point, a code that the decoder ignores, a generator with one picture. The loss often rewards it: a
        contrastive loss without negatives.
    When it is wrong: A classifier often learns first to give every sample the same prediction, hence the long wait. A
        model that starts with huge outputs and shrinks them in all layers could be taken for collapsed. Where the
        program writes to the weights between steps (the clamped critic of a GAN) the comparison begins anew, and where
        optimizers step in turn, each is compared with its own steps. Data that come in less different than they did are
        allowed for.
    References: Chen and He, "Exploring Simple Siamese Representation Learning", 2021 (arXiv 2011.10566).
    """

    code, variant, formerly = "ACT003", "collapsed-representation", "collapsed"
    places = ("total",)
    stage, is_alikeness = Stage.SIGNAL, True
    _weights = Shared(_Rewriting)
    meaning = "The model gives nearly the same output for every input"
    remedies = (KEEP_THE_OUTPUTS_APART, ANNEAL_THE_PRIOR, LOWER_LEARNING_RATE)
    share = Limit(3e-3, "of a layer's variance, between samples; healthy layers stay above 0.025")
    share_to = Limit(0.1, "of that share at the start")
    signal_to = Limit(0.5, "of the deviation between samples: a share falls also where a common part grows, as a bias")
    before_output_to = Limit(0.75, "of the deviation of the layer before the last: outputs alone follow the targets")
    inner_to = Limit(0.2, "of an inner layer's deviation at the start; healthy ones stay above 0.24")
    output_to = Limit(0.5, "of the output's deviation, for inner layers to count")
    frames = Limit.chance(2, "sampled steps in a row")
    steps = Limit.learning(12, "steps: random outputs shrink before the learnt ones grow")
    steps_of_classifier = Limit.learning(150, "steps: a classifier may predict the same for all samples for long")

    def __init__(self) -> None:
        self._count = 0
        self._spreads: dict[int, _Spread] = {}  # by actor: a critic is shown other samples than the generator
        self._cadence = Cadence()
        self._classifies = self._has_targets = False

    def grow(self, count: int) -> None:
        super().grow(count)
        self._count = max(count, self._count)
        for spread in self._spreads.values():
            spread.grow(count)

    @property
    def is_calm(self) -> bool:
        return True  # it says nothing of a frame without activations

    def observe(self, view: FrameView) -> Judgement | None:
        kind = view.scalar("loss_kind")
        self._classifies |= kind in _OF_CLASSIFIERS
        self._has_targets |= kind > LossKind.UNKNOWN
        if self._weights.is_anew:
            self._spreads.clear()
        if view.row("activation_sample_spread") is None or not self._cadence.is_due(view.step):
            return None
        ids = view.layout.derived(_judged)
        share = view.all_layers("activation_sample_spread")[ids].astype(np.float64)
        signal = view.all_layers("activation_std")[ids] * np.sqrt(np.maximum(share, 0.0))
        measured = signal > 0  # exactly no difference is a single sample, or a dead layer before it (ACT001)
        if not measured.any():
            return None
        spread = self._spread_of(actor_of(view.frame))
        flat = self._is_flat(view, ids, spread, share, signal, measured)
        spread.flat.follow(ids, measured, flat, view.step)
        due = self._due(view, spread)
        spread.is_collapsed = len(due) > 0
        if not len(due):
            return self.stay() if any(other.is_collapsed for other in self._spreads.values()) else self.end()
        members = tuple(view.layout.in_order(due))
        return self.hold(members, lambda: self._describe(view, spread, members))

    def _spread_of(self, actor: int) -> _Spread:
        if actor not in self._spreads:
            self._spreads[actor] = _Spread()
            self._spreads[actor].grow(self._count)
        return self._spreads[actor]

    def _is_flat(
        self,
        view: FrameView,
        ids: NDArray[np.int32],
        spread: _Spread,
        share: NDArray[np.float64],
        signal: NDArray[np.floating],
        measured: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        new = measured & np.isnan(spread.start[ids])
        spread.start[ids[new]], spread.start_share[ids[new]] = signal[new], share[new]
        spread.now[ids[measured]] = signal[measured]
        left = signal / spread.start[ids]
        # Samples may come in less different than they did: a game that is won looks the same each time.
        entered = view.scalar("input_std")
        spread.entered = entered if np.isnan(spread.entered) else spread.entered
        if 0 < entered < spread.entered:
            left = left * (spread.entered / entered)
        flat = share < np.minimum(self.share, spread.start_share[ids] * self.share_to)
        flat &= left < self.signal_to
        # Outputs alone may shrink to the size of small targets; what is before them collapses with them.
        alone = len(ids) > 1 and not min(left[-2], self._left_before(view, spread, ids[-1])) < self.before_output_to
        flat[-1] &= not alone
        if left[-1] < self.output_to:
            flat |= left < self.inner_to
            flat[-1] &= not (alone and self._has_targets)
        return flat & measured

    def _left_before(self, view: FrameView, spread: _Spread, last: int) -> float:
        """Of the deviation between samples of what enters the last layer; 1 in a training that learns, where outputs
        and all before them may shrink to the size of small targets.
        """
        before = structure_of(view.layout).before(int(last))
        if before == NONE:
            return 1.0
        share = max(float(view.all_layers("activation_sample_spread")[before]), 0.0)
        signal = float(view.all_layers("activation_std")[before]) * share**0.5
        if np.isnan(spread.start[before]):
            spread.start[before] = signal
        left = signal / spread.start[before] if spread.start[before] > 0 else 1.0
        return left if left == left and not has_learnt(view.loss) else 1.0

    def _due(self, view: FrameView, spread: _Spread) -> NDArray[np.int32]:
        ids, streak, loss = view.layout.derived(_judged), spread.flat, view.loss
        alternates = loss is not None and loss.actors > 1  # an adversary's predictions are not at chance level
        # As a classifier learns to guess first, so does the mean of all targets come before what tells them apart.
        falling = self._has_targets and loss is not None and loss.falling
        waits = (self._classifies or falling) and not alternates
        least = self.steps_of_classifier if waits else self.steps
        due = ids[(streak.length[ids] >= self.frames) & (streak.span[ids] >= least)]
        only_the_last = self._has_targets and due.tolist() == [ids[-1]]
        return due[:0] if only_the_last and not streak.span[ids[-1]] >= self.steps_of_classifier else due

    def _describe(self, view: FrameView, spread: _Spread, members: tuple[int, ...]) -> Judgement:
        layout, how = view.layout, "standard deviation between samples, now and at the start"
        evidence = tuple(
            Evidence("activation_sample_spread", layout.path(i), known(spread.now[i]), known(spread.start[i]), how)
            for i in members[:3]
        )
        nats = view.all_layers("latent_nats")
        if np.isfinite(nats).any():  # a variational autoencoder
            code = int(np.nanargmin(nats))
            how = "nats that the latent code carries about its sample; one bit is 0.69"
            evidence += (Evidence("latent_nats", layout.path(code), float(nats[code]), None, how),)
        verb, first = "gives" if len(members) == 1 else "give", members[0]
        summary = (
            f"{name_layers(layout, members)} {verb} nearly the same output for every sample: "
            f"the spread between samples fell from {spread.start[first]:.2g} to {spread.now[first]:.2g}."
        )
        return Judgement(Severity.MODERATE, members, spread.flat.began(members), 0.8, summary, evidence)

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        is_of_a_code = any(one.quantity == "latent_nats" for one in finding.evidence)
        unfit = KEEP_THE_OUTPUTS_APART if is_of_a_code else ANNEAL_THE_PRIOR
        return tuple(remedy for remedy in cls.remedies if remedy is not unfit)


def _judged(layout: LayerIndex) -> NDArray[np.int32]:
    structure = structure_of(layout)
    return np.array([i for i in structure.sequence if structure.matrix[i] != NONE], np.int32)
