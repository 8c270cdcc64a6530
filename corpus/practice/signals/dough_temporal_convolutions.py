"""When is the dough ready? Temporal convolutions over a night of rising, trained by a small Trainer class."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from corpus.case import program

HOURS, PROBES, KINDS = 32, 3, 5


def nights(seed: int, count: int = 1400) -> tuple[Tensor, Tensor]:
    """Height, acidity and warmth over one night; five kinds of flour rise at five paces."""
    g = torch.Generator().manual_seed(9000 + seed)
    kind = torch.randint(KINDS, (count,), generator=g)
    hour = torch.linspace(0, 1, HOURS)
    onset = 0.2 + 0.12 * kind[:, None] + 0.03 * torch.randn(count, 1, generator=g)
    height = torch.sigmoid((hour - onset) * (10 + 3 * (kind[:, None] % 2)))
    acid = torch.cumsum(height, 1) / HOURS * (1 + 0.3 * (kind[:, None] == 2))
    warm = torch.sin(6 * hour + kind[:, None])
    signal = torch.stack([height, acid, warm], 1) + 0.45 * torch.randn(count, PROBES, HOURS, generator=g)
    return (signal - signal.mean((0, 2), keepdim=True)) / signal.std((0, 2), keepdim=True), kind


class Rise(nn.Module):
    """Dilated convolutions with a way around each."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.norm = nn.GroupNorm(4, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.norm(self.conv(x)))


class Baker(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.mix = nn.Conv1d(PROBES, width, 3, padding=1)
        self.rises = nn.ModuleList(Rise(width, d) for d in (1, 2, 4))
        self.crumb = nn.Linear(width, 32)
        self.label = nn.Linear(32, KINDS)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.mix(x))
        for rise in self.rises:
            x = rise(x)
        return self.label(torch.relu(self.crumb(x.mean(-1))))


class Trainer:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, clip: float = 0.0) -> None:
        self.model, self.optimizer, self.clip = model, optimizer, clip
        self.x, self.y = nights(seed)
        self.after_batch: list[Callable[[int], None]] = []
        self.after_epoch: list[Callable[[], None]] = []

    def fit(self, steps: int, epoch: int = 30) -> dict[str, float]:
        loss = torch.tensor(0.0)
        for step in range(steps):
            rows = torch.randint(1100, (40,))
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(self.x[rows]), self.y[rows])
            loss.backward()
            if self.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            for callback in self.after_batch:
                callback(step)
            if (step + 1) % epoch == 0:
                for finish in self.after_epoch:
                    finish()
        with torch.no_grad():
            scores = self.model(self.x[1100:])
        late = nn.functional.cross_entropy(scores, self.y[1100:]).item()
        return {"loss": loss.item(), "val": late, "accuracy": (scores.argmax(1) == self.y[1100:]).float().mean().item()}


