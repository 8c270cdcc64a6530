"""Lichens on gravestones: a small convolutional net with batch norms, trained by a class that does everything."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

SPECIES, SIDE = 6, 16


def photographs(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Blotches whose size, count and colour follow the species; the stone behind them varies."""
    rng = torch.Generator().manual_seed(seed)
    species = torch.randint(SPECIES, (n,), generator=rng)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    picture = 0.5 * torch.randn(n, 3, 1, 1, generator=rng) + 0.5 * torch.randn(n, 3, SIDE, SIDE, generator=rng)
    radius = 1.5 + 1.2 * (species % 3)
    tint = torch.tensor([[0.6, 0.9, 0.1], [0.9, 0.5, 0.6]])[species // 3]
    for _ in range(3):
        cy, cx = torch.randint(3, SIDE - 3, (2, n, 1, 1), generator=rng)
        inside = ((y - cy) ** 2 + (x - cx) ** 2).float() < radius[:, None, None] ** 2
        picture += 1.6 * tint[:, :, None, None] * inside[:, None]
    return picture, species


class Stage(nn.Module):
    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(c_out)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)


class LichenNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stage1, self.stage2, self.stage3 = Stage(3, 12), Stage(12, 24), Stage(24, 32)
        self.drop = nn.Dropout(0.3)
        self.species = nn.Linear(32 * 4, SPECIES)

    def forward(self, x: Tensor) -> Tensor:
        return self.species(self.drop(self.stage3(self.stage2(self.stage1(x))).flatten(1)))


class Fitter:
    def __init__(self, fault: str, seed: int) -> None:
        self.fault = fault
        x, y = photographs(1100, seed)
        self.x, self.y, self.val_x, self.val_y = x[:800], y[:800], x[800:], y[800:]
        self.net = LichenNet()
        if fault == "lichen_asleep_from_the_checkpoint":
            self.net.eval()  # the lines that loaded a checkpoint came with it
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.015, momentum=0.9, weight_decay=5e-4)
        self.loss = math.nan

    def validate(self) -> float:
        was_training = self.net.training
        self.net.eval()
        with torch.no_grad():
            accuracy = (self.net(self.val_x).argmax(1) == self.val_y).float().mean().item()
        if self.fault != "lichen_asleep_after_the_first_look":
            self.net.train(was_training)
        return accuracy

    def staleness(self) -> float:
        """How far the statistics of the second norm are from those of the pictures, in deviations."""
        with torch.no_grad():
            seen = self.net.stage2.conv(self.net.stage1(self.x[:200])).transpose(0, 1).flatten(1)
        kept = self.net.stage2.norm.running_mean
        return 0.0 if kept is None else ((seen.mean(1) - kept).abs() / seen.std(1)).mean().item()

    def fit(self, steps: int) -> None:
        batch = {"lichen_pairs_for_the_small_card": 2}.get(self.fault, 48)
        for step in range(steps):
            if step % 60 == 59:
                self.validate()
            if self.fault == "lichen_eps_meant_as_momentum" and step == 0:
                for module in self.net.modules():
                    if isinstance(module, nn.BatchNorm2d):
                        module.eps = 10.0  # meant: the momentum
            rows = torch.randint(len(self.x), (batch,))
            self.opt.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(self.net(self.x[rows]), self.y[rows])
            loss.backward()
            self.opt.step()
            self.loss = loss.item()


