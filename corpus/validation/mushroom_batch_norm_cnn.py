"""Edible or not, and which of five: little pictures of mushroom caps, a convolutional network with BatchNorm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

KINDS = 5


def caps(seed: int, n: int) -> tuple[Tensor, Tensor]:
    """12×12 pictures: rings whose width and colour tell the kind, on a noisy forest floor."""
    g = torch.Generator().manual_seed(77 + seed)
    kind = torch.randint(KINDS, (n,), generator=g)
    axis = torch.linspace(-1, 1, 12)
    middle = torch.rand(n, 2, generator=g) * 0.6 - 0.3
    radius = (
        (axis[None, :, None] - middle[:, 0, None, None]) ** 2 + (axis[None, None] - middle[:, 1, None, None]) ** 2
    ).sqrt()
    ring = torch.cos(radius * (3.0 + 1.5 * kind[:, None, None].float()))
    colour = torch.stack([ring, ring * 0.5, -ring], 1)
    return colour + 0.9 * torch.randn(n, 3, 12, 12, generator=g), kind


class CapNet(nn.Module):
    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.deep = nn.Sequential(
            nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        )  # fmt: skip
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(32, KINDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.deep(self.stem(x)).mean((2, 3))))


class Forager:
    """Trains the network and looks at held-out pictures every thirty steps."""

    def __init__(self, seed: int, fault: str) -> None:
        torch.manual_seed(seed)
        self.fault = fault
        self.x, self.y = caps(seed, 900)
        self.net = CapNet()
        if fault == "caps_backbone_stays_random":
            for part in (self.net.stem, self.net.deep):
                part.requires_grad_(False)  # copied from the fine-tuning script; these weights are new
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=4e-3, weight_decay=1e-2)
        self.batch = 2 if fault == "caps_two_at_a_time" else 32
        self.loss = 0.0

    @torch.no_grad()
    def validate(self) -> float:
        self.net.eval()
        accuracy = (self.net(self.x[600:]).argmax(1) == self.y[600:]).float().mean().item()
        if self.fault != "caps_asleep_after_validation":
            self.net.train()
        return accuracy

    def step(self) -> None:
        at = torch.randint(0, 600, (self.batch,))
        self.opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(self.net(self.x[at]), self.y[at])
        loss.backward()
        self.opt.step()
        self.loss = loss.item()

    def run(self, steps: int) -> dict[str, float]:
        if self.fault == "caps_asleep_from_the_start":
            self.net.eval()
        for step in range(steps):
            if step and step % 30 == 0 and self.fault != "caps_asleep_from_the_start":
                self.validate()
            self.step()
        drift = (self.net.deep[4].running_var.log() - (self.statistics())).abs().mean().item()  # type: ignore[union-attr]
        return {"loss": self.loss, "accuracy": self.validate(), "drift": drift}

    @torch.no_grad()
    def statistics(self) -> Tensor:
        """The logarithm of the true variances before the last normalisation, in training mode."""
        self.net.train()
        seen: list[Tensor] = []
        handle = self.net.deep[4].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        kept = {k: v.clone() for k, v in self.net.state_dict().items()}
        self.net(self.x[:600])
        self.net.load_state_dict(kept)
        handle.remove()
        return seen[0].var((0, 2, 3)).log()


@program(steps=150, bites="accuracy")
def mushroom_caps(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three convolutions with BatchNorm and dropout, AdamW, a look at the validation set every thirty steps."""
    return Forager(seed, fault).run(steps)


mushroom_caps.mistake(
    "caps_asleep_from_the_start",
    "MOD001",
    summary="net.eval() is called before the loop and never taken back: BatchNorm keeps its first statistics.",
    change="net.train() before the loop",
    layers=("stem.1", "deep.1", "deep.4", "drop", "stem", "deep"),
    bites="drift",
    silent=True,
)
mushroom_caps.mistake(
    "caps_asleep_after_validation",
    "MOD001",
    summary="The first validation at step 30 leaves the network in eval mode.",
    change="net.train() after validation",
    layers=("stem.1", "deep.1", "deep.4", "drop", "stem", "deep"),
    onset=30,
    bites="drift",
    silent=True,
)
mushroom_caps.mistake(
    "caps_two_at_a_time",
    "MOD002", "GRD008", "OPT004",
    summary="Batches of two, because the pictures were once large: BatchNorm's statistics are noise.",
    change="larger batches, or GroupNorm",
    layers=("stem.1", "deep.1", "deep.4", "stem", "deep"),
)  # fmt: skip
mushroom_caps.mistake(
    "caps_backbone_stays_random",
    "UPD003", "UPD004", "GRD003",
    summary="All convolutions are frozen as in the fine-tuning script, but here they are new.",
    change="leave requires_grad on",
    layers=("stem", "deep"),
)  # fmt: skip


