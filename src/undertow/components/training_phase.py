"""Where training stands: phase, plateau, speed. Judged by the loss, never by gradient norms."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from undertow.analyze.loss_forecast import forecast
from undertow.analyze.run_series import TrainingSeries
from undertow.analyze.series import Floats, column_median
from undertow.analyze.trend import trend_test
from undertow.components.flow_network import known
from undertow.components.loss_trend import loss_trend, scale_of
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
NO_LOSS = "no loss was given"
WANDERS = "the loss has come down, and its newest values show neither a certain fall nor a settled level"


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
    flat = next((blocks * size for blocks in _shorter(since) if _is_flat(loss, means, blocks, size, room)), 0)
    return Fall(amount, kept and amount > FALL * error and amount > 1e-9 * scale_of(loss), flat)


def _shorter(blocks: int) -> list[int]:
    """The whole stretch, then less of it: its beginning may still belong to the fall."""
    return [round(blocks * share) for share in (1.0, 0.8, 0.65, 0.5)]


def _is_flat(loss: Floats, means: Floats, blocks: int, size: int, room: float) -> bool:
    if blocks < 3 or float(np.ptp(means[-blocks:])) > room:
        return False
    test = trend_test(loss[-blocks * size :, None])
    return bool(test.stationary[0]) and int(test.direction[0]) == 0


def rate_left(learning_rate: Floats | None) -> float:
    """The newest learning rate over the highest one; 1 where it is not known."""
    known = np.empty(0) if learning_rate is None else learning_rate[np.isfinite(learning_rate)]
    return float(known[-1] / known.max()) if len(known) and known.max() > 0 else 1.0


def detect_plateau(loss: Floats | None, patience: int, rate: float = 1.0) -> PlateauDetection:
    """A stretch of at least `patience` samples without improvement, flat, after the loss had come down.

    `rate` is what is left of the learning rate: advice to lower it must not come when it is low already.
    """
    if loss is None:
        return _no_plateau(NO_LOSS)
    if len(loss) < 2 * patience:
        return _no_plateau(f"{2 * patience - len(loss)} more loss values are needed")
    if not np.isfinite(loss).all():
        return _no_plateau("the loss is not finite")
    fall = measure_fall(loss, patience)
    if not (fall.significant and fall.flat_samples >= patience):
        return PlateauDetection(False, 0, None, [])
    times = fall.flat_samples / patience
    severity = PlateauSeverity.MILD if times < 2 else PlateauSeverity.MODERATE if times < 4 else PlateauSeverity.SEVERE
    actions = ["Lower the learning rate (or let its schedule do so) and see whether the loss moves."]
    if rate < ENDED:
        actions = [f"The learning rate is down to {rate:.1%} of its highest value: training longer changes little."]
    if severity is not PlateauSeverity.MILD:
        actions.append("If it does not, more capacity, other data or an end of training are the choices left.")
    return PlateauDetection(True, fall.flat_samples, severity, actions)


def _no_plateau(reason: str) -> PlateauDetection:
    names = ("is_plateau", "plateau_duration", "plateau_severity")
    return PlateauDetection(None, None, None, [], dict.fromkeys(names, reason))


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


def learning_phase(series: TrainingSeries, window: int, plateau: PlateauDetection) -> LearningPhase | str:
    """The phase, or why it cannot be told. First match of the rules below."""
    loss = series.loss
    if loss is None:
        return NO_LOSS
    if len(loss) < window:
        return f"{window - len(loss)} more loss values are needed"
    if not np.isfinite(loss).all():
        return "the loss is not finite"
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
    series: TrainingSeries,
    window: int,
    unit: float = 1.0,
    diagnosed: Callable[[PlateauDetection], PlateauDetection] | None = None,
) -> TrainingDynamics:
    """`unit` is that of the losses. `diagnosed` puts the word of a diagnosis in place of that on a plateau; then
    overfitting is not looked for either."""
    unavailable: dict[str, str] = {}
    plateau = detect_plateau(series.loss, window, rate_left(series.learning_rate))
    if diagnosed is not None:
        plateau, series = diagnosed(plateau), replace(series, validation_loss=None)
    phase = learning_phase(series, window, plateau)
    if not isinstance(phase, LearningPhase):
        unavailable["learning_phase"] = phase
    velocity = _velocity(series.loss, window)
    if isinstance(velocity, str):
        unavailable["learning_velocity"] = unavailable["learning_velocity_per_second"] = velocity
    seconds = _newest_median(series.step_seconds, window)
    if seconds is None and not isinstance(velocity, str):
        unavailable["learning_velocity_per_second"] = "how long steps took is not known"
    momentum = _newest_median(series.update_cosine, window)
    if momentum is None:
        unavailable["gradient_momentum"] = "no updates were given"
    adaptation = _newest_median(series.update_ratio, window)
    if adaptation is None:
        unavailable["adaptation_rate"] = "no update-to-weight ratios were given"
    return TrainingDynamics(
        learning_phase=phase if isinstance(phase, LearningPhase) else None,
        gradient_momentum=momentum,
        learning_velocity=None if isinstance(velocity, str) else velocity * unit,
        adaptation_rate=adaptation,
        plateau_detection=plateau,
        learning_velocity_per_second=None if isinstance(velocity, str) or not seconds else velocity / seconds * unit,
        unavailable=unavailable,
    )


def _velocity(loss: Floats | None, window: int) -> float | str:
    """Loss decrease per step over the newest window."""
    if loss is None:
        return NO_LOSS
    recent = loss[-window:]
    if len(recent) < 3 or not np.isfinite(recent).all():
        return "three finite loss values are needed"
    index = np.arange(len(recent)) - (len(recent) - 1) / 2
    return 0.0 - float(index @ recent / (index @ index))


def _newest_median(table: Floats | None, window: int) -> float | None:
    if table is None:
        return None
    recent = table[-window:]
    finite = recent[np.isfinite(recent)]
    return float(np.median(finite)) if len(finite) else None


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
    unavailable: dict[str, str] = {}
    scores = layer_scores[~np.isnan(layer_scores)]
    gradient = known(float(np.median(scores))) if len(scores) else None
    if gradient is None:
        unavailable["gradient_convergence_score"] = f"no layer has {window} finite, positive samples in a row"
    parameter = _parameter_score(series.update_ratio, window)
    if parameter is None:
        unavailable["parameter_convergence_score"] = f"{window} update-to-weight ratios are needed"
    if series.loss is None:
        names = ("loss_convergence_score", "convergence_trend", "estimated_steps_to_convergence")
        unavailable |= dict.fromkeys(names, NO_LOSS)
        return ConvergenceIndicators(gradient, parameter, None, ConvergenceTrend.UNKNOWN, None, unavailable=unavailable)
    trend = loss_trend(series.loss, window)
    if trend.reason:
        unavailable["convergence_trend" if trend.score is not None else "loss_convergence_score"] = trend.reason
    steps = forecast(series.loss)
    if isinstance(steps, str):
        unavailable["estimated_steps_to_convergence"] = steps
    return ConvergenceIndicators(
        gradient_convergence_score=gradient,
        parameter_convergence_score=parameter,
        loss_convergence_score=trend.score,
        convergence_trend=trend.trend,
        estimated_steps_to_convergence=None if isinstance(steps, str) else steps.steps,
        steps_interval=None if isinstance(steps, str) else steps.interval,
        loss_slope=None if trend.slope is None else trend.slope * unit,
        loss_slope_interval=None if trend.interval is None else (trend.interval[0] * unit, trend.interval[1] * unit),
        unavailable=unavailable,
    )


def _parameter_score(ratios: Floats | None, window: int) -> float | None:
    """Certainty that the typical update-to-weight ratio falls (1) or rises (−1)."""
    if ratios is None:
        return None
    usable = np.flatnonzero((np.isfinite(ratios) & (ratios > 0)).any(axis=1))[-window:]
    recent = ratios[usable]
    typical = np.nanmedian(np.where(np.isfinite(recent) & (recent > 0), recent, np.nan), axis=1)
    return -float(trend_test(np.log(typical)[:, None]).score[0]) if len(typical) >= window else None
