"""DST: what to change about a training in several processes."""

from __future__ import annotations

from undertow.schema.findings import Finding, Remedy

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "average-every-gradient",
        "Average the gradients of all parameters over the ranks: let DistributedDataParallel do it, and call the "
        "wrapped model, not the one inside it.",
        "model = torch.nn.parallel.DistributedDataParallel(model)\n"
        "loss = compute_loss(model(batch))  # not model.module(batch)",
        "None, if the gradients were meant to be averaged.",
        when_not="The parameter belongs to one rank on purpose, such as an expert.",
    ),
    Remedy(
        "broadcast-the-weights",
        "Make the replicas equal again, once: send the first rank's weights to all others.",
        "with torch.no_grad():\n    for tensor in (*model.parameters(), *model.buffers()):\n"
        "        torch.distributed.broadcast(tensor, src=0)",
        "What the other ranks had learnt by themselves is lost; the optimizer's state may have to be sent, too.",
        when_not="The cause is still there: they would part again.",
    ),
    Remedy(
        "look-at-that-rank",
        "Look at what is different about that rank: its share of the data, its node, its device.",
        "if not torch.isfinite(loss):\n"
        "    rank = torch.distributed.get_rank()\n"
        '    torch.save(batch, f"bad-batch-{rank}.pt")  # then train on it alone',
        "None.",
        when_not="Every rank is hit in turn: then it is not the rank.",
    ),
)

BY_CODE: dict[str, tuple[str, ...]] = {
    "DST001": ("average-every-gradient", "broadcast-the-weights"),
    "DST002": ("look-at-that-rank", "skip-bad-steps"),
}


def fitting(finding: Finding) -> tuple[str, ...] | None:
    return None
