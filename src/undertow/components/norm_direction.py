"""Which way each layer's norm is going, at each of the newest steps."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undertow.analyze.oscillation import MINIMUM as ENOUGH_TO_OSCILLATE
from undertow.analyze.oscillation import oscillation
from undertow.analyze.series import Floats
from undertow.analyze.trend import detrend
from undertow.schema.seeds.flow_records import FlowDirection

NET_CHANGE = 0.1  # relative change that counts as going somewhere
ERRORS = 3.0  # and that many standard errors of the noise around it


@dataclass(frozen=True, slots=True)
class Directions:
    """(samples × layers): an index into `KINDS`, or −1 where nothing can be said; and the stability score."""

    kind: NDArray[np.int8]
    stability: Floats


KINDS = (FlowDirection.FORWARD, FlowDirection.BACKWARD, FlowDirection.OSCILLATING, FlowDirection.STAGNANT)
RISING, FALLING, SWINGING, STILL = range(4)


def recent_directions(samples: Floats, window: int) -> Directions:
    """For each of the newest `window` samples, judged by the `window` samples up to it.

    Rising or falling: the line through the norms moves by more than 10 % of their level and by three standard errors.
    Oscillating: more turning points than noise has (from 14 samples on). Stagnant: neither. With fewer than 14
    samples, swings without net change cannot be told from noise: no direction.
    """
    rows = min(window, len(samples))
    recent = np.where(np.isfinite(samples[-2 * window :]), samples[-2 * window :], 0)
    top = recent.max(axis=0, initial=0.0)
    samples = samples[-2 * window :] / np.where(top > 0, top, 1.0)  # squares of huge norms would overflow
    kind = np.full((rows, samples.shape[1]), -1, np.int8)
    stability = np.full((rows, samples.shape[1]), np.nan)
    for row in range(rows):
        end = len(samples) - rows + row + 1
        part = samples[max(0, end - window) : end]
        filled = np.isfinite(part)
        backward = filled[::-1]
        run = np.where(backward.all(axis=0), len(filled), np.argmin(backward, axis=0))  # samples since the last gap
        for length in np.unique(run):
            if length >= 3:
                chosen = np.flatnonzero(run == length)
                kind[row, chosen], stability[row, chosen] = _judge(part[len(part) - length :, chosen])
    return Directions(kind, stability)


def _judge(values: Floats) -> tuple[NDArray[np.int8], Floats]:
    count = len(values)
    level = values.mean(axis=0)
    safe = np.where(level > 0, level, 1)
    slope, residual = detrend(values)
    spread = np.sqrt(np.square(residual).sum(axis=0) / max(1, count - 2))
    error = spread / np.sqrt(count * (count * count - 1.0) / 12)
    change = slope * (count - 1) / safe
    moves = (np.abs(change) > NET_CHANGE) & (np.abs(slope) > (ERRORS if count >= 5 else 1.0) * error)
    quiet = (values.max(axis=0) - values.min(axis=0)) <= NET_CHANGE * safe
    kind = np.where(slope > 0, RISING, FALLING)
    still = np.where(quiet | (count >= ENOUGH_TO_OSCILLATE), STILL, -1)
    kind = np.where(moves, kind, still)
    if count >= ENOUGH_TO_OSCILLATE:
        kind = np.where(oscillation(values).significant, SWINGING, kind)
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithm = np.log(values)
        wobble = np.sqrt(np.square(detrend(logarithm)[1]).mean(axis=0))
    stability = np.where(np.isfinite(wobble), 1 / (1 + wobble), np.nan)
    return kind.astype(np.int8), stability
