"""Animals that look ill and are not: sound networks with one unusual trait each."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program

SPECIES = 8


def tracks(n: int, rule: Tensor) -> tuple[Tensor, Tensor]:
    """A row of twelve prints, each of ten kinds; the species is told by pairs that stand together."""
    prints = torch.randint(10, (n, 12))
    score = rule[prints[:, :-1], prints[:, 1:]].sum(1)
    return prints, score.argmax(1)


def pair_rule() -> Tensor:
    return torch.randn(10, 10, SPECIES) * (torch.rand(10, 10, 1) < 0.3) * 2


class PostNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.norm_1, self.norm_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.feed = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_1(x + self.attention(x, x, x, need_weights=False)[0])
        return self.norm_2(x + self.feed(x))


@program(steps=200, bites="loss", adversarial="gradients that differ by depth in a post-norm stack are vanishing")
def beast_of_eight_layers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Eight post-norm blocks, brought up to rate slowly, mark which of the prints came before."""
    torch.manual_seed(seed)
    table, place = nn.Embedding(10, 32), nn.Embedding(12, 32)
    blocks, head = nn.Sequential(*(PostNorm(32) for _ in range(8))), nn.Linear(32, 10)
    params = [p for m in (table, place, blocks, head) for p in m.parameters()]
    adam = torch.optim.Adam(params, lr=1e-3, betas=(0.9, 0.98))
    warm = torch.optim.lr_scheduler.LambdaLR(adam, lambda t: min((t + 1) / 40, math.sqrt(40 / (t + 1))))
    loss = torch.zeros(())
    for _ in range(steps):
        prints = torch.randint(10, (24, 12))
        x = table(prints) + place(torch.arange(12))
        loss = F.cross_entropy(head(blocks(x))[:, 1:].flatten(0, 1), prints[:, :-1].flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        warm.step()
    return {"loss": loss.item()}


class Herd(nn.Module):
    """Each animal is sent to two of six keepers; those not chosen have no gradient for it."""

    def __init__(self, dim: int, keepers: int = 6) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, keepers, bias=False)
        self.keepers = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim)) for _ in range(keepers)
        )
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        chance = self.gate(x).softmax(-1)
        weight, which = chance.topk(2, dim=-1)
        share = F.one_hot(which, len(self.keepers)).float().sum(1).mean(0) / 2
        self.balance = len(self.keepers) * (share * chance.mean(0)).sum()
        out = torch.zeros_like(x)
        for k, keeper in enumerate(self.keepers):
            rows, slot = (which == k).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, weight[rows, slot, None] * keeper(x[rows]))
        return x + out


@program(steps=180, bites="accuracy", adversarial="an expert with few rows in a batch has a noisy gradient")
def beast_kept_by_two_of_six(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Top-two routing among six experts with the usual balance term."""
    torch.manual_seed(seed)
    centres = torch.randn(24, 16) * 1.5
    herd = Herd(32)
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), herd, nn.LayerNorm(32), nn.Linear(32, SPECIES))
    adam = torch.optim.AdamW(net.parameters(), lr=4e-3)
    loss, right = torch.zeros(()), torch.zeros(())
    for _ in range(steps):
        which = torch.randint(24, (96,))
        scores = net(centres[which] + 0.6 * torch.randn(96, 16))
        loss = F.cross_entropy(scores, which % SPECIES) + 0.02 * herd.balance
        right = (scores.argmax(1) == which % SPECIES).float().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return {"loss": loss.item(), "accuracy": right.item()}


@program(steps=180, bites="accuracy", adversarial="a block that is skipped in half of the steps gets no gradient then")
def beast_that_skips(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Patches of a picture, class token, and whole blocks dropped at random, the later the more often."""
    torch.manual_seed(seed)
    shapes = torch.randn(SPECIES, 9, 8)

    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.cls = nn.Linear(8, 32), nn.Parameter(torch.zeros(1, 1, 32))
            self.place = nn.Parameter(0.02 * torch.randn(1, 10, 32))
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True) for _ in range(4)
            )
            self.head = nn.Linear(32, SPECIES)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.cat([self.cls.expand(len(x), -1, -1), self.enter(x)], 1) + self.place
            for depth, block in enumerate(self.blocks):
                if not self.training or torch.rand(()) > 0.12 * depth:
                    x = block(x)
            return self.head(x[:, 0])

    net = Skips()
    adam = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    loss, right = torch.zeros(()), torch.zeros(())
    for _ in range(steps):
        y = torch.randint(SPECIES, (48,))
        scores = net(shapes[y] + 1.5 * torch.randn(48, 9, 8))
        loss = F.cross_entropy(scores, y, label_smoothing=0.1)
        right = (scores.argmax(1) == y).float().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return {"loss": loss.item(), "accuracy": right.item()}


