"""A setting of normalisations that no published model has."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Remedy, Severity

USUAL_NORMALISATION_SETTINGS = Remedy(
    "usual-normalisation-settings",
    "Set eps and momentum of the normalisation back to their defaults.",
    "layer = $layer\nlayer.eps, layer.momentum = 1e-5, 0.1",
    "Running statistics take some hundred steps to settle.",
    when_not="They were chosen for a pretrained model that expects them.",
)


class NormalisationSetting(Condition):
    """For conditions on one number that normalisations are made with, looked at where they are in training mode."""

    quantity: ClassVar[str]
    usual: ClassVar[float]
    effect: ClassVar[str]  # of such a setting, in the words of a summary

    def __init__(self) -> None:
        self._settings = b""

    def is_unfit(self, setting: NDArray[np.float32]) -> NDArray[np.bool_]:
        raise NotImplementedError

    def observe(self, view: FrameView) -> Judgement | None:
        modes, setting, ids = view.row("activation_training"), view.row(self.quantity), view.ids("activation")
        if modes is None or setting is None or ids is None:
            return None
        training = modes == 1
        if not training.any():
            return None
        settings = modes.tobytes() + setting.tobytes()
        if settings == self._settings:  # as they nearly always are
            return self.stay()
        self._settings = settings
        unfit = training & self.is_unfit(setting)
        if not unfit.any():
            return self.end() if (training & ~np.isnan(setting)).any() else None
        members = tuple(view.layout.in_order(ids[unfit]))
        value = float(setting[unfit][0])
        return self.hold(members, lambda: self._describe(view, members, value))

    def _describe(self, view: FrameView, members: tuple[int, ...], value: float) -> Judgement:
        evidence = tuple(
            Evidence(self.quantity, view.layout.path(i), value, self.usual, "as it is set") for i in members[:3]
        )
        name = self.quantity.removeprefix("norm_")
        summary = f"{name_layers(view.layout, members)}: {name} {value:.3g} ({self.usual:g} is usual): {self.effect}."
        return Judgement(Severity.MODERATE, members, view.step, 0.97, summary, evidence)
