"""How much will a tree bear? Tables of soil and weather, a Trainer class of one's own, batch norm and dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import program

FEATURES = 10


def harvest(count: int, seed: int, noise: float = 0.3) -> tuple[Tensor, Tensor]:
    """Readings in their own units (kelvin, hectopascal, per mille), and a standardised yield per tree."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(count, FEATURES, generator=g)
    y = torch.sin(2 * z[:, 0]) + z[:, 1] * z[:, 2] - 0.5 * z[:, 3] ** 2 + z[:, 4].abs()
    y = y + noise * torch.randn(count, generator=g)
    unit = torch.tensor([8.0, 1.0, 3.0, 0.5, 20.0, 1.0, 2.0, 5.0, 1.0, 0.2])
    offset = torch.tensor([290.0, 0.0, 12.0, 3.0, 1013.0, 0.0, 7.0, 40.0, 0.0, 1.0])
    return z * unit + offset, (y - 0.3) / 1.6


def saplings(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three readings matter, and chance as much as they do."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=g)
    return x, x[:, 0] - 0.8 * x[:, 1] + 0.6 * x[:, 2] + torch.randn(count, generator=g)


class Tree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.BatchNorm1d(FEATURES)  # the readings come in their own units
        self.fc1 = nn.Linear(FEATURES, 64)
        self.bn1 = nn.BatchNorm1d(64)
        self.fc2 = nn.Linear(64, 64)
        self.bn2 = nn.BatchNorm1d(64)
        self.out = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn1(self.fc1(self.scale(x))))
        h = torch.relu(self.bn2(self.fc2(h)))
        return self.out(h)


class AlmondTrainer:
    def __init__(self, model: Tree, lr: float, fault: str) -> None:
        self.model, self.lr, self.fault = model, lr, fault
        self.optimizer = self.configure_optimizers()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=self.lr, betas=(0.9, 0.98), weight_decay=1e-3)

    def training_step(self, x: Tensor, y: Tensor) -> Tensor:
        prediction = self.model(x)
        if self.fault == "almond_column_against_row":
            return fn.mse_loss(prediction, y)  # (N, 1) against (N,)
        return fn.mse_loss(prediction.squeeze(1), y)

    def fit(self, x: Tensor, y: Tensor, steps: int, batch_size: int) -> float:
        self.model.train(self.fault != "almond_never_told_to_train")
        late = 0.0
        for _ in range(steps):
            index = torch.randint(len(x), (batch_size,))
            if self.fault == "almond_configures_every_batch":
                self.optimizer = self.configure_optimizers()
            self.optimizer.zero_grad()
            loss = self.training_step(x[index], y[index])
            loss.backward()
            self.optimizer.step()
            late += 0.03 * (loss.item() - late)
        return late

    @torch.no_grad()
    def validate(self, x: Tensor, y: Tensor) -> float:
        self.model.eval()
        return fn.mse_loss(self.model(x).squeeze(1), y).item()


