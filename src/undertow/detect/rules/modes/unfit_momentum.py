"""MOD002: a momentum with which running averages are of no use."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Limit, Stage
from undertow.detect.features.normalisation_settings import USUAL_NORMALISATION_SETTINGS, NormalisationSetting


class UnfitMomentum(NormalisationSetting):
    """The momentum of a batch normalisation keeps the last batch alone, or nothing.

    What it sees: The momentum of normalisations that run in training mode: 0, or 0.9 and more. PyTorch's momentum is
        the weight of the *new* value: 0.9 of other frameworks is 0.1 here.
    Why it is bad: The running averages are those of the last batch, or never move. The model trains well and fails in
        evaluation.
    When it is wrong: A momentum of 1 is right when averages are deliberately taken anew.
    References: PyTorch documentation, `torch.nn.BatchNorm2d`.
    """

    code, variant, formerly = "MOD002", "unfit-momentum", "momentum"
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    needs = frozenset({"activation"})
    meaning = "The model trains well and fails in evaluation, where the running averages are used"
    remedies = (USUAL_NORMALISATION_SETTINGS,)

    quantity, usual = "norm_momentum", 0.1
    effect = "the running averages follow the last batch alone, or nothing"
    large = Limit(0.9, "published models: 0.003 to 0.3")

    def is_unfit(self, setting: NDArray[np.float32]) -> NDArray[np.bool_]:
        return (setting <= 0) | (setting >= self.large)
