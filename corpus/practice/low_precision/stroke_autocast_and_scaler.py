"""Half precision on a processor: a convolutional reader under autocast with a gradient scaler."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from corpus.case import program


class Strokes(nn.Module):
    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 3, padding=1)
        self.mid = nn.Conv2d(12, 24, 3, stride=2, padding=1)
        self.top = nn.Conv2d(24, 24, 3, padding=1)
        self.energy = nn.Linear(24 * 16, 48)
        self.head = nn.Linear(48, 10)
        self.temperature = temperature

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.mid(x))
        x = torch.relu(self.top(x)).flatten(1)
        return self.head(torch.relu(self.energy(x * self.temperature)))


class MixedTrainer:
    def __init__(self, model: Strokes, use_scaler: bool = True, unscale: bool = True, weight: float = 1.0) -> None:
        self.model, self.unscale, self.weight = model, unscale, weight
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / weight, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, enabled=use_scaler)

    def step(self, x: Tensor, y: Tensor) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(self.model(x).float(), y) * self.weight
        self.scaler.scale(loss).backward()
        if self.unscale:
            self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 2.0 * self.weight)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item() / self.weight


@program(steps=120, bites="accuracy")
def halves(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A small convolutional network under float16 autocast, SGD, the scaler unscaled before the clip."""
    torch.manual_seed(seed)
    pixels, digits = load_digits(return_X_y=True)
    x = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(digits)
    order = torch.randperm(len(x))
    model = Strokes()
    trainer = MixedTrainer(
        model,
        use_scaler=fault not in ("halves_weighted_without_scaler", "halves_energy_overflows"),
        unscale=fault != "halves_clips_scaled_gradients",
        weight=1e-6 if fault == "halves_weighted_without_scaler" else 1.0,
    )
    last = [0.0]
    for step in range(steps):
        if fault == "halves_energy_overflows" and step == 60:
            model.temperature = 3e5  # "sharper", for the second half
        rows = order[torch.randint(1400, (64,))]
        last = [*last[-9:], trainer.step(x[rows], y[rows])]
    with torch.no_grad():
        rows = order[1400:]
        accuracy = (model(x[rows]).argmax(1) == y[rows]).float().mean().item()
    loss = sum(last) / len(last)
    return {"accuracy": accuracy, "loss": loss if loss == loss and loss < 1e6 else 1e6}


halves.mistake(
    "halves_weighted_without_scaler",
    "NUM005", "GRD004",
    summary="The loss is weighted by a millionth and there is no scaler: half precision rounds the gradients to zero.",
    change="a gradient scaler",
)  # fmt: skip
halves.mistake(
    "halves_energy_overflows",
    "NUM005", "NUM004", "NUM002", "NUM001", "NUM003",
    summary="From step 60 on a factor of 300,000 makes the half-precision activations infinite.",
    change="leave the temperature",
    layers=("energy", "head"),
    onset=60,
)  # fmt: skip
halves.mistake(
    "halves_clips_scaled_gradients",
    "GRD010", "UPD002", "OPT007", "OPT005",
    summary="The gradients are clipped before they are unscaled: the norm is two divided by sixteen thousand.",
    change="unscale first",
)  # fmt: skip
