"""A convolutional autoencoder for digits, trained by a small class of its own."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from corpus.case import program


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.GELU(), nn.Conv2d(12, 16, 3, stride=2, padding=1), nn.GELU(),
            nn.Flatten(), nn.Linear(64, 12),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(12, 64), nn.GELU(), nn.Unflatten(1, (16, 2, 2)),
            nn.ConvTranspose2d(16, 12, 4, stride=2, padding=1), nn.GELU(),
            nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class Learner:
    """Owns the model and the optimizer; `fit_batch` is one step."""

    def __init__(self, model: nn.Module, lr: float, fault: str) -> None:
        self.model, self.lr, self.fault = model, lr, fault
        self.optimizer = self.fresh_optimizer()
        self.seen = 0

    def fresh_optimizer(self) -> torch.optim.Adam:
        return torch.optim.Adam(self.model.parameters(), lr=self.lr)

    def fit_batch(self, x: Tensor) -> float:
        if self.fault == "a_new_optimizer_per_batch" and self.seen >= 60:
            self.optimizer = self.fresh_optimizer()
        if self.fault != "cleared_when_it_logs" or self.seen % 25 == 0:
            self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), x)
        if self.fault == "climbs_the_error":
            (-loss).backward()
        else:
            loss.backward()
        self.optimizer.step()
        self.seen += 1
        return loss.item()


@program(steps=200, bites="error")
def compressed_digits(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Twelve numbers per digit: a convolutional autoencoder with mean squared error and Adam."""
    torch.manual_seed(seed)
    pictures, _ = load_digits(return_X_y=True)
    data = torch.tensor(pictures, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    train, test = data[:1500], data[1500:]
    model = Autoencoder()
    if fault == "unit_normal_everywhere":
        for parameter in model.parameters():
            nn.init.normal_(parameter)
    learner = Learner(model, lr=8e-3, fault=fault)
    for _ in range(steps):
        learner.fit_batch(train[torch.randint(len(train), (48,))])
    with torch.no_grad():
        error = (model(test) - test).pow(2).mean() / test.var()
    return {"error": min(error.item(), 1e6) if error.isfinite() else 1e6}


compressed_digits.mistake(
    "a_new_optimizer_per_batch",
    "OPT008",
    summary="From step 60 a new Adam is made for every batch: every step goes by the sign of one gradient.",
    change="make the optimizer once",
    onset=60,
)
compressed_digits.mistake(
    "cleared_when_it_logs",
    "GRD007",
    summary="zero_grad slipped under the line that logs: gradients are cleared every 25 steps.",
    change="zero_grad in every step",
)
compressed_digits.mistake(
    "unit_normal_everywhere",
    "WGT003", "GRD002",
    summary="All weights are drawn from a unit normal: the picture that comes out is a thousand times too bright.",
    change="leave the default initialisation",
)  # fmt: skip
compressed_digits.mistake(
    "climbs_the_error",
    "LSS003", "OPT001",
    summary="The backward pass is given minus the error: the autoencoder learns to be wrong.",
    change="loss.backward()",
)  # fmt: skip
