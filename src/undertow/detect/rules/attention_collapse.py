"""ACT004."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.consecutive import LayerStreak, grown
from undertow.detect.engine.view import FrameView
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Verdict, Waiting
from undertow.schema.findings import Evidence
from undertow.schema.quantities import AttentionState
from undertow.schema.severity import Severity

_CONTRACTS = {
    AttentionState.NORMALISED_ELSEWHERE: "normalised",
    AttentionState.SEES_PADDING: "padding",
    AttentionState.UNSCALED: "unscaled",
    AttentionState.SEES_ANSWERS: "answers",
}


class AttentionCollapse(Waiting):
    """Attention no longer chooses: its logits are so large that each position sees one other, or it looks elsewhere.

    What it sees
    ------------
    The largest absolute attention logit of each block and the entropy of its attention weights, in the steps in which
    activations are sampled. A block is reported when its logits are beyond 60, or its mean entropy is below 2 % of the
    largest possible, at two sampled steps in a row of which the first comes while much of the loss is left. Four
    contracts are checked beside it: the weights must sum to one over the keys whose values they add up, not over the
    queries; where the tokens are known, the keys that no mask hides must not all hold one and the same token (a padding
    mask the wrong way round); where labels are the tokens that come next, most places must not see the one behind them
    (a causal mask is missing); and logits that are plain products of queries and keys, not divided by the root of their
    width, must not be large from the start.

    Why it is bad
    -------------
    Softmax has a natural scale: at logits of 60 all weights but one are zero, and so are their gradients. The block
    no longer learns where to look, and large models diverge soon after. One block alone points at its query and key
    weights; all blocks at once point at the learning rate. Weights that are normalised over the queries make every
    output a sum of arbitrary size; a mask the wrong way round hides the text and leaves the padding. A model that sees
    what it is asked for learns to copy it: its loss falls far below what is possible, and it can write nothing.

    When it is wrong
    ----------------
    Heads that look at one fixed place are common in trained models; here it is the mean over all heads and rows. A
    model that attends to a single key by construction would be reported. Weights that are normalised over queries and
    then again over keys (slot attention) are fine, and a soft assignment to clusters is no attention.

    References
    ----------
    Wortsman et al., "Small-scale proxies for large-scale Transformer training instabilities", 2023 (arXiv 2309.14322).
    Zhai et al., "Stabilizing Transformer Training by Preventing Attention Entropy Collapse", 2023 (arXiv 2303.06296).
    """

    code: ClassVar[str] = "ACT004"
    waits_for: ClassVar[frozenset[str]] = frozenset({"activation"})

    def __init__(self) -> None:
        self._sharp = LayerStreak()
        self._attends: NDArray[np.bool_] = np.zeros(0, bool)
        self._condition = Condition("attention")
        self._broken = {state: (LayerStreak(), Condition(key)) for state, key in _CONTRACTS.items()}

    def grow(self, count: int) -> None:
        self._sharp.grow(count)
        self._attends = grown(self._attends, count, False)
        for streak, _ in self._broken.values():
            streak.grow(count)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        return (*self._observe_contracts(view), *self._observe_sharpness(view))

    def _observe_contracts(self, view: FrameView) -> tuple[Verdict, ...]:
        states, ids = view.row("attention_state"), view.ids("activation")
        if states is None or ids is None or np.isnan(states).all():
            return ()
        said: list[Verdict] = []
        for state, (streak, condition) in self._broken.items():
            streak.end(ids[states != state])
            streak.hold(ids[states == state], view.step)
            lasted = streak.length >= limit.ATTENTION_FRAMES
            if state == AttentionState.UNSCALED:  # trained attention has large logits in health
                lasted &= streak.since < limit.ATTENTION_START
            due = tuple(view.layout.in_order(np.flatnonzero(lasted)))
            said += condition.hold(due, partial(self._verdict_contract, view, state, due)) if due else condition.end()
        return tuple(said)

    def _verdict_contract(self, view: FrameView, state: float, members: tuple[int, ...]) -> Verdict:
        streak, condition = self._broken[state]
        where = name_layers(view.layout, members)
        if state == AttentionState.SEES_PADDING:
            summary = f"Attention in {where} sees padding only: its mask is the wrong way round."
            how = "2: every key that the mask leaves holds one and the same token, those it hides hold the text"
        elif state == AttentionState.SEES_ANSWERS:
            summary = f"Attention in {where} sees the very tokens it is asked for: a causal mask is missing."
            how = "4: the label of a place is the next token, and most places may look there"
        elif state == AttentionState.UNSCALED:
            summary = f"The attention logits of {where} are not divided by the root of their width, and begin large."
            how = "3: plain products of queries and keys, with a deviation above 2 before anything is learnt"
        else:
            summary = f"The attention weights of {where} are normalised over the queries, not over the keys they weigh."
            how = "1: the weights sum to one over another dimension than the one that is summed over"
        evidence = Evidence("attention_state", view.layout.path(members[0]), state, AttentionState.FINE, how)
        first_step = int(streak.since[list(members)].min())
        return Verdict(condition.key, True, Severity.SEVERE, members, first_step, 0.95, summary, (evidence,))

    def _observe_sharpness(self, view: FrameView) -> tuple[Verdict, ...]:
        logits, entropy = view.row("attention_logit_max"), view.row("attention_entropy")
        ids = view.ids("activation")
        if logits is None or entropy is None or ids is None:
            return ()
        measured = ~np.isnan(logits) | ~np.isnan(entropy)
        if not measured.any():
            return ()
        self._attends[ids[measured]] = True
        sharp = (logits > limit.ATTENTION_LOGIT) | (entropy < limit.ATTENTION_ENTROPY)
        # Where nearly all is learnt, to look at one place may be the solution: words are turned around like this.
        if view.loss is not None and view.loss.remaining < limit.ATTENTION_LEARNT:
            sharp &= (self._sharp.length[ids] > 0) & (logits > limit.ATTENTION_LOGIT)
        self._sharp.end(ids[measured & ~sharp])
        self._sharp.hold(ids[sharp], view.step)
        due = np.flatnonzero(self._sharp.length >= limit.ATTENTION_FRAMES)
        if not len(due):
            return self._condition.end()
        members = tuple(view.layout.in_order(due))
        return self._condition.hold(members, lambda: self._verdict(view, members))

    def _verdict(self, view: FrameView, members: tuple[int, ...]) -> Verdict:
        layout = view.layout
        logits, entropy = view.all_layers("attention_logit_max"), view.all_layers("attention_entropy")
        evidence: list[Evidence] = []
        for i in members[:2]:
            if np.isfinite(logits[i]):
                how = "largest absolute attention logit"
                evidence.append(Evidence("attention_logit_max", layout.path(i), float(logits[i]), 10.0, how))
            if np.isfinite(entropy[i]):
                how = "entropy of the attention weights, as a share of the largest possible"
                evidence.append(Evidence("attention_entropy", layout.path(i), float(entropy[i]), None, how))
        everywhere = len(members) > 1 and len(members) == int(self._attends.sum())
        which = "all blocks" if everywhere else name_layers(layout, members)
        summary = f"Attention has collapsed in {which}: each position looks at a single other one."
        first_step = int(self._sharp.since[list(members)].min())
        # All blocks at once follow from something that concerns them all; no block is guilty then.
        # But what is so before anything was learnt is how they are written.
        global_cause = everywhere and first_step >= limit.ATTENTION_START
        layers = () if global_cause else members
        confidence = 0.75 if everywhere else 0.9
        return Verdict("attention", True, Severity.SEVERE, layers, first_step, confidence, summary, (*evidence,))
