"""How long does a parcel take? Four kinds of routes, a mixture of experts that must learn which is which."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program

DIM, KINDS = 12, 4


def courier_parcels(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Standardised descriptions in four clusters; in each cluster hours depend on other things."""
    rule = torch.Generator().manual_seed(404)
    centres = 1.6 * torch.randn(KINDS, DIM, generator=rule)
    weights = torch.randn(KINDS, DIM, generator=rule) / DIM**0.5
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(KINDS, (count,), generator=g)
    local = torch.randn(count, DIM, generator=g)
    y = (local * weights[kind]).sum(1) + 0.4 * kind + 0.05 * torch.randn(count, generator=g)
    return (centres[kind] + local) / 1.9, y[:, None]


def courier_expert(hidden: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, hidden), nn.SiLU(), nn.Linear(hidden, 32))


class SwitchLayer(nn.Module):
    """Each parcel goes to one expert; the gate's probability scales what comes back."""

    def __init__(self, experts: int = KINDS, scaled_by_gate: bool = True) -> None:
        super().__init__()
        self.router = nn.Linear(32, experts)
        self.experts = nn.ModuleList(courier_expert() for _ in range(experts))
        self.scaled_by_gate = scaled_by_gate
        self.balance = torch.zeros(())
        self.load = torch.full((experts,), 1 / experts)

    def forward(self, h: Tensor) -> Tensor:
        gate = self.router(h).softmax(dim=-1)
        chosen = gate.argmax(dim=-1)
        out = torch.zeros_like(h)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero().flatten()
            if len(rows):
                out = out.index_copy(0, rows, expert(h[rows]))
        share = fn.one_hot(chosen, len(self.experts)).float().mean(0)
        self.load = 0.95 * self.load + 0.05 * share
        if not self.scaled_by_gate:
            return out
        self.balance = len(self.experts) * (share * gate.mean(0)).sum()
        return out * gate.gather(1, chosen[:, None])


class CourierNet(nn.Module):
    def __init__(self, mixture: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Linear(DIM, 32)
        self.moe = mixture
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.embed(x))
        return self.head(self.norm(h + self.moe(h)))


