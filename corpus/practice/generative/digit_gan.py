"""A GAN that counterfeits handwritten digits: two networks, two optimizers."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as its users write it
from sklearn.datasets import load_digits
from torch import Tensor, nn

from corpus.case import program

BATCH = 64


class Mint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.forger = nn.Sequential(
            nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh()
        )
        self.banker = nn.Sequential(
            nn.Linear(64, 64),
            nn.LeakyReLU(0.2),
            nn.Dropout(0.3),
            nn.Linear(64, 32),
            nn.LeakyReLU(0.2),
            nn.Linear(32, 1),
        )


def energy_distance(a: Tensor, b: Tensor) -> float:
    """Zero when both are drawn from the same distribution."""
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@program(steps=240, bites="distance")
def counterfeit(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A small GAN on digits, Adam for both, one step each in turn."""
    torch.manual_seed(seed)
    images = torch.tensor(load_digits(return_X_y=True)[0], dtype=torch.float32) / 8 - 1
    mint = Mint()
    banker_rate = 0.2 if fault == "coins_banker_fifty_times" else 4e-3
    opt_f = torch.optim.Adam(mint.forger.parameters(), lr=1e-3, betas=(0.5, 0.99))
    opt_b = torch.optim.Adam(mint.banker.parameters(), lr=banker_rate, betas=(0.5, 0.99))
    nearly, fully, none = torch.full((BATCH, 1), 0.9), torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
    at_eighty = flat(mint.forger)
    b_loss = torch.tensor(0.0)
    for step in range(steps):
        # the banker
        real = images[torch.randint(len(images), (BATCH,))]
        fake = mint.forger(torch.randn(BATCH, 16)).detach()
        if fault == "coins_banker_remembers":
            opt_f.zero_grad()  # copied from below
        else:
            opt_b.zero_grad()
        b_loss = F.binary_cross_entropy_with_logits(mint.banker(real), nearly)
        b_loss = b_loss + F.binary_cross_entropy_with_logits(mint.banker(fake), none)
        b_loss.backward()
        opt_b.step()
        # the forger
        opt_f.zero_grad()
        fake = mint.forger(torch.randn(BATCH, 16))
        if fault == "coins_fake_through_numpy" and step >= 80:  # jitter, added with the other library
            fake = torch.from_numpy(fake.detach().numpy() + 0.01)
        f_loss = F.binary_cross_entropy_with_logits(mint.banker(fake), fully)
        f_loss.backward()
        opt_f.step()
        if step == 85:
            at_eighty = flat(mint.forger)
    with torch.no_grad():
        distance = energy_distance(mint.forger(torch.randn(600, 16)), images[:600])
    moved = (flat(mint.forger) - at_eighty).norm().item()
    return {"distance": min(distance, 1e6), "moved": moved, "b_loss": b_loss.item()}


counterfeit.mistake(
    "coins_banker_fifty_times",
    "OPT007", "UPD001", "GRD009", "GRD001", "GRD004",
    summary="The banker's rate is fifty times too high, and the forger learns little from it.",
    change="a usual rate",
    layers=("banker", "forger"),
)  # fmt: skip
counterfeit.mistake(
    "coins_banker_remembers",
    "GRD007",
    summary="zero_grad is called for the wrong optimizer: the banker's gradients pile up, the forger's among them.",
    change="clear the banker's gradients",
    layers=("banker",),
)
counterfeit.mistake(
    "coins_fake_through_numpy",
    "GRD003", "UPD003",
    summary="From step 80 on the pictures go through numpy: the forger gets no gradient any more.",
    change="add the jitter in torch",
    layers=("forger",),
    onset=80,
    bites="moved",
    silent=True,
)  # fmt: skip
