"""ACT004: a language model that sees the tokens it has to predict."""

from undertow.detect.features.attention_contract import AttentionContract
from undertow.schema import AttentionState, Remedy


class MissingCausalMask(AttentionContract):
    """Attention sees the very tokens that the model has to predict.

    What it sees: Where labels are the tokens that come next: most positions may look at the one behind them, at two
        sampled steps.
    Why it is bad: The model learns to copy the label: its loss falls far below what is possible, and it cannot generate
        anything.
    When it is wrong: A model that is meant to see the whole text while its labels are by chance the next tokens.
    References: Vaswani et al., "Attention Is All You Need", 2017 (arXiv 1706.03762), section 3.2.3.
    """

    variant, formerly = "missing-causal-mask", "answers"
    meaning = "The model learns to copy its labels, so the loss says nothing about what it can generate"
    remedies = (
        Remedy(
            "mask-the-future",
            "Hide the tokens that come later from every position.",
            "out = torch.nn.functional.scaled_dot_product_attention(\n    query, key, value, is_causal=True\n)",
            "The loss rises to what is really possible.",
            when_not="The model is meant to see the whole text, as an encoder does.",
        ),
    )
    state = AttentionState.SEES_ANSWERS
    sentence = "Attention in {layers} sees the tokens it has to predict: a causal mask is missing."
    how = "the label of a position is the next token, and most positions may look there"
