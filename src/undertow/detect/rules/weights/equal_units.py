"""WGT002: all units of a layer have the same weights."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, LayerStreak, LayerValues, Limit, Stage
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.remedies import INITIALISE_AT_RANDOM
from undertow.detect.features.wording import known, name_layers
from undertow.schema import Evidence, LayerKind, Severity


class EqualUnits(Condition):
    """All units of a layer have the same weights, and training does not tell them apart.

    What it sees: How far the rows of each weight matrix (the filters of a convolution, the columns of an embedding)
        differ from their mean, in the steps in which weights are measured. A layer is reported when they are equal to
        one part in 10,000 although the matrix has moved by far more than that, or when matrix and gradient are exactly
        zero and stay so.
    Why it is bad: Units with equal weights compute the same and receive the same gradient, so they stay equal for ever:
        the layer is worth a single unit. Matrices that are all zero pass nothing on and receive nothing at all. The
        weights were set to a constant where random numbers belong.
    When it is wrong: Branches that start at zero on purpose (the second LoRA factor, the last matrix of a residual
        block) leave zero at the first step, and a constant layer next to random ones is told apart by it. So is a
        matrix beside a random one of the same shape in the same module, as the widths of a Bayesian layer are. Biases,
        scales of normalisations, frozen layers and adapters on a frozen model are not judged.
    References: Goodfellow, Bengio and Courville, "Deep Learning", 2016, section 8.4.
        Humbatova et al., "Taxonomy of Real Faults in Deep Learning Systems", 2020 (arXiv 1910.11015).
    """

    code, variant, formerly = "WGT002", "equal-units", "equal"
    places = ("initialisation", "parameter")
    stage, is_exact, is_standing = Stage.INITIALISATION, True, True
    needs = frozenset({"weight"})
    pace = ("weight", 5)
    meaning = "Such units always get equal gradients, so the layer is worth a single unit"
    remedies = (INITIALISE_AT_RANDOM,)

    spread = Limit(1e-4, "of the norm; rows told apart by one random neighbour differ by 1e-3 after a single step")
    patience = Limit(1, "measured step: healthy rows differ by two thirds of the norm, there is nothing to wait for")
    settled_after = Limit.chance(10, "measured steps in a row without a suspect: rows that have parted stay apart")
    moved = Limit(1e-5, "relative distance from the start: rows had the chance to part…")
    of_drift = Limit(0.05, "…of that distance: rows would differ by about as much, had they taken the chance")
    zero_frames = Limit.chance(3, "measured steps in a row at which a matrix was exactly zero")
    zero_for = Limit.start(4, "steps: a branch and a head that both start at zero leave it within three")

    _judged = LayerValues(np.bool_, False)
    _tables = LayerValues(np.bool_, False)  # embeddings: their units are columns
    _starved = LayerValues(np.bool_, False)  # the latest gradient was exactly zero

    def __init__(self) -> None:
        self._layout: LayerIndex | None = None
        self._equal, self._zero = LayerStreak(), LayerStreak()
        self._unsuspected = 0  # measured steps in a row at which no layer was suspect

    def observe(self, view: FrameView) -> Judgement | None:
        spread, ids = view.row("weight_row_spread"), view.ids("weight")
        norms, drift = view.row("weight_norm"), view.row("weight_drift")
        if spread is None or ids is None or norms is None or drift is None or view.skipped:
            return None
        if view.layout is not self._layout:
            self._look(view.layout)
        elif self._unsuspected >= self.settled_after and not self.is_open:
            return None  # rows that have parted do not become equal again
        self._unsuspected += 1
        self._remember(view)
        judged = self._judged[ids] & ~np.isnan(norms)
        zero = judged & (norms == 0) & self._starved[ids] & ~self._tables[ids]
        alike = judged & (spread < self.spread) & ~zero
        if alike.any():
            alike &= ~self._has_random_partner(view, ids, spread)
        together = (drift > self.moved) & (spread < self.of_drift * drift)
        self._zero.end(ids[judged & ~zero])
        self._equal.end(ids[judged & ~alike])
        if alike.any() or zero.any():
            self._unsuspected = 0
            self._zero.hold(ids[zero], view.step)
            self._equal.hold(ids[alike & together], view.step)
        due = (self._equal.length >= self.patience) | (
            (self._zero.length >= self.zero_frames) & (self._zero.span >= self.zero_for)
        )
        return self.hold_of(view, np.flatnonzero(due), self._describe)

    def _has_random_partner(
        self, view: FrameView, ids: NDArray[np.int32], spread: NDArray[np.float32]
    ) -> NDArray[np.bool_]:
        """Matrices beside one of the same shape in the same module whose rows differ: that one tells the units apart.

        The widths beside the means of a Bayesian layer, the scales beside the directions of a normalised one.
        """
        layers = [view.layout.layers[int(i)] for i in ids]
        random = {(layer.group, layer.shape) for layer, value in zip(layers, spread) if value >= self.spread}
        return np.array([(layer.group, layer.shape) in random for layer in layers], bool)

    def _remember(self, view: FrameView) -> None:
        """A matrix that starts at zero on purpose has a gradient: it needs no help to leave zero."""
        zeros, ids = view.row("gradient_zero_fraction"), view.ids("gradient")
        if zeros is not None and ids is not None:
            known = ~np.isnan(zeros)
            self._starved[ids[known]] = zeros[known] == 1

    def _look(self, layout: LayerIndex) -> None:
        self._layout, self._unsuspected = layout, 0
        matrices = [layout.layers[int(i)] for i in structure_of(layout).matrices]
        adapted = any(not layer.trainable for layer in matrices)  # zero factors of adapters: GRD004 tells
        self._judged[:] = False
        if not adapted:
            several = [m.id for m in matrices if m.trainable and m.shape[0] > 1 and m.parameter_count > m.shape[0]]
            self._judged[several] = True
            tables = [layer for layer in layout.layers.parameters if layer.kind is LayerKind.EMBEDDING]
            self._tables[[table.id for table in tables]] = True
            wide = [table.id for table in tables if table.trainable and len(table.shape) == 2 and table.shape[1] > 1]
            self._judged[wide] = True

    def _describe(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
        layout = view.layout
        spreads = view.all_layers("weight_row_spread")
        zero = [i for i in members if self._zero.length[i]]
        evidence = tuple(
            Evidence("weight_norm", layout.path(i), 0.0, None, "every weight is still exactly zero")
            if i in zero
            else Evidence("weight_row_spread", layout.path(i), known(spreads[i]), 1.0,
                          "how far the rows differ, over the norm; random rows give about 1")
            for i in members[:3]
        )  # fmt: skip
        one = len(members) == 1
        if len(zero) == len(members):
            what = "is zero and stays zero" if one else "are zero and stay zero"
        else:
            what = f"{'has' if one else 'have'} the same weights in every unit"
        summary = f"{name_layers(layout, members)} {what}: all {'its' if one else 'their'} units learn the same."
        since = min(int(s.since[i]) for i in members for s in (self._equal, self._zero) if s.length[i])
        return Judgement(Severity.SEVERE, members, since, 0.97, summary, evidence)
