"""A weighbridge in the road: strain gauges under the tarmac say what kind of lorry has just passed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from corpus.case import program

KINDS, GAUGES = 6, 24


def crossings(seed: int, count: int = 2400) -> tuple[Tensor, Tensor]:
    """Two nearly alike ways of loading each kind: no straight line parts them."""
    g = torch.Generator().manual_seed(1000 + seed)
    shapes = torch.randn(KINDS, 2, GAUGES, generator=g)
    kind = torch.randint(KINDS, (count,), generator=g)
    loading = torch.randint(2, (count,), generator=g)
    strain = shapes[kind, loading] + 0.9 * torch.randn(count, GAUGES, generator=g)
    return (strain - strain.mean(0)) / strain.std(0), kind


class Classifier(nn.Module):
    def __init__(self, depth: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        width = 40
        layers: list[nn.Module] = [nn.Linear(GAUGES, width), activation()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), activation()]
        self.body = nn.Sequential(*layers)
        self.out = nn.Linear(width, KINDS)

    def forward(self, strain: Tensor) -> Tensor:
        return self.out(self.body(strain))


class Trainer:
    """As every project has one."""

    def __init__(self, model: nn.Module, lr: float, seed: int) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)
        self.shuffle = torch.Generator().manual_seed(seed)
        self.last = 0.0
        self.clear_every = 1

    def fit(self, x: Tensor, y: Tensor, steps: int, batch: int = 50) -> None:
        loader = DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True, generator=self.shuffle)
        done = 0
        self.model.train()
        while done < steps:
            for strain, kind in loader:
                if done % self.clear_every == 0:
                    self.optimizer.zero_grad()
                loss = functional.cross_entropy(self.model(strain), kind)
                loss.backward()
                self.optimizer.step()
                self.last = loss.item()
                done += 1
                if done == steps:
                    return

    @torch.no_grad()
    def score(self, x: Tensor, y: Tensor) -> dict[str, float]:
        self.model.eval()
        logits = self.model(x)
        loss = functional.cross_entropy(logits, y).item()
        return {
            "loss": min(loss, 1e6) if loss == loss else 1e6,
            "accuracy": (logits.argmax(1) == y).float().mean().item(),
        }


@program(steps=160, bites="accuracy")
def lorry_kinds(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A tanh network of six layers, drawn by Xavier's rule, under Nesterov's momentum."""
    torch.manual_seed(seed)
    x, y = crossings(seed)
    if fault == "lorry_in_microstrain":
        x = x * 300
    model = Classifier(6, nn.Sigmoid if fault == "lorry_sigmoids_from_the_old_code" else nn.Tanh)
    for layer in model.body:
        if isinstance(layer, nn.Linear):
            if fault == "lorry_drawn_at_a_hundredth":
                nn.init.normal_(layer.weight, std=0.01)
            elif fault == "lorry_drawn_somewhat_small":
                nn.init.normal_(layer.weight, std=0.06)
            elif fault == "lorry_weights_start_at_zero":
                nn.init.zeros_(layer.weight)
            else:
                nn.init.xavier_normal_(layer.weight, gain=5 / 3)
            nn.init.zeros_(layer.bias)
    trainer = Trainer(model, lr=0.02, seed=seed)
    if fault == "lorry_cleared_once_a_window":
        trainer.clear_every = 8  # the rest of an accumulation that no longer exists
    trainer.fit(x[:1600], y[:1600], steps)
    return trainer.score(x[1600:], y[1600:])


lorry_kinds.mistake(
    "lorry_sigmoids_from_the_old_code",
    "GRD001", "ACT003", "WGT003",
    summary="The six hidden layers end in sigmoids: every one of them takes three quarters of the gradient away.",
    change="tanh or ReLU in the hidden layers",
)  # fmt: skip
lorry_kinds.mistake(
    "lorry_drawn_at_a_hundredth",
    "WGT003", "GRD001", "ACT003",
    summary="All weights are drawn with a deviation of 0.01: nothing of the input arrives at the output.",
    change="draw the weights by Xavier's rule",
)  # fmt: skip
lorry_kinds.mistake(
    "lorry_drawn_somewhat_small",
    "WGT003", "GRD001", "ACT003",
    summary="All weights are drawn with a deviation of 0.06, a quarter of what this width asks for.",
    change="draw the weights by Xavier's rule",
)  # fmt: skip
lorry_kinds.mistake(
    "lorry_cleared_once_a_window",
    "GRD007",
    summary="zero_grad() runs in every eighth step, step() in every one: what is left of an accumulation.",
    change="clear in every step",
)
lorry_kinds.mistake(
    "lorry_in_microstrain",
    "DAT001",
    "ACT002",
    summary="The gauges come in microstrain, three hundred times what the tanh layers can tell apart.",
    change="standardise the gauges",
    layers=("body.0", "body.1"),
)
lorry_kinds.mistake(
    "lorry_weights_start_at_zero",
    "WGT002",
    "GRD004",
    summary="Every hidden weight begins at zero: no unit differs from any other and none gets a gradient.",
    change="draw the weights at random",
    layers=("body",),
)


@program(steps=150, bites="accuracy", adversarial="inputs outside a few units are badly scaled")
def lorry_raw_gauges_normed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Raw gauges in thousands, but the network's first layer is a batch norm that takes care of it."""
    torch.manual_seed(seed)
    x, y = crossings(seed)
    x = 800 * x + 2500
    model = nn.Sequential(nn.BatchNorm1d(GAUGES), nn.Linear(GAUGES, 48), nn.ReLU(), nn.Linear(48, KINDS))
    trainer = Trainer(model, lr=0.05, seed=seed)
    trainer.fit(x[:1600], y[:1600], steps)
    return trainer.score(x[1600:], y[1600:])


@program(steps=200, adversarial="a loss that stays high and hardly falls is not learning")
def lorry_one_in_five_mislabelled(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The toll officer is wrong about every fifth lorry; the network learns what can be learnt and stays at that."""
    torch.manual_seed(seed)
    x, y = crossings(seed)
    wrong = torch.rand(1600, generator=torch.Generator().manual_seed(seed)) < 0.2
    told = torch.where(wrong, torch.randint(KINDS, (1600,)), y[:1600])
    model = nn.Sequential(nn.Linear(GAUGES, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, KINDS))
    trainer = Trainer(model, lr=0.03, seed=seed)
    trainer.fit(x[:1600], told, steps)
    return {**trainer.score(x[1600:], y[1600:]), "train": trainer.last}
