"""Do the micro-batches of a step, or losses with a backward pass each, pull a layer the same way?

Of n gradients with noise scale B (variance over squared mean, both without bias), the mean scalar product of two of
them is 1 / (1 + B) of their mean squared norm: their cosine, where norms are alike. B is infinite exactly when that
product is not positive; how far below zero it lies is then not recorded.
"""

from dataclasses import dataclass

import numpy as np

from undertow.analyze.series import Floats

ENOUGH = 32  # measured steps
OPPOSED = 0.95  # of them; gradients that are pure noise point apart in half to two thirds
NOT_MEASURED = "norms of whole steps cannot tell: it needs micro-batches or losses with a backward pass each"
APART = "micro-batches point apart in most layers: their cosine is not positive, and its size was not recorded"


@dataclass(frozen=True, slots=True)
class Agreement:
    """`value` is the lower median over layers; in `conflicting` columns gradients nearly always oppose each other."""

    value: float | None
    conflicting: list[int]
    reason: str = ""


def micro_batch_agreement(noise_scale: Floats | None, window: int) -> Agreement:
    """Of (steps × layers) noise scales, NaN where there were no micro-batches; the newest `window` with any count."""
    if noise_scale is None or np.isnan(noise_scale).all():
        return Agreement(None, [], NOT_MEASURED)
    measured = ~np.isnan(noise_scale)
    recent = noise_scale[np.flatnonzero(measured.any(axis=1))[-max(window, ENOUGH) :]]
    layers = np.flatnonzero((~np.isnan(recent)).any(axis=0))
    recent = recent[:, layers]
    counts, opposed = (~np.isnan(recent)).sum(axis=0), np.isinf(recent).sum(axis=0)
    conflicting = layers[(counts >= ENOUGH) & (opposed >= OPPOSED * counts)]
    # 0 stands for anything not positive: the lower median is never the mean of such a one and a measured one.
    of_layers = np.nanquantile(1 / (1 + recent), 0.5, axis=0, method="lower")
    typical = float(np.quantile(of_layers, 0.5, method="lower"))
    value, reason = (typical, "") if typical > 0 else (None, APART)
    return Agreement(value, conflicting.tolist(), reason)
