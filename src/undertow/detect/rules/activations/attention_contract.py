"""ACT004: attention that breaks what holds for every attention, whatever is trained."""

from collections.abc import Sequence

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerStreak, LayerValues, Limit, Stage
from undertow.detect.features.remedies import NORMALISE_QUERIES_AND_KEYS
from undertow.detect.features.wording import name_layers
from undertow.schema import AttentionState, Evidence, Finding, Remedy, Severity

# How each was seen in the operations of the block, what it means, and what to do.
_CONTRACTS: dict[float, tuple[str, str, Remedy]] = {
    AttentionState.NORMALISED_ELSEWHERE: (
        "the weights sum to 1 over another dimension than the keys",
        "The attention softmax of {} runs over the queries, not over the keys.",
        Remedy(
            "weigh-the-keys",
            "Take the softmax over the keys, the dimension that the product with the values sums over.",
            "scores = query @ key.transpose(-2, -1)  # queries × keys\nscores = scores / key.shape[-1] ** 0.5\n"
            "out = scores.softmax(dim=-1) @ value",
            "None.",
            when_not="The weights are normalised again over the keys afterwards (slot attention).",
        ),
    ),
    AttentionState.SEES_PADDING: (
        "all unmasked keys hold one and the same token; the masked ones hold the text",
        "Attention in {} sees padding only: its mask is inverted.",
        Remedy(
            "turn-the-mask-round",
            "Invert the mask: in torch's modules True hides a key, in scaled_dot_product_attention True keeps it.",
            "hidden = tokens == padding\nencoder(x, src_key_padding_mask=hidden)  # True: hidden\n"
            "kept = ~hidden[:, None, None, :]\nscaled_dot_product_attention(q, k, v, attn_mask=kept)  # True: kept",
            "None.",
            when_not="All samples really hold one and the same token wherever attention is allowed.",
        ),
    ),
    AttentionState.SEES_ANSWERS: (
        "the label of each position is the next token, and most positions can attend to it",
        "Attention in {} sees the tokens it has to predict: a causal mask is missing.",
        Remedy(
            "mask-the-future",
            "Hide the tokens that come later from every position.",
            "out = torch.nn.functional.scaled_dot_product_attention(\n    query, key, value, is_causal=True\n)",
            "The loss rises to what is really possible.",
            when_not="The model is meant to see the whole text, as an encoder does.",
        ),
    ),
    AttentionState.UNSCALED: (
        "unscaled products of queries and keys, with a standard deviation above 2 at the start",
        "The attention logits of {} are not divided by the root of the key dimension: they start too large.",
        Remedy(
            "scale-the-attention-logits",
            "Divide the attention logits by the square root of the key dimension.",
            "scores = query @ key.transpose(-2, -1) / key.shape[-1] ** 0.5",
            "Weights that were trained without it do not fit any more.",
            when_not="Queries and keys are normalised, or the scale is a learnt parameter.",
        ),
    ),
}


class AttentionContract(Condition):
    """Attention is normalised over the wrong dimension, masked the wrong way round, or not scaled.

    What it sees: The operations of each block, at two sampled steps: a softmax over another dimension than the product
        with the values sums over; a mask that leaves only keys with one and the same token, and hides the others; most
        positions may look at the token that is their label; logits that are not divided by the root of their width and
        have a standard deviation above 2 in the first steps.
    Why it is bad: Outputs of arbitrary size; a block that sees padding instead of text; a model that learns to copy its
        labels and cannot generate anything; a softmax that starts out saturated and passes hardly any gradient.
    When it is wrong: Weights that are normalised again over the keys afterwards (slot attention) are not reported.
        Samples that really hold one and the same token, a model that is meant to see the whole text while its labels
        are by chance the next tokens, and one that was trained without the division look the same.
    References: Vaswani et al., "Attention Is All You Need", 2017 (arXiv 1706.03762), section 3.2.
        PyTorch documentation, `torch.nn.MultiheadAttention` (True hides) and `scaled_dot_product_attention` (True
        keeps).
    """

    code, variant = "ACT004", "attention-contract"
    places = ("attention",)
    formerly = (
        "normalised padding answers unscaled softmax-over-queries attention-to-padding missing-causal-mask "
        "unscaled-attention"
    )
    stage = Stage.STEP
    needs = frozenset({"activation"})
    meaning = "Such a block cannot learn what to attend to, or attends to what it must not see"
    remedies = (*(remedy for _, _, remedy in _CONTRACTS.values()), NORMALISE_QUERIES_AND_KEYS)
    frames = Limit.chance(2, "sampled steps in a row: a single batch may be an odd one")
    latest_start = Limit.start(3, "steps, for logits that begin large: trained attention has large ones in health")

    _state = LayerValues(np.float32, AttentionState.FINE)

    def __init__(self) -> None:
        self._broken = LayerStreak()

    def observe(self, view: FrameView) -> Judgement | None:
        states, ids = view.row("attention_state"), view.ids("activation")
        if states is None or ids is None or np.isnan(states).all():
            return None
        broken = np.isin(states, list(_CONTRACTS))
        self._broken.end(ids[~broken | (states != self._state[ids])])
        self._state[ids] = states
        self._broken.hold(ids[broken], view.step)
        due = (self._broken.length >= self.frames) & (
            (self._state != AttentionState.UNSCALED) | (self._broken.since < self.latest_start)
        )
        worst = self._state[due].min() if due.any() else 0.0
        return self.hold_of(view, np.flatnonzero(due & (self._state == worst)), self._describe)

    def _describe(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
        state = float(self._state[members[0]])
        how, sentence, _ = _CONTRACTS[state]
        path = view.layout.path(members[0])
        evidence = (Evidence("attention_state", path, state, AttentionState.FINE, f"{state:.0f}: {how}"),)
        summary = sentence.format(name_layers(view.layout, members))
        return Judgement(Severity.SEVERE, members, self._broken.began(members), 0.95, summary, evidence)

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        state = finding.evidence[0].value if finding.evidence else None
        if state not in _CONTRACTS:
            return cls.remedies
        remedy = _CONTRACTS[state][2]
        return (remedy, NORMALISE_QUERIES_AND_KEYS) if state == AttentionState.UNSCALED else (remedy,)
