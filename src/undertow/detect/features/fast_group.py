"""A parameter group whose learning rate is far above that of the others: what goes wrong then is its doing."""

import numpy as np

from undertow.detect.engine import FrameView, Limit
from undertow.detect.features.matrices import matrices_of


class FastGroup:
    """Takes frames in order; `members` are its weight matrices, none while all rates are alike.

    `parameters` are all that it holds: a learnt scale or temperature is no matrix.
    """

    ahead = Limit(30.0, "times the rate of the others; adapters are trained with 16 times on purpose")

    def __init__(self) -> None:
        self.members: tuple[int, ...] = ()
        self.parameters: tuple[int, ...] = ()

    def observe(self, view: FrameView) -> None:
        ids, each = view.ids("optimizer"), view.row("optimizer_rate")
        if ids is None or each is None:
            return
        matrices = matrices_of(view.layout)
        rates = matrices.values(view, "optimizer_rate")
        known = np.sort(rates[np.isfinite(rates)])
        if len(known) < 2:
            return
        usual = float(known[(len(known) - 1) // 2])
        far = self.ahead * usual if usual > 0 else np.inf
        self.members = tuple(matrices.ids[rates > far].tolist())
        self.parameters = tuple(ids[each > far].tolist())
