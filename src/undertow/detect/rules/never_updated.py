"""UPD003."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.deserted import Deserted
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import LayerStreak, grown
from undertow.detect.engine.view import FrameView
from undertow.detect.features.wording import name_layers
from undertow.detect.late_freeze import LateFreeze
from undertow.detect.rule import Said, Verdict
from undertow.detect.unheld import Unheld
from undertow.detect.untrained_freeze import UntrainedFreeze
from undertow.schema.findings import Evidence
from undertow.schema.layers import LayerKind
from undertow.schema.quantities import GradientState
from undertow.schema.severity import Severity


class NeverUpdated:
    """A trainable parameter receives a gradient and is never changed by it.

    What it sees
    ------------
    Either a parameter that gets a non-zero gradient at five measured steps while no optimizer holds it and the program
    does not move it by itself either; or one that an optimizer holds, whose weights were bit for bit the same after
    five measured steps with a non-zero gradient, while other weights moved. Or a layer with `requires_grad` set to
    False that still holds exactly the random weights PyTorch gives a new layer of its shape, alone among layers that
    train, or with other layers and blocks of which all do, for a hundred steps. Or a deep frozen part under a small
    head, all of whose normalisations still have a scale of exactly one: nobody has loaded its weights; or a smaller
    one, all of it new for a hundred steps, under a network that is trained, or for sixty under one that learns nothing.
    Or matrices that were trained and are frozen in the middle of a run, for five measured steps, while their optimizer
    keeps them, its rate and the others. Or frozen adapters of which one factor stays zero. Or, in the first steps,
    layers that run inside the model and get a gradient without being parts of it, as those in a plain Python list, or a
    plain tensor in place of a parameter, or a loss with parameters of its own that no optimizer got. Or no weight at
    all that ever moves, though gradients arrive and the optimizer steps; or an optimizer that steps while none of its
    parameters gets a gradient any more, though the loss is differentiated.

    Why it is bad
    -------------
    The layer keeps its initial values. The rest of the model learns around it, so the loss looks healthy. The usual
    causes are a layer left out of the optimizer, a head replaced after the optimizer was built, or an optimizer built
    before the model was wrapped or moved.

    When it is wrong
    ----------------
    When most of the model is in no optimizer, training only the rest is probably meant: the finding is then mild, and
    `requires_grad_(False)` would save the time of computing those gradients. A parameter group without a single
    parameter tells otherwise: the generator it was made from had been read before; so do weights as PyTorch makes them,
    with trained layers both before and behind them. Steps that a loss scaler skipped and steps with a learning rate of
    zero do not count. Updates too small for the number format round away; that is said as the reason. A parameter group
    with a rate of zero may rest by plan: that is mild, unless its weights were never trained either, as new ones that
    have rested for a hundred steps. Frozen layers are left alone when they are a named part as a whole (a new one
    excepted that has normalisations, or with which nothing is learnt), a copy of a trained layer, the base of an
    adapter, more than half as many as the trained ones, or released later, and in the middle of a run when the
    optimizer is made anew or gets another rate, or others are frozen within forty steps; when nearly all is learnt by
    then, it is a remark. Whoever else freezes by plan, with nothing else changed, is taken to have forgotten it; a new
    layer is given thirty steps to be released; a single layer of random features that is meant to stay random, and a
    deep one with normalisations, are taken for a mistake.

    References
    ----------
    Jiang et al., "Training with Confidence: Catching Silent Errors in Deep Learning Training" (TrainCheck), 2025.
    PyTorch documentation, `torch.optim.Optimizer.add_param_group`.
    """

    code: ClassVar[str] = "UPD003"

    def __init__(self) -> None:
        self._still = LayerStreak()
        self._freeze = UntrainedFreeze()
        self._unheld = Unheld(self._freeze.are_new)
        self._pushed: NDArray[np.float32] = np.zeros(0, np.float32)  # latest gradient used, largest element
        self._size: NDArray[np.float32] = np.ones(0, np.float32)  # latest weight, largest element
        self._standstill, self._stood = Condition("standstill"), 0  # measured steps at which no weight moved
        self._has_moved, self._stood_since = False, 0
        self._deserted, self._late = Deserted(), LateFreeze()
        self._is_rested = False  # what stands still has done so for long
        self._open: dict[str, Verdict] = {}
        self._members: dict[str, NDArray[np.bool_]] = {}

    def grow(self, count: int) -> None:
        self._unheld.grow(count)
        self._still.grow(count)
        self._freeze.grow(count)
        self._deserted.grow(count)
        self._late.grow(count)
        self._pushed = grown(self._pushed, count, np.nan)
        self._size = grown(self._size, count, 1.0)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        frozen = (*self._observe_frozen(view), *self._late.observe(view))
        known = (*self._unheld.observe(view), *self._observe_still(view), *frozen)
        return (*known, *self._observe_standstill(view), *self._deserted.observe(view, self._unheld.held))

    def _observe_still(self, view: FrameView) -> tuple[Verdict, ...]:
        """Parameters that an optimizer holds and does not move."""
        sizes = view.row("weight_max_abs")
        if sizes is not None:
            measured = ~np.isnan(sizes)
            self._size[view.ids("weight")[measured]] = sizes[measured]  # pyright: ignore[reportOptionalSubscript]
        moves, ids = view.row("update_norm"), view.ids("update")
        pushes, states = view.row("stepped_gradient_max_abs"), view.row("gradient_state")
        if moves is None or ids is None or pushes is None or view.skipped or view.scalar("lr") == 0:
            return ()
        self._pushed[view.ids("gradient")] = np.where(states == GradientState.PRESENT, pushes, np.float32(np.nan))
        still = moves == 0
        if not still.any() and "still" not in self._open and not self._still.length.any():
            return ()
        self._still.end(ids[(moves != 0) & ~np.isnan(moves)])
        if bool((moves > 0).any()):
            pushed = ids[
                still & (self._pushed[ids] > 0) & (self._pushed[ids] < limit.STILL_TOO_LARGE) & self._unheld.held[ids]
            ]
            # A bias before a normalisation has next to no gradient: that it stands still is no news.
            pushed = pushed[~(view.layout.is_bias[pushed] & self._rounds_away(view, pushed))]
            self._still.hold(pushed, view.step)
        patience = np.where(view.layout.is_low_precision, limit.STILL_PATIENCE_WITH_ROUNDING, limit.STILL_PATIENCE)
        lasted = self._still.lasted(patience)
        rested = bool(lasted.any()) and int(self._still.span[lasted].max()) >= limit.STILL_RESTED
        if rested != self._is_rested:
            self._is_rested = rested
            self._members.pop("still", None)  # to be put into words again
        return self._settle(view, "still", lasted)

    def _observe_standstill(self, view: FrameView) -> tuple[Verdict, ...]:
        """No weight has ever moved, though the optimizer steps and gradients arrive."""
        moves, ids, states = view.row("update_norm"), view.ids("update"), view.row("gradient_state")
        if self._has_moved or moves is None or ids is None:
            return ()
        if (moves > 0).any():
            self._has_moved, self._stood = True, 0
            return self._standstill.end()
        if states is None or view.skipped or not view.scalar("lr") > 0 or not (moves == 0).any():
            return self._standstill.stay()
        pushed = ids[
            (moves == 0)
            & (self._pushed[ids] > 0)
            & (self._pushed[ids] < limit.STILL_TOO_LARGE)
            & self._unheld.held[ids]
        ]
        self._stood = self._stood + 1 if len(pushed) and not self._rounds_away(view, pushed).any() else 0
        self._stood_since = view.step if self._stood == 1 else self._stood_since
        rarely = self._stood >= limit.STILL_FEW and view.step - self._stood_since >= 2 * limit.STILL_PATIENCE_OF_ALL
        if self._stood < limit.STILL_PATIENCE_OF_ALL and not rarely:
            return self._standstill.stay()
        return self._standstill.hold(True, lambda: self._standstill_verdict(view, pushed))

    def _standstill_verdict(self, view: FrameView, pushed: NDArray[np.int32]) -> Verdict:
        how = f"largest element of a gradient at step {view.step}, before the optimizer came to use it"
        largest = int(pushed[np.argmax(self._pushed[pushed])])
        evidence = (
            Evidence(
                "update_norm", None, 0.0, None, f"of every weight, at {self._stood} measured steps and all before"
            ),
            Evidence("gradient_max_abs", view.layout.path(largest), float(self._pushed[largest]), None, how),
            Evidence("lr", None, view.scalar("lr"), None, "the learning rate is not zero"),
        )
        summary = (
            "No weight has ever moved, though gradients arrive and the optimizer steps: they are gone when it does. "
            "Is zero_grad called between backward and step?"
        )
        return Verdict("standstill", True, Severity.CRITICAL, (), 0, 0.95, summary, evidence)

    def _observe_frozen(self, view: FrameView) -> tuple[Verdict, ...]:
        """Parameters that are frozen and were never trained."""
        self._freeze.observe(view)
        if "frozen" not in self._open and not self._freeze.members.any():
            return ()
        return self._settle(view, "frozen", self._freeze.members) if view.row("gradient_state") is not None else ()

    @property
    def resting(self) -> bool:
        quiet = not self._open and not self._freeze.is_waiting and not self._still.length.any()
        quiet &= not self._unheld.is_waiting and not self._late.is_waiting
        return quiet and not self._stood and not self._deserted.is_waiting

    def news(self, batch: FrameBatch) -> Flags:
        news = self._unheld.news(batch)
        if batch.has("gradient"):
            states = batch.row("gradient_state")
            news |= batch.changed("gradient", states)
            news[batch.at("gradient")] |= ~(states == GradientState.PRESENT).any(axis=1)
            news |= batch.flags("gradient", batch.row("gradient_carried") == 1)
        if batch.has("update"):
            news |= batch.flags("update", batch.row("update_norm") == 0)
        return news

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        """The latest weights and gradients are remembered."""
        self._unheld.pass_over(batch, first, last)
        self._deserted.pass_over(batch, first, last)
        self._late.pass_over(batch, first, last)
        if batch.frames_with("weight", first, last):
            ids, sizes = batch.latest("weight_max_abs", first, last)
            self._size[ids] = sizes
        if not self._freeze.has_learnt:
            for place in range(first, last):
                self._freeze.learn(batch.view(place))
        if not self._has_moved and batch.frames_with("update", first, last):
            at = np.isin(batch.frames_with("update"), batch.frames_with("update", first, last))
            self._has_moved = bool((batch.row("update_norm")[at] > 0).any())
        idle = batch.skipped | (batch.scalar("lr") == 0)
        moved = set(batch.frames_with("gradient", first, last)) & set(batch.frames_with("update", first, last))
        counted = [place for place in moved if not idle[place]]
        if counted:
            last = batch.frames_with("gradient").index(max(counted))
            pushes = batch.row("stepped_gradient_max_abs")[last]
            present = batch.row("gradient_state")[last] == GradientState.PRESENT
            self._pushed[batch.ids("gradient")] = np.where(present, pushes, np.float32(np.nan))
        return ()

    def _rounds_away(self, view: FrameView, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether a plain step, a lower bound for most optimizers, is below what the number format can hold."""
        layout = view.layout
        rate = view.scalar("lr")
        lost = rate * self._pushed[ids] < layout.rounding[ids] * self._size[ids]
        return layout.is_low_precision[ids] | (lost & (not np.isnan(rate)))

    def _settle(self, view: FrameView, key: str, mask: NDArray[np.bool_]) -> tuple[Verdict, ...]:
        known = self._open.get(key)
        if not mask.any():
            if known is None:
                return ()
            del self._open[key]
            return (Verdict(key, holds=False),)
        if known is None or key not in self._members or not np.array_equal(mask, self._members[key]):
            self._members[key] = mask
            layers = tuple(view.layout.in_order(np.flatnonzero(mask)))
            known = self._open[key] = self._describe(key, view, layers)
        return (known,)

    def _describe(self, key: str, view: FrameView, layers: tuple[int, ...]) -> Verdict:
        match key:
            case "still":
                return self._still_verdict(view, layers)
            case _:
                return self._frozen_verdict(view, layers)

    def _still_verdict(self, view: FrameView, layers: tuple[int, ...]) -> Verdict:
        layout = view.layout
        chosen = np.array(layers, np.int32)
        first_step = int(self._still.since[chosen].min())
        named = name_layers(layout, layers)
        severity, confidence = Severity.SEVERE, 0.9
        reason = f"The weights of {named} have not changed since step {first_step}, though gradients arrive."
        how = f"the largest weight; the format drops changes below {layout.rounding[layers[0]]:.1e} of it"
        rounding = Evidence("weight_max_abs", layout.path(layers[0]), float(self._size[layers[0]]), None, how)
        because: list[Evidence] = []
        if any(value == 0 for name, value in view.frame.scalars.items() if name.startswith("lr_")):
            severity, confidence = Severity.MILD, 0.8
            reason = f"The weights of {named} do not change: a parameter group has a learning rate of zero."
            resting = np.zeros(layout.count, bool)
            resting[chosen] = True
            forgotten = self._is_rested and self._freeze.are_new(layout, layers)
            forgotten |= self._freeze.forgotten(layout, resting, drawn=True).any() or self._unheld.is_gap(
                layout, layers
            )
            if forgotten:
                severity, confidence = Severity.MODERATE, 0.75
                reason += " They still are the random numbers they were made with."
            because.append(Evidence("lr", None, 0.0, None, "the learning rate of one parameter group"))
        elif bool(layout.is_low_precision[chosen].all()):
            severity = Severity.MODERATE
            kind = layout.layers[layers[0]].dtype.removeprefix("torch.") or "low precision"
            reason = f"The weights of {named} do not change: their updates round away in {kind}."
            because.append(rounding)
        elif bool(self._rounds_away(view, chosen).all()):
            severity, confidence = Severity.INFO, 0.8
            reason = f"The weights of {named} do not change: their updates are too small for the number format."
            because.append(rounding)
        evidence = [
            Evidence("update_norm", layout.path(i), 0.0, None,
                     f"exactly zero at {int(self._still.length[i])} measured steps with a gradient; others moved")
            for i in layers[:5]
        ]  # fmt: skip
        return Verdict("still", True, severity, layers, first_step, confidence, reason, (*evidence, *because))

    def _frozen_verdict(self, view: FrameView, layers: tuple[int, ...]) -> Verdict:
        layout = view.layout
        named = name_layers(layout, layers)
        verb, its = ("is", "it was") if len(layers) == 1 else ("are", "they were")
        summary = f"{named} {verb} frozen with the random weights {its} made with, while the rest learns."
        how = "requires_grad is False, and the weights are spread as numbers are that were drawn at random"
        resting = np.zeros(layout.count, bool)
        resting[list(layers)] = True
        if list(layers) == layout.in_order(self._freeze.idle_adapters(layout)):
            summary = (
                f"{named} are the factors of corrections that are zero, and frozen: they can never do anything. Is the "
                "model frozen after they were put in?"
            )
            how = "requires_grad is False, for two thin matrices beside a frozen one; one of the two is exactly zero"
            evidence = tuple(
                Evidence("gradient_state", layout.path(i), GradientState.FROZEN, None, how) for i in layers
            )
            return Verdict("frozen", True, Severity.SEVERE, layers, self._freeze.since, 0.9, summary, evidence[:5])
        if self._freeze.is_new_backbone(layout, resting):
            summary += " Were they to be loaded from a file?"
            how = "requires_grad is False, and every normalisation among them still has a scale of exactly one"
        evidence = tuple(
            Evidence("gradient_state", layout.path(i), float(GradientState.FROZEN), None, how) for i in layers[:5]
        )
        if all(layout.layers[i].kind is LayerKind.EMBEDDING for i in layers):
            # Vectors that were made elsewhere can look the same: nobody but the user can tell.
            return Verdict("frozen", True, Severity.MILD, layers, self._freeze.since, 0.5, summary, evidence)
        return Verdict("frozen", True, Severity.MODERATE, layers, self._freeze.since, 0.75, summary, evidence)
