"""Replicas in one process: models with the same layers that are given the same gradients."""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import FrameView, LayerIndex, Limit, Tracker, Wake, grown
from undertow.schema import LayerKind, Remedy

_GRADIENT = ("stepped_gradient_norm", "stepped_gradient_max_abs")
_WEIGHT = ("weight_norm", "weight_mean", "weight_max_abs")

Ids = NDArray[np.int64]
_NONE: Ids = np.zeros(0, np.int64)
_Part = tuple[str, tuple[int, ...]]  # a path within its model, and a shape
_LEAST_PARAMETERS = Limit(3, "parameters of a model, to be called a replica of another")

AVERAGE_EVERY_GRADIENT = Remedy(
    "average-every-gradient",
    "Average the gradients of all parameters over the ranks: let DistributedDataParallel do it, and call the "
    "wrapped model, not the one inside it.",
    "model = torch.nn.parallel.DistributedDataParallel(model)\n"
    "loss = compute_loss(model(batch))  # not model.module(batch)",
    "None, if the gradients were meant to be averaged.",
    when_not="The parameter belongs to one rank on purpose, such as an expert.",
)
BROADCAST_THE_WEIGHTS = Remedy(
    "broadcast-the-weights",
    "Make the replicas equal again, once: send the first rank's weights and buffers to all others.",
    "with torch.no_grad():\n    for tensor in (*model.parameters(), *model.buffers()):\n"
    "        torch.distributed.broadcast(tensor, src=0)",
    "What the other ranks had learnt by themselves is lost; the optimizer's state may have to be sent, too.",
    when_not="The cause is still there: they would diverge again.",
)


class _Pair:
    """Two models with the same parameters, and what is known of them as replicas."""

    def __init__(self, layout: LayerIndex, one: list[int], other: list[int]) -> None:
        self.one: Ids = np.array(one, np.int64)
        self.other: Ids = np.array(other, np.int64)
        self.root_of_size = np.sqrt([layout.layers[i].parameter_count for i in one])
        self.proven = 0  # steps at which most gradients were the same
        self.unlike = 0  # steps before that, at which they were not
        self.equal = 0  # steps at which most weights were, too
        self.judged = -1

    @property
    def key(self) -> bytes:
        return self.one.tobytes() + self.other.tobytes()


