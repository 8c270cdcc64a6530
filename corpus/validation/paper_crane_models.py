"""Paper cranes and other folded things: recommendations, folding plans, invented creases; all of them train well."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program


@program(steps=150, adversarial="two optimizers: each leaves half of the parameters alone")
def crane_recommender(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Which model does a folder like? Sparse tables by SparseAdam, a small dense net by Adam, both in every step."""
    torch.manual_seed(seed)
    folders, models = nn.Embedding(80, 12, sparse=True), nn.Embedding(150, 12, sparse=True)
    nn.init.normal_(folders.weight, std=0.3)
    nn.init.normal_(models.weight, std=0.3)
    dense = nn.Sequential(nn.Linear(36, 32), nn.ReLU(), nn.Linear(32, 1))
    tables = torch.optim.SparseAdam([*folders.parameters(), *models.parameters()], lr=0.05)
    layers = torch.optim.Adam(dense.parameters(), lr=5e-3)
    taste, kind = torch.randn(80, 3), torch.randn(150, 3)
    losses: list[float] = []
    for _ in range(steps):
        who, what = torch.randint(0, 80, (512,)), torch.randint(0, 150, (512,))
        liked = ((taste[who] * kind[what]).sum(1) > 0).float()
        a, b = folders(who), models(what)
        score = dense(torch.cat([a, b, a * b], 1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(score, liked)
        tables.zero_grad()
        layers.zero_grad()
        loss.backward()
        tables.step()
        layers.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-5:]) / min(5, steps)}


class Coupling(nn.Module):
    def __init__(self, flip: bool) -> None:
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))
        nn.init.zeros_(self.net.get_parameter("2.weight"))
        nn.init.zeros_(self.net.get_parameter("2.bias"))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, moved = (x[:, 1:], x[:, :1]) if self.flip else (x[:, :1], x[:, 1:])
        shift, log_scale = self.net(kept).chunk(2, 1)
        log_scale = 1.5 * torch.tanh(log_scale)
        moved = moved * log_scale.exp() + shift
        return torch.cat([moved, kept] if self.flip else [kept, moved], 1), log_scale.squeeze(1)


@program(steps=160, adversarial="couplings start at zero and the loss becomes negative: dead weights, wrong sign")
def crane_creases_as_a_flow(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The density of crease points on a narrow curve, by six affine couplings that start as the identity."""
    torch.manual_seed(seed)
    flow = nn.ModuleList(Coupling(flip=bool(i % 2)) for i in range(6))
    optimizer = torch.optim.Adam(flow.parameters(), lr=4e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        along = torch.randn(128) * 0.5
        x = torch.stack([along, along.pow(2) - 0.3 + 0.02 * torch.randn(128)], 1)
        logdet = torch.zeros(128)
        for layer in flow:
            x, more = layer(x)
            logdet = logdet + more
        loss = (0.5 * x.pow(2).sum(1) + 1.8379 - logdet).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=160, adversarial="the loss jumps up at every restart: spikes")
def crane_warm_restarts(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Folding time and difficulty at once under bf16 autocast; the rate restarts every forty steps."""
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(10, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    time, difficulty = nn.Linear(64, 1), nn.Linear(64, 3)
    optimizer = torch.optim.SGD(
        [*body.parameters(), *time.parameters(), *difficulty.parameters()], lr=0.04, momentum=0.9, weight_decay=1e-4
    )
    restarts = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=40)
    rule = torch.randn(10, 2)
    loss = torch.zeros(())
    for _ in range(steps):
        x = torch.randn(64, 10)
        minutes, hard = (torch.tanh(x @ rule)).unbind(1)
        grade = (hard > -0.4).long() + (hard > 0.4).long()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = body(x)
            guess, scores = time(h).squeeze(1), difficulty(h)
        loss = nn.functional.mse_loss(guess.float(), minutes) + 0.5 * nn.functional.cross_entropy(scores.float(), grade)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        restarts.step()
    return {"loss": loss.item()}


@program(steps=130, adversarial="a router whose load is uneven for a while: collapse")
def crane_folding_schools(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four experts, two for every sample, with a balance term; the first school has half of all samples."""
    torch.manual_seed(seed)
    schools = torch.randn(4, 12)
    experts = nn.ModuleList(nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1)) for _ in range(4))
    router = nn.Linear(12, 4)
    optimizer = torch.optim.Adam([*experts.parameters(), *router.parameters()], lr=6e-3)
    losses: list[float] = []
    for _ in range(steps):
        school = torch.multinomial(torch.tensor([0.5, 0.2, 0.2, 0.1]), 128, replacement=True)
        x = schools[school] + 0.5 * torch.randn(128, 12)
        y = torch.sin(x[:, 0] + school) + 0.3 * school
        weights = router(x).softmax(1)
        top = weights.topk(2, dim=1)
        kept = torch.zeros_like(weights).scatter(1, top.indices, top.values)
        kept = kept / kept.sum(1, keepdim=True)
        out = torch.cat([expert(x) for expert in experts], 1)
        share = (kept > 0).float().mean(0)
        loss = ((kept * out).sum(1) - y).pow(2).mean() + 0.02 * 4 * (share * weights.mean(0)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-5:]) / min(5, steps)}
