"""Which lichen grows on the stone? Eight textures in small grey photographs; a plain CNN and a residual one."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.data import DataLoader, TensorDataset

from corpus.case import healthy, program

SPECIES = 8


def photograph(count: int, seed: int, grain: float = 1.4) -> tuple[Tensor, Tensor]:
    """Gratings at one of eight angles, each with its own phase, pitch and lighting."""
    rng = torch.Generator().manual_seed(seed)
    species = torch.randint(SPECIES, (count,), generator=rng)
    angle = species * math.pi / SPECIES + 0.08 * torch.randn(count, generator=rng)
    pitch = 0.9 + 0.5 * torch.rand(count, generator=rng)
    phase = 6.28 * torch.rand(count, generator=rng)
    rows, columns = torch.meshgrid(torch.arange(14.0), torch.arange(14.0), indexing="ij")
    wave = angle.cos()[:, None, None] * rows + angle.sin()[:, None, None] * columns
    picture = (pitch[:, None, None] * wave + phase[:, None, None]).sin()
    picture = picture + grain * torch.randn(count, 14, 14, generator=rng)
    return picture[:, None], species


@torch.no_grad()
def lichen_accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    return (model(x).argmax(1) == y).float().mean().item()


def build_lichen_cnn(probabilities: bool) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(1, 12, 5, padding=2, bias=False), nn.BatchNorm2d(12), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(24 * 9, SPECIES),
    ]  # fmt: skip
    if probabilities:
        layers.append(nn.Softmax(dim=1))
    return nn.Sequential(*layers)


@program(steps=200, bites="accuracy")
def lichen_survey(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Convolutions with batch norm by SGD with Nesterov momentum, the rate cut every third epoch."""
    torch.manual_seed(seed)
    loader = DataLoader(TensorDataset(*photograph(1280, seed)), batch_size=64, shuffle=True)
    held_out = photograph(512, seed + 900)
    model = build_lichen_cnn(probabilities=fault == "lichen_probabilities_out")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9, nesterov=True, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.3)
    loss = torch.zeros(())
    for _epoch in range(steps // len(loader)):
        model.train()
        for photos, species in loader:
            loss = fn.cross_entropy(model(photos), species)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if fault == "lichen_schedule_in_inner_loop":
                scheduler.step()
        if fault != "lichen_schedule_in_inner_loop":
            scheduler.step()
        lichen_accuracy(model, *held_out)
    return {"loss": loss.item(), "accuracy": lichen_accuracy(model, *held_out)}


lichen_survey.mistake(
    "lichen_probabilities_out",
    "LSS001",
    summary="The network ends in a softmax, and cross_entropy takes another one of it.",
    change="no nn.Softmax before cross_entropy",
    layers=("10",),
    bites="loss",
)
lichen_survey.mistake(
    "lichen_schedule_in_inner_loop",
    "OPT007", "UPD002",
    summary="scheduler.step() stands in the loop over batches, but its three was meant in epochs.",
    change="step the scheduler once an epoch",
)  # fmt: skip


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, width)
        self.norm2 = nn.GroupNorm(4, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(fn.silu(self.norm2(self.conv1(fn.silu(self.norm1(x))))))


class LichenNet(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.stem = nn.Conv2d(1, 16, 4, stride=2, padding=1)
        self.block1 = Residual(16)
        self.block2 = Residual(16)
        self.fc = nn.Linear(16 * 49, SPECIES)
        self.kept: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        x = self.block1(self.stem(x))
        if self.fault == "lichen_feature_probe":
            x = x.detach()
            self.kept["block1"] = x
        else:
            self.kept["block1"] = x.detach()
        return self.fc(self.block2(x).flatten(1))


@program(steps=180, bites="accuracy")
def lichen_herbarium(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A residual network with group norm by AdamW and a cosine; it keeps a feature map to be looked at."""
    torch.manual_seed(seed)
    x, y = photograph(6000, seed)
    test = photograph(512, seed + 900)
    net = LichenNet(fault)
    if fault == "lichen_new_head_late":
        net.fc = nn.Linear(16 * 49, 1000)  # as it was in the checkpoint
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.02)
    if fault == "lichen_new_head_late":
        net.fc = nn.Linear(16 * 49, SPECIES)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=steps)
    running = 0.0
    for step in range(steps):
        index = torch.randint(len(x), (24,))
        target = y[index]
        if fault == "lichen_labels_reread" and step >= 70:
            target = y[torch.randint(len(x), (24,))]
        loss = fn.cross_entropy(net(x[index]), target, label_smoothing=0.05)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        sched.step()
        running += 0.05 * (loss.item() - running)
    return {"loss": running, "accuracy": lichen_accuracy(net, *test)}


lichen_herbarium.mistake(
    "lichen_feature_probe",
    "GRD003",
    summary="The feature map is detached to be kept and then passed on: stem and first block never learn.",
    change="keep x.detach(), pass x on",
    layers=("stem", "block1"),
)
lichen_herbarium.mistake(
    "lichen_new_head_late",
    "UPD003",
    summary="The head is replaced after the optimizer was built: the new one is in no parameter group.",
    change="replace the head first",
    layers=("fc",),
    bites="loss",
)
lichen_herbarium.mistake(
    "lichen_labels_reread",
    "DAT004", "OPT005",
    summary="From step 70 on labels are drawn with an index of their own: they belong to other photographs.",
    change="y[index]",
    onset=70,
    bites="loss",
)  # fmt: skip


@healthy(steps=200, architecture="cnn", adversarial="layers that do not move are forgotten")
def lichen_borrowed_trunk(steps: int, seed: int) -> dict[str, float]:
    """A trunk learned by telling rotations is frozen on purpose, its norms in eval mode; only a head learns."""
    torch.manual_seed(seed)
    x, y = photograph(2000, seed, 1.0)
    trunk = build_lichen_cnn(probabilities=False)[:-1]
    pretext = nn.Linear(24 * 9, 2)
    optimizer = torch.optim.Adam([*trunk.parameters(), *pretext.parameters()], lr=3e-3)
    for _ in range(steps // 2):
        index = torch.randint(len(x), (32,))
        turned = torch.rand(32) < 0.5
        upright = y[index] < SPECIES // 2
        views = torch.where(turned[:, None, None, None], x[index].rot90(1, (2, 3)), x[index])
        loss = fn.cross_entropy(pretext(trunk(views)), (turned ^ upright).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    trunk.requires_grad_(False).eval()
    head = nn.Linear(24 * 9, SPECIES)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.02, momentum=0.9)
    for _ in range(steps - steps // 2):
        index = torch.randint(len(x), (32,))
        loss = fn.cross_entropy(head(trunk(x[index])), y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {
        "loss": loss.item(),
        "accuracy": lichen_accuracy(nn.Sequential(trunk, head), *photograph(512, seed + 900, 1.0)),
    }


@healthy(steps=360, architecture="cnn", adversarial="a loss this noisy is a learning rate too high")
def lichen_three_at_a_time(steps: int, seed: int) -> dict[str, float]:
    """Batches of three photographs: the loss jumps from step to step, and the network learns all the same."""
    torch.manual_seed(seed)
    x, y = photograph(3000, seed, 0.6)
    net = LichenNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=4e-3, momentum=0.9)
    loss = torch.zeros(())
    for _ in range(steps):
        index = torch.randint(len(x), (3,))
        optimizer.zero_grad()
        loss = fn.cross_entropy(net(x[index]), y[index])
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": lichen_accuracy(net, *photograph(512, seed + 900, 0.6))}


@healthy(steps=200, architecture="cnn", adversarial="a loss that stays high is not learning")
def lichen_blended(steps: int, seed: int) -> dict[str, float]:
    """Mixup and smoothed labels: the training loss cannot come near zero."""
    torch.manual_seed(seed)
    x, y = photograph(900, seed)
    net = build_lichen_cnn(probabilities=False)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3, alpha=0.95)
    loss = torch.zeros(())
    for _ in range(steps):
        first, second = torch.randint(len(x), (2, 32))
        share = torch.distributions.Beta(1.0, 1.0).sample((32,))
        mixed = share[:, None, None, None] * x[first] + (1 - share)[:, None, None, None] * x[second]
        onehot = fn.one_hot(y, SPECIES).float()
        target = 0.9 * (share[:, None] * onehot[first] + (1 - share)[:, None] * onehot[second]) + 0.1 / SPECIES
        loss = fn.cross_entropy(net(mixed), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": lichen_accuracy(net, *photograph(512, seed + 900))}