class Replicas(Tracker):
    """Pairs of models, and for each parameter what was measured last. Frames of one step may cover different models."""

    wakes_on = Wake(lambda batch: np.full(len(batch), bool(batch.layout.derived(_models_alike))))

    proven_after = Limit.chance(2, "steps in which most gradients were the same: once may be chance")
    flat = Limit(1e-3, "of a norm, by which it differs from that of elements which are all as large as the largest")
    unlike_after = Limit.chance(8, "steps in which they were not: two models of their own, no longer compared")

    def __init__(self) -> None:
        self.are_followed = False  # this frame is of a process with models that may be replicas
        self.compared: tuple[Ids, Ids, NDArray[np.float64]] | None = None
        self._layout: LayerIndex | None = None
        self._pairs: list[_Pair] = []
        self._latest: dict[str, NDArray[np.float32]] = {}
        self._step: dict[str, NDArray[np.int64]] = {}

    def grow(self, count: int) -> None:
        super().grow(count)
        for name in (*_GRADIENT, *_WEIGHT):
            self._latest[name] = grown(self._latest.get(name, np.zeros(0, np.float32)), count, np.nan)
        for stream in ("gradient", "weight"):
            self._step[stream] = grown(self._step.get(stream, np.zeros(0, np.int64)), count, -1)

    def follow(self, view: FrameView) -> None:
        """`compared` is then both members of all pairs of parameters, and how far apart they are at least; None when
        this frame does not tell.
        """
        self.compared = None
        if view.layout is not self._layout:
            self._layout = view.layout
            known = {pair.key: pair for pair in self._pairs}
            found = [_Pair(view.layout, one, other) for one, other in view.layout.derived(_models_alike)]
            self._pairs = [known.get(pair.key, pair) for pair in found]
        self.are_followed = bool(self._pairs) and view.ids("rank") is None
        if not self.are_followed:
            return
        self._take(view, "gradient", _GRADIENT)
        self._take(view, "weight", _WEIGHT)
        told = [(pair, apart) for pair in self._pairs if (apart := self._judge(pair, view.step)) is not None]
        self._pairs = [pair for pair in self._pairs if pair.unlike < self.unlike_after]
        if told:
            self.compared = (
                np.concatenate([pair.one for pair, _ in told]),
                np.concatenate([pair.other for pair, _ in told]),
                np.concatenate([apart for _, apart in told]),
            )

    def averages(self, view: FrameView) -> tuple[Ids, Ids, NDArray[np.float64]] | None:
        """The same of the running averages of normalisations, of models that have proven to be replicas."""
        one, other = self._normalisations(view.layout)
        if not self.are_followed or view.row("norm_average") is None or not len(one):
            return None
        values = view.all_layers("norm_average").astype(np.float64)
        larger = np.fmax(np.abs(values[one]), np.abs(values[other]))
        distance = np.abs(values[one] - values[other]) / np.fmax(larger, 1e-30)
        known = ~np.isnan(distance)
        return (one[known], other[known], distance[known]) if known.any() else None

    def _normalisations(self, layout: LayerIndex) -> tuple[Ids, Ids]:
        """Pairs of modules."""
        replicas = [pair for pair in self._pairs if pair.proven >= self.proven_after]
        if not replicas:
            return _NONE, _NONE
        scales = {layer.id for layer in layout.layers.parameters if layer.kind is LayerKind.NORM_SCALE}
        sides = [np.concatenate([pair.one for pair in replicas]), np.concatenate([pair.other for pair in replicas])]
        chosen = [int(i) in scales for i in sides[0]]
        one, other = layout.module[sides[0][chosen]], layout.module[sides[1][chosen]]
        both = (one >= 0) & (other >= 0)
        return one[both], other[both]

    def _judge(self, pair: _Pair, step: int) -> NDArray[np.float64] | None:
        measured = (self._step[stream][ids] == step for stream in self._step for ids in (pair.one, pair.other))
        if pair.judged == step or not all(bool(one.all()) for one in measured):
            return None
        pair.judged = step
        norm, largest = (self._latest[name][pair.one] for name in _GRADIENT)
        # Where every element is at a bound of `clip_grad_value_`, any two models are given gradients of one size.
        flat = np.abs(norm - largest * pair.root_of_size) < self.flat * norm
        tells = ~flat | (pair.root_of_size <= 1)
        alike = np.logical_and.reduce([self._latest[n][pair.one] == self._latest[n][pair.other] for n in _GRADIENT])
        alike &= (norm > 0) & tells
        apart = self._apart(pair)
        if 2 * int(alike.sum()) >= len(alike):
            pair.proven += 1
            pair.equal += bool(np.median(apart) == 0)
        elif pair.proven < self.proven_after:
            pair.unlike += 1
            return None
        # What had been one model and has gradients of its own now has parted, too.
        elif pair.equal < self.proven_after:
            return None
        return apart if pair.proven >= self.proven_after else None

    def _apart(self, pair: _Pair) -> NDArray[np.float64]:
        length = np.maximum(self._latest["weight_max_abs"][pair.one].astype(np.float64), 1e-30)
        apart = np.zeros(len(length))
        for name in _WEIGHT:
            first, second = (self._latest[name][ids].astype(np.float64) for ids in (pair.one, pair.other))
            scale = first if name == "weight_norm" else length
            apart = np.fmax(apart, np.abs(first - second) / np.maximum(scale, 1e-30))
        return apart

    def _take(self, view: FrameView, stream: str, names: tuple[str, ...]) -> None:
        ids = view.ids(stream)
        if ids is None:
            return
        for name in names:
            row = view.row(name)
            if row is not None:
                measured = ~np.isnan(row)
                self._latest[name][ids[measured]] = row[measured]
                self._step[stream][ids[measured]] = view.step


def _models_alike(layout: LayerIndex) -> list[tuple[list[int], list[int]]]:
    """Parameters of the first model beside those of every other one that has just the same.

    A model's name is the first part of a path; the first model of a process may have none. Or the models are members
    of one list.
    """
    models: dict[str, dict[str, dict[_Part, int]]] = defaultdict(lambda: defaultdict(dict))  # by what holds them
    nameless: dict[_Part, int] = {}
    for layer in layout.layers.parameters:
        names, shape = layer.path.split("."), tuple(layer.shape)
        nameless[layer.path, shape] = layer.id
        for depth, name in enumerate(names[:-1]):
            if depth == 0 or name.isdigit():
                models[".".join(names[:depth])][name][".".join(names[depth + 1 :]), shape] = layer.id
    found: list[tuple[list[int], list[int]]] = []
    for holder, members in models.items():
        first: dict[frozenset[_Part], dict[_Part, int]] = {}
        for parts in members.values():
            if len(parts) < _LEAST_PARAMETERS:
                continue
            whole = not holder and parts.keys() <= nameless.keys()
            replica = nameless if whole else first.setdefault(frozenset(parts), parts)
            if replica is not parts:
                found.append(([replica[part] for part in parts], list(parts.values())))
    return found
