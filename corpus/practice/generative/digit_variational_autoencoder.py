"""A variational autoencoder of handwritten digits, after the tutorial everybody copies."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from corpus.case import program


class Sketchpad(nn.Module):
    def __init__(self, code: int = 6) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.mean, self.logvar = nn.Linear(32, code), nn.Linear(32, code)
        self.draw = nn.Sequential(nn.Linear(code, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.look(x)
        mean, logvar = self.mean(h), self.logvar(h)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        return self.draw(z), mean, logvar


def kl_divergence(mean: Tensor, logvar: Tensor) -> Tensor:
    return -0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).sum(1)


@program(steps=200, bites="error")
def sketchpad(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A VAE on digits, Bernoulli likelihood, a small weight on the prior, Adam."""
    torch.manual_seed(seed)
    images = torch.tensor(load_digits(return_X_y=True)[0], dtype=torch.float32) / 16
    model = Sketchpad()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    if fault == "sketch_decay_of_thirty":
        opt = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=30.0)
    loss = torch.tensor(0.0)
    for step in range(steps):
        x = images[torch.randint(len(images), (64,))]
        logits, mean, logvar = model(x)
        pixels = nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none")
        kl = kl_divergence(mean, logvar)
        if fault == "sketch_prior_summed":  # one term is averaged over everything, the other is summed
            loss = pixels.mean() + kl.sum() / 64
        elif fault == "sketch_annealed_to_twelve" and step >= 60:  # the ramp counts batches and never stops
            loss = pixels.sum(1).mean() + kl.mean() * (0.05 + 0.1 * (step - 60))
        else:
            loss = pixels.sum(1).mean() + 0.05 * kl.mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    with torch.no_grad():
        logits, mean, logvar = model(images)
        error = nn.functional.binary_cross_entropy_with_logits(logits, images, reduction="none").sum(1).mean()
    return {"error": error.item(), "kl": kl_divergence(mean, logvar).mean().item(), "loss": loss.item()}


sketchpad.mistake(
    "sketch_prior_summed",
    "ACT003", "GRD009",
    summary="The pixels are averaged, the prior is summed: it weighs sixty times too much and the code collapses.",
    change="sum both over the features",
)  # fmt: skip
sketchpad.mistake(
    "sketch_annealed_to_twelve",
    "ACT003", "GRD009", "OPT001", "OPT003",
    summary="The weight of the prior rises from step 60 on and never stops: the code that was learned collapses.",
    change="stop the ramp at its end",
    onset=60,
)  # fmt: skip
sketchpad.mistake(
    "sketch_decay_of_thirty",
    "OPT008", "WGT005",
    summary="weight_decay=30 in AdamW, taken over from a ridge regression: the weights melt away.",
    change="weight_decay=0.01",
)  # fmt: skip
