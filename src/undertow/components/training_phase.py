"""Where training stands: phase, plateau, speed. Judged by the loss, never by gradient norms."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from undertow.analyze.loss_forecast import Forecast, forecast
from undertow.analyze.run_series import TrainingSeries
from undertow.analyze.series import Floats, column_median
from undertow.analyze.trend import trend_test
from undertow.components.loss_trend import loss_trend, scale_of
from undertow.schema.reasons import Missing, record_of
from undertow.schema.seeds.dynamics import (
    ConvergenceIndicators,
    ConvergenceTrend,
    LearningPhase,
    PlateauDetection,
    PlateauSeverity,
    TrainingDynamics,
)

IMPROVEMENT = 3.0  # standard errors of a block mean
FALL = 6.0  # standard errors: the loss has come down at all
RETAINED = 0.15  # of the fall: how far the loss may hang above its best, on average
FLATNESS = 0.1  # of the fall: how far a plateau may stray
RAPID_SHARE = 0.2  # of the whole fall within one window
RISE = 0.72  # score of a trend at four standard errors: the best value was picked for being low, what follows is higher
ENDED = 0.05  # of the highest learning rate
NO_LOSS = Missing("no loss was given")
NO_PLATEAU = PlateauDetection(False, 0, None, [], {"plateau_severity": "there is no plateau"})
WANDERS = Missing("the loss has come down, and its newest values show neither a certain fall nor a settled level")


def with_usable_losses(series: TrainingSeries) -> tuple[TrainingSeries, float]:
    """The same with losses in another unit, and the unit: 1 unless squares would leave the range of numbers."""
    sizes = [float(np.abs(loss[np.isfinite(loss)]).max(initial=0.0)) for loss in (series.loss, series.validation_loss)
             if loss is not None]  # fmt: skip
    largest = max(sizes, default=0.0)
    if largest == 0 or 1e-100 < largest < 1e100:
        return series, 1.0
    parts = [None if loss is None else loss / largest for loss in (series.loss, series.validation_loss)]
    return replace(series, loss=parts[0], validation_loss=parts[1]), largest


@dataclass(frozen=True, slots=True)
class Fall:
    """The loss in blocks: how far it came down, whether that is certain, and for how many samples it has been flat."""

    amount: float
    significant: bool
    flat_samples: int


def measure_fall(loss: Floats, window: int) -> Fall:
    """A fall is certain when it exceeds the noise of a block mean and the loss stayed near its best ever since."""
    size = max(1, window // 10)
    count = len(loss) // size
    means = loss[len(loss) - count * size :].reshape(count, size).mean(axis=1)
    error = float(np.std(np.diff(loss))) / np.sqrt(2 * size)
    running = np.minimum.accumulate(means)
    amount = float(np.median(means[: max(1, min(3, count))])) - float(running[-1])
    kept = float((means - running).mean()) <= RETAINED * amount
    better = np.flatnonzero(means[1:] < running[:-1] - IMPROVEMENT * error) + 1
    since = count - 1 - (int(better[-1]) if len(better) else 0)
    room = 4 * error + FLATNESS * max(0.0, amount)
    # The whole stretch, then less of it: its beginning may still belong to the fall.
    stretches = (round(since * share) for share in (1.0, 0.8, 0.65, 0.5))
    flat = next((blocks * size for blocks in stretches if _is_flat(loss, means, blocks, size, room)), 0)
    return Fall(amount, kept and amount > FALL * error and amount > 1e-9 * scale_of(loss), flat)


def _is_flat(loss: Floats, means: Floats, blocks: int, size: int, room: float) -> bool:
    if blocks < 3 or float(np.ptp(means[-blocks:])) > room:
        return False
    test = trend_test(loss[-blocks * size :, None])
    return bool(test.stationary[0]) and int(test.direction[0]) == 0


def rate_left(learning_rate: Floats | None) -> float:
    """The newest learning rate over the highest one; 1 where it is not known."""
    known = np.empty(0) if learning_rate is None else learning_rate[np.isfinite(learning_rate)]
    return float(known[-1] / known.max()) if len(known) and known.max() > 0 else 1.0


def _usable(loss: Floats | None, needed: int) -> Floats | Missing:
    if loss is None:
        return NO_LOSS
    if len(loss) < needed:
        return Missing(f"{needed - len(loss)} more loss values are needed")
    return loss if np.isfinite(loss).all() else Missing("the loss is not finite")


def detect_plateau(loss: Floats | None, patience: int, rate: float = 1.0) -> PlateauDetection:
    """A stretch of at least `patience` samples without improvement, flat, after the loss had come down.

    `rate` is what is left of the learning rate: advice to lower it must not come when it is low already.
    """
    usable = _usable(loss, 2 * patience)
    if isinstance(usable, Missing):
        return record_of(PlateauDetection, suggested_actions=[], otherwise=usable)
    fall = measure_fall(usable, patience)
    if not (fall.significant and fall.flat_samples >= patience):
        return NO_PLATEAU
    times = fall.flat_samples / patience
    severity = PlateauSeverity.MILD if times < 2 else PlateauSeverity.MODERATE if times < 4 else PlateauSeverity.SEVERE
    actions = ["Lower the learning rate (or let its schedule do so) and see whether the loss moves."]
    if rate < ENDED:
        actions = [f"The learning rate is down to {rate:.1%} of its highest value: training longer changes little."]
    if severity is not PlateauSeverity.MILD:
        actions.append("If it does not, more capacity, other data or an end of training are the choices left.")
    return PlateauDetection(True, fall.flat_samples, severity, actions)


def is_overfitting(loss: Floats, validation: Floats | None) -> bool:
    """The validation loss surely rises since its best value, while the training loss does not."""
    if validation is None or not np.isfinite(validation).all() or not len(validation):
        return False
    since = validation[int(np.argmin(validation)) :]
    share = len(since) / len(validation)
    recent = loss[-max(20, round(share * len(loss))) :]
    after = trend_test(since[:, None])
    rises = int(after.direction[0]) > 0 and float(after.score[0]) > RISE
    return rises and int(trend_test(recent[:, None]).direction[0]) <= 0


def learning_phase(series: TrainingSeries, window: int, plateau: PlateauDetection) -> LearningPhase | Missing:
    """The phase, or why it cannot be told. First match of the rules below."""
    loss = _usable(series.loss, window)
    if isinstance(loss, Missing):
        return loss
    if is_overfitting(loss, series.validation_loss):
        return LearningPhase.OVERFITTING
    if plateau.is_plateau:
        # Where the schedule has run out, a flat loss is the end that was planned.
        return LearningPhase.CONVERGENCE if rate_left(series.learning_rate) < ENDED else LearningPhase.PLATEAU
    fall = measure_fall(loss, window)
    trend = trend_test(loss[-window:, None])
    if int(trend.direction[0]) < 0:
        recent = -float(trend.slope[0]) * window
        return LearningPhase.RAPID_LEARNING if recent >= RAPID_SHARE * fall.amount else LearningPhase.REFINEMENT
    if not fall.significant:
        return LearningPhase.INITIAL_LEARNING
    return LearningPhase.CONVERGENCE if trend.stationary[0] else WANDERS


def training_dynamics(
    series: TrainingSeries, window: int, unit: float, diagnosed: Callable[[PlateauDetection], PlateauDetection] | None
) -> TrainingDynamics:
    """`unit` is that of the losses. `diagnosed` puts the word of a diagnosis in place of that on a plateau; then
    overfitting is not looked for either."""
    plateau = detect_plateau(series.loss, window, rate_left(series.learning_rate))
    if diagnosed is not None:
        plateau, series = diagnosed(plateau), replace(series, validation_loss=None)
    velocity = _velocity(series.loss, window)
    seconds = _newest_median(series.step_seconds, window, "how long steps took is not known")
    a_second = next((one for one in (velocity, seconds) if isinstance(one, Missing)), None)
    if not (isinstance(velocity, Missing) or isinstance(seconds, Missing)) and seconds:
        a_second = velocity / seconds * unit
    return record_of(
        TrainingDynamics,
        learning_phase=learning_phase(series, window, plateau),
        gradient_momentum=_newest_median(series.update_cosine, window, "no updates were given"),
        learning_velocity=velocity if isinstance(velocity, Missing) else velocity * unit,
        adaptation_rate=_newest_median(series.update_ratio, window, "no update-to-weight ratios were given"),
        plateau_detection=plateau,
        learning_velocity_per_second=a_second,
    )


def _velocity(loss: Floats | None, window: int) -> float | Missing:
    """Loss decrease per step over the newest window."""
    if loss is None:
        return NO_LOSS
    recent = loss[-window:]
    if len(recent) < 3 or not np.isfinite(recent).all():
        return Missing("three finite loss values are needed")
    index = np.arange(len(recent)) - (len(recent) - 1) / 2
    return 0.0 - float(index @ recent / (index @ index))


def _newest_median(table: Floats | None, window: int, reason: str) -> float | Missing:
    recent = np.empty(0) if table is None else table[-window:]
    finite = recent[np.isfinite(recent)]
    return float(np.median(finite)) if len(finite) else Missing(reason)


def typical_ratios(table: Floats | None, window: int) -> Floats | None:
    """Per layer, the median update-to-weight ratio of the newest window; NaN where there is none."""
    if table is None:
        return None
    recent = table[-window:]
    return column_median(np.where(np.isfinite(recent) & (recent > 0), recent, np.nan))


def convergence_indicators(
    series: TrainingSeries, layer_scores: Floats, window: int, unit: float = 1.0
) -> ConvergenceIndicators:
    """Loss, parameters and gradients, each on its own; the trend is that of the loss. `unit` is that of the losses."""
    scores = layer_scores[~np.isnan(layer_scores)]
    few = Missing(f"no layer has {window} finite, positive samples in a row")
    measured: dict[str, Any] = {
        "gradient_convergence_score": float(np.median(scores)) if len(scores) else few,
        "parameter_convergence_score": _parameter_score(series.update_ratio, window),
    }
    if series.loss is None:
        unknown = {"convergence_trend": ConvergenceTrend.UNKNOWN, "unavailable": {"convergence_trend": str(NO_LOSS)}}
        return record_of(ConvergenceIndicators, **measured, **unknown, otherwise=NO_LOSS)
    trend = loss_trend(series.loss, window)
    steps = forecast(series.loss)
    told = isinstance(steps, Forecast)
    unmeasured = Missing(trend.reason)
    return record_of(
        ConvergenceIndicators,
        **measured,
        loss_convergence_score=Missing(trend.reason) if trend.score is None else trend.score,
        convergence_trend=trend.trend,
        estimated_steps_to_convergence=steps.steps if told else Missing(steps),
        steps_interval=steps.interval if told else Missing(steps),
        loss_slope=unmeasured if trend.slope is None else trend.slope * unit,
        loss_slope_interval=unmeasured
        if trend.interval is None
        else (trend.interval[0] * unit, trend.interval[1] * unit),
        unavailable={"convergence_trend": trend.reason} if trend.reason else {},
    )


def _parameter_score(ratios: Floats | None, window: int) -> float | Missing:
    """Certainty that the typical update-to-weight ratio falls (1) or rises (−1)."""
    usable = np.empty((0, 0)) if ratios is None else np.where(np.isfinite(ratios) & (ratios > 0), ratios, np.nan)
    recent = usable[~np.isnan(usable).all(axis=1)][-window:]
    if len(recent) < window:
        return Missing(f"{window} update-to-weight ratios are needed")
    return -float(trend_test(np.log(np.nanmedian(recent, axis=1))[:, None]).score[0])
