"""MOD002: an eps or a momentum of a normalisation that no published model has."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage
from undertow.detect.features.remedies import USUAL_NORMALISATION_SETTINGS
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity

_USUAL = {
    "norm_eps": (1e-5, "it does not fit a variance of about one"),
    "norm_momentum": (0.1, "the running averages follow the last batch alone, or nothing"),
}


class UnfitSettings(Condition):
    """The eps of a normalisation outweighs the variance, or its momentum keeps the last batch alone, or nothing.

    What it sees: Normalisations that run in training mode with an eps of 0, or 0.05 and more; or with a momentum of 0,
        or 0.9 and more. PyTorch's momentum is the weight of the *new* value: 0.9 of other frameworks is 0.1 here.
    Why it is bad: A large eps lets the scale through that should be taken out; without any, a variance of zero is
        divided by. With such a momentum the running averages are those of the last batch, or never move: the model
        trains well and fails in evaluation.
    When it is wrong: A pretrained model may have been trained with such an eps, and then needs it. A momentum of 1 is
        right when averages are deliberately taken anew.
    References: PyTorch documentation, `torch.nn.BatchNorm2d`.
    """

    code, variant, formerly = "MOD002", "unfit-settings", "eps momentum unfit-eps unfit-momentum"
    places = ("definition",)
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    needs = frozenset({"activation"})
    meaning = "The layer hardly normalises, or the model fails in evaluation, where the running averages are used"
    remedies = (USUAL_NORMALISATION_SETTINGS,)

    large_eps = Limit(0.05, "published models: 1e-12 to 1e-3")
    large_momentum = Limit(0.9, "published models: 0.003 to 0.3")

    def __init__(self) -> None:
        self._settings = b""

    def observe(self, view: FrameView) -> Judgement | None:
        modes, ids = view.row("activation_training"), view.ids("activation")
        eps, momentum = view.row("norm_eps"), view.row("norm_momentum")
        if modes is None or ids is None or eps is None or momentum is None:
            return None
        settings = modes.tobytes() + eps.tobytes() + momentum.tobytes()
        if settings == self._settings:  # as they nearly always are
            return self.stay()
        self._settings, training = settings, modes == 1
        name, row = "norm_eps", eps
        unfit = training & ((eps <= 0) | (eps >= self.large_eps))
        if not unfit.any():
            name, row = "norm_momentum", momentum
            unfit = training & ((momentum <= 0) | (momentum >= self.large_momentum))
        if not unfit.any():
            return self.end() if (training & ~(np.isnan(eps) & np.isnan(momentum))).any() else None
        members, value = tuple(view.layout.in_order(ids[unfit])), float(row[unfit][0])
        return self.hold((name, members), lambda: _describe(view, name, members, value))


def _describe(view: FrameView, quantity: str, members: tuple[int, ...], value: float) -> Judgement:
    usual, effect = _USUAL[quantity]
    evidence = tuple(Evidence(quantity, view.layout.path(i), value, usual, "as it is set") for i in members[:3])
    setting = f"{quantity.removeprefix('norm_')} {value:.3g} ({usual:g} is usual)"
    summary = f"{name_layers(view.layout, members)}: {setting}: {effect}."
    return Judgement(Severity.MODERATE, members, view.step, 0.97, summary, evidence)
