"""Postcards and what is written on them: two towers learn which text belongs to which picture."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

PICTURE, WORDS, LENGTH = 32, 30, 6


def post(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """A card has six things on it; the text names them in any order, the picture adds their looks."""
    looks = torch.randn(WORDS, PICTURE, generator=torch.Generator().manual_seed(3))
    things = torch.stack([torch.randperm(WORDS, generator=g)[:LENGTH] for _ in range(count)])
    picture = looks[things].sum(1) / LENGTH**0.5 + 0.5 * torch.randn(count, PICTURE, generator=g)
    return picture, things


class Towers(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.eye = nn.Sequential(nn.Linear(PICTURE, 64), nn.ReLU(), nn.Linear(64, width))
        self.words = nn.EmbeddingBag(WORDS, 64, mode="mean")
        self.reader = nn.Sequential(nn.ReLU(), nn.Linear(64, width))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, picture: Tensor, text: Tensor) -> Tensor:
        a = nn.functional.normalize(self.eye(picture), dim=-1)
        b = nn.functional.normalize(self.reader(self.words(text)), dim=-1)
        return a @ b.T * self.logit_scale.exp()


def contrast(scores: Tensor) -> Tensor:
    truth = torch.arange(len(scores))
    return 0.5 * (nn.functional.cross_entropy(scores, truth) + nn.functional.cross_entropy(scores.T, truth))


def matched(model: nn.Module, seed: int) -> float:
    picture, text = post(100, torch.Generator().manual_seed(seed + 1000))
    with torch.no_grad():
        scores = model(picture, text).nan_to_num()
    return (scores.argmax(1) == torch.arange(100)).float().mean().item()


@program(steps=160, bites="accuracy")
def postcard_towers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Contrastive learning of pictures and texts with a learnt temperature, AdamW."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Towers()
    towers = [p for name, p in model.named_parameters() if name != "logit_scale"]
    scale_rate = 2.0 if fault == "postcard_scale_learns_too_fast" else 4e-3
    adam = torch.optim.AdamW(
        [{"params": towers}, {"params": [model.logit_scale], "lr": scale_rate, "weight_decay": 0.0}], lr=4e-3
    )
    loss = torch.zeros(())
    for step in range(steps):
        picture, text = post(48, g)
        if fault == "postcard_bag_was_dropped" and step >= 55:  # texts are picked up in another order
            text = text[torch.randperm(len(text), generator=g)]
        loss = contrast(model(picture, text))
        adam.zero_grad()
        loss.backward()
        adam.step()
        if fault != "postcard_scale_learns_too_fast":
            model.logit_scale.data.clamp_(max=math.log(50.0))
    final = loss.item()
    return {"loss": min(final, 1e6) if math.isfinite(final) else 1e6, "accuracy": matched(model, seed)}


postcard_towers.mistake(
    "postcard_scale_learns_too_fast",
    "UPD001", "OPT007", "GRD001", "GRD004", "OPT005",
    summary="The logarithm of the scale has a learning rate of 2: within a few steps all logits are alike.",
    change="the rate of the towers",
    layers=("logit_scale",),
)  # fmt: skip
postcard_towers.mistake(
    "postcard_bag_was_dropped",
    "DAT004", "OPT001", "OPT003", "OPT005",
    summary="From step 55 texts and pictures come in different orders.",
    change="keep pairs together",
    onset=55,
)  # fmt: skip


@program(steps=160, bites="accuracy", adversarial="a parameter without a gradient is cut off")
def postcard_slow_twin(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Pictures are compared with a queue of texts from a slowly following copy, which takes no gradient."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model, twin = Towers(), Towers()
    twin.load_state_dict(model.state_dict())
    adam = torch.optim.Adam(model.parameters(), lr=4e-3)
    queue = nn.functional.normalize(torch.randn(96, 32, generator=g), dim=-1)
    loss = torch.zeros(())
    for _ in range(steps):
        picture, text = post(48, g)
        a = nn.functional.normalize(model.eye(picture), dim=-1)
        with torch.no_grad():
            b = nn.functional.normalize(twin.reader(twin.words(text)), dim=-1)
        b_own = nn.functional.normalize(model.reader(model.words(text)), dim=-1)
        scores = torch.cat([a @ b_own.T, a @ queue.T], 1) * model.logit_scale.exp()
        loss = nn.functional.cross_entropy(scores, torch.arange(48))
        adam.zero_grad()
        loss.backward()
        adam.step()
        queue = torch.cat([b, queue])[:96]
        with torch.no_grad():
            for slow, fast in zip(twin.parameters(), model.parameters()):
                slow.lerp_(fast, 0.1)
    return {"loss": loss.item(), "accuracy": matched(model, seed)}


class LowRank(nn.Module):
    """A frozen layer and a correction of rank four that starts at nothing."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(4, base.in_features) * base.in_features**-0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


@program(steps=200, adversarial="half of the parameters never change, some gradients start at zero")
def postcard_foreign_camera(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Towers trained for 120 steps, then pictures from another camera: only low-rank corrections learn."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Towers()
    first = torch.optim.Adam(model.parameters(), lr=4e-3)
    loss = torch.zeros(())
    for _ in range(120):
        loss = contrast(model(*post(48, g)))
        first.zero_grad()
        loss.backward()
        first.step()
    model.requires_grad_(False)
    for number in (0, 2):
        layer = model.eye[number]
        assert isinstance(layer, nn.Linear)
        model.eye[number] = LowRank(layer)
    gain = 0.3 + 1.4 * torch.rand(PICTURE, generator=g)
    second = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(max(0, steps - 120)):
        picture, text = post(48, g)
        loss = contrast(model(picture * gain + 0.5, text))
        second.zero_grad()
        loss.backward()
        second.step()
    return {"loss": loss.item()}
