"""GRD004."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import LayerStreak, grown
from undertow.detect.engine.view import FrameView
from undertow.detect.features.wording import count_of, known, name_layers
from undertow.detect.padding_token import PaddingToken
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import GradientState
from undertow.schema.severity import Severity

PATIENCE = 10  # zero-initialised branches are zero for the first steps only
PATIENCE_WHEN_ALL_ARE = 20
STEADY = 16  # measured steps in a row with a gradient: what then turns zero is no branch that is used now and then
PATIENCE_AFTER_STEADY = 5
PATIENCE_WHEN_CUT = 3  # after a steady flow, everything from the input on: nothing was left out, the flow is cut
PATIENCE_WITH_ZERO_WEIGHTS = 5  # no gradient anywhere, and weights of zero: nothing can ever begin to move
PATIENCE_WHEN_ERASED = 4  # the backward pass gave one: no branch that starts at zero looks like this


class ZeroGradient:
    """A gradient is there, and every element of it is exactly zero.

    What it sees
    ------------
    The share of exact zeros in each gradient. A layer is reported when all of its elements were zero at ten
    measured steps in a row, while the loss was not zero and its module ran; after a steady flow at five, and at three
    when the gradient ends for all layers from the input up to some place. The layer listed first is where the
    flow stops: a module whose output is zero everywhere when activations were sampled, else the last layer in
    execution order whose gradient is zero as a whole. Four measured steps are enough for a gradient that the backward
    pass gave, and that was zero when the optimizer came to use it. And a single row of an embedding: tokens with its
    padding index that stand between other tokens and have to be predicted, too, or stand at every place about as often
    as others do, at two sampled steps in a row. A real token was taken for padding, and the row of that index never has
    a gradient.

    Why it is bad
    -------------
    The layer does not learn. Typical causes: a ReLU that is never active, adapters with both factors zero, a
    mask or hook that erases the gradient, or half-precision gradients too small to be represented.

    When it is wrong
    ----------------
    Branches initialised to zero (ReZero, the second LoRA factor) hold back the gradient at the first steps only.
    A bias alone can have no influence by symmetry (the key bias of attention): that is only noted. Steps in which
    the module did not run (an expert without tokens, an unused head) and steps with a loss of zero do not count.
    Tokens that are replaced by padding at random (word dropout) look like a real token.

    References
    ----------
    Lu et al., "Dying ReLU and Initialization: Theory and Numerical Examples", 2019 (arXiv 1903.06733).
    Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021 (arXiv 2106.09685).
    """

    code: ClassVar[str] = "GRD004"

    def __init__(self) -> None:
        self._zero = LayerStreak()
        self._steady: NDArray[np.int32] = np.zeros(0, np.int32)  # steps in a row with a gradient, up to the last one
        self._erased: NDArray[np.bool_] = np.zeros(0, bool)  # zero at the step, though not after the backward pass
        self._ran: NDArray[np.bool_] = np.zeros(0, bool)  # the module ran in a step with a zero gradient
        self._rests: NDArray[np.bool_] = np.zeros(0, bool)  # there are steps in which the module does not run
        self._knows_calls = False
        self._due: NDArray[np.bool_] = np.zeros(0, bool)
        self._silent: NDArray[np.bool_] = np.zeros(0, bool)  # modules whose output was zero everywhere
        self._open: dict[str, Verdict] = {}
        self._padding = PaddingToken()

    def grow(self, count: int) -> None:
        self._zero.grow(count)
        self._steady = grown(self._steady, count, 0)
        self._erased = grown(self._erased, count, False)
        self._ran = grown(self._ran, count, False)
        self._rests = grown(self._rests, count, False)
        self._due = grown(self._due, count, False)
        self._silent = grown(self._silent, count, False)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        return (*self._observe_layers(view), *self._padding.observe(view))

    def _observe_layers(self, view: FrameView) -> tuple[Verdict, ...]:
        outputs = view.row("activation_zero_fraction")
        if outputs is not None:
            self._knows_calls = True
            measured = ~np.isnan(outputs)
            self._silent[view.ids("activation")[measured]] = outputs[measured] == 1  # pyright: ignore[reportOptionalSubscript]
        zeros, states, ids = view.row("gradient_zero_fraction"), view.row("gradient_state"), view.ids("gradient")
        if zeros is None or states is None or ids is None or not self._counts(view):
            return ()
        given, used = view.row("gradient_max_abs"), view.row("stepped_gradient_max_abs")
        broken = view.row("stepped_gradient_nonfinite_count")
        assert given is not None
        assert used is not None
        assert broken is not None
        erased = _is_erased(given, used, broken)
        self._erased[ids] = erased
        zero = ((zeros == 1) | erased) & (states == GradientState.PRESENT)
        flows = ids[(zeros < 1) & ~erased]
        self._steady[flows[self._zero.length[flows] > 0]] = 0
        self._steady[flows] = np.minimum(self._steady[flows] + 1, STEADY)
        if not zero.any():
            if self._open or self._zero.length.any():
                self._end(ids[~np.isnan(zeros)])
                return self._judge(view, flowing=True)
            return ()
        flowing = len(flows) > 0
        self._end(ids[~zero & ~np.isnan(states)])
        without = ids[zero]
        calls = view.calls(without)
        if calls is not None:
            self._ran[without] |= calls > 0
            self._rests[without] |= calls == 0
            without = without[~(calls == 0)]  # NaN: not known, so counted
        self._zero.hold(without, view.step)
        return self._judge(view, flowing)

    @property
    def resting(self) -> bool:
        return not self._open and not self._zero.length.any() and self._padding.resting

    def news(self, batch: FrameBatch) -> Flags:
        news = batch.none()
        if batch.has("activation"):  # which modules are silent is remembered
            outputs = batch.row("activation_zero_fraction")
            news |= batch.changed("activation", np.where(np.isnan(outputs), outputs, outputs == 1))
            news |= self._padding.news(batch)
        if batch.has("gradient"):
            zeros = batch.row("gradient_zero_fraction")
            given, used = batch.row("gradient_max_abs"), batch.row("stepped_gradient_max_abs")
            erased = _is_erased(given, used, batch.row("stepped_gradient_nonfinite_count"))
            news |= batch.flags("gradient", (zeros == 1) | erased)
        return news

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        """Steps with a gradient are counted."""
        if (self._steady == STEADY).all():
            return ()
        counts = ~batch.skipped & (batch.scalar("loss") != 0)
        at = batch.at("gradient")
        at = counts[at] & (first <= at) & (at < last)
        if at.any():
            flows = (batch.row("gradient_zero_fraction")[at] < 1).sum(axis=0)
            ids = batch.ids("gradient")
            self._steady[ids] = np.minimum(self._steady[ids] + flows, STEADY)
        return ()

    def _counts(self, view: FrameView) -> bool:
        return not view.skipped and view.scalar("loss") != 0

    def _end(self, ids: NDArray[np.int32]) -> None:
        self._zero.end(ids)
        self._ran[ids] = False

    def _judge(self, view: FrameView, flowing: bool) -> tuple[Verdict, ...]:
        patience = PATIENCE if flowing else PATIENCE_WHEN_ALL_ARE
        if not flowing and self._has_zero_weights(view):
            patience = PATIENCE_WITH_ZERO_WEIGHTS
        due = self._zero.lasted(patience)
        if self._knows_calls:
            # A block that is skipped has a zero gradient too, where gradients are cleared to zero.
            due &= self._ran | (~self._rests & (self._zero.length >= 3 * patience))
        if flowing:
            steady = (self._steady == STEADY) & ~self._rests & (self._zero.length >= PATIENCE_WHEN_CUT)
            if steady.any():
                due |= steady & (self._zero.lasted(PATIENCE_AFTER_STEADY) | self._is_cut(view, steady))
        due |= self._erased & self._zero.lasted(PATIENCE_WHEN_ERASED)
        due |= self._due & (self._zero.length > 0)
        unchanged = np.array_equal(due, self._due)
        self._due = due
        if unchanged:
            return tuple(self._open.values())
        trunk = due & ~view.layout.is_bias
        # A bias is worth listing beside the weight of the same module, and only a remark on its own.
        owners = {view.layout.layers[int(i)].group for i in np.flatnonzero(trunk)}
        sides = [int(i) for i in np.flatnonzero(due & view.layout.is_bias)]
        together = {int(i) for i in np.flatnonzero(trunk)} | {i for i in sides if view.layout.layers[i].group in owners}
        alone = {i for i in sides if i not in together}
        return (*self._settle(view, "zero", together, flowing), *self._settle(view, "bias", alone, flowing))

    def _has_zero_weights(self, view: FrameView) -> bool:
        norms, ids = view.row("weight_norm"), view.ids("weight")
        if norms is None or ids is None:
            return False
        return bool(((norms == 0) & (self._zero.length[ids] > 0) & ~view.layout.is_bias[ids]).any())

    def _is_cut(self, view: FrameView, zero: NDArray[np.bool_]) -> bool:
        """Do these layers hold every weight from the input up to some place, and none behind it?"""
        layout = view.layout
        weights = ~layout.is_bias & layout.is_trainable & np.isfinite(layout.module_order)
        weights[[layer.id for layer in layout.layers.modules]] = False
        place = layout.module_order[zero & weights].max(initial=-1.0)
        return place >= 0 and bool(np.array_equal(zero & weights, weights & (layout.module_order <= place)))

    def _settle(self, view: FrameView, key: str, members: set[int], flowing: bool) -> tuple[Verdict, ...]:
        known = self._open.get(key)
        if not members:
            if known is None:
                return ()
            del self._open[key]
            return (Verdict(key, holds=False),)
        if known is None or set(known.layers) != members:
            known = self._verdict(view, key, members, flowing)
            self._open[key] = known
        return (known,)

    def _verdict(self, view: FrameView, key: str, members: set[int], flowing: bool) -> Verdict:
        layout = view.layout
        first_step = min(int(self._zero.since[i]) for i in members)
        ordered = layout.in_order(members)
        if key == "bias":
            summary = f"The gradient of {name_layers(layout, ordered)} is exactly zero; the bias has no influence."
            return Verdict(key, True, Severity.INFO, tuple(ordered), first_step, 0.9, summary)
        if all(self._erased[i] for i in members):
            return self._erased_verdict(view, key, ordered, first_step)
        origin, reason = self._origin(view, ordered)
        layers = (*origin, *(i for i in ordered if i not in origin))
        evidence = [
            Evidence("gradient_zero_fraction", layout.path(i), 1.0, None,
                     f"every element was exactly zero at the last {int(self._zero.length[i])} measured steps")
            for i in layers[:3]
        ]  # fmt: skip
        evidence.extend(reason)
        norms = view.all_layers("weight_norm")
        empty = [i for i in layers if norms[i] == 0 and not layout.is_bias[i]]
        if empty:
            how = "the weight is zero, and so is what it is multiplied by: neither can move the other"
            evidence.insert(0, Evidence("weight_norm", layout.path(empty[0]), 0.0, None, how))
        loss = view.scalar("loss")
        if math.isfinite(loss):
            evidence.append(Evidence("loss", None, loss, None, "the loss is not zero, so there is something to learn"))
        scope = "" if flowing else " No layer of this optimizer has a gradient."
        summary = (
            f"The gradient of {count_of(len(layers), 'layer')} is exactly zero since step {first_step}: "
            f"{name_layers(layout, layers)}.{scope}"
        )
        confidence = 0.97 if flowing else 0.9
        return Verdict(key, True, Severity.SEVERE, layers, first_step, confidence, summary, tuple(evidence))

    def _erased_verdict(self, view: FrameView, key: str, ordered: list[int], first_step: int) -> Verdict:
        layout, norms = view.layout, view.all_layers("gradient_norm")
        evidence = tuple(
            Evidence("stepped_gradient_max_abs", layout.path(i), 0.0, known(norms[i]),
                     "exactly zero when the optimizer stepped; the backward pass had given a gradient of this norm")
            for i in ordered[:3]
        )  # fmt: skip
        summary = (
            f"The gradient of {name_layers(layout, ordered)} is set to zero between the backward pass and the "
            f"optimizer's step, since step {first_step}: a mask, or a zero_grad in the wrong place?"
        )
        return Verdict(key, True, Severity.SEVERE, tuple(ordered), first_step, 0.97, summary, evidence)

    def _origin(self, view: FrameView, zero: list[int]) -> tuple[list[int], list[Evidence]]:
        """The layers where the flow stops, and what shows it."""
        layout = view.layout
        silent = layout.in_order(np.flatnonzero(self._silent))
        # A container is silent when its last child is: the child says more.
        paths = [layout.path(i) for i in silent]
        silent = [i for i in silent if not any(path.startswith(f"{layout.path(i)}.") for path in paths)]
        if silent:
            place = layout.order[silent[0]]
            feeders = [i for i in zero if layout.module_order[i] <= place]
            if feeders:
                group = layout.layers[feeders[-1]].group
                how = "the first module in execution order whose output is zero everywhere"
                shown = Evidence("activation_zero_fraction", layout.path(silent[0]), 1.0, None, how)
                return [i for i in feeders if layout.layers[i].group == group], [shown]
        # A weight with a zero gradient beside a bias with one that is not has an input of zeros: look before it.
        alive = {
            layer.group for layer in layout.layers.parameters if layer.trainable and self._zero.length[layer.id] == 0
        }
        whole = [i for i in zero if layout.layers[i].group not in alive] or zero
        return layout.closest_to_the_loss(whole), []


def _is_erased(given: NDArray[np.float32], used: NDArray[np.float32], broken: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether a gradient that the backward pass gave was all zero when the optimizer used it."""
    return (given > 0) & (used == 0) & ~(broken > 0)
