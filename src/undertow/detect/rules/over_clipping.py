"""GRD010."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.progress import has_fallen
from undertow.detect.rule import Pace, Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class OverClipping:
    """Clipping takes nearly everything away from every gradient.

    What it sees
    ------------
    The norm of all gradients when the optimizer steps over their norm when backward ended. It speaks when less than
    a fiftieth is left at eight measured steps in a row, the steps follow the size of the gradient (as those of SGD do,
    not those of Adam), and they are shorter than two parts in 10,000 of the weights.

    Why it is bad
    -------------
    A threshold far below the usual norm fixes the length of every step at threshold times learning rate, which is
    then far too short. Clipping is there to cut the rare large gradient. The same happens when gradients are clipped
    before a loss scaler has removed its scale.

    When it is wrong
    ----------------
    Under Adam and its kin the scale of the gradient cancels out, so nothing is said there. Normalised gradient descent
    clips every step on purpose, with a learning rate to match: the steps are then long enough.

    References
    ----------
    Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", 2013 (arXiv 1211.5063).
    PyTorch documentation, "Automatic mixed precision examples": gradient clipping after `unscale_`.
    """

    code: ClassVar[str] = "GRD010"
    pace: ClassVar[Pace] = ("gradient", 3)

    def __init__(self) -> None:
        self._condition = Condition("clipped")
        self._length = 0
        self._often = 0  # measured steps that were clipped as much, in a row or not
        self._since = 0
        self._left = 1.0
        self._settled = False  # the base is one of losses since then
        self._base = math.nan  # the level of the loss when this began
        self._speed = math.nan  # update over weight, in the middle of all matrices
        self._speed_per_gradient = math.nan
        self._follows = False  # updates are as long as the learning rate times the gradient

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    @property
    def resting(self) -> bool:
        return not self._condition.is_open and self._length == 0

    def news(self, batch: FrameBatch) -> Flags:
        return batch.scalar("clip_coefficient") < thresholds.CLIPPED_TO

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        """How the optimizer steps is remembered of the latest update, its speed of the latest step."""
        told = ~batch.skipped & ~np.isnan(batch.scalar("clip_coefficient"))
        updates = [place for place in batch.frames_with("update", first, last) if told[place]]
        latest = first + np.flatnonzero(told[first:last])
        for place in sorted({*updates[-1:], *latest[-1:].tolist()}):
            self.observe(batch.view(place))
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        if view.skipped:
            return ()
        left, total = view.scalar("clip_coefficient"), view.scalar("gradient_norm_total")
        if view.ids("update") is not None and not math.isnan(left):
            self._learn_how_it_steps(view, left * total)
        elif self._follows and not math.isnan(left):
            self._speed = self._speed_per_gradient * left * total
        if left >= thresholds.CLIPPED_TO:
            self._length = 0
            return self._condition.end()
        if left < thresholds.CLIPPED_TO:
            if self._length == 0:
                # Where it comes and goes, all that was learnt since the first time counts.
                self._since, self._settled = view.step, self._often >= thresholds.CLIPPED_FRAMES
                if not self._settled:
                    self._base = math.nan if view.loss is None else view.loss.level
            self._length, self._often, self._left = self._length + 1, self._often + 1, left
        if self._length == 0:
            return ()
        late = self._since > thresholds.CLIPPED_STEPS
        if (
            late
            and not self._settled
            and view.loss is not None
            and view.step - self._since >= thresholds.CLIPPED_FRAMES
        ):
            # The level is a median of the latest losses: only now does it speak of none from before the clipping.
            self._base, self._settled = view.loss.level, True
        # Where gradients are measured rarely, a few of them will do.
        rarely = self._length >= 3 and view.step - self._since >= thresholds.CLIPPED_STEPS
        if self._length < thresholds.CLIPPED_FRAMES and not rarely:
            return ()
        if (late and not self._settled) or not self._follows or has_fallen(view.loss, self._base):
            return self._condition.stay()
        if not self._speed < thresholds.CLIPPED_STEP:
            return self._condition.end()
        return self._condition.hold(True, lambda: self._verdict(view))

    def _learn_how_it_steps(self, view: FrameView, stepped: float) -> None:
        matrices = matrices_of(view.layout)
        self._speed = middle(matrices.values(view, "update_ratio"))
        rate = view.scalar("lr")
        with np.errstate(divide="ignore", invalid="ignore"):
            length = matrices.values(view, "update_norm") / (rate * matrices.values(view, "stepped_gradient_norm"))
        self._speed_per_gradient = self._speed / stepped if stepped > 0 else math.nan
        # Momentum makes a step up to a few hundred times as long as the gradient; Adam's length has no bound here.
        self._follows = 0.3 < middle(length) < thresholds.CLIPPED_MOMENTUM

    def _verdict(self, view: FrameView) -> Verdict:
        left = self._left
        total = view.scalar("gradient_norm_total")
        evidence = [
            Evidence("clip_coefficient", None, left, 1.0,
                     f"share of the gradient left by clipping at step {view.step}; as little at every step since "
                     f"{self._since}"),
            Evidence("update_ratio", None, self._speed, 1e-3, "step over weight, in the middle of all matrices"),
        ]  # fmt: skip
        if math.isfinite(total):
            evidence.append(Evidence("gradient_norm_total", None, total, total * left, "norm before clipping"))
        scale = view.scalar("loss_scale")
        if not math.isnan(scale):
            how = "a loss scaler is in use: clip after unscale_, or its scale is clipped away"
            evidence.append(Evidence("loss_scale", None, scale, None, how))
        summary = f"Clipping leaves {left:.1g} of the gradient at every step, so the weights hardly move."
        return Verdict(self._condition.key, True, Severity.SEVERE, (), self._since, 0.92, summary, tuple(evidence))
