"""Under water: which of five weeds is on the picture? Small nets with batch norm and dropout, and their two modes."""

from __future__ import annotations

import torch
import torch.optim as optim
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program

WEEDS, SIZE = 5, 12


def dive(seed: int, count: int, murk: float = 0.7) -> tuple[Tensor, Tensor]:
    """Weeds are waves of different width and direction; the light differs from picture to picture."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(WEEDS, (count,), generator=g)
    freq = torch.tensor([0.8, 1.2, 1.6, 2.0, 2.4])[kind][:, None, None]
    slope = torch.tensor([0.0, 0.8, 1.6, 2.4, 0.4])[kind][:, None, None]
    phase = 6.28 * torch.rand(count, 1, 1, generator=g)
    r, c = torch.arange(SIZE)[:, None].float(), torch.arange(SIZE)[None].float()
    wave = torch.sin(freq * (slope.cos() * r + slope.sin() * c) + phase)
    light = 0.5 + torch.rand(count, 1, 1, generator=g)
    x = light * wave + 0.8 * light + murk * torch.randn(count, SIZE, SIZE, generator=g)
    return x[:, None], kind


def block(a: int, b: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())


class KelpNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = block(1, 12)
        self.two = block(12, 16)
        self.three = block(16, 24)
        self.classify = nn.Linear(24, WEEDS)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.two(self.one(x)), 2)
        return self.classify(self.three(x).mean((2, 3)))


def validate(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    model.eval()
    with torch.no_grad():
        out = model(x)
    return functional.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()


@program(steps=150, bites="accuracy")
def kelp(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three blocks with batch norm, momentum, a look at the held-out pictures every fifty steps."""
    torch.manual_seed(seed)
    x, y = dive(seed, 700, murk=1.1)
    held_x, held_y = dive(seed + 31, 250, murk=1.1)
    model = KelpNet()
    optimizer = optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    size = 2 if fault == "kelp_two_at_a_time" else 32
    if fault == "kelp_asleep_all_along":
        model.eval()
    total, count = 0.0, 0
    for step in range(steps):
        pick = torch.randint(len(x), (size,))
        loss = functional.cross_entropy(model(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49 and fault != "kelp_asleep_all_along":
            validate(model, held_x, held_y)
            if fault != "kelp_asleep_since_validation":
                model.train()
        if step >= steps - 20:
            total, count = total + loss.item(), count + 1
    surprise, accuracy = validate(model, held_x, held_y)
    frozen = model.one[1].get_buffer("num_batches_tracked").item()
    return {
        "loss": total / count if total == total else 1e9,
        "surprise": min(surprise, 20.0) if surprise == surprise else 20.0,
        "accuracy": accuracy,
        "batches_seen": float(frozen),
    }


kelp.mistake(
    "kelp_asleep_all_along",
    "MOD001",
    summary="The model is put into eval mode with the code that loads it, and never into training mode.",
    change="call train() before the loop",
    layers=("one", "two", "three"),
    bites="batches_seen",
    silent=True,
)
kelp.mistake(
    "kelp_asleep_since_validation",
    "MOD001",
    summary="The first look at the held-out pictures, after fifty steps, leaves the model in eval mode.",
    change="call train() after validation",
    layers=("one", "two", "three"),
    onset=50,
    bites="batches_seen",
    silent=True,
)
kelp.mistake(
    "kelp_two_at_a_time",
    "MOD002", "GRD008",
    summary="Two pictures at a time, to save memory: the batch norm has next to nothing to take a mean of.",
    change="larger batches or group norm",
    layers=("one", "two", "three"),
    bites="loss",
)  # fmt: skip


class Folded(nn.Module):
    """For the smallest cameras: everything is flattened like a table."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Linear(SIZE * SIZE, 128)
        self.rest = nn.Dropout(0.6)
        self.hidden = nn.Linear(128, 128)
        self.classify = nn.Linear(128, WEEDS)

    def forward(self, x: Tensor) -> Tensor:
        h = self.rest(functional.relu(self.flat(x.flatten(1))))
        return self.classify(self.rest(functional.relu(self.hidden(h))))


@program(steps=150, bites="accuracy")
def kelp_few_pictures(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Few and murky pictures, some named wrongly: a net that would know them by heart but for its dropout."""
    torch.manual_seed(seed)
    x, y = dive(seed, 500)
    y = torch.where(torch.rand(500) < 0.2, torch.randint(WEEDS, (500,)), y)  # named by visitors
    held_x, held_y = dive(seed + 31, 400)
    mean, std = x.mean(), x.std()
    x, held_x = (x - mean) / std, (held_x - mean) / std
    model = Folded()
    optimizer = optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.zeros(())
    if fault == "kelp_dropout_never_on":
        model.eval()
    for step in range(steps):
        if fault == "kelp_dropout_off_after_sample" and step == 40:
            validate(model, held_x[:8], held_y[:8])  # a few samples for the log
        pick = torch.randint(len(x), (50,))
        loss = functional.cross_entropy(model(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    surprise, accuracy = validate(model, held_x, held_y)
    return {"loss": loss.item(), "surprise": surprise, "accuracy": accuracy}


kelp_few_pictures.mistake(
    "kelp_dropout_never_on",
    "MOD001", "OPT006",
    summary="The net is built by a function that ends in eval(): its dropout never drops anything.",
    change="call train() before the loop",
    layers=("rest",),
)  # fmt: skip
kelp_few_pictures.mistake(
    "kelp_dropout_off_after_sample",
    "MOD001", "OPT006",
    summary="At step 40 a few samples are logged in eval mode, and nobody goes back.",
    change="call train() after the samples",
    layers=("rest",),
    onset=40,
)  # fmt: skip


@program(
    steps=160, bites="loss", adversarial="batch norm in eval mode while training is wrong: it is frozen on purpose"
)
def kelp_new_bay(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A net learns one bay, then is tuned to a murkier one; from there on its norms are kept as they are."""
    torch.manual_seed(seed)
    old, new = dive(seed, 700, murk=0.5), dive(seed + 5, 500, murk=1.0)
    model = KelpNet()
    optimizer = optim.AdamW(model.parameters(), lr=4e-3)
    loss = torch.zeros(())
    for step in range(steps):
        if step == 80:
            for part in (model.one, model.two, model.three):
                part[1].eval()
                part[1].requires_grad_(False)
            optimizer = optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-4)
        x, y = old if step < 80 else new
        pick = torch.randint(len(x), (32,))
        loss = functional.cross_entropy(model(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=140, bites="loss", adversarial="four pictures a batch cannot be normed: group norm does not care")
def kelp_four_at_a_time(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four pictures at a time, group norm, a small rate."""
    torch.manual_seed(seed)
    x, y = dive(seed, 700, murk=0.4)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.Conv2d(12, 24, 3, padding=1, stride=2),
        nn.GroupNorm(6, 24), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, WEEDS),
    )  # fmt: skip
    optimizer = optim.Adam(model.parameters(), lr=2e-3)
    recent: list[float] = []
    for _ in range(steps):
        pick = torch.randint(len(x), (4,))
        loss = functional.cross_entropy(model(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent = [*recent[-29:], loss.item()]
    return {"loss": sum(recent) / len(recent)}


@program(steps=130, bites="loss", adversarial="two passes differ, so dropout is wrong: doubt is measured by dropping")
def kelp_counts_its_doubts(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Every thirty steps the doubt about a few pictures is measured, with dropout on, twenty times."""
    torch.manual_seed(seed)
    x, y = dive(seed, 900, murk=0.4)
    x = (x - x.mean()) / x.std()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(576, WEEDS),
    )  # fmt: skip
    optimizer = optim.Adam(model.parameters(), lr=3e-3)
    loss, doubt = torch.zeros(()), 0.0
    for step in range(steps):
        pick = torch.randint(len(x), (32,))
        loss = functional.cross_entropy(model(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 29:
            with torch.no_grad():
                doubt = torch.stack([model(x[:16]).softmax(1) for _ in range(20)]).std(0).mean().item()
    return {"loss": loss.item(), "doubt": doubt}
