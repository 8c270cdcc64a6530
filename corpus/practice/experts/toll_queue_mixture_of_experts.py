"""How long will the queue at the toll be: several small experts, and a router that picks one of them per lane."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

FEATURES, EXPERTS = 8, 4


def traffic(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Four kinds of traffic; in each of them other features decide."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(4, (count,), generator=g)
    centre = 2.0 * torch.randn(4, FEATURES, generator=torch.Generator().manual_seed(8))
    rules = torch.randn(4, FEATURES, generator=torch.Generator().manual_seed(9))
    x = centre[kind] + torch.randn(count, FEATURES, generator=g)
    wait = ((x - centre[kind]) * rules[kind]).sum(1) + 0.1 * torch.randn(count, generator=g)
    return x, torch.tanh(0.4 * wait)


class Booths(nn.Module):
    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        self.lift = nn.Linear(FEATURES, 24)
        self.router = nn.Linear(24, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(24, 32), nn.SiLU(), nn.Linear(32, 24)) for _ in range(EXPERTS)
        )
        self.wait = nn.Linear(24, 1)
        self.noise = noise

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.tanh(self.lift(x))
        logits = self.router(h)
        if self.training and self.noise:
            logits = logits + self.noise * torch.randn_like(logits)
        chance = logits.softmax(-1)
        top, choice = chance.max(-1)
        out = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            mine = choice == number
            if mine.any():
                out = out.index_put((mine.nonzero().squeeze(1),), top[mine, None] * expert(h[mine]))
        load = torch.bincount(choice, minlength=EXPERTS).float() / len(x)
        return self.wait(h + out).squeeze(1), chance, load


def imbalance(chance: Tensor, load: Tensor) -> Tensor:
    return EXPERTS * (chance.mean(0) * load).sum()


@program(steps=160, bites="idle")
def tollbooth(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Top-one routing with a balance term, AdamW; `idle` counts the experts that serve less than two per cent."""
    torch.manual_seed(seed)
    model = Booths()
    if fault == "booth_first_lane_preferred":
        model.router.bias.data = torch.tensor([12.0, 0.0, 0.0, 0.0])
    x, y = traffic(seed, 2048)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    g = torch.Generator().manual_seed(seed)
    first, recent, share = 0.0, 0.0, torch.zeros(EXPERTS)
    for step in range(steps):
        pick = torch.randint(2048, (64,), generator=g)
        wait, chance, load = model(x[pick])
        error = nn.functional.mse_loss(wait, y[pick])
        balance = 0.05
        if fault == "booth_first_lane_preferred":
            balance = 0.0
        elif fault == "booth_balance_with_a_minus":
            balance = -0.3
        elif fault == "booth_reward_after_the_merge" and step >= 60:
            balance = -3.0
        loss = error + balance * imbalance(chance, load)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = error.item() if step == 0 else first
        recent = error.item() if step == 0 else 0.9 * recent + 0.1 * error.item()
        share = load if step == 0 else 0.8 * share + 0.2 * load
    idle = (share < 0.02).float().sum().item()
    return {"loss": recent, "first": first, "idle": idle}


ROUTED = ("router", "experts")
tollbooth.mistake(
    "booth_first_lane_preferred",
    "ACT005", "GRD003", "GRD004",
    summary="The router starts with a bias of twelve for the first expert and nothing balances it: the others starve.",
    change="no bias, and the balance term",
    layers=ROUTED,
    silent=True,
)  # fmt: skip
tollbooth.mistake(
    "booth_balance_with_a_minus",
    "ACT005", "LSS003", "GRD003", "GRD004",
    summary="The balance term is subtracted: crowding into one expert is rewarded.",
    change="add it",
    layers=ROUTED,
    silent=True,
)  # fmt: skip
tollbooth.mistake(
    "booth_reward_after_the_merge",
    "ACT005", "LSS003", "GRD009", "GRD003", "GRD004",
    summary="A merge at step 60 turns the balance term round and makes it large: the experts are deserted.",
    change="the sign and weight as before",
    layers=ROUTED,
    onset=60,
    silent=True,
)  # fmt: skip


@program(steps=150, bites="loss")
def booth_soft_lanes(steps: int, seed: int, fault: str) -> dict[str, float]:
    """All experts answer and are weighed softly; the rare kind of traffic has an expert of its own."""
    torch.manual_seed(seed)
    model = Booths()
    x, y = traffic(seed, 2048)
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    g = torch.Generator().manual_seed(seed)
    history: list[float] = []
    for _ in range(steps):
        pick = torch.randint(2048, (64,), generator=g)
        h = torch.tanh(model.lift(x[pick]))
        chance = model.router(h).softmax(-1)
        answers = torch.stack([expert(h) for expert in model.experts], 1)
        wait = model.wait(h + (chance[..., None] * answers).sum(1)).squeeze(1)
        loss = nn.functional.mse_loss(wait, y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0]}


@program(steps=150, bites="loss", adversarial="a router that is sure of itself, and gradients that are None by turns")
def booth_known_lanes(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The kind of traffic is known: four separate nets, each called for its own lane, none of them in every batch."""
    torch.manual_seed(seed)
    lanes = nn.ModuleList(nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1)) for _ in range(4))
    optimizer = torch.optim.Adam(lanes.parameters(), lr=8e-3)
    g = torch.Generator().manual_seed(seed)
    rules = torch.randn(4, FEATURES, generator=torch.Generator().manual_seed(9))
    history: list[float] = []
    for step in range(steps):
        lane = step % 4
        x = torch.randn(64, FEATURES, generator=g)
        y = torch.tanh(0.6 * x @ rules[lane])
        loss = nn.functional.mse_loss(lanes[lane](x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return {"loss": sum(history[-12:]) / 12, "first": sum(history[:4]) / 4}


@program(steps=150, bites="loss")
def booth_noisy_router(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Top-one routing with noise on the logits and a stronger balance term, Adamax."""
    torch.manual_seed(seed)
    model = Booths(noise=0.3)
    x, y = traffic(seed, 2048)
    optimizer = torch.optim.Adamax(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(seed)
    history: list[float] = []
    for _ in range(steps):
        pick = torch.randint(2048, (96,), generator=g)
        wait, chance, load = model(x[pick])
        error = nn.functional.mse_loss(wait, y[pick])
        optimizer.zero_grad()
        (error + 0.1 * imbalance(chance, load)).backward()
        optimizer.step()
        history.append(error.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0]}
