"""How every parameter looked when it was first measured: as PyTorch makes it, drawn at random, or neither."""

import math

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import FrameView, LayerValues, Limit, PerLayer
from undertow.detect.features.initial_weights import InitialWeights
from undertow.detect.features.module_structure import fan_in
from undertow.schema import Layer, LayerKind

_GATES = {"RNN": 1, "RNNCell": 1, "LSTM": 4, "LSTMCell": 4, "GRU": 3, "GRUCell": 3}


class FirstWeights(PerLayer):
    """Facts by layer, learnt from the first frame that measures its weights."""

    enough = Limit(48, "elements; of fewer nobody can say how they were drawn")
    enough_to_tell = Limit(
        400, "elements: normal numbers have a kurtosis of 0, give or take 5 over the root of their count"
    )
    a_step = Limit(0.01, "of the bound, by which a first step of a slow optimizer may have taken a weight across it")

    is_default = LayerValues(np.bool_, False)  # PyTorch's own random numbers, to the last one
    is_drawn = LayerValues(np.bool_, False)  # each number for itself, in whatever way
    is_new = LayerValues(np.bool_, False)  # made by a usual recipe, and hardly moved
    is_zero = LayerValues(np.bool_, False)
    is_new_scale = LayerValues(np.bool_, False)  # of a normalisation: one everywhere
    _seen = LayerValues(np.bool_, False)

    def __init__(self) -> None:
        self.has_seen_all = False
        self._start = InitialWeights()

    @property
    def norm(self) -> NDArray[np.float64]:
        """Before the first measured step."""
        return self._start.norm

    def grow(self, count: int) -> None:
        self.has_seen_all &= count <= len(self._seen)
        super().grow(count)

    def take(self, view: FrameView) -> None:
        ids = view.ids("weight")
        if self.has_seen_all or ids is None or self._seen[ids].all():
            return
        self._start.take(view)
        rows = [np.asarray(view.row(f"weight_{name}"), np.float64) for name in ("max_abs", "mean", "std", "kurtosis")]
        new = ~self._seen[ids] & ~np.isnan(rows[0])
        chosen = ids[new]
        layers = [view.layout.layers[int(i)] for i in chosen]
        bound = np.array([default_bound(layer) for layer in layers])
        count = np.array([layer.parameter_count for layer in layers], np.float64)
        largest, mean, deviation, kurtosis = (row[new] for row in rows)
        numbers = (largest, mean, deviation, kurtosis)
        self.is_default[chosen] = looks_default(bound, count, *numbers)
        self.is_drawn[chosen] = looks_drawn(count, *numbers)
        by_recipe = np.array([_follows_recipe(layer, float(std)) for layer, std in zip(layers, deviation)], bool)
        default = looks_default(bound, count, *numbers, slack=self.a_step)
        self.is_new[chosen] = default | (self.is_drawn[chosen] & by_recipe)
        self.is_zero[chosen] = largest == 0
        is_scale = np.array([layer.kind == LayerKind.NORM_SCALE for layer in layers], bool)
        ones = (largest == 1) & (np.abs(mean - 1) < 1e-6) & ~(deviation > 1e-6)
        self.is_new_scale[chosen] = is_scale & ones
        self._seen[chosen] = True
        self.has_seen_all = bool(self._seen[[layer.id for layer in view.layout.layers.parameters]].all())


def default_bound(layer: Layer) -> float:
    """PyTorch draws linear, convolutional and recurrent weights evenly from ± this; NaN for any other tensor."""
    gates = _GATES.get(layer.module_type)
    if gates is not None:
        return 1.0 / math.sqrt(layer.shape[0] / gates) if layer.shape else math.nan
    if len(layer.shape) < 2 or not ("Linear" in layer.module_type or layer.module_type.startswith("Conv")):
        return math.nan
    if layer.module_type.startswith("ConvTranspose"):  # the second dimension counts here, too
        return 1.0 / math.sqrt(math.prod(layer.shape[1:]))
    return 1.0 / math.sqrt(fan_in(layer))


def looks_default(
    bound: NDArray[np.float64],
    count: NDArray[np.float64],
    largest: NDArray[np.float64],
    mean: NDArray[np.float64],
    std: NDArray[np.float64],
    kurtosis: NDArray[np.float64],
    slack: float = 1e-6,
) -> NDArray[np.bool_]:
    """Drawn evenly from ± bound, and never moved: a single step takes some weight across the bound."""
    root = np.sqrt(count)
    usual = bound / math.sqrt(3.0)
    return (
        (count >= FirstWeights.enough)
        & (largest <= bound * (1 + slack))
        & (largest >= bound * (1 - 12.0 / count))
        & (np.abs(mean) <= 5.0 * usual / root)
        & (np.abs(std / usual - 1.0) <= 2.5 / root)
        & (np.abs(kurtosis + 1.2) <= 6.0 / root)
    )


def looks_drawn(
    count: NDArray[np.float64],
    largest: NDArray[np.float64],
    mean: NDArray[np.float64],
    std: NDArray[np.float64],
    kurtosis: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """As independent numbers around zero, normal or even ones, are: what was ever trained has heavier tails."""
    root = np.sqrt(count)
    normal = (np.abs(kurtosis) <= 15.0 / root) & (largest <= 6.0 * std)
    even = (np.abs(kurtosis + 1.2) <= 6.0 / root) & (largest <= 1.8 * std)
    return (count >= FirstWeights.enough_to_tell) & (np.abs(mean) <= 4.0 * std / root) & (normal | even)


def _follows_recipe(layer: Layer, std: float) -> bool:
    """Is it the spread that some usual initialisation gives, or a round number? Give or take what chance does to it."""
    if len(layer.shape) < 2 or not layer.parameter_count or not std > 0:
        return False
    into, out = fan_in(layer), layer.parameter_count / layer.shape[1]
    spreads = [math.sqrt(gain / fan) for fan in (into, out, (into + out) / 2) for gain in (1 / 3, 1.0, 2.0, 25 / 9)]
    digit = 10.0 ** math.floor(math.log10(std))
    spreads += [digit * factor for factor in (1.0, 2.0, 5.0, 10.0)]
    return min(abs(std / spread - 1) for spread in spreads) <= 3.0 / math.sqrt(2.0 * layer.parameter_count)
