"""ACT002: a bounded activation function at its flat ends."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, LayerStreak, LayerValues, Limit, Stage
from undertow.detect.features.module_structure import NONE, structure_of
from undertow.detect.features.remedies import INITIALISE_FOR_THE_ACTIVATION, STANDARDISE_THE_INPUTS
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Remedy, Severity


class Saturated(Condition):
    """Most outputs of a bounded activation function lie at its flat ends.

    What it sees: The share of outputs of hidden Tanh, Sigmoid and similar modules beyond 0.99 (0.01 and 0.99 for a
        sigmoid), and of tanh and sigmoid applied as functions to the output of a layer; or a module around a layer that
        gives exactly one for every sample. A layer is reported when more
        than half of its outputs are there at two sampled steps in a row. Named are the layers whose pre-activations are
        too large and the functions behind them, in execution order.
    Why it is bad: At its flat ends the function has almost no slope, so almost no gradient passes, and the layers
        before it stop learning. The causes are unscaled inputs, weights that began or became too large, or a learning
        rate that threw them there.
    When it is wrong: The last function of a model may saturate by success (a confident probability, a black
        background): it is not judged. Nor are gates, which learn to be open or shut: a sigmoid or tanh called as a
        function that multiplies something. Nor is what feeds a layer without a gradient (an expert that is not
        chosen), nor anything where nine tenths of the loss are gone.
    References: Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010.
    """

    code, variant = "ACT002", "saturated"
    places = ("initialisation",)
    stage, needs_growth = Stage.SIGNAL, True
    needs = frozenset({"activation"})
    meaning = "Saturated units pass hardly any gradient, so the layers before them learn slowly or not at all"
    remedies = (
        Remedy(
            "normalise-before-the-activation",
            "Put a LayerNorm before the saturated activation, or use one that does not saturate.",
            "norm = torch.nn.LayerNorm(width)\nlayers = torch.nn.Sequential(linear, norm, torch.nn.Tanh())",
            "It is another architecture: old checkpoints do not fit.",
            when_not="The unit is a gate that is meant to be open or shut.",
        ),
        INITIALISE_FOR_THE_ACTIVATION,
        STANDARDISE_THE_INPUTS,
    )
    share = Limit(0.5, "of the outputs; healthy tanh layers have 0 to 15 % of them beyond ±0.99")
    severe_share = Limit(0.8, "of the outputs: next to nothing passes")
    frames = Limit.chance(2, "sampled steps in a row: a single batch may be extreme")
    unasked = Limit(1e-6, "of the largest gradient, of the layer that uses it: nobody asks for its output")
    learnt = Limit(0.1, "of the first loss: where less is left, saturated units are what was learnt")

    _share = LayerValues(np.float64, 0.0)

    def __init__(self) -> None:
        self._flat = LayerStreak()

    def observe(self, view: FrameView) -> Judgement | None:
        shares, ids = view.row("activation_saturated_fraction"), view.ids("activation")
        if shares is None or ids is None:
            return None
        shares = np.where(self._is_at_its_limit(view, ids), np.float32(1), shares)
        measured = ~np.isnan(shares)
        if not measured.any():
            return None
        flat = (shares > self.share) & view.layout.derived(_hidden)[ids]
        norms = view.row("gradient_norm")
        if norms is not None and flat.any():
            asked = view.all_layers("gradient_norm")[view.layout.derived(_users)[ids]]
            flat = flat & ~(asked < self.unasked * float(np.nanmax(norms, initial=0.0)))
        if view.loss is not None and view.loss.remaining < self.learnt:
            flat[:] = False
        self._flat.follow(ids, measured, flat, view.step)
        self._share[ids[flat]] = shares[flat]
        due = np.flatnonzero(self._flat.length >= self.frames)
        return self.hold_of(view, due, self._describe)

    def _is_at_its_limit(self, view: FrameView, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Layers whose outputs differ, in a module that gives exactly 1, or exactly -1, whatever they say: a function
        of theirs that is applied to more than their output alone.
        """
        deviation, largest = view.all_layers("activation_std"), view.all_layers("activation_max_abs")
        constant = (deviation == 0) & (largest == 1) & (np.abs(view.all_layers("activation_mean")) == 1)
        out = np.zeros(len(ids), bool)
        for module in np.flatnonzero(constant).tolist():
            inside = f"{view.layout.path(module)}."
            parts = [i for i, layer in enumerate(ids.tolist()) if view.layout.path(layer).startswith(inside)]
            out[[i for i in parts[-1:] if deviation[ids[i]] > 0]] = True
        return out

    def _describe(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
        layout, structure = view.layout, structure_of(view.layout)
        # The layer whose pre-activations are too large, and the function, where it is a module.
        pairs = [(i,) if structure.owns(i) else (structure.source(i), i) for i in members]
        layers = dict.fromkeys(layer for pair in pairs for layer in pair if layer != NONE)
        how = f"share of saturated outputs at step {view.step}"
        evidence = tuple(
            Evidence("activation_saturated_fraction", layout.path(i), float(self._share[i]), None, how)
            for i in members[:3]
        )
        named = name_layers(layout, members)
        functions = f"the functions behind {named}" if structure.owns(members[0]) else named
        worst = float(self._share[list(members)].max())
        summary = (
            f"Most outputs of {functions} are saturated ({worst:.0%} at worst; 0–15% is usual): "
            "hardly any gradient passes."
        )
        severity = Severity.SEVERE if worst > self.severe_share else Severity.MODERATE
        return Judgement(severity, tuple(layers), self._flat.began(members), 0.9, summary, evidence)


def _hidden(layout: LayerIndex) -> NDArray[np.bool_]:
    structure, hidden = structure_of(layout), np.zeros(layout.count, bool)
    hidden[[i for i in structure.sequence if structure.is_hidden(i)]] = True
    return hidden


def _users(layout: LayerIndex) -> NDArray[np.int64]:
    """Of every module the matrix that is next to use its output."""
    structure, users, matrix = structure_of(layout), np.full(layout.count, NONE, np.int64), NONE
    for module in reversed(structure.sequence):
        users[module] = matrix
        matrix = structure.matrix[module] if structure.matrix[module] != NONE else matrix
    return users
