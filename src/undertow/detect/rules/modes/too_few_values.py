"""MOD002: statistics of one or two values."""

import math

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerStreak, LayerValues, Limit, Stage
from undertow.detect.features.wording import count_of, name_layers
from undertow.schema import Evidence, Remedy, Severity


class TooFewValues(Condition):
    """A normalisation computes its statistics from one or two values or samples.

    What it sees: From how many values each mean and variance is computed, in normalisations in training mode: at most
        two values, or two samples of a batch normalisation, at two sampled steps in a row.
    Why it is bad: The mean and variance of two values are noise: the output only says which one is larger. With a
        single value, as in a layer normalisation over one feature, the output does not depend on the input.
    When it is wrong: The last, smaller batch of an epoch is not enough to be reported, nor is a single picture that is
        the same at every step: its statistics have no noise.
    References: Wu and He, "Group Normalization", 2018 (arXiv 1803.08494).
    """

    code, variant, formerly = "MOD002", "too-few-values", "values"
    places = ("loader", "batch")
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    needs = frozenset({"activation"})
    meaning = "The statistics of a batch are mostly noise"
    remedies = (
        Remedy(
            "use-group-norm",
            "Replace batch normalisation by GroupNorm or LayerNorm, or use a larger batch.",
            "norm = torch.nn.GroupNorm(num_groups=8, num_channels=channels)",
            "It is another architecture: old checkpoints do not fit.",
            when_not="Batches are large and only the last one of an epoch is small: drop that one.",
        ),
        Remedy(
            "normalise-over-more-values",
            "Let each mean and variance be taken over many values: all features of a sample, not one or two of them.",
            "norm = torch.nn.LayerNorm(features)  # the size of the last dimension",
            "It is another architecture: old checkpoints do not fit.",
            when_not="It is a batch normalisation: then the batch is too small.",
        ),
    )

    values = Limit(2, "values: their mean and variance tell which one is larger, and nothing else")
    samples = Limit(2, "samples; a picture's pixels are no samples of their own")
    patience = Limit.chance(2, "sampled steps in a row: the last batch of an epoch may be small")

    _values = LayerValues(np.float64, np.nan)

    def __init__(self) -> None:
        self._few = LayerStreak()
        self._input = math.nan  # deviation of the data, when last measured

    def observe(self, view: FrameView) -> Judgement | None:
        modes, values, samples = (view.row(n) for n in ("activation_training", "norm_values", "norm_samples"))
        ids = view.ids("activation")
        if modes is None or values is None or samples is None or ids is None:
            return None
        measured = (modes == 1) & ~np.isnan(values)
        if not measured.any():
            return None
        few = measured & (values <= self.values)
        # One and the same input at every step, as where a single picture is fitted, has statistics without noise.
        before, self._input = self._input, view.scalar("input_std")
        if before != self._input:
            few |= measured & (samples <= self.samples)
        self._few.follow(ids, measured, few, view.step)
        self._values[ids[few]] = values[few]
        return self.hold_of(view, np.flatnonzero(self._few.length >= self.patience), self._describe)

    def _describe(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
        chosen = list(members)
        count, samples = float(self._values[chosen].max()), view.all_layers("norm_samples")[chosen]
        how = "values from which each statistic was computed"
        if not np.isnan(samples).all():
            how += f", of {count_of(int(np.nanmax(samples)), 'sample')}"
        evidence = tuple(Evidence("norm_values", view.layout.path(i), count, 16.0, how) for i in members[:3])
        of = count_of(int(count), "value") if count <= self.values else "one or two samples"
        summary = f"{name_layers(view.layout, members)}: statistics are computed from {of} only (16 is little)."
        return Judgement(Severity.SEVERE, members, self._few.began(members), 0.97, summary, evidence)
