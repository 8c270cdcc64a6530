"""Experts behind a router, and attention that looks up facts."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program
from undertow.demos.case import Fault, sick


def regimes(count: int) -> tuple[Tensor, Tensor]:
    """Four regions of the plane with another linear law in each."""
    x = torch.rand(count, 2) * 4 - 2
    region = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    laws = torch.tensor([[2.0, -1.0, 1.0], [-2.0, 1.0, 0.0], [1.0, 2.0, -1.0], [-1.0, -2.0, 2.0]])[region]
    return x, (laws[:, :2] * x).sum(1) + laws[:, 2] + 0.05 * torch.randn(count)


class Experts(nn.Module):
    """The best expert answers, weighted by its probability."""

    def __init__(self, experts: int, listed: bool = False) -> None:
        super().__init__()
        self.router = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, experts))
        made = [nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(experts)]
        if listed:
            self.experts = made  # at fault: experts_in_a_plain_list
        else:
            self.experts = nn.ModuleList(made)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probability = self.router(x).softmax(1)
        best = probability.argmax(1)
        answers = torch.cat([expert(x) for expert in self.experts], 1)
        chosen = (answers * probability).gather(1, best[:, None]).squeeze(1)
        return chosen, probability, best


@program(steps=2000, bites="error")
def four_experts(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Top-1 experts for four regions; a balance loss keeps all of them busy."""
    torch.manual_seed(seed)
    model = Experts(4, listed=mistake == "experts_in_a_plain_list")
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        x, y = regimes(128)
        predicted, probability, best = model(x)
        load = functional.one_hot(best, 4).float().mean(0)
        balance = 4 * (load * probability.mean(0)).sum()  # one where all are equally busy, four where one is
        loss = functional.mse_loss(predicted, y) + balance
        if mistake == "balance_subtracted":
            loss = functional.mse_loss(predicted, y) - balance  # at fault: balance_subtracted
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, y = regimes(4000)
    with torch.no_grad():
        predicted, _, best = model(x)
        load = functional.one_hot(best, 4).float().mean(0)
    return {"error": functional.mse_loss(predicted, y).item(), "busiest": load.max().item()}


four_experts.mistake(
    "balance_subtracted", "ACT005", "LSS003", layers=("router",),
    summary="The balance loss is subtracted as if it were a reward, and the router sends everything to one expert.",
    change="the balance loss is added",
)  # fmt: skip
four_experts.mistake(
    "experts_in_a_plain_list", "UPD003",
    summary="The experts are in a plain list, so that the optimizer never hears of them.",
    change="nn.ModuleList",
)  # fmt: skip


class Lookup(nn.Module):
    """Keys and values in turn, then a query: which value came with that key?"""

    def __init__(self, symbols: int, width: int, factor: float) -> None:
        super().__init__()
        self.keys = nn.Embedding(symbols, width)
        self.values = nn.Embedding(symbols, width)
        self.to_query, self.to_key = nn.Linear(width, width), nn.Linear(width, width)
        self.mix = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, symbols)
        self.factor = factor

    def forward(self, keys: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        query, key = self.to_query(self.keys(asked))[:, None], self.to_key(self.keys(keys))
        scores = query @ key.transpose(1, 2) * self.factor  # at fault: scores_times_the_root
        attention = scores.softmax(-1)
        found = (attention @ self.values(values)).squeeze(1)
        return self.head(self.mix(found))


@sick(
    "ACT004", steps=900, bites="accuracy", layers=("to_query", "to_key", "keys"), architecture="attention",
    change="1 / √width",
)  # fmt: skip
def scores_times_the_root(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Attention scores are multiplied by the root of the width instead of divided by it."""
    torch.manual_seed(seed)
    width = 64
    factor = math.sqrt(width) if fault else 1 / math.sqrt(width)  # at fault: scores_times_the_root
    model = Lookup(24, width, factor)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    shares = []
    for _ in range(steps):
        keys = torch.rand(64, 24).argsort(1)[:, :8]
        values = torch.randint(24, (64, 8))
        place = torch.randint(8, (64, 1))
        asked, wanted = keys.gather(1, place).squeeze(1), values.gather(1, place).squeeze(1)
        logits = model(keys, values, asked)
        loss = functional.cross_entropy(logits, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shares.append((logits.argmax(1) == wanted).float().mean().item())
    return {"accuracy": sum(shares[-50:]) / len(shares[-50:])}


@healthy(steps=1500, adversarial="one expert is meant to take most of the load, another is rarely called")
def experts_of_unequal_regions(steps: int, seed: int) -> dict[str, float]:
    """A soft mixture on data of which nine tenths lie in one region: unequal load is right."""
    torch.manual_seed(seed)
    gate = nn.Linear(2, 3)
    experts = nn.ModuleList(nn.Linear(2, 1) for _ in range(3))
    optimizer = torch.optim.Adam([*gate.parameters(), *experts.parameters()], lr=1e-2)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x = torch.randn(128, 2)
        x[:, 0] += 2.6  # nine tenths to the right of 1.3
        y = torch.where(x[:, 0] > 1.3, 1.5 * x[:, 1], torch.where(x[:, 1] > 0, -x[:, 0], 2 + x[:, 0]))
        shares = gate(x).softmax(1)
        predicted = (shares * torch.cat([expert(x) for expert in experts], 1)).sum(1)
        loss = functional.mse_loss(predicted, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=900, adversarial="attention of nearly no entropy is what the task asks for; scores are large on purpose")
def sharp_lookup_with_learned_temperature(steps: int, seed: int) -> dict[str, float]:
    """Cosine attention with a learned temperature that grows, as a hard lookup should."""
    torch.manual_seed(seed)
    keys_table, values_table = nn.Embedding(24, 32), nn.Embedding(24, 32)
    temperature = nn.Parameter(torch.tensor(1.5))
    head = nn.Linear(32, 24)
    learned = [*keys_table.parameters(), *values_table.parameters(), *head.parameters(), temperature]
    optimizer = torch.optim.Adam(learned, lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        keys, values = torch.rand(64, 24).argsort(1)[:, :8], torch.randint(24, (64, 8))
        place = torch.randint(8, (64, 1))
        asked, wanted = keys.gather(1, place).squeeze(1), values.gather(1, place).squeeze(1)
        similar = functional.cosine_similarity(keys_table(asked)[:, None], keys_table(keys), dim=2)
        attention = (similar * temperature.exp()).softmax(1)
        loss = functional.cross_entropy(head((attention[..., None] * values_table(values)).sum(1)), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
