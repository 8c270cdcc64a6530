"""Records gradients frame by frame, draws them, writes them out, and sums them up."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from undertow.analyze.array_statistics import scaled_norm
from undertow.analyze.run_series import RunNumbers
from undertow.components.frame_files import frames_as_csv, frames_as_json
from undertow.components.frame_heatmap import HeatmapOrder, HeatmapScale, draw_heatmap
from undertow.components.frame_summary import IssueCounter, summarise
from undertow.components.given_tensors import gradients as gradients_of
from undertow.components.given_tensors import named_tensors
from undertow.components.recorded_frames import recorded_frames
from undertow.schema.seeds.animation import (
    GradientFlowSummary,
    GradientFrame,
    GradientPresence,
    LayerGradientInfo,
    with_intensity,
)
from undertow.schema.seeds.arrays import Floats, InputError, as_array, legal
from undertow.schema.seeds.record import shown_by

VANISHING_THRESHOLD = 1e-7
EXPLODING_THRESHOLD = 1e3
SEQUENTIAL_LIMIT = 1 << 20


class GradientFlowAnimator:
    """A rolling window of frames; `max_frames=0` keeps all of them.

    A layer is vanishing when the mean of |g| is below one threshold, exploding when the largest |g| is above the
    other. Non-finite gradients, gradients without elements and missing ones (None) are states of their own.
    """

    def __init__(self, max_frames: int = 0) -> None:
        if max_frames < 0:
            raise InputError(f"max_frames is {max_frames}, expected 0 (keep all) or more")
        self.max_frames = max_frames
        self.vanishing_threshold = VANISHING_THRESHOLD
        self.exploding_threshold = EXPLODING_THRESHOLD
        self._frames: deque[GradientFrame] = deque(maxlen=max_frames or None)
        self._counter = IssueCounter()

    @classmethod
    def from_run(
        cls,
        run: RunNumbers,
        max_frames: int = 0,
        vanishing_threshold: float = VANISHING_THRESHOLD,
        exploding_threshold: float = EXPLODING_THRESHOLD,
    ) -> GradientFlowAnimator:
        """The gradients that a run recorded (`undertow.open_run`), as if each measured step had been given to
        `record_step`; the newest `max_frames` of them, 0 for all."""
        animator = cls(max_frames)
        animator.with_vanishing_threshold(vanishing_threshold).with_exploding_threshold(exploding_threshold)
        if not hasattr(run, "matrix"):
            raise InputError(
                f"the run is a {type(run).__name__}", way_out="Give what `undertow.open_run(path)` returns"
            )
        limits = animator.vanishing_threshold, animator.exploding_threshold
        for step, layers in recorded_frames(run, max_frames, *limits):
            animator._keep(GradientFrame(step, with_intensity(layers)), [layer.name for layer in layers])
        return animator

    def with_vanishing_threshold(self, threshold: float) -> GradientFlowAnimator:
        self.vanishing_threshold = _threshold(threshold)
        return self

    def with_exploding_threshold(self, threshold: float) -> GradientFlowAnimator:
        self.exploding_threshold = _threshold(threshold)
        return self

    def record_step(self, step: int, gradients: Any) -> None:
        """Add one frame: a gradient (or None) per layer name.

        Of a module, and of named parameters, the gradients are taken: record after `backward()`. Frozen parameters are
        left out, trainable ones without a gradient are missing.
        """
        if (
            not isinstance(step, int | np.integer | float)
            or isinstance(step, bool)
            or not step >= 0
            or int(step) != step
        ):
            raise InputError(f"step is {step!r}, expected a whole number from 0 on")
        pairs = gradients_of(named_tensors(gradients))
        names = [name for name, _ in pairs]
        layers = [self._measure(name, gradient) for name, gradient in sorted(pairs, key=lambda pair: pair[0])]
        frame = GradientFrame(int(step), with_intensity(layers))
        self._keep(frame, names)

    def _keep(self, frame: GradientFrame, names: list[str]) -> None:
        self._counter.count(frame, names)
        self._frames.append(frame)

    def _measure(self, name: str, gradient: Any) -> LayerGradientInfo:
        """Everything but the intensity, which takes the other layers."""
        presence, mean, top, norm, nonfinite = GradientPresence.PRESENT, 0.0, 0.0, 0.0, 0
        size = np.abs(as_array([] if gradient is None else gradient, name).reshape(-1))
        if not size.size:
            presence = GradientPresence.MISSING if gradient is None else GradientPresence.EMPTY
        elif nonfinite := int(size.size - np.isfinite(size).sum()):
            presence, mean, norm = GradientPresence.NONFINITE, np.nan, np.nan
            top = float(np.fmax.reduce(size))  # leaves NaN out
        else:
            mean, top = _total(size) / size.size, float(size.max())
            norm = float(np.sqrt(_total(size * size))) if 1e-140 < top < 1e140 else scaled_norm(size)
        vanishing = presence is GradientPresence.PRESENT and mean < self.vanishing_threshold
        exploding = bool(size.size) and top > self.exploding_threshold
        return LayerGradientInfo(name, mean, top, norm, vanishing, exploding, 0.0, nonfinite, presence)

    def frames(self) -> list[GradientFrame]:
        """The frames the window still holds, oldest first."""
        return list(self._frames)

    def export_json(self, path: str | os.PathLike[str]) -> None:
        """Write an array of frames; a number that is not finite becomes null, with its count beside it."""
        _write(path, frames_as_json(self._frames))

    def export_csv(self, path: str | os.PathLike[str]) -> None:
        """Write one row per step and layer."""
        _write(path, frames_as_csv(self._frames))

    def play(self, *, palette: str = "default", quantity: str = "gradient_norm", once: bool = False) -> None:
        """The frames as a moving heatmap in the terminal, as `undertow play` shows a run; press ? for the keys.

        Where stdout is no terminal, or `once`, one picture. `quantity` may be `gradient_mean_abs` or
        `gradient_max_abs`.
        """
        shown_by("play_frames")(list(self._frames), self._order(), palette, quantity, once)

    def export_png(self, path: str | os.PathLike[str], **options: Any) -> None:
        """A heatmap; `options` are those of `undertow export`: palette, theme, size, quantity, layers, steps, what."""
        self._export(path, "png", options)

    def export_gif(self, path: str | os.PathLike[str], **options: Any) -> None:
        """A heatmap that grows with the steps; also `frames` and `frames_per_second`."""
        self._export(path, "gif", options)

    def export_mp4(self, path: str | os.PathLike[str], **options: Any) -> None:
        """The same as a video; needs the package av: `pip install "undertow[video]"`."""
        self._export(path, "mp4", options)

    def export_html(self, path: str | os.PathLike[str]) -> None:
        """One file for a browser, with the heatmap to zoom and filter, and what Undertow finds in the frames."""
        self._export(path, "html", {})

    def _export(self, path: str | os.PathLike[str], kind: str, options: dict[str, Any]) -> None:
        shown_by("export_frames")(list(self._frames), self._order(), Path(path), kind, options)

    def _order(self) -> list[str]:
        """Layers that the window still holds, as they first appeared."""
        retained = {layer.name for frame in self._frames for layer in frame.layers}
        return [name for name in self._counter.names if name in retained]

    def to_ascii_animation(
        self,
        *,
        scale: HeatmapScale | str = HeatmapScale.FRAME,
        order: HeatmapOrder | str = HeatmapOrder.NAME,
        step_labels: bool = False,
        max_columns: int | None = None,
    ) -> str:
        """A text heatmap: a row per layer, a column per frame.

        `scale` normalises by the largest norm of each frame, of each layer, or of the run, or shows decades of the
        run's range; `order` is by name or as layers first appeared; `max_columns` thins columns, of which each shows
        the worst of its frames: not finite, missing, exploding, vanishing, else the largest.
        """
        drawn, by_name = legal(HeatmapScale, scale, "scale"), legal(HeatmapOrder, order, "order") is HeatmapOrder.NAME
        rows = sorted(self._counter.names) if by_name else list(self._counter.names)
        return draw_heatmap(list(self._frames), rows, drawn, step_labels=step_labels, max_columns=max_columns)

    def summary_report(self) -> GradientFlowSummary:
        return summarise(list(self._frames), self._counter)


def _threshold(value: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"the threshold is {value!r}, expected a number") from None
    if np.isnan(number):
        raise InputError("the threshold is NaN, and no gradient is on either side of that")
    return number


def _total(values: Floats) -> float:
    """Added one after another: other orders differ in the last digit, and that can tip a heatmap cell."""
    return float(np.cumsum(values)[-1] if values.size <= SEQUENTIAL_LIMIT else values.sum())


def _write(path: str | os.PathLike[str], text: str) -> None:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Half a surrogate pair in a name has no bytes of its own; as an escape it is legal JSON, and reads back the same.
    target.write_bytes(text.encode("utf-8", "backslashreplace"))