@program(steps=200, bites="error")
def almonds(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A two-layer network behind a batch norm that scales the readings, by AdamW."""
    torch.manual_seed(seed)
    trainer = AlmondTrainer(Tree(), lr=0.015, fault=fault)
    batch = 2 if fault == "almond_two_trees_at_a_time" else 64
    loss = trainer.fit(*harvest(1024, 3), steps, batch)
    return {"late_loss": loss, "error": min(trainer.validate(*harvest(512, 503)), 1e6)}


almonds.mistake(
    "almond_column_against_row",
    "LSS002",
    summary="Predictions are a column and targets a row: the loss compares every tree with every other.",
    change="prediction.squeeze(1)",
)
almonds.mistake(
    "almond_configures_every_batch",
    "OPT008",
    summary="configure_optimizers is called for every batch: AdamW starts from nothing each time.",
    change="build the optimizer once",
    bites="late_loss",
)
almonds.mistake(
    "almond_two_trees_at_a_time",
    "MOD002", "GRD008",
    summary="Batches of two: every batch norm sees two rows and returns plus or minus one.",
    change="a batch of 64, or LayerNorm",
    layers=("scale", "bn1", "bn2"),
)  # fmt: skip
almonds.mistake(
    "almond_never_told_to_train",
    "MOD001",
    summary="fit() runs in eval mode: the norm that should scale the readings passes them on as they come.",
    change="model.train() before fitting",
    layers=("scale", "bn1", "bn2"),
)


@program(steps=240, bites="error")
def young_almonds(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A wide network with dropout on ninety-six trees, looked at every forty steps."""
    torch.manual_seed(seed)
    x, y = saplings(96, 21)  # there are only these trees; the seed is that of the network
    test_x, test_y = saplings(800, 521)
    net = nn.Sequential(
        nn.Linear(FEATURES, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    loss, error = torch.zeros(()), 0.0
    for step in range(steps):
        index = torch.randint(96, (32,))
        optimizer.zero_grad()
        loss = fn.mse_loss(net(x[index]).flatten(), y[index])
        loss.backward()
        optimizer.step()
        if step % 40 == 39 or step == steps - 1:
            net.eval()
            with torch.no_grad():
                error = fn.mse_loss(net(test_x).flatten(), test_y).item()
            if fault != "almond_dropout_asleep":
                net.train()
    return {"loss": loss.item(), "error": error}


young_almonds.mistake(
    "almond_dropout_asleep",
    "MOD001", "OPT006",
    summary="After the first look at held-out trees the network stays in eval mode: dropout never works again.",
    change="net.train() after the look",
    layers=("2", "5"),
    onset=40,
)  # fmt: skip


@program(steps=160, bites="error", adversarial="shapes that broadcast in a loss are a mistake")
def almonds_by_committee(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Eight members answer at once, and one target is spread over all of them on purpose."""
    torch.manual_seed(seed)
    x, y = harvest(1024, seed)
    mean, std = x.mean(0), x.std(0)
    net = nn.Sequential(nn.Linear(FEATURES, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 8))
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        index = torch.randint(1024, (64,))
        loss = (net((x[index] - mean) / std) - y[index, None]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test_x, test_y = harvest(512, seed + 500)
    with torch.no_grad():
        error = fn.mse_loss(net((test_x - mean) / std).mean(1), test_y).item()
    return {"loss": loss.item(), "error": error}


@program(steps=150, adversarial="a loss below zero has the wrong sign")
def almonds_are_counted(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Counts of almonds with the Poisson likelihood, whose constant is left out: the loss is far below zero."""
    torch.manual_seed(seed)
    x, y = harvest(1024, seed)
    counts = torch.poisson((2.5 + 0.6 * y).exp())
    x = (x - x.mean(0)) / x.std(0)
    net = nn.Sequential(nn.Linear(FEATURES, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    criterion = nn.PoissonNLLLoss(log_input=True)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        index = torch.randint(1024, (64,))
        optimizer.zero_grad()
        loss = criterion(net(x[index])[:, 0], counts[index])
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=150, bites="error", adversarial="a loss that hardly falls means that nothing is learnt")
def almonds_in_the_fog(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Half of the yield is chance: the loss falls a little and rests on its floor."""
    torch.manual_seed(seed)
    x, y = harvest(2048, seed, noise=1.6)
    x = (x - x.mean(0)) / x.std(0)
    net = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-4)
    loss = torch.zeros(())
    for _ in range(steps):
        index = torch.randint(2048, (128,))
        optimizer.zero_grad()
        loss = fn.smooth_l1_loss(net(x[index]).squeeze(-1), y[index])
        loss.backward()
        optimizer.step()
    clear_x, clear_y = harvest(512, seed + 500, noise=0.0)
    with torch.no_grad():
        error = fn.mse_loss(net((clear_x - clear_x.mean(0)) / clear_x.std(0)).squeeze(-1), clear_y).item()
    return {"loss": loss.item(), "error": error}


@program(steps=120, bites="error")
def almonds_by_rprop(steps: int, seed: int, fault: str) -> dict[str, float]:
    """All trees in every step, each weight with its own pace (Rprop)."""
    torch.manual_seed(seed)
    x, y = harvest(400, seed)
    mean, std = x.mean(0), x.std(0)
    net = nn.Sequential(nn.Linear(FEATURES, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.Rprop(net.parameters(), lr=1e-3, step_sizes=(1e-6, 0.1))
    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = fn.mse_loss(net((x - mean) / std).flatten(), y)
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "error": loss.item()}
