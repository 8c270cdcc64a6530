"""ACT003: a place that gives exactly the same output for every sample."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, LayerStreak, Limit, Stage
from undertow.detect.features.cadence import Cadence
from undertow.detect.features.wording import known
from undertow.schema import Evidence, Remedy, Severity

_Test = Callable[[int], bool]  # of a module, by its layer id


class ConstantOutput(Condition):
    """Samples come in different and go out exactly alike, from the first step on.

    What it sees: How much the output of each module differs between samples, and the executed graph: a module whose
        outputs differ, all of which must pass one whose outputs are the same to the last bit. At three sampled steps,
        over four steps at least, beginning with the first.
    Why it is bad: What no longer differs between samples carries nothing about them. A mean or a normalisation over the
        batch dimension instead of the features is the usual cause.
    When it is wrong: A summary of all samples that is added to each of them is fine, because a way leads around it; so
        are learnt queries, which no sample enters, and a head that starts at zero.
    References: Chen and He, "Exploring Simple Siamese Representation Learning", 2021 (arXiv 2011.10566).
    """

    code, variant, formerly = "ACT003", "constant-output", "constant"
    places = ("initialisation", "parameter")
    stage = Stage.SIGNAL
    needs = frozenset({"activation"})
    meaning = "The model gives the same output for every input"
    remedies = (
        Remedy(
            "reduce-over-features",
            "Take means, norms and softmaxes over the features or the positions of a sample, never over the batch.",
            "x = x - x.mean(dim=-1, keepdim=True)  # not dim=0, the batch\n"
            "pooled = hidden.mean(dim=1)  # positions, where the batch comes first",
            "None.",
            when_not="Samples are compared with each other on purpose, and a way leads around it.",
        ),
    )
    alike = Limit(1e-9, "of the variance, between samples: rounding")
    different = Limit(1e-3, "of the variance, between samples: more than rounding")
    frames = Limit.chance(3, "sampled steps in a row")
    steps = Limit.start(4, "steps: a head that starts at zero says the same of all samples in the first of them")

    def __init__(self) -> None:
        self._alike = LayerStreak()
        self._cadence = Cadence()
        self._began: int | None = None  # the first sampled step

    def observe(self, view: FrameView) -> Judgement | None:
        if view.row("activation_sample_spread") is None or not self._cadence.is_due(view.step):
            return None
        if self._began is None:
            self._began = view.step
        spread, deviation = view.all_layers("activation_sample_spread"), view.all_layers("activation_std")
        zeros = view.all_layers("activation_zero_fraction")
        equal = (spread < self.alike) & (deviation > 0) & (zeros < 1)
        if ((deviation == 0) & (np.abs(view.all_layers("activation_mean")) == 1)).any():
            equal[:] = False  # a function at its limit: ACT002
        pairs: dict[int, int] = {}
        if equal.any() and not (zeros == 1).any():
            differ, is_equal = (spread > self.different).tolist(), equal.tolist()
            pairs = dict(_bottlenecks(view.layout, differ.__getitem__, is_equal.__getitem__))
        held = np.zeros(view.layout.count, bool)
        held[list(pairs)] = True
        self._alike.end(np.flatnonzero(~held).astype(np.int32))
        self._alike.hold(np.flatnonzero(held).astype(np.int32), view.step)
        due = (self._alike.length >= self.frames) & (self._alike.span >= self.steps)
        due &= self._alike.since == self._began  # what becomes so has another cause
        members = tuple(view.layout.in_order(np.flatnonzero(due)))
        if not members:
            return self.end()
        last = members[-1]  # what comes before it loses its differences there
        return self.hold(None, lambda: self._describe(view, last, pairs[last], equal))

    def _describe(self, view: FrameView, before: int, behind: int, equal: NDArray[np.bool_]) -> Judgement:
        layout = view.layout
        path = layout.path(before)
        around = [i for i in np.flatnonzero(equal).tolist() if path.startswith(f"{layout.path(i)}.")]
        place = max(around, key=lambda i: len(layout.path(i)), default=before)
        spread = view.all_layers("activation_sample_spread")
        evidence = (
            Evidence("activation_sample_spread", path, known(spread[before]), None, "input differs between samples"),
            Evidence("activation_sample_spread", layout.path(behind), known(spread[behind]), None, "output does not"),
        )
        summary = f"{layout.path(place)} gives exactly the same output for every sample, whatever its input."
        return Judgement(Severity.SEVERE, (place,), int(self._alike.since[before]), 0.9, summary, evidence)


def _bottlenecks(layout: LayerIndex, differ: _Test, equal: _Test) -> Iterator[tuple[int, int]]:
    """Pairs of modules: outputs of the first differ between samples, those of the second, which it feeds, do not,
    although all that the first one says must pass there.
    """
    nodes = {node.id: layout.layers.get(node.path) for node in layout.graph.nodes if not node.is_merge}
    modules = {node: layer.id for node, layer in nodes.items() if layer is not None}
    following: dict[int, list[int]] = {}
    for source, target in layout.graph.edges:
        following.setdefault(source, []).append(target)
    flat = {node for node, module in modules.items() if equal(module)}
    if not flat:
        return
    for node, module in modules.items():
        if differ(module):
            met = _first_flat(node, following, flat)
            if met is not None:
                yield module, modules[met]


def _first_flat(start: int, following: dict[int, list[int]], flat: set[int]) -> int | None:
    """The first flat node on the way forward; None when a way leads past all of them to the end."""
    met: int | None = None
    seen, waiting = {start}, list(following.get(start, ()))
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in flat:
            met = node if met is None else min(met, node)
        elif node in following:
            waiting.extend(following[node])
        else:
            return None
    return met