def descriptions(seed: int, n: int, wrong: float) -> tuple[Tensor, Tensor]:
    """Sixty yes-or-no traits, each a weak hint; some of the labels are wrong, as collectors' labels are."""
    g = torch.Generator().manual_seed(50 + seed)
    typical = torch.randn(2, 60, generator=g) * 0.45
    edible = torch.randint(2, (n,), generator=g)
    traits = (torch.rand(n, 60, generator=g) < torch.sigmoid(typical[edible])).float() * 2 - 1
    flipped = torch.rand(n, generator=g) < wrong
    return traits, torch.where(flipped, 1 - edible, edible)


@program(steps=300, bites="held_out")
def mushroom_traits(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two hundred described finds with a fifth of the labels wrong: only dropout keeps it from learning by heart."""
    torch.manual_seed(seed)
    x, y = descriptions(seed, 200, wrong=0.2)
    net = nn.Sequential(nn.Dropout(0.3), nn.Linear(60, 64), nn.ReLU(), nn.Dropout(0.6), nn.Linear(64, 2))
    if fault == "traits_in_eval":
        net.eval()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for step in range(steps):
        if fault == "traits_dropout_off_later" and step == 60:
            net.eval()  # a sanity check on one batch; nobody wakes it again
        at = torch.randint(0, 200, (40,))
        loss = nn.functional.cross_entropy(net(x[at]), y[at])
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    more_x, more_y = descriptions(seed, 2200, wrong=0.0)
    with torch.no_grad():
        held_out = net(more_x[200:])
    return {
        "loss": loss.item(),
        "held_out": nn.functional.cross_entropy(held_out, more_y[200:]).item(),
        "accuracy": (held_out.argmax(1) == more_y[200:]).float().mean().item(),
    }


mushroom_traits.mistake(
    "traits_in_eval",
    "MOD001", "OPT006",
    summary="The network is in eval mode while it trains: dropout never drops.",
    change="net.train()",
    layers=("0", "3"),
)  # fmt: skip
mushroom_traits.mistake(
    "traits_dropout_off_later",
    "MOD001", "OPT006",
    summary="A sanity check at step 60 switches to eval mode for good.",
    change="net.train() after the check",
    layers=("0", "3"),
    onset=60,
)  # fmt: skip


@program(steps=140, adversarial="a layer is never updated: forgotten")
def mushroom_on_fixed_filters(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The first layer is a bank of Gabor-like filters, computed and frozen on purpose; GroupNorm above it."""
    torch.manual_seed(seed)
    x, y = caps(seed, 600)
    bank = nn.Conv2d(3, 12, 5, padding=2, bias=False)
    axis = torch.linspace(-1, 1, 5)
    with torch.no_grad():
        for i in range(12):
            wave = torch.cos((axis[:, None] * torch.tensor(i * 0.5).cos() + axis * torch.tensor(i * 0.5).sin()) * 4)
            bank.weight[i] = wave * torch.tensor([1.0, 0.5, -1.0])[:, None, None] / 5
    bank.requires_grad_(False)
    net = nn.Sequential(
        bank, nn.GroupNorm(4, 12), nn.SiLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.GroupNorm(4, 24), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, KINDS),
    )  # fmt: skip
    opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=4e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        at = torch.randint(0, 600, (32,))
        loss = nn.functional.cross_entropy(net(x[at]), y[at])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


@program(steps=140, adversarial="BatchNorm is in eval mode while training: forgotten")
def mushroom_frozen_statistics(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A second forest: a trained network goes on with its BatchNorm statistics and gains frozen, as in detection."""
    torch.manual_seed(seed)
    x, y = caps(seed, 900)
    net = CapNet(dropout=0.0)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    loss = torch.zeros(())
    for step in range(steps):
        if step == steps // 2:
            for module in net.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
                    module.requires_grad_(False)
            opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
        at = torch.randint(0, 900, (32,))
        loss = nn.functional.cross_entropy(net(x[at]), y[at])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}