@program(steps=300, bites="error")
def couriers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A switch layer with a balance term, by Adam."""
    torch.manual_seed(seed)
    x, y = courier_parcels(2048, 11 + seed)
    net = CourierNet(SwitchLayer(scaled_by_gate=fault != "couriers_gate_left_out"))
    balance_weight = 0.25
    if fault == "couriers_all_take_one_road":
        balance_weight = -balance_weight
    if fault == "couriers_balance_above_all":
        balance_weight = 2000.0
    trained = net.parameters()
    if fault == "couriers_experts_left_at_home":
        trained = [p for name, p in net.named_parameters() if not name.startswith("moe.experts")]
    optimizer = torch.optim.Adam(trained, lr=4e-3)
    router_before = net.moe.router.weight.clone()
    for _ in range(steps):
        rows = torch.randint(len(x), (96,))
        error = fn.mse_loss(net(x[rows]), y[rows])
        loss = error + balance_weight * net.moe.balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        busiest = net.moe.load.max().item()
        test_x, test_y = courier_parcels(1024, 4011)
        error = fn.mse_loss(net(test_x), test_y).item()
        learnt = (net.moe.router.weight - router_before).norm().item()
    return {"loss": loss.item(), "error": error, "busiest": busiest, "router_learnt": learnt}


couriers.mistake(
    "couriers_all_take_one_road",
    "ACT005", "GRD003",
    summary="The balance term is subtracted: the router is paid for sending every parcel to the same expert.",
    change="add the balance term",
    layers=("moe.router", "moe.experts"),
    bites="busiest",
    silent=True,
)  # fmt: skip
couriers.mistake(
    "couriers_gate_left_out",
    "GRD003",
    summary="The expert's answer is not scaled by its gate: argmax is all the router does, and no gradient reaches it.",
    change="multiply the answer by the gate's probability",
    layers=("moe.router",),
    bites="router_learnt",
    silent=True,
)
couriers.mistake(
    "couriers_balance_above_all",
    "GRD009",
    summary="The balance term is weighted by 2000: the loss of the task is a rounding error beside it.",
    change="a weight of 0.25",
)
couriers.mistake(
    "couriers_experts_left_at_home",
    "UPD003",
    summary="The filter that builds the parameter list drops all experts: they stay as they were drawn.",
    change="give all parameters to the optimizer",
    layers=("moe.experts",),
)


class SoftMixture(nn.Module):
    """Every expert answers; the gate weighs the answers."""

    def __init__(self, alike: bool = False) -> None:
        super().__init__()
        self.router = nn.Linear(32, 6)
        nn.init.zeros_(self.router.weight)
        nn.init.zeros_(self.router.bias)
        first = courier_expert(16)
        self.experts = nn.ModuleList(copy.deepcopy(first) if alike else courier_expert(16) for _ in range(6))

    def forward(self, h: Tensor) -> Tensor:
        answers = torch.stack([expert(h) for expert in self.experts], dim=1)
        return (self.router(h).softmax(dim=-1)[:, :, None] * answers).sum(1)


@program(steps=250, bites="error", adversarial="weights that start at zero are a symmetric initialisation")
def couriers_in_council(steps: int, seed: int, fault: str) -> dict[str, float]:
    """All six experts are asked; the router starts at zero, so that at first all are heard alike."""
    torch.manual_seed(seed)
    x, y = courier_parcels(2048, 11 + seed)
    net = CourierNet(SoftMixture(alike=fault == "couriers_cloned_experts"))
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    first = 0.0
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        loss = fn.smooth_l1_loss(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        first = first or loss.item()
    with torch.no_grad():
        test_x, test_y = courier_parcels(1024, 4011)
        error = fn.mse_loss(net(test_x), test_y).item()
        spread = torch.stack([expert[0].weight for expert in net.moe.experts]).std(0).mean().item()
    return {"first": first, "loss": loss.item(), "error": error, "spread": spread}


couriers_in_council.mistake(
    "couriers_cloned_experts",
    "WGT002", "GRD004",
    summary="Six experts are deep copies of one and the gate starts even: they get the same gradients for ever.",
    change="draw each expert by itself",
    layers=("moe.experts", "moe.router"),
)  # fmt: skip


class PostalCodeMixture(nn.Module):
    """No router at all: a fixed hash of the first readings chooses one of sixteen small experts."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(courier_expert(8) for _ in range(16))
        self.register_buffer("planes", torch.randn(32, 4))

    def forward(self, h: Tensor) -> Tensor:
        code = ((h @ self.planes) > 0).long() @ torch.tensor([1, 2, 4, 8])
        out = torch.zeros_like(h)
        for i in code.unique().tolist():
            rows = code == i
            out[rows] = self.experts[i](h[rows])
        return out


@healthy(steps=300, adversarial="an expert without a gradient in most steps is never used")
def couriers_by_postal_code(steps: int, seed: int) -> dict[str, float]:
    """Sixteen experts behind a fixed hash and batches of eight: most experts rest in most steps."""
    torch.manual_seed(seed)
    x, y = courier_parcels(4096, 11 + seed)
    net = CourierNet(PostalCodeMixture())
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.03)
    first = last = 0.0
    for step in range(steps):
        rows = torch.randint(len(x), (8,))
        optimizer.zero_grad(set_to_none=True)
        loss = fn.mse_loss(net(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        first += loss.item() / 20 if step < 20 else 0.0
        last += loss.item() / 50 if step >= steps - 50 else 0.0
    return {"first": first, "loss": last}


@healthy(steps=240, adversarial="a rate of 0.5 is too high")
def couriers_by_momentum(steps: int, seed: int) -> dict[str, float]:
    """A switch layer with jitter on its inputs, SGD at a high rate that the norm and a clip can bear."""
    torch.manual_seed(seed)
    x, y = courier_parcels(2048, 11 + seed)
    net = CourierNet(SwitchLayer())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.5)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 30))
    first = last = 0.0
    for step in range(steps):
        rows = torch.randint(len(x), (128,))
        noisy = x[rows] * (1 + 0.02 * torch.randn(128, DIM))
        optimizer.zero_grad()
        loss = fn.mse_loss(net(noisy), y[rows]) + 0.05 * net.moe.balance
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        warm.step()
        first += loss.item() / 5 if step < 5 else 0.0
        last += loss.item() / 20 if step >= steps - 20 else 0.0
    return {"first": first, "loss": last, "busiest": net.moe.load.max().item()}
