"""ACT004: a padding mask that is inverted."""

from undertow.detect.features.attention_contract import AttentionContract
from undertow.schema import AttentionState, Remedy


class AttentionToPadding(AttentionContract):
    """Attention sees only padding: its mask is inverted.

    What it sees: Where the tokens are known: every key that the mask leaves holds one and the same token, and those it
        hides do not, at two sampled steps.
    Why it is bad: The text is hidden and the padding is left: the block learns nothing about its input.
    When it is wrong: All samples really hold one and the same token wherever attention may look.
    References: PyTorch documentation, `torch.nn.MultiheadAttention` (True hides) and `scaled_dot_product_attention`
        (True keeps).
    """

    variant, formerly = "attention-to-padding", "padding"
    meaning = "The block sees padding instead of the text, so it learns nothing about its input"
    remedies = (
        Remedy(
            "turn-the-mask-round",
            "Turn the mask round: in torch's modules True hides a key, in scaled_dot_product_attention True keeps it.",
            "hidden = tokens == padding\n"
            "encoder(x, src_key_padding_mask=hidden)  # True: hidden\n"
            "kept = ~hidden[:, None, None, :]\n"
            "scaled_dot_product_attention(q, k, v, attn_mask=kept)  # True: kept",
            "None.",
            when_not="All samples really hold one and the same token wherever attention may look.",
        ),
    )
    state = AttentionState.SEES_PADDING
    sentence = "Attention in {layers} sees padding only: its mask is inverted."
    how = "every key that the mask leaves holds one and the same token, those it hides hold the text"
