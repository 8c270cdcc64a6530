"""WGT002: parts of one model that began as copies of one another and stay equal."""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, Limit, Stage
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.remedies import INITIALISE_AT_RANDOM
from undertow.detect.features.wording import known, name_layers
from undertow.schema import Evidence, Remedy, Severity

_SAME = ("weight_norm", "weight_max_abs", "weight_drift", "update_norm", "gradient_norm")

_Matrices = dict[tuple[str, tuple[int, ...]], int]  # by path within the part, and shape
_Pair = tuple[NDArray[np.int64], NDArray[np.int64]]


class CopiedParts(Condition):
    """Members of a list, as of an ensemble, began as copies of one another and stay equal.

    What it sees: Members of a list with the same matrices that after several steps still have the same weights and the
        same gradients to the last bit. Copies that see different inputs diverge at the first step; these do not.
    Why it is bad: Parts with equal weights compute the same and receive the same gradient, so they stay equal for ever:
        an ensemble of equal members is worth one of them.
    When it is wrong: Replicas of a model see batches of their own: their gradients differ before they are averaged, and
        it is not reported.
    References: Humbatova et al., "Taxonomy of Real Faults in Deep Learning Systems", 2020 (arXiv 1910.11015).
    """

    code, variant, formerly = "WGT002", "copied-parts", "copied"
    places = ("definition",)
    stage, is_exact, is_standing = Stage.INITIALISATION, True, True
    needs = frozenset({"weight"})
    pace = ("weight", 5)
    meaning = "Such parts always get equal gradients, so all of them are worth a single one"
    remedies = (
        Remedy(
            "build-each-part",
            "Build each member by itself, so that each one draws its own initial weights.",
            "members = torch.nn.ModuleList(build() for _ in range(count))\n"
            "# not [copy.deepcopy(member) for _ in range(count)]",
            "None.",
            when_not="The members are meant to be equal and see other data later.",
        ),
        INITIALISE_AT_RANDOM,
    )

    patience = Limit.chance(3, "measured steps at which copies had moved, and were still equal")
    moved = Limit(1e-5, "relative distance from the start: they had the chance to part")

    def __init__(self) -> None:
        self._layout: LayerIndex | None = None
        self._since = 0  # the first step at which their weights were seen
        self._pairs: list[tuple[_Pair, int]] = []  # and at how many measured steps both had moved

    def observe(self, view: FrameView) -> Judgement | None:
        names = ("weight_row_spread", "weight_norm", "weight_drift")
        if view.skipped or any(view.row(name) is None for name in names):
            return None
        if view.layout is not self._layout:
            self._since = view.step if self._layout is None else self._since
            self._layout = view.layout
            self._pairs = [(pair, 0) for pair in _pairs(view.layout)]
        if not self._pairs:
            return self.end()
        values = {name: view.all_layers(name) for name in _SAME}
        self._pairs = [
            (pair, count + self._have_moved(values, pair)) for pair, count in self._pairs if not _differ(values, pair)
        ]
        members = tuple(sorted({int(i) for pair, count in self._pairs if count >= self.patience for i in pair[1]}))
        return self.hold(members, lambda: _describe(view, members, self._since)) if members else self.end()

    def _have_moved(self, values: dict[str, NDArray[np.float32]], pair: _Pair) -> bool:
        """Whether both are trained and known to have had the chance to part."""
        both = np.concatenate(pair)
        return bool((values["weight_drift"][both] > self.moved).all() and (values["gradient_norm"][both] > 0).all())


def _describe(view: FrameView, members: tuple[int, ...], since: int) -> Judgement:
    layout = view.layout
    layers = tuple(layout.in_order(members))
    norms = view.all_layers("weight_norm")
    how = "bit-identical to the first of the list, and so are updates and gradients"
    evidence = tuple(Evidence("weight_norm", layout.path(i), known(norms[i]), None, how) for i in layers[:3])
    summary = (
        f"{name_layers(layout, layers)} began as copies of the first member of their list and stay equal to it: "
        "they learn nothing of their own."
    )
    return Judgement(Severity.SEVERE, layers, since, 0.95, summary, evidence)


def _differ(values: dict[str, NDArray[np.float32]], pair: _Pair) -> bool:
    """Whether any number of theirs is known to be another one."""
    one, other = pair
    numbers = ((of[one], of[other]) for of in values.values())
    return any(bool(((a != b) & ~np.isnan(a) & ~np.isnan(b)).any()) for a, b in numbers)


def _pairs(layout: LayerIndex) -> list[_Pair]:
    """The first part of every list, beside each of the others that has just the same matrices."""
    lists: dict[str, dict[str, _Matrices]] = defaultdict(lambda: defaultdict(dict))
    for place in structure_of(layout).matrices:
        layer = layout.layers[int(place)]
        names = layer.path.split(".")
        for depth, name in enumerate(names[:-1]):
            if name.isdigit() and layer.trainable:
                inside = (".".join(names[depth + 1 :]), tuple(layer.shape))
                lists[".".join(names[:depth])][name][inside] = layer.id
    pairs: list[_Pair] = []
    for parts in lists.values():
        first: dict[frozenset[tuple[str, tuple[int, ...]]], _Matrices] = {}
        for part in parts.values():
            alike = first.setdefault(frozenset(part), part)
            if alike is not part:
                pairs.append((np.array([alike[key] for key in part]), np.array(list(part.values()))))
    return pairs
