"""ACT: what to change about activations."""

from __future__ import annotations

from undertow.detect.features.remedies import REVIVE_THE_UNITS
from undertow.schema.findings import Finding, Remedy

REMEDIES: tuple[Remedy, ...] = (
    REVIVE_THE_UNITS,
    Remedy(
        "free-the-last-layer",
        "Leave the last layer without an activation: the loss takes its outputs as they are.",
        "logits = head(hidden)  # not torch.relu(head(hidden))\n"
        "loss = torch.nn.functional.cross_entropy(logits, target)",
        "None.",
        when_not="The outputs must be positive and the loss expects that.",
    ),
    Remedy(
        "normalise-before-the-activation",
        "Put a LayerNorm before the saturated activation, or use one that does not saturate.",
        "norm = torch.nn.LayerNorm(width)\nlayers = torch.nn.Sequential(linear, norm, torch.nn.Tanh())",
        "It is another architecture: old checkpoints do not fit.",
        when_not="The unit is a gate that is meant to be open or shut.",
    ),
    Remedy(
        "keep-the-outputs-apart",
        "Let the loss reward outputs that differ: more negatives, a variance term, or a predictor on one side only.",
        "spread = (embedding.var(dim=0) + 1e-4).sqrt()\nloss = loss + torch.relu(1.0 - spread).mean()",
        "A weight that is too large drowns the task itself.",
        when_not="All inputs of the batch are alike: then the data comes first.",
    ),
    Remedy(
        "anneal-the-prior",
        "Raise the weight of the prior term slowly from zero, and let each latent keep a little information.",
        "weight = min(1.0, step / 1000)\nloss = reconstruction + weight * divergence.clamp_min(0.05).sum()",
        "A longer training; the free bits set a floor under the divergence.",
        when_not="The model has no such term (it is no variational autoencoder).",
    ),
    Remedy(
        "normalise-queries-and-keys",
        "Normalise queries and keys before their product, so that attention logits cannot grow.",
        "query = torch.nn.functional.normalize(query, dim=-1) * scale\n"
        "key = torch.nn.functional.normalize(key, dim=-1)",
        "It is another architecture: old checkpoints do not fit.",
        when_not="Every block shows it at once: then the learning rate comes first.",
    ),
    Remedy(
        "reinitialise-the-attention",
        "Give the query and key projections of this block their usual scale again.",
        "layer = $layer\n"
        "for parameter in layer.parameters():\n"
        "    if parameter.dim() == 2:\n"
        "        torch.nn.init.xavier_uniform_(parameter)",
        "What the block has learnt is lost.",
        when_not="The block is pretrained and was healthy before.",
    ),
    Remedy(
        "weigh-the-keys",
        "Take the softmax over the keys, the dimension that the product with the values sums over.",
        "scores = query @ key.transpose(-2, -1)  # queries × keys\n"
        "scores = scores / key.shape[-1] ** 0.5\n"
        "out = scores.softmax(dim=-1) @ value",
        "None.",
        when_not="The weights are normalised again over the keys afterwards (slot attention).",
    ),
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
    Remedy(
        "balance-the-router",
        "Add a loss that rewards an even load over the experts, and a little noise before the choice.",
        "share = torch.nn.functional.one_hot(chosen, experts).float().mean(0)\n"
        "loss = loss + 0.01 * experts * (share * gates.mean(0)).sum()",
        "A weight that is too large keeps the experts from specialising.",
        when_not="The data really needs one expert only.",
    ),
)

BY_CODE: dict[str, tuple[str, ...]] = {
    "ACT001": ("revive-the-units", "free-the-last-layer", "lower-the-learning-rate"),
    "ACT002": ("normalise-before-the-activation", "initialise-for-the-activation", "standardise-the-inputs"),
    "ACT003": ("keep-the-outputs-apart", "anneal-the-prior", "lower-the-learning-rate"),
    "ACT004": (
        "normalise-queries-and-keys", "reinitialise-the-attention", "lower-the-learning-rate", "weigh-the-keys",
        "turn-the-mask-round",
    ),
    "ACT005": ("balance-the-router",),
}  # fmt: skip


def fitting(finding: Finding) -> tuple[str, ...] | None:
    match finding.code:
        case "ACT001" if "own output" in finding.summary:
            return ("free-the-last-layer", "revive-the-units")
        case "ACT001":
            return ("revive-the-units", "lower-the-learning-rate")
        case "ACT004" if "over the queries" in finding.summary:
            return ("weigh-the-keys",)
        case "ACT004" if "padding" in finding.summary:
            return ("turn-the-mask-round",)
        case "ACT004" if finding.first_step <= 1:  # from the start: the scale it was given, not growth
            return ("reinitialise-the-attention", "normalise-queries-and-keys")
        case _:
            return None
