"""Fill in masked fields of records with a transformer encoder: attention of its own in half precision, late pruning."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program

FIELDS, VALUES, MASK = 10, 12, 12


def records(seed: int, count: int) -> Tensor:
    """Ten fields; the second half follows from the first."""
    g = torch.Generator().manual_seed(seed)
    first = torch.randint(VALUES, (count, FIELDS // 2), generator=g)
    return torch.cat([first, (3 * first + 2) % VALUES], 1)


class MaskedAttention(nn.Module):
    """Attention that leaves out fields which are missing; the scores are computed in half precision to save memory."""

    def __init__(self, width: int, heads: int, hidden: float) -> None:
        super().__init__()
        self.heads, self.hidden = heads, hidden
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, missing: Tensor) -> Tensor:
        b, n, w = x.shape
        q, k, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = (q @ k.transpose(-2, -1) / (w // self.heads) ** 0.5).half()
        hidden = scores.new_tensor(self.hidden)
        scores = scores + hidden * missing[:, None, None].half()  # at fault: records_mask_overflows
        return self.out((scores.float().softmax(-1) @ v).transpose(1, 2).reshape(b, n, w))


class RecordModel(nn.Module):
    def __init__(self, hidden: float, width: int = 40) -> None:
        super().__init__()
        self.value = nn.Embedding(VALUES + 1, width)
        self.field = nn.Parameter(torch.randn(FIELDS, width))
        self.attention = nn.ModuleList(MaskedAttention(width, 4, hidden) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(width, 80), nn.GELU(), nn.Linear(80, width)) for _ in range(2))
        self.read = nn.Linear(width, VALUES)

    def forward(self, values: Tensor, missing: Tensor) -> Tensor:
        x = self.value(values) + self.field
        for n in range(2):
            x = self.norms[2 * n](x + self.attention[n](x, missing))
            x = self.norms[2 * n + 1](x + self.mlp[n](x))
        return self.read(x)


def prune_and_rescale(layer: nn.Linear, share: float, guard: float) -> None:
    """Set the rows with the smallest norm to zero, and bring all others to the same norm."""
    with torch.no_grad():
        norms = layer.weight.norm(dim=1, keepdim=True)
        layer.weight[norms.squeeze(1) <= norms.quantile(share)] = 0.0
        left = layer.weight.norm(dim=1, keepdim=True)
        layer.weight.mul_(norms.mean() / (left + guard))  # at fault: records_pruned_rows_rescaled


@program(steps=420, bites="accuracy")
def masked_records(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Masked fields of a record are filled in; the last layers are pruned late in the training."""
    torch.manual_seed(seed)
    data = records(seed, 2000)
    hidden = -1e9 if mistake == "records_mask_overflows" else -1e4
    model = RecordModel(hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    guard = 0.0 if mistake == "records_pruned_rows_rescaled" else 1e-6

    def guess(values: Tensor, share: float = 0.3) -> tuple[Tensor, Tensor]:
        masked = torch.rand(values.shape) < share
        missing = torch.rand(values.shape) < 0.05
        logits = model(values.masked_fill(masked, MASK), missing)
        return logits[masked], values[masked]

    for step in range(steps):
        logits, truth = guess(data[torch.randint(len(data), (48,))])
        loss = F.cross_entropy(logits, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (179, 239):
            first = model.mlp[1][0]
            assert isinstance(first, nn.Linear)
            prune_and_rescale(first, 0.1, guard)
    with torch.no_grad():
        logits, truth = guess(records(seed + 7, 500))
    return {"accuracy": (logits.argmax(1) == truth).float().mean().item()}


masked_records.mistake(
    "records_mask_overflows",
    "NUM005",
    "NUM004",
    summary="The mask of -1e9 is infinite in half precision, and infinity times zero is not a number.",
    change="-1e4",
    layers=("attention.0",),
)
masked_records.mistake(
    "records_pruned_rows_rescaled",
    "NUM003",
    summary="Rows that pruning has set to zero are divided by their norm.",
    change="a guard in the denominator",
    layers=("mlp.1.0",),
    onset=179,
)
