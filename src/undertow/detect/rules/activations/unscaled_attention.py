"""ACT004: attention logits that are not divided by the root of their width."""

from undertow.detect.engine import Limit
from undertow.detect.features.attention_contract import AttentionContract
from undertow.detect.features.remedies import NORMALISE_QUERIES_AND_KEYS
from undertow.schema import AttentionState, Remedy


class UnscaledAttention(AttentionContract):
    """Attention logits are plain products of queries and keys, and are large before anything is learnt.

    What it sees: Logits that are not divided by the root of their width and have a standard deviation above 2 in the
        first steps.
    Why it is bad: Their size grows with the root of the width: the softmax starts out saturated and passes hardly any
        gradient.
    When it is wrong: A model that was trained without the division has large logits in health; it should start from its
        weights.
    References: Vaswani et al., "Attention Is All You Need", 2017 (arXiv 1706.03762), section 3.2.1.
    """

    variant, formerly = "unscaled-attention", "unscaled"
    meaning = "Hardly any gradient passes through attention like that, so the block stops learning"
    remedies = (
        Remedy(
            "scale-the-attention-logits",
            "Divide the attention logits by the root of the width of a key.",
            "scores = query @ key.transpose(-2, -1) / key.shape[-1] ** 0.5",
            "Weights that were trained without it do not fit any more.",
            when_not="Queries and keys are normalised, or the scale is a learnt parameter.",
        ),
        NORMALISE_QUERIES_AND_KEYS,
    )
    state = AttentionState.UNSCALED
    sentence = "The attention logits of {layers} are not divided by the root of their width, and begin large."
    how = "plain products of queries and keys, with a deviation above 2 before anything is learnt"
    latest_start = Limit(3, "steps: later on, trained attention has large logits in health")
