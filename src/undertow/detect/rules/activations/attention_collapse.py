"""ACT004: attention weights that are all or nothing."""

from collections.abc import Sequence

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerStreak, LayerValues, Limit, Stage
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.remedies import LOWER_LEARNING_RATE, NORMALISE_QUERIES_AND_KEYS
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Finding, Remedy, Severity

_REINITIALISE_THE_ATTENTION = Remedy(
    "reinitialise-the-attention",
    "Give the query and key projections of this block their usual scale again.",
    "layer = $layer\n"
    "for parameter in layer.parameters():\n"
    "    if parameter.dim() == 2:\n"
    "        torch.nn.init.xavier_uniform_(parameter)",
    "What the block has learnt is lost.",
    when_not="The block is pretrained and was healthy before.",
)


_DIVIDE_THE_LOGITS = Remedy(
    "divide-the-logits",
    "Divide the attention logits by the root of the head's width, or let PyTorch's own function do it.",
    "logits = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5\n"
    "out = F.scaled_dot_product_attention(query, key, value)  # or this",
    "None.",
    when_not="They are divided already, and the projections are too large.",
)


class AttentionCollapse(Condition):
    """Attention logits are so large that each position attends to a single other one.

    What it sees: The largest absolute attention logit of each block and the entropy of its attention weights. A block
        is reported when its logits are beyond 60, or its mean entropy is below 2 % of the largest possible, at two
        sampled steps in a row, while much of the loss is left or once a tenth of what was learnt is lost.
    Why it is bad: Softmax has a natural scale: at logits of 60 all weights but one are zero, and so are their
        gradients. The block no longer learns where to look, and large models diverge soon after. One block alone points
        at its query and key weights; all blocks at once point at the learning rate.
    When it is wrong: Heads that look at one fixed place are common in trained models; here it is the mean over all
        heads and rows. A model that attends to a single key by construction would be reported.
    References: Wortsman et al., "Small-scale proxies for large-scale Transformer training instabilities", 2023 (arXiv
        2309.14322).
        Zhai et al., "Stabilizing Transformer Training by Preventing Attention Entropy Collapse", 2023 (arXiv
        2303.06296).
    """

    code, variant, formerly = "ACT004", "attention-collapse", "attention"
    places = ("initialisation", "rate")
    stage, needs_growth = Stage.STEP, True
    needs = frozenset({"activation"})
    meaning = "Hardly any gradient passes through attention like that, so the block stops learning"
    remedies = (NORMALISE_QUERIES_AND_KEYS, _DIVIDE_THE_LOGITS, _REINITIALISE_THE_ATTENTION, LOWER_LEARNING_RATE)
    logit = Limit(60.0, "at this logit every other weight of the softmax is below 1e-26")
    entropy = Limit(0.02, "of the largest possible, mean over heads and rows")
    learnt = Limit(0.3, "of the first loss: where less is left, attending to one place may be the solution")
    lost = Limit(0.1, "of what was learnt, given up since the best: it is no solution…")
    beyond_noise = Limit(4.0, "…and no noise, in deviations of a single loss")
    frames = Limit.chance(2, "sampled steps in a row: a single batch may be an odd one")
    start = Limit.start(3, "steps in which logits are those of a model that has learnt nothing, whatever the task")

    _attends = LayerValues(np.bool_, False)

    def __init__(self) -> None:
        self._sharp = LayerStreak()

    def observe(self, view: FrameView) -> Judgement | None:
        logits, entropy = view.row("attention_logit_max"), view.row("attention_entropy")
        ids = view.ids("activation")
        if logits is None or entropy is None or ids is None:
            return None
        measured = ~np.isnan(logits) | ~np.isnan(entropy)
        if not measured.any():
            return None
        self._attends[ids[measured]] = True
        loss = view.loss
        is_learnt = loss is not None and loss.remaining < self.learnt and not self._loses(loss)
        sharp = logits > self.logit if is_learnt else (logits > self.logit) | (entropy < self.entropy)
        self._sharp.follow(ids, measured, sharp, view.step)
        if is_learnt and not self.is_open:
            return None
        due = np.flatnonzero(self._sharp.length >= self.frames)
        return self.hold_of(view, due, self._describe)

    def _loses(self, loss: Loss) -> bool:
        given_up = loss.level - loss.best
        return given_up > self.lost * (loss.start - loss.best) and given_up > self.beyond_noise * loss.noise

    def _describe(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
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
        summary = f"Attention has collapsed in {which}: each position attends to a single other one."
        first_step = self._sharp.began(members)
        # All blocks at once follow from something that concerns them all; no block is guilty then.
        # But what is so before anything was learnt is how they are written.
        layers = () if everywhere and first_step >= self.start else members
        confidence = 0.75 if everywhere else 0.9
        return Judgement(Severity.SEVERE, layers, first_step, confidence, summary, tuple(evidence))

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        if finding.first_step <= 1:  # the scale it was given, not growth: how it is written, where all blocks have it
            ways = (_REINITIALISE_THE_ATTENTION, _DIVIDE_THE_LOGITS, NORMALISE_QUERIES_AND_KEYS)
            return ways if len(finding.layers) == 1 else (_DIVIDE_THE_LOGITS, _REINITIALISE_THE_ATTENTION)
        return (NORMALISE_QUERIES_AND_KEYS, LOWER_LEARNING_RATE)
