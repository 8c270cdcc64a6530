"""GRD003."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect.anatomy import anatomy_of
from undertow.detect.layout import Layout
from undertow.detect.rule import Said, Streak, Verdict, grown
from undertow.detect.stretch import Flags, Stretch
from undertow.detect.view import View
from undertow.detect.wording import count_of, name_layers
from undertow.schema.findings import Evidence
from undertow.schema.quantities import GradientState
from undertow.schema.severity import Severity

# Optimizer steps without a gradient, since watching began, before the rule speaks …
UPSTREAM_STEPS = 5  # … of layers that run before every layer that has one: the picture of a cut graph
ELSEWHERE_STEPS = 20  # … of others: a head whose loss is used only in some steps looks the same for a while
HEAD_STEPS = 100  # … of heads beside others, whose turn may come later
LATER_STEPS = 50  # … of layers that once had a gradient; steps of the training, of which …
LATER_MEASURED = 10  # … so many measured


class NoGradient:
    """A parameter that an optimizer holds never receives a gradient.

    What it sees
    ------------
    For every parameter held by an optimizer: whether its gradient was None at the optimizer's steps, and whether
    the module that owns it ran, then or at the step of another optimizer in turn. A module that runs, and whose
    parameters get no gradient, has been cut off from the loss. All such layers are listed, those nearest to the cut
    first; the evidence names the place of the cut: the first layer in execution order that does receive a gradient.

    Why it is bad
    -------------
    Everything before the cut keeps its initial values while the loss still falls, because the layers after it
    learn to live with random features. The model is worse than it could be, and nothing looks wrong.

    When it is wrong
    ----------------
    Modules that never ran (an unused head, the pooler of a pretrained model), or only in a pass of their own without
    gradients, are only noted. In a compiled model nobody sees what runs: there, several modules without a gradient
    count as cut off when all that is declared behind them has one. Heads that are used in some steps have a gradient
    in those, so the rule waits for several steps of the optimizer that holds them; and a head beside others may join
    the loss later, so there it waits for a hundred. A bias alone, beside a weight that
    does get a gradient, is not cut off: the loss does not depend on it, as where only the slope of the output counts
    (an energy whose gradient is the score). That is only noted. Layers meant to be fixed should say so with
    `requires_grad_(False)`; they are then reported as UPD004.

    References
    ----------
    PyTorch documentation, "Autograd mechanics": `detach`, `no_grad`, leaf tensors.
    Jiang et al., "Training with Confidence: Catching Silent Errors in Deep Learning Training" (TrainCheck), 2025.
    """

    code: ClassVar[str] = "GRD003"

    def __init__(self) -> None:
        self._none = Streak()
        self._had: NDArray[np.bool_] = np.zeros(0, bool)
        self._ran: NDArray[np.bool_] = np.zeros(0, bool)  # the module ran in a step without a gradient
        self._idle: NDArray[np.bool_] = np.zeros(0, bool)  # the module was seen not to run
        self._runs: NDArray[np.bool_] = np.zeros(0, bool)  # it was seen to run at another optimizer's step
        self._layout: Layout | None = None
        self._parameters: NDArray[np.int32] = np.zeros(0, np.int32)
        self._knows_calls = False
        self._open: dict[str, Verdict] = {}
        self._members: dict[str, NDArray[np.bool_]] = {}

    def grow(self, count: int) -> None:
        self._none.grow(count)
        self._had = grown(self._had, count, False)
        self._ran = grown(self._ran, count, False)
        self._idle = grown(self._idle, count, False)
        self._runs = grown(self._runs, count, False)

    def observe(self, view: View) -> tuple[Verdict, ...]:
        if "activation" in view.frame.blocks:
            self._knows_calls = True
            self._note_runs(view)
        states, holders, ids = view.row("gradient_state"), view.row("gradient_optimizer"), view.ids("gradient")
        if states is None or holders is None or ids is None:
            return ()
        missing = (states == GradientState.NONE) & (holders >= 0)
        present = states == GradientState.PRESENT
        self._had[ids[present]] = True
        if not missing.any():
            if not self._open and not self._none.length.any():
                return ()
            self._clear(ids[~np.isnan(states)])
            return self._judge(view)
        self._clear(ids[~missing & ~np.isnan(states)])
        without = ids[missing]
        self._none.hold(without, view.step)
        calls = view.calls(without)
        if calls is not None:
            aside = self._ran_aside(view, without, calls)
            self._ran[without] |= (calls > 0) & ~aside
            self._idle[without] |= (calls == 0) | aside
        return self._judge(view)

    def _ran_aside(self, view: View, ids: NDArray[np.int32], calls: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Whether a module ran without a graph, and less often than all that have one: not in the pass that led to the
        loss, but in another one, as for a look at a head that is not trained yet.
        """
        modes, often = view.all_layers("activation_training"), view.all_layers("activation_calls")
        in_graph = ~np.isnan(modes) & (often > 0)
        aside = (calls > 0) & np.isnan(modes[view.layout.module[ids]])
        if not in_graph.any() or not (aside & (calls < often[in_graph].min())).any():
            return np.zeros(len(ids), bool)
        return aside & (calls < often[in_graph].min()) & ~self._upstream(view.layout)[ids]

    @property
    def resting(self) -> bool:
        return not self._open and not self._none.length.any()

    def news(self, stretch: Stretch) -> Flags:
        news = stretch.none()
        if stretch.has("activation"):
            news[stretch.frames_with("activation")[0]] = True
        if stretch.has("gradient"):
            states = stretch.row("gradient_state")
            news |= stretch.changed("gradient", states)
            if not (states == GradientState.PRESENT).all():
                missing = (states == GradientState.NONE) & (stretch.row("gradient_optimizer") >= 0)
                news |= stretch.flags("gradient", missing)
        return news

    def pass_over(self, stretch: Stretch, first: int, last: int) -> Sequence[Said]:
        """What runs is remembered."""
        for place in stretch.frames_with("activation", first, last):
            self._note_runs(stretch.view(place))
        return ()

    def _note_runs(self, view: View) -> None:
        """At steps of another optimizer only: what runs at its own and gets no gradient may be validated there."""
        states, ids = view.row("gradient_state"), view.ids("gradient")
        if states is None or ids is None:
            return
        elsewhere = np.ones(view.layout.count, bool)
        elsewhere[ids[~np.isnan(states)]] = False
        chosen = self._parameters_of(view.layout)
        chosen = chosen[elsewhere[chosen] & ~self._runs[chosen]]
        calls = view.calls(chosen) if len(chosen) else None
        if calls is not None:
            self._runs[chosen] = calls > 0

    def _parameters_of(self, layout: Layout) -> NDArray[np.int32]:
        if self._layout is not layout:
            self._layout = layout
            self._parameters = np.array([layer.id for layer in layout.layers.parameters], np.int32)
        return self._parameters

    def _clear(self, ids: NDArray[np.int32]) -> None:
        self._none.end(ids)
        self._ran[ids] = False
        self._idle[ids] = False

    def _judge(self, view: View) -> tuple[Verdict, ...]:
        if not self._open and not self._none.lasted(UPSTREAM_STEPS).any():
            return ()
        layout = view.layout
        # Where no frame has told whether the module ran, having a place in execution order tells it; but a layer
        # that once had a gradient may rest for a while (a head whose turn is over), so there it must be seen.
        seen_before = self._had & self._knows_calls
        ran = self._ran | (~self._idle & np.isfinite(layout.order) & ~seen_before)
        ran |= self._runs & ~self._had  # a generator runs when its adversary steps, and its own step uses that run
        unused = ~ran & self._idle
        upstream = self._upstream(layout)
        patience = np.where(self._had, LATER_STEPS, np.where(upstream, UPSTREAM_STEPS, ELSEWHERE_STEPS))
        due = self._none.lasted(patience)
        due |= self._none.lasted(LATER_MEASURED) & (view.step - self._none.since >= LATER_STEPS)
        long = self._none.lasted(ELSEWHERE_STEPS)
        due &= (view.step - self._none.since >= HEAD_STEPS - 1) | ~self._heads(layout, due & ~self._had & ~upstream)
        unknown = ~ran & ~unused & ~self._had
        cut = due & ran
        if cut.any():  # what else lies before the cut most likely belongs to it
            cut |= due & unknown & upstream
        elif not self._knows_calls:  # a compiled model: nobody sees what runs
            cut |= self._all_before(layout, long & unknown & upstream)
        alone = self._biases_alone(layout, cut)
        cut &= ~alone
        groups = {
            "cut": cut,
            "bias": alone,
            "unused": long & unused & ~self._had,
            "unknown": long & unknown & ~cut & ~alone,
        }
        return tuple(v for key, mask in groups.items() for v in self._settle(view, key, mask))

    def _heads(self, layout: Layout, missing: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Those that take what a layer with a gradient gives, and behind which only others are declared that take the
        same: heads beside one another, of which one may join the loss later. What takes the same as the first layer of
        all begins at the data.
        """
        out = np.zeros(layout.count, bool)
        places = np.flatnonzero(missing)
        if not len(places):
            return out
        fan_in, flowing = anatomy_of(layout).fan_in, self._had & (self._none.length == 0)
        wide = ~np.isnan(fan_in)
        given = {layout.layers[int(i)].shape[0] for i in np.flatnonzero(flowing & wide) if i < places[0]}
        taken = fan_in[missing & wide]
        behind = np.flatnonzero(flowing & wide)
        behind = behind[behind > places[0]]
        first = int(np.flatnonzero(flowing & wide)[0]) if given else 0
        hangs_on = len(taken) > 0 and taken[0] in given and taken[0] != fan_in[first]
        if hangs_on and np.isin(fan_in[behind], taken).all():
            out[places] = True
        return out

    def _all_before(self, layout: Layout, missing: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Several modules, declared before everything that has a gradient: hardly all of them are unused."""
        modules = {layout.layers[int(i)].group for i in np.flatnonzero(missing & ~layout.is_bias)}
        return missing if len(modules) > 1 else np.zeros(layout.count, bool)

    def _biases_alone(self, layout: Layout, cut: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Biases beside a weight of the same module that does get a gradient: a cut would part both from the loss."""
        biases = np.flatnonzero(cut & layout.is_bias)
        alone = np.zeros(layout.count, bool)
        if len(biases):
            flowing = {layout.layers[int(i)].group for i in np.flatnonzero(self._had & (self._none.length == 0))}
            alone[[i for i in biases.tolist() if layout.layers[i].group in flowing]] = True
        return alone

    def _upstream(self, layout: Layout) -> NDArray[np.bool_]:
        """Layers that run before every layer with a gradient; by the order they are declared in where no graph of a
        loss has shown when they run, which is what a cut does.
        """
        flowing = self._had & (self._none.length == 0)
        if not flowing.any():
            return np.zeros(layout.count, bool)
        placed = np.isfinite(layout.order)
        first_run = float(np.min(layout.order[flowing]))
        first_declared = int(np.flatnonzero(flowing)[0])
        return np.where(placed, layout.order < first_run, np.arange(layout.count) < first_declared)

    def _settle(self, view: View, key: str, mask: NDArray[np.bool_]) -> tuple[Verdict, ...]:
        known = self._open.get(key)
        if not mask.any():
            if known is None:
                return ()
            del self._open[key]
            return (Verdict(key, holds=False),)
        if known is None or not np.array_equal(mask, self._members[key]):
            self._members[key] = mask
            layers = tuple(view.layout.in_order(np.flatnonzero(mask)))
            known = self._verdict(view, key, layers)
            self._open[key] = known
        return (known,)

    def _verdict(self, view: View, key: str, layers: tuple[int, ...]) -> Verdict:
        layout = view.layout
        chosen = np.array(layers)
        first_step = int(self._none.since[chosen].min())
        number = int(self._none.length[chosen].min())
        named, layer_count = name_layers(layout, layers), count_of(len(layers), "layer")
        if key == "cut":
            # Nearest to the cut first: that is where to look. What never showed when it runs comes last.
            placed = [i for i in layers if np.isfinite(layout.order[i])]
            layers = (*reversed(placed), *(i for i in reversed(layers) if i not in placed))
        evidence = [
            Evidence("gradient_state", layout.path(i), GradientState.NONE, GradientState.PRESENT,
                     f"its gradient was None at the last {int(self._none.length[i])} measured steps of its optimizer")
            for i in layers[:3]
        ]  # fmt: skip
        if key == "bias":
            summary = (
                f"No gradient reaches {named}, though the weight beside it has one: the loss does not depend on it."
            )
            return Verdict(key, True, Severity.INFO, layers, first_step, 0.9, summary, tuple(evidence))
        if key == "unused":
            summary = f"{layer_count} held by the optimizer never ran in a forward pass that led to a loss: {named}."
            return Verdict(key, True, Severity.INFO, layers, first_step, 0.9, summary, tuple(evidence))
        if key == "unknown":
            summary = f"{layer_count} held by the optimizer got no gradient: {named}; they may be unused or cut off."
            return Verdict(key, True, Severity.MILD, layers, first_step, 0.5, summary, tuple(evidence))
        guessed = not self._knows_calls and not np.isfinite(layout.order[chosen]).any()
        those = "it runs and the optimizer holds it" if len(layers) == 1 else "they run and the optimizer holds them"
        if guessed:
            those = "the optimizer holds them and all that comes behind them has one"
        summary = f"No gradient reaches {name_layers(layout, layers)}, though {those}"
        place = self._first_after(layout, chosen)
        if place is not None:
            summary += f"; the graph is cut before {layout.path(place)}"
            how = (
                f"the graph is cut between {layout.path(layers[0])} and {layout.path(place)}, "
                "the first in execution order that does receive a gradient"
            )
            evidence.insert(0, Evidence("gradient_state", layout.path(place), GradientState.PRESENT, None, how))
        confidence = 0.75 if guessed else 0.97 if number < LATER_STEPS else 0.99
        return Verdict(key, True, Severity.SEVERE, layers, first_step, confidence, f"{summary}.", tuple(evidence))

    def _first_after(self, layout: Layout, cut: NDArray[np.int64]) -> int | None:
        """The first layer in execution order, behind those cut off, that does receive a gradient."""
        flowing = layout.in_order(np.flatnonzero(self._had & (self._none.length == 0)))
        placed = layout.order[cut][np.isfinite(layout.order[cut])]
        behind = [i for i in flowing if not len(placed) or layout.order[i] > placed.max()]
        return next(iter(behind or flowing), None)
