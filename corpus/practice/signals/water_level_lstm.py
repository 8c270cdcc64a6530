"""Water levels: an LSTM reads two days and says the next hours. Plain SGD, so the clip and the schedule matter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from corpus.case import program

PAST, AHEAD = 36, 4


@dataclass
class Settings:
    rate: float = 0.15
    clip: float = 1.0
    clip_first: bool = True
    momentum: float = 0.9
    epochs: int = 12
    step_size: int = 5  # epochs
    gamma: float = 0.5
    schedule_every_batch: bool = False
    linear_decay_over: int = 0


class RiverNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 24, batch_first=True)
        self.norm = nn.LayerNorm(24)
        self.ahead = nn.Linear(24, AHEAD)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(x)
        return self.ahead(self.norm(out[:, -1]))


def rivers(seed: int) -> tuple[Tensor, Tensor]:
    """Rain falls at random, the river rises after it and falls slowly; a tide moves it, too."""
    g = torch.Generator().manual_seed(seed + 77)
    hours = 2200
    rain = torch.rand(hours, generator=g) ** 8 * 3
    level = torch.zeros(hours)
    for t in range(1, hours):
        level[t] = 0.93 * level[t - 1] + 0.5 * rain[t - 1]
    level = level + 0.6 * torch.sin(torch.arange(hours) * 2 * torch.pi / 12.4)
    level = (level - level.mean()) / level.std() + 0.05 * torch.randn(hours, generator=g)
    both = torch.stack([level, (rain - rain.mean()) / rain.std()], dim=1)
    starts = torch.arange(0, hours - PAST - AHEAD)
    past = torch.stack([both[s : s + PAST] for s in starts.tolist()])
    future = torch.stack([level[s + PAST : s + PAST + AHEAD] for s in starts.tolist()])
    return past, future


class Trainer:
    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self.optimizer = torch.optim.SGD(model.parameters(), lr=settings.rate, momentum=settings.momentum)
        self.scheduler: torch.optim.lr_scheduler.LRScheduler
        if settings.linear_decay_over:
            over = settings.linear_decay_over
            self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: max(0.0, 1 - n / over))
        else:
            self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, settings.step_size, settings.gamma)

    def batch(self, x: Tensor, y: Tensor) -> float:
        self.optimizer.zero_grad()
        loss = (self.model(x) - y).abs().sum(1).mean() * 10  # in centimetres
        loss.backward()
        if self.settings.clip_first:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        if not self.settings.clip_first:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        if self.settings.schedule_every_batch:
            self.scheduler.step()
        return loss.item()


@program(steps=180)
def riverbed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An LSTM forecasts water levels; SGD with momentum, the norm clipped, the rate halved every five epochs."""
    torch.manual_seed(seed)
    x, y = rivers(seed)
    settings = Settings()
    match fault:
        case "river_clip_of_a_thousandth":
            settings.clip = 1e-3
        case "river_clips_too_late":
            settings.clip_first = False
        case "river_halves_every_batch":
            settings.schedule_every_batch = True
        case "river_linear_over_epochs":
            settings.schedule_every_batch, settings.linear_decay_over = True, settings.epochs
        case "river_heavy_ball":
            settings.momentum = 0.999
    trainer = Trainer(RiverNet(), settings)
    generator = torch.Generator().manual_seed(seed)
    per_epoch, history, done = 15, [], 0
    while done < steps:
        order = torch.randperm(len(x), generator=generator)[: per_epoch * 64]
        for rows in order.split(64):
            if done == 100 and fault == "river_rate_in_percent":
                for group in trainer.optimizer.param_groups:  # "warm restart": the number was a percentage
                    group["lr"] *= 100
            history.append(trainer.batch(x[rows], y[rows]))
            done += 1
            if done == steps:
                break
        if not settings.schedule_every_batch:
            trainer.scheduler.step()
    last = sum(history[-20:]) / len(history[-20:])
    return {"loss": min(last, 1e6) if last == last else 1e6, "first": history[0]}


riverbed.mistake(
    "river_clip_of_a_thousandth",
    "GRD010", "UPD002", "OPT007", "OPT005",
    summary="The norm is clipped to a thousandth: every update is almost nothing.",
    change="clip at one",
)  # fmt: skip
riverbed.mistake(
    "river_clips_too_late",
    "UPD001", "OPT007", "OPT001", "GRD002", "OPT004", "OPT005",
    summary="The clipping stands behind the step: the loss in centimetres gives full, far too large updates.",
    change="clip before the step",
)  # fmt: skip
riverbed.mistake(
    "river_halves_every_batch",
    "OPT007", "UPD002",
    summary="The scheduler is stepped in every batch, with a step size that counts epochs.",
    change="step it once in an epoch",
    onset=5,
)  # fmt: skip
riverbed.mistake(
    "river_linear_over_epochs",
    "OPT007", "UPD002", "UPD003",
    summary="A linear decay over twelve epochs is counted in batches: after twelve batches the rate is zero.",
    change="count epochs",
    onset=10,
)  # fmt: skip
riverbed.mistake(
    "river_rate_in_percent",
    "OPT007", "UPD001", "OPT003", "OPT001", "WGT001",
    summary="A restart in mid-run multiplies the rate by a hundred.",
    change="leave the rate",
    onset=100,
)  # fmt: skip
riverbed.mistake(
    "river_heavy_ball",
    "OPT008", "OPT004", "OPT007", "UPD001",
    summary="Momentum of 0.999: the steps of the whole run are carried along.",
    change="momentum 0.9",
)  # fmt: skip
