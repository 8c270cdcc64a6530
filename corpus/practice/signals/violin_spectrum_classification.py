"""Which workshop built the violin? Spectra of bowed notes; one function per experiment, all settings in a dict."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

BANDS, MAKERS = 48, 6
Settings = dict[str, float]


def bowed_notes(seed: int, count: int = 1500) -> tuple[Tensor, Tensor]:
    """Overtones under the resonances of six workshops."""
    rng = torch.Generator().manual_seed(1700 + seed)
    makers = torch.randint(MAKERS, (count,), generator=rng)
    band = torch.arange(BANDS).float()
    pitch = 3 + 3 * torch.rand(count, 1, generator=rng)
    overtones = torch.cos(6.283 * band / pitch).clamp(min=0)
    peaks = torch.rand(MAKERS, 3, generator=torch.Generator().manual_seed(seed)) * BANDS
    body = torch.exp(-((band[None, None] - peaks[:, :, None]) ** 2) / 18).sum(1)
    loud = overtones * (0.3 + body[makers]) + 0.2 * torch.randn(count, BANDS, generator=rng)
    return (loud - loud.mean(0)) / loud.std(0), makers


class Ear(nn.Module):
    """Two convolutions over the bands, then two dense layers."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(1, 12, 5, stride=2, padding=2)
        self.conv2 = nn.Conv1d(12, 16, 5, stride=2, padding=2)
        self.drop = nn.Dropout(drop)
        self.fc1 = nn.Linear(16 * 12, 48)
        self.fc2 = nn.Linear(48, MAKERS)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.leaky_relu(self.conv1(x.unsqueeze(1)), 0.1)
        x = nn.functional.leaky_relu(self.conv2(x), 0.1).flatten(1)
        x = nn.functional.leaky_relu(self.fc1(self.drop(x)), 0.1)
        return self.fc2(self.drop(x))


def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    model.eval()
    with torch.no_grad():
        scores = model(x)
    model.train()
    loss = nn.functional.cross_entropy(scores, y).item()
    return (scores.argmax(1) == y).float().mean().item(), loss if loss < 1e4 else 1e4