@program(steps=180, bites="accuracy")
def lichens(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three stages of convolution, batch norm and pooling; validated every sixty steps."""
    torch.manual_seed(seed)
    fitter = Fitter(fault, seed)
    fitter.fit(steps)
    return {
        "loss": fitter.loss if math.isfinite(fitter.loss) else 1e9,
        "accuracy": fitter.validate(),
        "stale": fitter.staleness(),
    }


lichens.mistake(
    "lichen_asleep_from_the_checkpoint", "MOD001",
    summary="The net is in eval mode from the first step on: the norms use statistics nobody ever measured.",
    change="call train()",
    layers=("stage1", "stage2", "stage3", "drop"),
    bites="stale", silent=True,
)  # fmt: skip
lichens.mistake(
    "lichen_asleep_after_the_first_look", "MOD001",
    summary="validate() puts the net to sleep at step 59 and nobody wakes it: statistics freeze, dropout is off.",
    change="call train() after validation",
    layers=("stage1", "stage2", "stage3", "drop"),
    onset=59, bites="stale", silent=True,
)  # fmt: skip
lichens.mistake(
    "lichen_pairs_for_the_small_card", "MOD002", "GRD008",
    summary="Batches of two, so that it fits on the card: batch norm has two pictures for its statistics.",
    change="group norm, or larger batches",
    layers=("stage1", "stage2", "stage3"),
)  # fmt: skip
lichens.mistake(
    "lichen_eps_meant_as_momentum", "MOD002",
    summary="A loop that meant the norms' momentum sets their eps to ten: they hardly normalise.",
    change="eps of 1e-5",
    layers=("stage1", "stage2", "stage3"),
)  # fmt: skip


@program(steps=180, bites="accuracy", adversarial="a batch norm in eval mode while gradients flow is always a mistake")
def lichen_second_graveyard(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Trained on one graveyard, then at a tenth of the rate on few pictures of the next one with the norms held."""
    torch.manual_seed(seed)
    fitter = Fitter("", seed)
    fitter.fit(steps * 2 // 3)
    few_x, few_y = photographs(96, seed + 50)
    few_x = few_x + 0.3
    for module in fitter.net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    tuned = torch.optim.SGD(fitter.net.parameters(), lr=0.002, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps - steps * 2 // 3):
        rows = torch.randint(96, (24,))
        loss = nn.functional.cross_entropy(fitter.net(few_x[rows]), few_y[rows])
        tuned.zero_grad()
        loss.backward()
        tuned.step()
    return {"loss": loss.item(), "accuracy": fitter.validate()}


class GroupedStage(nn.Sequential):
    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__(nn.Conv2d(c_in, c_out, 3, padding=1), nn.GroupNorm(4, c_out), nn.ReLU(), nn.MaxPool2d(2))


@program(steps=120, bites="accuracy", adversarial="pieces of two pictures are too few: group norm needs no neighbours")
def lichen_pairs_grouped(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two pictures at a time, sixteen times for one step, each loss divided by sixteen; group norms."""
    torch.manual_seed(seed)
    x, y = photographs(900, seed)
    net = nn.Sequential(GroupedStage(3, 12), GroupedStage(12, 24), nn.Flatten(), nn.Linear(24 * 16, SPECIES))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    total = 0.0
    for _ in range(steps):
        opt.zero_grad()
        total = 0.0
        for _ in range(16):
            rows = torch.randint(700, (2,))
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows]) / 16
            loss.backward()
            total += loss.item()
        opt.step()
    with torch.no_grad():
        accuracy = (net(x[700:]).argmax(1) == y[700:]).float().mean().item()
    return {"loss": total, "accuracy": accuracy}


@program(
    steps=150,
    bites="accuracy",
    adversarial="a network whose norms carry no weights forgot them: affine=False is a choice",
)
def lichen_plain_norms(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Norms without gain and offset, a head that is a fixed set of random directions, and a rate on one cosine."""
    torch.manual_seed(seed)
    x, y = photographs(900, seed)
    body = nn.Sequential()
    for a, b in ((3, 16), (16, 24), (24, 32)):
        body.append(nn.Conv2d(a, b, 3, padding=1, bias=False)).append(nn.BatchNorm2d(b, affine=False))
        body.append(nn.Hardswish()).append(nn.AvgPool2d(2))
    body.append(nn.Flatten()).append(nn.Linear(128, 24))
    head = nn.Linear(24, SPECIES, bias=False)
    head.weight.requires_grad_(False)
    nn.init.orthogonal_(head.weight, gain=3.0)
    opt = torch.optim.SGD(body.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=150, eta_min=1e-4)
    last = 0.0
    for _ in range(steps):
        rows = torch.randint(700, (48,))
        loss = nn.functional.cross_entropy(head(body(x[rows])), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        decay.step()
        last = loss.item()
    body.eval()
    with torch.no_grad():
        accuracy = (head(body(x[700:])).argmax(1) == y[700:]).float().mean().item()
    return {"loss": last, "accuracy": accuracy}
