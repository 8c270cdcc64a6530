"""Every sample of a heart trace gets a label: a one-dimensional residual network on traces of unequal length."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program

LONGEST = 96


def traces(n: int, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Traces with a sharp and a broad wave per beat; the length of a trace is anything from 8 to 96 samples.

    The labels are rest, sharp and broad. Short traces are fragments of bad quality: half of their labels are wrong.
    """
    time = torch.arange(LONGEST)
    period = torch.randint(24, 40, (n, 1), generator=g)
    phase = (time + torch.randint(40, (n, 1), generator=g)) % period
    sharp, broad = (phase >= 6) & (phase < 9), (phase >= 14) & (phase < 21)
    label = torch.zeros(n, LONGEST, dtype=torch.long) + sharp.long() + 2 * broad.long()
    signal = 1.5 * sharp + 0.6 * broad + 0.25 * torch.randn(n, LONGEST, generator=g)
    short = torch.rand(n, generator=g) < 0.5
    length = torch.where(short, torch.randint(8, 14, (n,), generator=g), torch.full((n,), LONGEST))
    guess = torch.randint(3, label.shape, generator=g)
    wrong = short[:, None] & (torch.rand(label.shape, generator=g) < 0.5)
    return signal.unsqueeze(1), torch.where(wrong, guess, label), time < length[:, None]


class Residual(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm1d(width), nn.BatchNorm1d(width)
        self.conv1 = nn.Conv1d(width, width, 5, padding=2 * dilation, dilation=dilation)
        self.conv2 = nn.Conv1d(width, width, 5, padding=2 * dilation, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))


class HeartNet(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, width, 5, padding=2)
        self.blocks = nn.Sequential(Residual(width, 1), Residual(width, 2), Residual(width, 4))
        self.leave = nn.Conv1d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.blocks(self.enter(x)))


@program(steps=120, bites="accuracy")
def heart_waves(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Dilated residual blocks with batch norm; each step adds up four micro-batches, weighted by their samples."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    x, y, valid = traces(600, g)
    by_length = valid.sum(1).argsort()  # micro-batches of like length waste less padding
    model = HeartNet()
    if fault == "looked_at_and_left_in_eval":
        model.eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    uneven, normalised = 0.0, 0
    for _ in range(steps):
        rows = by_length[torch.randperm(len(x), generator=g)[:24].sort().values]
        total = valid[rows].sum()
        optimizer.zero_grad()
        for micro in rows.split(6):
            trim = int(valid[micro].sum(1).max())
            out, wanted, mask = model(x[micro, :, :trim]), y[micro, :trim], valid[micro, :trim]
            each = F.cross_entropy(out, wanted, reduction="none")[mask]
            share = mask.sum() / total
            if fault == "fragments_weigh_as_much_as_traces":
                (each.mean() / 4).backward()
                uneven = max(uneven, (0.25 / share).item())
            else:
                (each.sum() / total).backward()
                uneven = max(uneven, 1.0)
        optimizer.step()
        normalised += model.training
    model.eval()
    with torch.no_grad():
        test_x, test_y, test_valid = traces(300, g)
        full = test_valid.all(1)
        right = (model(test_x[full]).argmax(1) == test_y[full]).float().mean().item()
        loss = F.cross_entropy(model(test_x[full]), test_y[full]).item()
    return {
        "accuracy": right,
        "loss": loss,
        "largest_weight_of_a_sample": uneven,
        "normalised_share": normalised / max(steps, 1),
    }


heart_waves.mistake(
    "looked_at_and_left_in_eval",
    "MOD001",
    summary="The model was put into eval for a look at the untrained traces, and stayed there.",
    change="model.train()",
    layers=("blocks",),
    bites="normalised_share",
    silent=True,
)
heart_waves.mistake(
    "fragments_weigh_as_much_as_traces",
    "LSS004",
    summary="Four micro-batches of unequal length are averaged as if equal: a sample of a fragment weighs most.",
    change="divide each sum by all samples of the step",
    bites="largest_weight_of_a_sample",
    silent=True,
)
