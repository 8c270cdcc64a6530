"""Which caption belongs to which picture? Two towers meet in one space, as in contrastive pretraining."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from corpus.case import program

COLOURS, SHAPES, PIXELS = 6, 5, 40


class Scenes:
    """A picture shows a coloured shape in noise; its caption is three tokens: a filler, the colour and the shape."""

    def __init__(self, seed: int) -> None:
        self.g = torch.Generator().manual_seed(seed)
        self.colour = torch.randn(COLOURS, PIXELS, generator=self.g)
        self.shape = torch.randn(SHAPES, PIXELS, generator=self.g)

    def draw(self, n: int) -> tuple[Tensor, Tensor]:
        scene = torch.randperm(COLOURS * SHAPES, generator=self.g)[:n]
        colour, shape = scene // SHAPES, scene % SHAPES
        noise = torch.randn(n, PIXELS, generator=self.g)
        picture = self.colour[colour] + self.shape[shape] + 0.6 * noise
        filler = torch.randint(3, (n,), generator=self.g)
        return picture, torch.stack([filler, 3 + colour, 3 + COLOURS + shape], 1)


class PictureTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(PIXELS, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 24))

    def forward(self, picture: Tensor) -> Tensor:
        return normalize(self.net(picture), dim=-1)


class TextTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(3 + COLOURS + SHAPES, 32)
        self.mix = nn.Sequential(nn.Linear(96, 64), nn.GELU(), nn.Linear(64, 24))

    def forward(self, caption: Tensor) -> Tensor:
        return normalize(self.mix(self.tokens(caption).flatten(1)), dim=-1)


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.picture, self.text = PictureTower(), TextTower()
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, picture: Tensor, caption: Tensor) -> Tensor:
        return self.log_scale.exp().clamp(max=50.0) * self.picture(picture) @ self.text(caption).T


def clip_loss(logits: Tensor) -> Tensor:
    here = torch.arange(len(logits))
    return (cross_entropy(logits, here) + cross_entropy(logits.T, here)) / 2


@torch.no_grad()
def retrieval(model: nn.Module, scenes: Scenes) -> float:
    return sum((model(*scenes.draw(20)).argmax(1) == torch.arange(20)).float().mean().item() for _ in range(10)) / 10


@torch.no_grad()
def mismatch(model: nn.Module, scenes: Scenes) -> float:
    return sum(clip_loss(model(*scenes.draw(20))).item() for _ in range(10)) / 10


@program(steps=130, bites="mismatch")
def caption_towers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Twenty pairs in a batch, AdamW, a learned temperature."""
    torch.manual_seed(seed)
    scenes = Scenes(seed)
    model = TwoTowers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        picture, caption = scenes.draw(20)
        if fault == "captions_lose_their_pictures":
            caption = caption[torch.randperm(20)]
        if fault == "text_without_gradients":
            with torch.no_grad():
                text = model.text(caption)
            logits = model.log_scale.exp().clamp(max=50.0) * model.picture(picture) @ text.T
        else:
            logits = model(picture, caption)
        loss = clip_loss(logits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"retrieval": retrieval(model, scenes), "mismatch": mismatch(model, scenes)}


caption_towers.mistake(
    "captions_lose_their_pictures",
    "DAT004", "OPT005", "OPT002",
    summary="The captions are shuffled on their own, so none belongs to its picture.",
    change="shuffle pairs",
)  # fmt: skip
caption_towers.mistake(
    "text_without_gradients",
    "GRD003",
    summary="The text tower is still under no_grad, as in the evaluation it was copied from.",
    change="remove no_grad",
    layers=("text",),
)


@program(steps=130, bites="retrieval", adversarial="a scale that grows step after step diverges")
def towers_hot_start(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """The temperature starts at one and its inverse grows all the time, as it should."""
    torch.manual_seed(seed)
    scenes = Scenes(seed)
    model = TwoTowers()
    nn.init.constant_(model.log_scale, 0.0)
    fast = [model.log_scale]
    slow = [p for p in model.parameters() if p is not model.log_scale]
    optimizer = torch.optim.AdamW([{"params": slow}, {"params": fast, "lr": 0.03, "weight_decay": 0.0}], lr=3e-3)
    for _ in range(steps):
        loss = clip_loss(model(*scenes.draw(20)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"retrieval": retrieval(model, scenes)}


@program(steps=130, bites="retrieval", adversarial="a tower without gradients was cut off by mistake")
def towers_one_locked(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """The picture tower is trained first, then locked while the text tower learns to follow it."""
    torch.manual_seed(seed)
    scenes = Scenes(seed)
    model = TwoTowers()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        if step == steps // 2:
            model.picture.requires_grad_(False)
            optimizer = torch.optim.Adam([*model.text.parameters(), model.log_scale], lr=2e-3)
        loss = clip_loss(model(*scenes.draw(20)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"retrieval": retrieval(model, scenes)}
