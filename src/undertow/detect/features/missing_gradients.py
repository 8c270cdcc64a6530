"""Parameters that an optimizer holds and whose gradient is None: since when, and whether their module runs."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import (
    PART,
    FrameBatch,
    FrameView,
    LayerIndex,
    LayerStreak,
    LayerValues,
    Limit,
    Tracker,
    changed,
    having,
)
from undertow.detect.features.module_structure import structure_of
from undertow.schema import Evidence, GradientState

Mask = NDArray[np.bool_]


class MissingGradients(Tracker):
    """Sorts layers without a gradient into `cut`, `bias`, `unused` and `unknown`, one truth value per layer each."""

    wakes_on = changed("gradient_state") | having("activation", PART)

    upstream_patience = Limit.chance(5, "optimizer steps, for layers before all that have a gradient: a cut graph")
    patience = Limit.plan(20, "optimizer steps: a head whose loss is used now and then looks the same")
    head_patience = Limit.plan(
        100, "steps, for heads beside other heads that nobody saw run: their turn may come later"
    )
    lost_patience = Limit.plan(50, "steps, for layers that once had a gradient: an auxiliary head may rest for a while")
    lost_measured = Limit.chance(10, "measured steps of these")

    had = LayerValues(np.bool_, False)
    _ran = LayerValues(np.bool_, False)  # in a step without a gradient
    _idle = LayerValues(np.bool_, False)
    _runs_elsewhere = LayerValues(np.bool_, False)  # at another optimizer's step

    def __init__(self) -> None:
        self.streak = LayerStreak()
        self.goes_elsewhere = False  # gradients arrive, and none of them where an optimizer holds the parameter
        self.knows_calls = False  # some frame has told which modules run
        self._layout: LayerIndex | None = None
        self._parameters = np.zeros(0, np.int32)
        self._clear_groups()

    def grow(self, count: int) -> None:
        super().grow(count)
        self._clear_groups()

    @property
    def is_calm(self) -> bool:
        return not self.streak.length.any()

    @property
    def flowing(self) -> Mask:
        """Layers that do receive a gradient."""
        return self.had & (self.streak.length == 0)

    def follow(self, view: FrameView) -> None:
        if not view.frame.blocks.keys().isdisjoint(("activation", PART)):
            self.knows_calls = True
            self._note_runs(view)
        self.is_informed = False  # whether this frame tells anything about gradients
        states, holders, ids = view.row("gradient_state"), view.row("gradient_optimizer"), view.ids("gradient")
        if states is None or holders is None or ids is None:
            return
        self.is_informed = True
        missing = (states == GradientState.NONE) & (holders >= 0)
        arrives = states == GradientState.PRESENT
        self.goes_elsewhere = bool((arrives & (holders < 0)).any()) and not (arrives & (holders >= 0)).any()
        self.had[ids[states == GradientState.PRESENT]] = True
        present = ids[~missing & ~np.isnan(states)]
        self.streak.end(present)
        self._ran[present] = self._idle[present] = False
        if missing.any():
            without = ids[missing]
            self.streak.hold(without, view.step)
            calls = view.calls_now(without)
            if calls is not None:
                aside = self._ran_aside(view, without, calls)
                self._ran[without] |= (calls > 0) & ~aside
                self._idle[without] |= (calls == 0) | aside
        self._sort(view)

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        for place in sorted({*batch.frames_with("activation", first, last), *batch.frames_with(PART, first, last)}):
            self._note_runs(batch.view(place))

    def since(self, layers: tuple[int, ...]) -> int:
        return int(self.streak.since[np.array(layers)].min())

    def evidence(self, layout: LayerIndex, layers: tuple[int, ...]) -> tuple[Evidence, ...]:
        return tuple(
            Evidence("gradient_state", layout.path(i), GradientState.NONE, GradientState.PRESENT,
                     f"its gradient was None at the last {int(self.streak.length[i])} measured steps of its optimizer")
            for i in layers[:3]
        )  # fmt: skip

    def _clear_groups(self) -> None:
        self.is_informed = False
        self.cut = self.bias = self.unused = self.unknown = np.zeros(len(self.had), bool)

    def _sort(self, view: FrameView) -> None:
        if not self.streak.lasted(int(self.upstream_patience)).any():
            self._clear_groups()
            self.is_informed = True
            return
        layout = view.layout
        # Where no frame has told whether the module ran, having a place in execution order tells it; but a layer
        # that once had a gradient may rest for a while (a head whose turn is over), so there it must be seen.
        seen_before = self.had & self.knows_calls
        ran = self._ran | (~self._idle & np.isfinite(layout.order) & ~seen_before)
        ran |= self._runs_elsewhere & ~self.had  # a generator runs when its adversary steps
        unused = ~ran & self._idle
        upstream = self._upstream(layout)
        patience = np.where(self.had, self.lost_patience, np.where(upstream, self.upstream_patience, self.patience))
        due = self.streak.lasted(patience.astype(np.int64))
        lasted = view.step - self.streak.since
        due |= self.streak.lasted(int(self.lost_measured)) & (lasted >= self.lost_patience)
        long = self.streak.lasted(int(self.patience))
        waits = self._heads(layout, due & ~self.had & ~upstream) & ~(self._ran & ~self._idle)
        due &= (lasted >= self.head_patience - 1) | ~waits
        unknown = ~ran & ~unused & ~self.had
        cut = due & ran
        if cut.any():  # what else lies before the cut most likely belongs to it
            cut |= due & unknown & upstream
        elif not self.knows_calls:  # a compiled model: nobody sees what runs
            cut |= _if_several_modules(layout, long & unknown & upstream)
        self.bias = self._biases_alone(layout, cut)
        self.cut = cut & ~self.bias
        self.unused = long & unused & ~self.had
        self.unknown = long & unknown & ~self.cut & ~self.bias

    def _ran_aside(self, view: FrameView, ids: NDArray[np.int32], calls: NDArray[np.float32]) -> Mask:
        """Whether a module ran without a graph, and less often than all that have one: not in the pass that led to the
        loss, but in another one, as for a look at a head that is not trained yet.
        """
        modes, often = view.now("activation_training"), view.now("activation_calls")
        in_graph = ~np.isnan(modes) & (often > 0)
        aside = (calls > 0) & np.isnan(modes[view.layout.module[ids]])
        if in_graph.any():
            aside &= calls < often[in_graph].min()
        elif PART not in view.frame.blocks:  # else those that have one had their turn at another step
            aside[:] = False
        return aside & ~self._upstream(view.layout)[ids] if aside.any() else aside

    def _note_runs(self, view: FrameView) -> None:
        """At steps of another optimizer only: what runs at its own and gets no gradient may be validated there."""
        states, ids = view.row("gradient_state"), view.ids("gradient")
        if states is None or ids is None:
            return
        elsewhere = np.ones(view.layout.count, bool)
        elsewhere[ids[~np.isnan(states)]] = False
        if self._layout is not view.layout:
            self._layout = view.layout
            self._parameters = np.array([layer.id for layer in view.layout.layers.parameters], np.int32)
        chosen = self._parameters[elsewhere[self._parameters] & ~self._runs_elsewhere[self._parameters]]
        calls = view.calls_now(chosen) if len(chosen) else None
        if calls is not None:
            self._runs_elsewhere[chosen] = calls > 0

    def _heads(self, layout: LayerIndex, missing: Mask) -> Mask:
        """Those that take what a layer with a gradient gives, and behind which only others are declared that take the
        same: heads beside one another, of which one may join the loss later. What takes the same as the first layer of
        all begins at the data.
        """
        out = np.zeros(layout.count, bool)
        places = np.flatnonzero(missing)
        if not len(places):
            return out
        fan_in, flowing = structure_of(layout).fan_in, self.flowing
        wide = np.flatnonzero(flowing & ~np.isnan(fan_in))
        given = {layout.layers[int(i)].shape[0] for i in wide if i < places[0]}
        taken = fan_in[missing & ~np.isnan(fan_in)]
        hangs_on = bool(given) and len(taken) > 0 and taken[0] in given and taken[0] != fan_in[wide[0]]
        if hangs_on and np.isin(fan_in[wide[wide > places[0]]], taken).all():
            out[places] = True
        return out

    def _biases_alone(self, layout: LayerIndex, cut: Mask) -> Mask:
        """Biases beside a weight of the same module that does get a gradient: a cut would part both from the loss."""
        biases = np.flatnonzero(cut & layout.is_bias)
        alone = np.zeros(layout.count, bool)
        if len(biases):
            flowing = {layout.layers[int(i)].group for i in np.flatnonzero(self.flowing)}
            alone[[i for i in biases.tolist() if layout.layers[i].group in flowing]] = True
        return alone

    def _upstream(self, layout: LayerIndex) -> Mask:
        """Layers that run before every layer with a gradient; by the order they are declared in where no graph of a
        loss has shown when they run, which is what a cut does.
        """
        flowing = self.flowing
        if not flowing.any():
            return np.zeros(layout.count, bool)
        first_run, first_declared = float(np.min(layout.order[flowing])), int(np.flatnonzero(flowing)[0])
        placed = np.isfinite(layout.order)
        return np.where(placed, layout.order < first_run, np.arange(layout.count) < first_declared)


def _if_several_modules(layout: LayerIndex, missing: Mask) -> Mask:
    """Several modules, declared before everything that has a gradient: hardly all of them are unused."""
    modules = {layout.layers[int(i)].group for i in np.flatnonzero(missing & ~layout.is_bias)}
    return missing if len(modules) > 1 else np.zeros(layout.count, bool)