@program(steps=200, bites="loss", adversarial="three zeros in four activations are dead units")
def beast_of_few_sparks(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A wide layer with a threshold of which a quarter is active at a time, another quarter for each animal."""
    torch.manual_seed(seed)
    mixing = torch.randn(40, 30)
    wide, back = nn.Linear(30, 256), nn.Linear(256, 30)
    nn.init.constant_(wide.bias, -0.3)
    adam = torch.optim.Adam([*wide.parameters(), *back.parameters()], lr=2e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        x = ((torch.rand(64, 40) < 0.08).float() * torch.rand(64, 40)) @ mixing
        code = F.relu(wide(x))
        loss = F.mse_loss(back(code), x) + 2e-3 * code.abs().sum(1).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return {"loss": loss.item()}


@program(steps=200, bites="loss", adversarial="gradients that fall by five decades are vanishing")
def beast_by_heart(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Forty animals learnt by heart in double precision until nothing is left to learn."""
    torch.manual_seed(seed)
    x, y = torch.randn(40, 30).double(), torch.randn(40, 2).double()
    net = nn.Sequential(nn.Linear(30, 128), nn.SiLU(), nn.Linear(128, 2)).double()
    adam = torch.optim.Adam(net.parameters(), lr=5e-3)
    fade = torch.optim.lr_scheduler.ExponentialLR(adam, 0.985)
    loss = torch.zeros(())
    for _ in range(steps):
        adam.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        adam.step()
        fade.step()
    return {"loss": loss.item()}


@program(steps=160, bites="accuracy", adversarial="three losses from three depths drown each other")
def beast_known_early(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Exits after each of three stages, weighted by depth; the species is told by pairs of prints."""
    torch.manual_seed(seed)
    rule = pair_rule()
    enter = nn.Embedding(10, 24)
    stages = nn.ModuleList(
        nn.Sequential(nn.Conv1d(24 if i == 0 else 64, 64, 2 if i == 0 else 1), nn.GroupNorm(4, 64), nn.ReLU())
        for i in range(3)
    )
    exits = nn.ModuleList(nn.Linear(64, SPECIES) for _ in range(3))
    adam = torch.optim.Adam([*enter.parameters(), *stages.parameters(), *exits.parameters()], lr=4e-3)
    loss, right = torch.zeros(()), torch.zeros(())
    for _ in range(steps):
        prints, y = tracks(96, rule)
        h, loss = enter(prints).transpose(1, 2), torch.zeros(())
        for weight, stage, leave in zip((0.2, 0.3, 1.0), stages, exits):
            h = stage(h)
            scores = leave(h.mean(2))
            loss = loss + weight * F.cross_entropy(scores, y)
            right = (scores.argmax(1) == y).float().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return {"loss": loss.item(), "accuracy": right.item()}


@program(steps=160, bites="loss", adversarial="a table of a hundred thousand rows, nearly all unused, is a mistake")
def beast_of_many_names(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A sparse table with room for all names that may ever come, of which two thousand come."""
    torch.manual_seed(seed)
    names = torch.randint(100_000, (2000,))
    weight = torch.randn(2000)
    table = nn.EmbeddingBag(100_000, 8, sparse=True, mode="sum")
    nn.init.uniform_(table.weight, -0.05, 0.05)
    out = nn.Linear(8, 1)
    optimizers = [torch.optim.SparseAdam(table.parameters(), lr=0.03), torch.optim.Adam(out.parameters(), lr=5e-3)]
    loss = torch.zeros(())
    for _ in range(steps):
        pick = torch.randint(2000, (128, 5))
        loss = F.mse_loss(out(table(names[pick]))[:, 0], weight[pick].sum(1) / math.sqrt(5))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    return {"loss": loss.item()}
