"""The shared view of the loss: levels, noise, slopes and jumps, whatever the scale, sign and order of the losses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np
import pytest
from numpy.random import default_rng
from scipy import stats

from undertow.detect.engine import Condition, Engine, FrameView, Judgement, Stage
from undertow.detect.features.loss_trend import Loss, LossTrend
from undertow.schema import Frame


def frames_of(losses: Iterable[float], rates: Iterable[Mapping[str, float]] | None = None) -> list[Frame]:
    rates = rates or ({"lr": 0.1} for _ in iter(int, 1))
    return [Frame(step, step, 0.0, {"loss": value, **lr}) for step, (value, lr) in enumerate(zip(losses, rates))]


def course(losses: Iterable[float]) -> list[Loss]:
    trend = LossTrend()
    seen = [trend.observe(frame) for frame in frames_of(losses)]
    return [loss for loss in seen if loss is not None]


def noisy(level: np.ndarray, deviation: float, seed: int = 0) -> list[float]:
    return [float(x) for x in level + deviation * default_rng(seed).standard_normal(len(level))]


def test_noise_is_that_of_single_losses_and_not_the_trend() -> None:
    last = course(noisy(np.linspace(10, 5, 400), 0.3))[-1]
    assert last.noise == pytest.approx(0.3, rel=0.5)
    assert last.start == pytest.approx(10, abs=0.5)
    assert last.level == pytest.approx(5, abs=0.4)


@pytest.mark.parametrize("seed", range(5))
def test_slope_agrees_with_an_independent_estimate(seed: int) -> None:
    losses = noisy(np.linspace(3, 1, 12), 0.1, seed)[:12]
    last = course(losses)[-1]
    slope, _, low, high = stats.theilslopes(losses[-8:], np.arange(8), 0.99)
    assert last.slope == pytest.approx(slope, rel=0.15)
    assert (last.slope_low, last.slope_high) == pytest.approx((low, high), rel=0.6)


def test_direction_is_told_rightly() -> None:
    assert course(noisy(np.linspace(3, 1, 200), 0.2))[-1].falling
    assert course(noisy(np.linspace(1, 3, 200), 0.2))[-1].rising


def test_flat_noise_is_hardly_ever_called_a_trend() -> None:
    ends = [course(noisy(np.full(150, 2.3), 0.2, seed))[-1] for seed in range(200)]
    assert sum(end.rising or end.falling for end in ends) <= 8  # one in a hundred, with luck against us


@pytest.mark.parametrize("factor", [1e-5, 1e5])
def test_scale_changes_nothing_but_the_unit(factor: float) -> None:
    losses = [abs(x) for x in noisy(np.linspace(3, 1, 100), 0.2)]
    losses[60] *= 50
    for one, other in zip(course(losses), course([factor * x for x in losses])):
        assert other.jump == pytest.approx(one.jump, rel=1e-6)
        assert other.gain == pytest.approx(one.gain, rel=1e-6)
        assert (other.rising, other.falling) == (one.rising, one.falling)


def test_jumps_of_positive_losses_are_factors() -> None:
    losses = [*noisy(np.full(50, 2.0), 0.1), 40.0]
    last = course(losses)[-1]
    assert last.jump > 8
    assert last.ratio == pytest.approx(20, rel=0.1)


def test_losses_below_zero_have_jumps_too() -> None:
    losses = [*noisy(np.full(50, 0.0), 0.1), 5.0]
    last = course(losses)[-1]
    assert last.jump > 20
    assert math.isnan(last.ratio)
    assert math.isnan(last.remaining)


def test_optimizers_that_step_in_turn_have_a_course_each() -> None:
    losses = [value for pair in zip(np.linspace(1, 0.1, 30), np.linspace(5, 9, 30)) for value in pair]
    trend = LossTrend()
    seen = [trend.observe(frame) for frame in frames_of(map(float, losses), [{"lr_0": 0.1}, {"lr_1": 0.1}] * 30)]
    first, second = seen[-2], seen[-1]
    assert first is not None
    assert second is not None
    assert (first.actor, second.actor, second.actors) == (0, 1, 2)
    assert first.falling
    assert second.rising


def test_absent_and_nonfinite_losses_are_no_losses() -> None:
    trend = LossTrend()
    assert trend.observe(Frame(0, 0, 0.0, {})) is None
    assert trend.observe(Frame(0, 0, 0.0, {"loss": math.nan})) is None
    assert trend.observe(Frame(0, 0, 0.0, {"loss": 1.0})) is not None
    assert trend.observe(Frame(1, 0, 0.0, {"loss": 99.0})) is None  # logged by hand, for the same step


class _Listener(Condition):
    """Keeps what conditions are shown."""

    code, variant, stage = "NUM002", "listener", Stage.NONFINITE
    seen: ClassVar[list[Loss | None]] = []

    def observe(self, view: FrameView) -> Judgement | None:
        self.seen.append(view.loss)
        return None


def test_conditions_see_the_same_one_by_one_and_together() -> None:
    frames = frames_of(noisy(np.linspace(3, 1, 60), 0.1))
    seen: list[list[Loss | None]] = []
    for together in (1, 60):
        _Listener.seen.clear()
        engine = Engine([_Listener])
        for first in range(0, 60, together):
            engine.observe_many(frames[first : first + together])
        seen.append(list(_Listener.seen))
    assert len(seen[0]) == 60
    assert str(seen[0]) == str(seen[1])  # NaN is not equal to itself
