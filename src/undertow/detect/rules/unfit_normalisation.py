"""MOD002."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import LayerStreak, grown
from undertow.detect.engine.view import FrameView
from undertow.detect.features.initial_weights import InitialWeights
from undertow.detect.features.wording import count_of, name_layers
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.layers import LayerKind
from undertow.schema.severity import Severity

_SETTINGS = ("norm_eps", "norm_momentum")
_KEYS = ("eps", "momentum")
_OUTPUTS = frozenset({"activation"})


class UnfitNormalisation:
    """A normalisation cannot normalise.

    What it sees
    ------------
    The settings of normalisations as they run in training mode, and of how many values each mean and variance is made.
    Reported are: at most two values, or two samples of a batch normalisation, at two
    sampled steps in a row; an eps of zero or so large that it outweighs the variance; a momentum of zero, or of 0.9
    and more (PyTorch's momentum is the weight of the *new* value: 0.9 of other frameworks is 0.1 here), or of 0.002
    and less in a normalisation that is new, until its averages have forgotten what they began with.

    Why it is bad
    -------------
    Of two values a mean and a variance are noise: the output says which one is larger and nothing else, and of a single
    one, as in a layer normalisation over one feature, it is the same whatever comes in. A large
    eps lets the scale through that should be taken out; a wrong momentum leaves averages that make the model fail
    only in evaluation.

    When it is wrong
    ----------------
    The last, smaller batch of an epoch is not enough to be reported, nor is a single picture that is the same at every
    step: its statistics have no noise. A momentum of 1 is right when averages are deliberately taken anew. A momentum
    of 0.001 is right where nothing is evaluated within thousands of steps; in a normalisation that was trained before
    it is not reported.

    References
    ----------
    Wu and He, "Group Normalization", 2018 (arXiv 1803.08494). PyTorch documentation, `torch.nn.BatchNorm2d`.
    """

    code: ClassVar[str] = "MOD002"

    def __init__(self) -> None:
        self._entered = math.nan  # deviation of the data, at the look before
        self._few = LayerStreak()
        self._values: NDArray[np.float64] = np.zeros(0)
        self._settings = b""
        self._conditions = {key: Condition(key) for key in ("values", "slow", *_KEYS)}
        self._start = InitialWeights()

    def grow(self, count: int) -> None:
        self._few.grow(count)
        self._start.grow(count)
        self._values = grown(self._values, count, np.nan)

    @property
    def resting(self) -> bool:
        return True  # nothing is said of other frames, whatever is open

    def news(self, batch: FrameBatch) -> Flags:
        out = batch.with_any(_OUTPUTS)
        if batch.has("weight") and not self._start.knows(batch.ids("weight")):
            out[batch.frames_with("weight")] = True
        return out

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        self._start.take(view)
        modes, ids = view.row("activation_training"), view.ids("activation")
        if modes is None or ids is None:
            return ()
        training = modes == 1
        if not training.any():
            return ()
        said = self._judge_values(view, ids, training)
        eps, momentum = (view.row(name) for name in _SETTINGS)
        if eps is None or momentum is None:
            return said
        said = (*said, *self._judge_slow(view, ids, training, momentum))
        settings = modes.tobytes() + eps.tobytes() + momentum.tobytes()
        if settings == self._settings:  # as they nearly always are
            return (*said, *(verdict for key in _KEYS for verdict in self._conditions[key].stay()))
        self._settings = settings
        return (*said, *self._judge_settings(view, ids, training, eps, momentum))

    def _judge_values(
        self, view: FrameView, ids: NDArray[np.int32], training: NDArray[np.bool_]
    ) -> tuple[Verdict, ...]:
        values = view.row("norm_values")
        assert values is not None
        measured = training & ~np.isnan(values)
        if not measured.any():
            return ()
        samples = view.row("norm_samples")
        assert samples is not None
        few = measured & (values <= limit.FEWEST_NORM_VALUES)
        if not self._is_same_input(view):
            few |= measured & (samples <= limit.FEWEST_NORM_SAMPLES)
        self._few.end(ids[measured & ~few])
        self._few.hold(ids[few], view.step)
        self._values[ids[few]] = values[few]
        members = view.layout.in_order(np.flatnonzero(self._few.length >= limit.FEW_NORM_FRAMES))
        if not members:
            return self._conditions["values"].end()
        count, since = float(self._values[members].max()), int(self._few.since[members].min())
        of = count_of(int(count), "value") if count <= limit.FEWEST_NORM_VALUES else "one or two samples"
        summary = f"{name_layers(view.layout, members)}: each mean and variance is made of {of} only."
        samples_of = view.all_layers("norm_samples")[members]
        how = "values from which each statistic was computed"
        if not np.isnan(samples_of).all():
            how += f", of {count_of(int(np.nanmax(samples_of)), 'sample')}"
        return self._say(view, "values", members, "norm_values", (count, 16.0, how), summary, Severity.SEVERE, since)

    def _is_same_input(self, view: FrameView) -> bool:
        """One and the same input at every step, as where a single picture is fitted, has statistics without noise."""
        entered, self._entered = self._entered, view.scalar("input_std")
        return entered == self._entered

    def _judge_slow(
        self, view: FrameView, ids: NDArray[np.int32], training: NDArray[np.bool_], momentum: NDArray[np.float32]
    ) -> tuple[Verdict, ...]:
        """Averages that hardly leave their start, where that start is not yet anything that was measured."""
        with np.errstate(invalid="ignore", divide="ignore"):
            slow = training & (momentum > 0) & (momentum <= limit.SMALL_NORM_MOMENTUM)
            slow &= view.step < limit.SLOW_NORM_LASTS / momentum
        if not slow.any():
            return self._conditions["slow"].end()
        layout = view.layout
        scales = {str(layer.group): layer for layer in layout.layers.parameters if layer.kind == LayerKind.NORM_SCALE}
        members: list[int] = []
        for module in layout.in_order(ids[slow]):
            scale = scales.get(str(layout.path(module)))
            if scale is not None and abs(self._start.norm[scale.id] / math.sqrt(scale.parameter_count) - 1) < 1e-4:
                members.append(module)
        if not members:
            return self._conditions["slow"].stay()
        value = float(momentum[np.isin(ids, members)][0])
        summary = (
            f"{name_layers(layout, members)}: a momentum of {value:.3g}. The running averages need "
            f"{1 / value:,.0f} steps to leave where they began; until then, evaluation goes wrong."
        )
        evidence = (value, 0.1, "as it is set; its scale was still one everywhere: it has not been trained before")
        return self._say(view, "slow", members, "norm_momentum", evidence, summary, Severity.MODERATE, view.step)

    def _judge_settings(
        self, view: FrameView, ids: NDArray[np.int32], training: NDArray[np.bool_],
        eps: NDArray[np.float32], momentum: NDArray[np.float32],
    ) -> tuple[Verdict, ...]:  # fmt: skip
        tests = (
            ("eps", "norm_eps", eps, (eps <= 0) | (eps >= limit.LARGE_EPS), 1e-5,
             "an eps of {value:.3g} does not fit a variance of about one"),
            ("momentum", "norm_momentum", momentum, (momentum <= 0) | (momentum >= limit.LARGE_NORM_MOMENTUM), 0.1,
             "a momentum of {value:.3g}: the running averages follow the last batch alone, or nothing"),
        )  # fmt: skip
        said: list[Verdict] = []
        for key, quantity, row, out, usual, words in tests:
            bad = out & training
            if not bad.any():
                said.extend(self._conditions[key].end() if (training & ~np.isnan(row)).any() else ())
                continue
            members = view.layout.in_order(ids[bad])
            value = float(row[bad][0])
            summary = f"{name_layers(view.layout, members)}: {words.format(value=value)}."
            evidence = (value, usual, "as it is set")
            said.extend(self._say(view, key, members, quantity, evidence, summary, Severity.MODERATE, view.step))
        return tuple(said)

    def _say(
        self, view: FrameView, key: str, members: list[int], quantity: str, evidence: tuple[float, float, str],
        summary: str, severity: Severity, since: int,
    ) -> tuple[Verdict, ...]:  # fmt: skip
        condition = self._conditions[key]
        value, expected, how = evidence
        shown = tuple(Evidence(quantity, view.layout.path(i), value, expected, how) for i in members[:3])
        return condition.hold(
            tuple(members), lambda: Verdict(key, True, severity, tuple(members), since, 0.97, summary, shown)
        )
