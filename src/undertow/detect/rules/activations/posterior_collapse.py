"""ACT003: a latent code that carries no information about its sample."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerStreak, LayerValues, Limit, Stage, having
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.remedies import ANNEAL_THE_PRIOR
from undertow.schema import Evidence, Severity


class PosteriorCollapse(Condition):
    """The latent code of a variational autoencoder is the prior, whatever the sample.

    What it sees: The divergence of the code from a standard normal prior, where it appears in the loss, in nats per
        sample: below 0.02 for forty steps, or for twelve where the code had carried a bit or more while the model
        learnt.
    Why it is bad: The decoder gets noise and learns to ignore it: the model reconstructs the mean of all samples. The
        usual cause is a prior that weighs too much beside the reconstruction error, as one summed while the other is
        averaged.
    When it is wrong: A prior that is raised slowly from zero never looks like that for long; data without any structure
        would.
    References: Bowman et al., "Generating Sentences from a Continuous Space", 2016 (arXiv 1511.06349), on posterior
        collapse.
    """

    code, variant, formerly = "ACT003", "posterior-collapse", "latent"
    places = ("total",)
    stage = Stage.SIGNAL
    wakes_on = having("activation")
    meaning = "The decoder ignores the latent code, so it gives nearly the same output for every sample"
    remedies = (ANNEAL_THE_PRIOR,)
    nats = Limit(0.02, "per sample; codes of new models carry more, healthy ones many times as much after forty steps")
    frames = Limit.chance(2, "sampled steps in a row")
    steps = Limit.learning(40, "steps: the first ones of a healthy model may lose what random weights told")
    told = Limit(0.69, "nats, one bit: a code that carried that was in use")
    steps_once_told = Limit.learning(12, "steps that are enough where a code that was in use has lost everything")

    _told = LayerValues(np.bool_, False)  # told its decoder something, while it learnt

    def __init__(self) -> None:
        self._empty = LayerStreak()

    def observe(self, view: FrameView) -> Judgement | None:
        nats, ids = view.row("latent_nats"), view.ids("activation")
        if nats is None or ids is None or not (known := ~np.isnan(nats)).any():
            return self.stay()
        empty = known & (nats < self.nats)
        if has_learnt(view.loss):  # what random weights tell is lost in health, too
            self._told[ids[known & (nats > self.told)]] = True
        self._empty.follow(ids, known, empty, view.step)
        least = np.where(self._told[ids], self.steps_once_told, self.steps)
        due = ids[(self._empty.length[ids] >= self.frames) & (self._empty.span[ids] >= least)]
        return self.hold_of(view, due, self._describe)

    def _describe(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
        layout, nats = view.layout, view.all_layers("latent_nats")
        how = "nats that the latent code carries about its sample; one bit is 0.69"
        evidence = tuple(Evidence("latent_nats", layout.path(i), float(nats[i]), None, how) for i in members)
        summary = (
            f"Posterior collapse: the code of {layout.path(members[0])} carries {nats[members[0]]:.2g} nats per sample "
            "(one bit is 0.69): the KL term outweighs the reconstruction error."
        )
        return Judgement(Severity.MODERATE, members, self._empty.began(members), 0.9, summary, evidence)