@program(steps=160, bites="accuracy")
def violin_makers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """AdamW with the settings of the config file."""
    config: Settings = {"lr": 2e-3, "decay": 0.01, "eps": 1e-8, "drop": 0.2}
    config |= {
        "violin_decay_of_forty": {"decay": 40.0, "lr": 4e-3},
        "violin_eps_of_one": {"eps": 1.0},
        "violin_drop_for_keep": {"drop": 0.97},
        "violin_decay_of_twelve": {"decay": 12.0},
    }.get(fault, {})
    torch.manual_seed(seed)
    x, y = bowed_notes(seed)
    ear = Ear(config["drop"])
    optimizer = torch.optim.AdamW(ear.parameters(), lr=config["lr"], weight_decay=config["decay"], eps=config["eps"])
    for _ in range(steps):
        rows = torch.randint(1200, (48,))
        loss = nn.functional.cross_entropy(ear(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy, loss = evaluate(ear, x[1200:], y[1200:])
    return {"loss": loss, "accuracy": accuracy}


violin_makers.mistake(
    "violin_decay_of_forty",
    "OPT008", "WGT005",
    summary="Weight decay of 40 in AdamW: all weights shrink whatever the gradient says.",
    change="0.01",
)  # fmt: skip
violin_makers.mistake(
    "violin_decay_of_twelve",
    "OPT008", "WGT005",
    summary="Weight decay copied from a script that multiplies it by something small first.",
    change="0.01",
    bites="loss",
)  # fmt: skip
violin_makers.mistake(
    "violin_eps_of_one",
    "OPT008", "UPD002", "OPT005",
    summary="Adam's eps is 1.0: it is plain descent at a tiny rate.",
    change="1e-8",
)  # fmt: skip
violin_makers.mistake(
    "violin_drop_for_keep",
    "MOD001", "GRD008", "OPT005", "OPT002",
    summary="Dropout of 0.97, meant as the share to keep, before both dense layers.",
    change="0.03",
    layers=("drop",),
)  # fmt: skip


@program(steps=180, bites="accuracy")
def violin_flywheel(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Plain momentum SGD without dropout."""
    momentum = 0.999 if fault == "violin_momentum_of_0999" else 0.9
    torch.manual_seed(seed)
    x, y = bowed_notes(30 + seed)
    ear = Ear(0.0)
    optimizer = torch.optim.SGD(ear.parameters(), lr=0.02, momentum=momentum)
    for _ in range(steps):
        rows = torch.randint(1200, (48,))
        loss = nn.functional.cross_entropy(ear(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy, loss = evaluate(ear, x[1200:], y[1200:])
    return {"loss": loss, "accuracy": accuracy}


violin_flywheel.mistake(
    "violin_momentum_of_0999",
    "OPT008", "UPD001", "OPT001", "OPT004", "WGT001",
    summary="Momentum of 0.999: the updates add up over a thousand steps and overshoot.",
    change="0.9",
)  # fmt: skip


@program(steps=170, bites="loss")
def violin_louder_hall(steps: int, seed: int, fault: str) -> dict[str, float]:
    """RMSprop; the last third of the recordings is from a hall that is half as loud again."""
    torch.manual_seed(seed)
    x, y = bowed_notes(60 + seed)
    ear = Ear(0.0)
    memory = 0.99999 if fault == "violin_squares_never_forgotten" else 0.95
    optimizer = torch.optim.RMSprop(ear.parameters(), lr=3e-3, alpha=memory)
    for step in range(steps):
        rows = torch.randint(1200, (48,))
        hall = 1.5 if step >= 110 else 1.0
        loss = nn.functional.cross_entropy(ear(hall * x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy, loss = evaluate(ear, 1.5 * x[1200:], y[1200:])
    return {"loss": loss, "accuracy": accuracy}


violin_louder_hall.mistake(
    "violin_squares_never_forgotten",
    "OPT008", "UPD001", "OPT007", "OPT001", "OPT003",
    summary="RMSprop averages squares over a hundred thousand steps: the average is too small, the steps too large.",
    change="alpha=0.95",
)  # fmt: skip


@program(steps=160, adversarial="most activations are zero so units are dead: a few winners per note, all alive")
def violin_winners(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Only the eight strongest of 96 units speak for each note."""
    torch.manual_seed(seed)
    x, y = bowed_notes(200 + seed)
    first, last = nn.Linear(BANDS, 96), nn.Linear(96, MAKERS)
    model = nn.ModuleDict({"first": first, "last": last})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    accuracy = 0.0
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(1200, (48,))
        h = torch.relu(first(x[rows]))
        h = h * (h >= h.topk(8, dim=1).values[:, -1:])
        scores = last(h)
        loss = nn.functional.cross_entropy(scores, y[rows])
        accuracy = (scores.argmax(1) == y[rows]).float().mean().item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": accuracy}


@program(steps=160, adversarial="weights that fall in norm collapse: a sensible decay under a generous start")
def violin_slims_down(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A wide start with LayerNorm and a decay of 0.5: norms fall by a fifth while the loss falls, too."""
    torch.manual_seed(seed)
    x, y = bowed_notes(230 + seed)
    model = nn.Sequential(
        nn.Linear(BANDS, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(),
        nn.Linear(64, MAKERS),
    )  # fmt: skip
    nn.init.xavier_normal_(model.get_parameter("0.weight"), gain=2.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.5)
    for _ in range(steps):
        rows = torch.randint(1200, (48,))
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy, loss = evaluate(model, x[1200:], y[1200:])
    return {"loss": loss, "accuracy": accuracy}


@program(
    steps=160,
    adversarial="half of the activations are dropped, so the rate must be mistaken: it is 0.5 on a wide layer",
)
def violin_half_dropped(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Dropout of a half and RMSprop with momentum."""
    torch.manual_seed(seed)
    x, y = bowed_notes(260 + seed)
    ear = Ear(0.5)
    optimizer = torch.optim.RMSprop(ear.parameters(), lr=7e-4, momentum=0.5)
    for _ in range(steps):
        rows = torch.randint(1200, (64,))
        loss = nn.functional.cross_entropy(ear(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy, loss = evaluate(ear, x[1200:], y[1200:])
    return {"loss": loss, "accuracy": accuracy}