@program(steps=150, bites="accuracy")
def dough_ready(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The baker with SGD, clipping that seldom acts, and a rate that halves every epoch."""
    torch.manual_seed(seed)
    model = Baker()
    rates = {"mix": 0.05, "rises": 0.05, "crumb": 0.05, "label": 0.05}
    if fault == "dough_crumb_rate_typo":
        rates["crumb"] = 5e-6
        rates["rises"] = 5e-6
    groups = [{"params": model.get_submodule(name).parameters(), "lr": lr} for name, lr in rates.items()]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    trainer = Trainer(model, optimizer, seed, clip=2e-3 if fault == "dough_clip_in_per_mille" else 5.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    if fault == "dough_gamma_every_batch":
        trainer.after_batch.append(lambda step: schedule.step())
    else:
        trainer.after_epoch.append(schedule.step)
    return trainer.fit(steps)


dough_ready.mistake(
    "dough_clip_in_per_mille",
    "GRD010", "UPD002", "OPT005",
    summary="The clipping norm is 0.002: every gradient is cut to nearly nothing before plain SGD.",
    change="clip at 5",
)  # fmt: skip
dough_ready.mistake(
    "dough_crumb_rate_typo",
    "UPD002", "OPT007",
    summary="The groups of the three rises and of the crumb have a rate of 5e-6 where the others have 0.05.",
    change="the same rate for all groups",
    layers=("rises", "crumb"),
    bites="val",
)  # fmt: skip
dough_ready.mistake(
    "dough_gamma_every_batch",
    "OPT007", "UPD002", "OPT005",
    summary="The schedule meant for epochs is stepped after every batch: the rate is gone after thirty.",
    change="schedule.step() once an epoch",
)  # fmt: skip


@program(steps=150, bites="moved")
def dough_pruned(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adam on the baker; an experiment with gradient masks has been taken out again."""
    torch.manual_seed(seed)
    model = Baker()
    middle = model.get_parameter("rises.1.conv.weight")
    start = middle.detach().clone()
    trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=3e-3), 100 + seed)
    if fault == "dough_mask_of_an_experiment":
        mask = torch.zeros_like(start)
        middle.register_hook(lambda gradient: gradient * mask)
    if fault == "dough_hook_added_at_seventy":

        def quiet(step: int) -> None:
            if step == 70:
                for p in model.crumb.parameters():
                    p.register_hook(torch.zeros_like)

        trainer.after_batch.append(quiet)
    metrics = trainer.fit(steps)
    moved = (middle - start).norm().item()
    nn.functional.cross_entropy(model(trainer.x[:64]), trainer.y[:64]).backward()
    still = model.crumb.weight.grad
    assert still is not None
    return metrics | {"moved": moved, "pull": float(still.norm().item() > 0)}


dough_pruned.mistake(
    "dough_mask_of_an_experiment",
    "GRD004", "UPD003", "UPD002",
    summary="A hook from a pruning experiment multiplies the gradient of the second rise by a mask of zeros.",
    change="remove the hook",
    layers=("rises.1.conv",),
    silent=True,
)  # fmt: skip
dough_pruned.mistake(
    "dough_hook_added_at_seventy",
    "GRD004", "UPD003", "UPD002",
    summary="After step 70 a hook for 'analysis' returns zeros for the crumb layer's gradients.",
    change="remove the hook",
    layers=("crumb",),
    onset=70,
    bites="pull",
    silent=True,
)  # fmt: skip


@program(
    steps=150,
    adversarial="always clipped means over-clipped: the norm is always above the limit and Adam does not mind",
)
def dough_always_clipped(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A clip of 0.1 that acts in every step, under Adam."""
    torch.manual_seed(seed)
    model = Baker()
    return Trainer(model, torch.optim.Adam(model.parameters(), lr=3e-3), 200 + seed, clip=0.1).fit(steps)


@program(
    steps=150,
    adversarial="groups whose update ratios differ tenfold are mistaken: the rate falls with depth on purpose",
)
def dough_layered_rates(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Layer-wise rate decay: each stage below the head learns 2.5 times slower."""
    torch.manual_seed(seed)
    model = Baker()
    stages = [model.mix, *model.rises, model.crumb, model.label]
    groups = [{"params": s.parameters(), "lr": 6e-3 * 0.6**i} for i, s in enumerate(reversed(stages))]
    return Trainer(model, torch.optim.RAdam(groups, betas=(0.9, 0.99)), 300 + seed).fit(steps)


@program(steps=150, adversarial="a rate that falls by a hundred is a schedule gone wrong: it is one-cycle annealing")
def dough_one_cycle(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One-cycle policy with momentum cycling: up to 0.1, then down to almost nothing."""
    torch.manual_seed(seed)
    model = Baker()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    trainer = Trainer(model, optimizer, 400 + seed)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=max(steps, 10) + 1)
    trainer.after_batch.append(lambda step: schedule.step())
    return trainer.fit(steps)
