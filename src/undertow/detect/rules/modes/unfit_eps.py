"""MOD002: an eps that outweighs the variance, or is zero."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Limit, Stage
from undertow.detect.features.normalisation_settings import USUAL_NORMALISATION_SETTINGS, NormalisationSetting


class UnfitEps(NormalisationSetting):
    """The eps of a normalisation outweighs the variance, or is zero.

    What it sees: The eps of normalisations that run in training mode: 0, or 0.05 and more.
    Why it is bad: A large eps lets the scale through that should be taken out; without any, a variance of zero is
        divided by.
    When it is wrong: A pretrained model may have been trained with such an eps, and then needs it. None is known.
    References: PyTorch documentation, `torch.nn.BatchNorm2d`.
    """

    code, variant, formerly = "MOD002", "unfit-eps", "eps"
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    needs = frozenset({"activation"})
    meaning = "The layer hardly takes the scale out of what it normalises"
    remedies = (USUAL_NORMALISATION_SETTINGS,)

    quantity, usual = "norm_eps", 1e-5
    effect = "it does not fit a variance of about one"
    large = Limit(0.05, "published models: 1e-12 to 1e-3")

    def is_unfit(self, setting: NDArray[np.float32]) -> NDArray[np.bool_]:
        return (setting <= 0) | (setting >= self.large)
