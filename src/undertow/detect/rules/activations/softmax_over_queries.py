"""ACT004: attention weights that are normalised over the wrong dimension."""

from undertow.detect.features.attention_contract import AttentionContract
from undertow.schema import AttentionState, Remedy


class SoftmaxOverQueries(AttentionContract):
    """The attention weights sum to one over the queries, not over the keys they weigh.

    What it sees: The dimension of the softmax, beside the one that the product with the values sums over, at two
        sampled steps.
    Why it is bad: Every output is a sum of arbitrary size: some positions get nothing, others many times too much.
    When it is wrong: Weights that are normalised again over the keys afterwards (slot attention) are fine and not
        reported; a soft assignment to clusters is no attention.
    References: Vaswani et al., "Attention Is All You Need", 2017 (arXiv 1706.03762), section 3.2.1.
    """

    variant, formerly = "softmax-over-queries", "normalised"
    meaning = "Outputs of such attention have an arbitrary size, so the block cannot learn where to look"
    remedies = (
        Remedy(
            "weigh-the-keys",
            "Take the softmax over the keys, the dimension that the product with the values sums over.",
            "scores = query @ key.transpose(-2, -1)  # queries × keys\n"
            "scores = scores / key.shape[-1] ** 0.5\n"
            "out = scores.softmax(dim=-1) @ value",
            "None.",
            when_not="The weights are normalised again over the keys afterwards (slot attention).",
        ),
    )
    state = AttentionState.NORMALISED_ELSEWHERE
    sentence = "The attention weights of {layers} are normalised over the queries, not over the keys they weigh."
    how = "the weights sum to one over another dimension than the one that is summed over"
