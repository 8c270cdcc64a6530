"""Who is speaking? Frames through convolutions, mean and deviation over time, and an angular margin, with a trainer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program

SPEAKERS, MELS, FRAMES = 8, 16, 30


class Studio:
    """Clips of a few voices; now and then nobody says anything."""

    def __init__(self, seed: int) -> None:
        self.g = torch.Generator().manual_seed(500 + seed)
        self.timbre = torch.randn(SPEAKERS, MELS, generator=self.g) * 0.4
        self.tempo = 0.5 + torch.rand(SPEAKERS, generator=self.g) * 2.0

    def batch(self, n: int, silent: int = 0) -> tuple[Tensor, Tensor]:
        who = torch.randint(SPEAKERS, (n,), generator=self.g)
        phase = torch.rand(n, 1, generator=self.g) * 6.3
        beat = torch.sin(self.tempo[who, None] * torch.arange(FRAMES) * 0.6 + phase)
        clip = self.timbre[who][:, :, None] * (1 + beat[:, None]) + 0.8 * torch.randn(n, MELS, FRAMES, generator=self.g)
        clip[:silent] = 0.0
        return clip, who


class StatsPool(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, h: Tensor) -> Tensor:
        mean = h.mean(dim=-1)
        spread = ((h - mean[..., None]) ** 2).mean(dim=-1)
        return torch.cat([mean, torch.sqrt(spread + self.eps)], dim=1)


class Voice(nn.Module):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv1d(MELS, 24, 5), nn.ReLU(), nn.Conv1d(24, 24, 3), nn.ReLU(), nn.Conv1d(24, 24, 1), nn.ReLU()
        )
        self.pool = StatsPool(eps)
        self.embed = nn.Linear(48, 16)

    def forward(self, clip: Tensor) -> Tensor:
        return self.embed(self.pool(self.frames(clip)))


class Margin(nn.Module):
    """The angle to the right speaker's centre must be smaller by a margin."""

    def __init__(self, scale: float = 12.0, margin: float = 0.1) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(SPEAKERS, 16))
        self.scale, self.margin = scale, margin

    def cosines(self, e: Tensor) -> Tensor:
        return functional.normalize(e, dim=1) @ functional.normalize(self.centres, dim=1).T

    def forward(self, e: Tensor, who: Tensor) -> Tensor:
        return functional.cross_entropy(
            self.scale * (self.cosines(e) - self.margin * functional.one_hot(who, SPEAKERS)), who
        )


@dataclass
class Trainer:
    model: Voice
    criterion: Margin
    optimizer: torch.optim.Optimizer
    studio: Studio
    silent_every: int = 20
    last: float = 0.0
    seen: int = 0

    def warm(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self._backward()
            self.optimizer.step()

    def fit(self, steps: int, clear: bool = True) -> None:
        for _ in range(steps):
            if clear:
                self.optimizer.zero_grad()
            self._backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.optimizer.step()

    def _backward(self) -> None:
        silent = 1 if self.seen >= 60 and self.seen % self.silent_every == 0 else 0
        clip, who = self.studio.batch(48, silent)
        loss = self.criterion(self.model(clip), who)
        loss.backward()
        self.last = loss.item()
        self.seen += 1

    def accuracy(self) -> float:
        self.model.eval()
        clip, who = self.studio.batch(600)
        with torch.no_grad():
            return (self.criterion.cosines(self.model(clip)).argmax(1) == who).float().mean().item()


@program(steps=150, bites="accuracy")
def speakers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A short warm phase, then a clipped one; one clip in a thousand is silent."""
    torch.manual_seed(seed)
    model, criterion = Voice(eps=0.0 if fault == "speakers_root_of_silence" else 1e-5), Margin()
    groups: list[dict[str, list[nn.Parameter]]] = [{"params": list(model.parameters())}]
    if fault != "speakers_centres_stay":
        groups.append({"params": list(criterion.parameters())})
    trainer = Trainer(model, criterion, torch.optim.SGD(groups, lr=0.03, momentum=0.9), Studio(seed))
    before = criterion.centres.detach().clone()
    trainer.warm(min(50, steps // 3))
    trainer.fit(steps - min(50, steps // 3), clear=fault != "speakers_piles_up")
    return {
        "loss": trainer.last if trainer.last == trainer.last else 1e9,
        "accuracy": trainer.accuracy(),
        "moved": min((criterion.centres.detach() - before).norm().nan_to_num(1e6).item(), 1e6),
    }


speakers.mistake(
    "speakers_root_of_silence",
    "NUM001", "NUM003", "NUM002", "NUM004",
    summary="The deviation over time is a root without an epsilon: the first silent clip has a gradient of 0/0.",
    change="an epsilon under the root",
    layers=("frames", "pool", "model.frames", "model.pool"),
    onset=60,
)  # fmt: skip
speakers.mistake(
    "speakers_centres_stay",
    "UPD003",
    summary="The loss has parameters of its own, the centres, and nobody gave them to the optimizer.",
    change="give the criterion's parameters to the optimizer",
    layers=("centres", "criterion"),
    bites="moved",
    silent=True,
)
speakers.mistake(
    "speakers_piles_up",
    "GRD007",
    summary="The second phase is a copy of the loop in which the line that clears the gradients is missing.",
    change="zero_grad in the second phase",
    onset=50,
)


@program(steps=110, bites="accuracy", adversarial="a gradient that is there before backward was not cleared")
def speakers_in_quarters(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four quarters of a batch, each divided by four, make one step."""
    torch.manual_seed(seed)
    model, criterion, studio = Voice(), Margin(), Studio(seed)
    parameters = [*model.parameters(), *criterion.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    total = 0.0
    for _ in range(steps):
        total = 0.0
        for _quarter in range(4):
            clip, who = studio.batch(16)
            loss = criterion(model(clip), who) / 4
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
    return {"loss": total, "accuracy": Trainer(model, criterion, optimizer, studio).accuracy()}


@program(steps=130, bites="accuracy", adversarial="batches of few classes, in their order, are not mixed")
def speakers_by_prototype(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Episodes: three voices, five clips each to make a prototype and five to be recognised, in the order of voices."""
    torch.manual_seed(seed)
    model, studio = Voice(), Studio(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss, hits = torch.tensor(0.0), 0.0
    for _ in range(steps):
        clip, who = studio.batch(160)
        voices = torch.randperm(SPEAKERS, generator=studio.g)[:3]
        episode = torch.stack([clip[who == v][:10] for v in voices if int((who == v).sum()) >= 10])
        e = model(episode.flatten(0, 1)).unflatten(0, (len(episode), 10))
        prototypes, queries = e[:, :5].mean(1), e[:, 5:].flatten(0, 1)
        scores = -torch.cdist(queries, prototypes).square()
        labels = torch.arange(len(episode)).repeat_interleave(5)
        loss = functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits = 0.9 * hits + 0.1 * (scores.argmax(1) == labels).float().mean().item()
    return {"loss": loss.item(), "accuracy": hits}
