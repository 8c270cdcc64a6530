"""WGT003: the weight of a plain recurrence begins too large or too small."""

from collections.abc import Iterable

import numpy as np

from undertow.detect.engine import FrameView, Judgement, LayerIndex, Limit
from undertow.detect.features.initial_scales import BadStart
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.remedies import INITIALISE_FOR_THE_ACTIVATION, REINITIALISE_THE_LAYER
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, LayerKind, Severity


class RecurrenceOutOfScale(BadStart):
    """The weight of a plain recurrence begins so large that every time step multiplies the signal, or lets it fade.

    What it sees: At the first measured step, the scale (RMS times the root of the fan-in, about the spectral radius) of
        the recurrent weight of an RNN without gates, or of a square matrix whose module runs four times or more in one
        step: above two. Or, where nothing is learned in sixty steps and no other square matrix is in its cell, below
        0.4, or below 0.75 where it was not drawn as PyTorch does.
    Why it is bad: The state is multiplied by that factor at every time step: over 32 of them, a factor of two becomes
        2**32, states saturate and gradients explode. With a small factor, what was read ten steps ago is forgotten, and
        its gradient vanishes.
    When it is wrong: Gates bound what LSTM and GRU layers carry on, and hold what a cell has read, so they do not
        count. A task that needs no memory is learned all the same, and a small one is then not reported.
    References: Pascanu et al., "On the difficulty of training recurrent neural networks", 2013 (arXiv 1211.5063).
        Le et al., "A Simple Way to Initialize Recurrent Networks of Rectified Linear Units", 2015 (arXiv 1504.00941).
    """

    variant = "recurrence-out-of-scale"
    places = ("initialisation", "parameter")
    formerly = "recurrent-weight-too-large recurrent-weight-too-small"
    meaning = "States grow or fade with every time step, and so do the gradients"
    remedies = (REINITIALISE_THE_LAYER, INITIALISE_FOR_THE_ACTIVATION)

    large = Limit(2, "RMS × √fan-in, about the spectral radius: 32 time steps multiply by 2**32")
    small = Limit(0.4, "RMS × √fan-in; a new one of PyTorch has 0.58")
    small_if_set_by_hand = Limit(0.75, "RMS × √fan-in; an orthogonal start, the usual one, has 1")
    even_kurtosis = Limit(-0.6, "excess kurtosis, half way from evenly drawn numbers, as PyTorch's, to normal ones")
    repeated_calls = Limit(4, "calls of a module per step, from which on it is a recurrence that is written out")

    def judge_start(self, view: FrameView) -> Judgement | None:
        recurrent = [*_plain_recurrences(view.layout), *self._unrolled(view)]
        layers = tuple(i for i in recurrent if self._start.scales[i] > self.large)
        if not layers:
            return None
        summary = (
            f"The weight of {name_layers(view.layout, layers)} {'starts' if len(layers) == 1 else 'start'} far too "
            "large: every time step multiplies the signal."
        )
        return Judgement(Severity.SEVERE, layers, view.step, 0.9, summary, self._evidence(view.layout, layers))

    def doubt(self, view: FrameView) -> Judgement | None:
        layout, unrolled = view.layout, self._unrolled(view)
        alone = [] if structure_of(layout).is_norm.any() else [i for i in unrolled if _is_alone(layout, i, unrolled)]
        set_by_hand = view.all_layers("weight_kurtosis") > self.even_kurtosis
        small = self._start.scales < np.where(set_by_hand, self.small_if_set_by_hand, self.small)
        layers = tuple(layout.in_order({i for i in (*_plain_recurrences(layout), *alone) if small[i]}))
        if not layers:
            return None
        summary = (
            f"The weight of {name_layers(layout, layers)} {'starts' if len(layers) == 1 else 'start'} so small that "
            "the state fades within a few time steps, and the loss does not fall."
        )
        return Judgement(Severity.MODERATE, layers, view.step, 0.7, summary, self._evidence(layout, layers))

    def _unrolled(self, view: FrameView) -> list[int]:
        """Square matrices of modules that run again and again in a step: recurrences that are written out."""
        matrices = structure_of(view.layout).matrices
        shapes = [view.layout.layers[int(i)].shape for i in matrices]
        square = np.array([len(shape) == 2 and shape[0] == shape[1] for shape in shapes], bool)
        calls = view.calls(matrices.astype(np.int32))
        return [] if calls is None else matrices[square & (calls >= self.repeated_calls)].tolist()

    def _evidence(self, layout: LayerIndex, layers: Iterable[int]) -> tuple[Evidence, ...]:
        how = "RMS × √fan-in at the start: about what is left of a signal after one time step"
        scales = self._start.scales
        return tuple(Evidence("weight_rms", layout.path(i), float(scales[i]), 1.0, how) for i in [*layers][:3])


def _plain_recurrences(layout: LayerIndex) -> list[int]:
    """Recurrent weights of modules without gates, which bound the others."""
    recurrent = [layer for layer in layout.layers.parameters if layer.kind is LayerKind.RECURRENT]
    return [layer.id for layer in recurrent if layer.module_type in ("RNN", "RNNCell")]


def _is_alone(layout: LayerIndex, weight: int, unrolled: list[int]) -> bool:
    """Is it the only one in its cell? Several are gates, which may hold what the cell has read."""
    cell = layout.layers[weight].group.rpartition(".")[0]
    return sum(layout.layers[i].group.rpartition(".")[0] == cell for i in unrolled) == 1
