"""The gradients that a run recorded, as frames of the animator."""

from collections.abc import Iterator

import numpy as np

from undertow.analyze.run_series import RunNumbers, parts_of
from undertow.schema.quantities import GradientState
from undertow.schema.seeds.animation import GradientPresence, LayerGradientInfo

_NUMBERS = ("gradient_state", "gradient_mean_abs", "gradient_max_abs", "gradient_norm", "gradient_nonfinite_count")


def recorded_frames(
    run: RunNumbers, newest: int, vanishing: float, exploding: float
) -> Iterator[tuple[int, list[LayerGradientInfo]]]:
    """Of every step at which gradients were measured, the newest ones if not all are wanted: its layers by name,
    without their intensity. Frozen parameters are left out, as are those whose turn it was not."""
    if any(name not in run.quantities for name in _NUMBERS):
        return
    layers = sorted((layer for layer in run.layers if not layer.is_module), key=lambda layer: layer.path)
    measured: list[int] = []
    for part in parts_of(run, range(len(run.steps))):
        measured += (part.start + np.flatnonzero(~np.isnan(run.matrix(_NUMBERS[0], part)).all(axis=1))).tolist()
    for row in measured[-newest:] if newest else measured:
        table = [run.matrix(name, slice(row, row + 1))[0].astype(np.float64) for name in _NUMBERS]
        found: list[LayerGradientInfo] = []
        for layer in layers:
            state, mean, top, norm, count = (float(values[layer.id]) for values in table)
            if state == GradientState.NONE:
                found.append(
                    LayerGradientInfo(layer.path, 0.0, 0.0, 0.0, False, False, 0.0, 0, GradientPresence.MISSING)
                )
            elif state == GradientState.PRESENT and not np.isnan(count):
                bad = count > 0
                presence = GradientPresence.NONFINITE if bad else GradientPresence.PRESENT
                mean, norm = (np.nan, np.nan) if bad else (mean, norm)
                small, large = not bad and mean < vanishing, top > exploding
                found.append(LayerGradientInfo(layer.path, mean, top, norm, small, large, 0.0, int(count), presence))
        yield int(run.steps[row]), found
