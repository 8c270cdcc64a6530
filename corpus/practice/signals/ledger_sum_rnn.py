"""What is left at the end of the month? A plain recurrent network adds up a ledger, trained by SGD."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from corpus.case import program

LENGTH, HIDDEN = 8, 40


def ledger(n: int, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Income and expense, tick by tick, and what is left at the end."""
    x = torch.rand(n, length, 2) * 2 - 1
    return x, (x[:, :, :1] - x[:, :, 1:]).sum(1) / 2


class Adder(nn.Module):
    def __init__(self, nonlinearity: str = "tanh") -> None:
        super().__init__()
        self.rnn = nn.RNN(2, HIDDEN, nonlinearity=nonlinearity, batch_first=True)
        self.read = nn.Linear(HIDDEN, 1)
        nn.init.orthogonal_(cast(Tensor, self.rnn.weight_hh_l0))

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(x)
        return self.read(states[:, -1])


def recent_mean(values: list[float]) -> float:
    kept = [value if value < 1e6 else 1e6 for value in values[-10:]]
    return sum(kept) / len(kept)


@program(steps=150)
def ledger_adder(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An orthogonal start, momentum, and clipping at ten for emergencies."""
    torch.manual_seed(seed)
    model = Adder("relu" if fault == "recurrence_of_six" else "tanh")
    with torch.no_grad():
        if fault == "recurrence_of_six":
            cast(Tensor, model.rnn.weight_hh_l0).mul_(6.0)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses: list[float] = []
    for _ in range(steps):
        opt.zero_grad()
        if fault == "eight_losses_piled_up":
            total = 0.0
            for _ in range(8):
                x, y = ledger(16)
                loss = nn.functional.mse_loss(model(x), y)  # meant: divided by eight
                loss.backward()
                total += loss.item() / 8
            losses.append(total)
        else:
            x, y = ledger(128)
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3 if fault == "clipped_to_a_thousandth" else 10.0)
        opt.step()
    return {"loss": recent_mean(losses)}


ledger_adder.mistake(
    "recurrence_of_six",
    "GRD002", "WGT003", "NUM001", "NUM002", "UPD001",
    summary="ReLU units and a recurrent weight six times an orthogonal one: every tick multiplies the state.",
    change="an orthogonal start",
    layers=("rnn",),
)  # fmt: skip
ledger_adder.mistake(
    "clipped_to_a_thousandth",
    "GRD010", "UPD002", "OPT007",
    summary="Gradients are clipped to a norm of 0.001 under plain SGD.",
    change="clip at ten",
)  # fmt: skip
ledger_adder.mistake(
    "eight_losses_piled_up",
    "LSS004", "OPT007", "UPD001", "OPT001",
    summary="The losses of eight micro-batches are added, not averaged.",
    change="divide each by eight",
)  # fmt: skip


@program(steps=150, adversarial="a loss that halves and doubles from step to step is unstable")
def adder_of_four(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Four samples in a batch: the loss swings from step to step while the fit improves."""
    torch.manual_seed(seed)
    x = torch.randn(400, 6)
    y = torch.sin(x[:, :1] + x[:, 1:2]) + 0.5 * x[:, 2:3]
    model = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.5)
    for _ in range(steps):
        rows = torch.randint(400, (4,))
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        return {"loss": nn.functional.mse_loss(model(x), y).item()}


@program(steps=150, adversarial="a weight whose gradient has spikes is exploding")
def adder_spiky(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Now and then a sequence is twice as long; clipping takes care of its larger gradient."""
    torch.manual_seed(seed)
    model = Adder()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for step in range(steps):
        x, y = ledger(64, length=8 if step % 12 == 11 else 4)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        losses.append(loss.item())
    return {"loss": recent_mean(losses)}
