"""Deep, sparse and half-precise: a long stack of gated convolutions, experts, and weights kept in bfloat16."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from corpus.case import program


def chirps(n: int) -> tuple[Tensor, Tensor]:
    """Rising, falling, steady or silent tones of 32 samples."""
    y = torch.randint(4, (n,))
    t = torch.arange(32.0)[None]
    pace = torch.tensor([0.012, -0.012, 0.0, 0.0])[y][:, None]
    loud = torch.tensor([1.0, 1.0, 1.0, 0.0])[y][:, None]
    x = loud * torch.sin(6.28 * torch.rand(n, 1) + 0.6 * t + pace * t * t) + 0.3 * torch.randn(n, 32)
    return x.unsqueeze(1), y


class GatedStack(nn.Module):
    def __init__(self, depth: int, residual: bool) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, 12, 3, padding=1)
        self.filters = nn.ModuleList(nn.Conv1d(12, 12, 3, padding=1) for _ in range(depth))
        self.gates = nn.ModuleList(nn.Conv1d(12, 12, 3, padding=1) for _ in range(depth))
        self.leave = nn.Linear(12, 4)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for f, g in zip(self.filters, self.gates):
            h = torch.tanh(f(x)) * torch.sigmoid(g(x))
            x = x + h if self.residual else h
        return self.leave(x.amax(-1))


@program(steps=120, bites="accuracy")
def gated_chirps(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Twelve gated convolutions with skips (as in WaveNet), Adam."""
    torch.manual_seed(seed)
    model = GatedStack(12, residual=fault != "gates_without_skips")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        x, y = chirps(32)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    x, y = chirps(400)
    with torch.no_grad():
        return {"accuracy": (model(x).argmax(1) == y).float().mean().item()}


class SparseExperts(nn.Module):
    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim)) for _ in range(count)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        probs = self.gate(x).softmax(-1)
        top, chosen = probs.topk(2, -1)
        top = top / top.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            weight = (top * (chosen == e)).sum(-1, keepdim=True)
            rows = weight.squeeze(-1) > 0
            if rows.any():
                out[rows] = out[rows] + weight[rows] * expert(x[rows])
        load = F.one_hot(chosen, probs.shape[-1]).float().sum(1).mean(0)
        return x + out, (load * probs.mean(0)).sum() * probs.shape[-1] / 2


class ExpertClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(32, 32)
        self.moe = SparseExperts(32, 6)
        self.out = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, balance = self.moe(torch.tanh(self.embed(x)))
        return self.out(h), balance


@program(steps=150, bites="used")
def two_of_six_experts(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A mixture of six experts, two to a sample, with a balance loss; `used` counts experts with a fair share."""
    torch.manual_seed(seed)
    model = ExpertClassifier()
    collapsed = fault == "gate_prefers_two_experts"
    if collapsed:
        with torch.no_grad():
            model.moe.gate.bias[:2] += 8.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        x, y = chirps(64)
        logits, balance = model(x.squeeze(1))
        loss = F.cross_entropy(logits, y) + (0.0 if collapsed else 0.05) * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        chosen = model.moe.gate(torch.tanh(model.embed(chirps(500)[0].squeeze(1)))).topk(2, -1).indices
    return {"used": float((torch.bincount(chosen.flatten(), minlength=6) > 25).sum())}


class PlainNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.l3(F.silu(self.l2(F.silu(self.l1(x)))))


@program(steps=250, bites="loss")
def quiet_or_loud(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A plain network, plain SGD with a small rate; it is fine as long as the weights have enough digits."""
    torch.manual_seed(seed)
    kind = torch.bfloat16 if fault == "updates_rounded_away" else torch.float32
    model = PlainNet().to(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-3, momentum=0.9)
    losses: list[float] = []
    for _ in range(steps):
        x, y = chirps(64)
        loss = F.cross_entropy(model(3 * x.squeeze(1).abs().to(kind)).float(), (y == 3).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-20:]) / 20}


class Latent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 48), nn.ReLU())
        self.mu, self.logvar = nn.Linear(48, 4), nn.Linear(48, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + (0.5 * logvar).exp() * torch.randn_like(mu)
        divergence = 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(1).mean()
        return self.decoder(z), divergence


@program(steps=200, bites="kept")
def latent_tones(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A variational autoencoder of tones; `kept` is the divergence, what the code says about its input."""
    torch.manual_seed(seed)
    model = Latent()
    beta = 40.0 if fault == "prior_weighs_too_much" else 0.05
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    kept = 0.0
    for _ in range(steps):
        x = chirps(64)[0].squeeze(1)
        rebuilt, divergence = model(x)
        loss = (rebuilt - x).square().mean() + beta * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept = divergence.item()
    return {"kept": kept}


gated_chirps.mistake(
    "gates_without_skips",
    "GRD001",
    summary="Twelve gated layers without a skip: each gate halves the signal and the gradient.",
    change="x + h",
)
two_of_six_experts.mistake(
    "gate_prefers_two_experts",
    "ACT005", "GRD003", "GRD004",
    summary="No balance loss and a bias on two experts: four of the six are never chosen.",
    change="a balance loss, no bias",
    layers=("moe",),
    silent=True,
)  # fmt: skip
quiet_or_loud.mistake(
    "updates_rounded_away",
    "NUM005", "UPD002", "UPD003", "OPT005",
    summary="The weights themselves are bfloat16: updates of a ten-thousandth are rounded away.",
    change="float32 weights, autocast for the rest",
)  # fmt: skip
latent_tones.mistake(
    "prior_weighs_too_much",
    "ACT003", "GRD009",
    summary="The prior has 800 times its weight: the code says nothing about the input.",
    change="beta=0.05",
    layers=("mu", "logvar"),
)  # fmt: skip
