"""How much power does a windmill give? Tables with a gated residual net, every optimizer setting in one dict."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from corpus.case import program

FEATURES = 9


def mill_log(seed: int, rows: int = 800) -> tuple[Tensor, Tensor]:
    gen = torch.Generator().manual_seed(seed * 31 + 5)
    x = torch.randn(rows, FEATURES, generator=gen)
    wind = torch.sigmoid(1.5 * x[:, 0] + 0.5 * x[:, 1])
    pitch = torch.cos(1.3 * x[:, 2]) * (x[:, 3] > 0)
    wear = 0.4 * x[:, 4] * x[:, 5] - 0.3 * x[:, 6].abs()
    y = 2 * wind + pitch + wear + 0.1 * torch.randn(rows, generator=gen)
    return x, ((y - y.mean()) / y.std()).unsqueeze(1)


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.up(self.norm(x)).chunk(2, dim=-1)
        return x + self.down(value * torch.sigmoid(gate))


class Mill(nn.Module):
    def __init__(self, width: int = 40, blocks: int = 3) -> None:
        super().__init__()
        self.inlet = nn.Linear(FEATURES, width)
        self.blocks = nn.Sequential(*(Gated(width) for _ in range(blocks)))
        self.outlet = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.outlet(torch.relu(self.blocks(self.inlet(x))))


HEALTHY: dict[str, Any] = {"kind": torch.optim.AdamW, "lr": 3e-3, "weight_decay": 0.01}
SETTINGS: dict[str, dict[str, Any]] = {
    "": HEALTHY,
    "mill_rate_of_a_half": HEALTHY | {"lr": 0.5},
    "mill_rate_in_millionths": HEALTHY | {"lr": 2e-6},
    "mill_decay_in_percent": HEALTHY | {"lr": 3e-3, "weight_decay": 30.0},
    "mill_decay_everywhere": HEALTHY | {"weight_decay": 8.0},
    "mill_eps_of_one": HEALTHY | {"eps": 1.0},
    "mill_eps_from_a_forum": HEALTHY | {"eps": 0.1},
}


@program(steps=170)
def windmill(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A gated residual net on standardised tables, AdamW with usual settings, batches of 64."""
    torch.manual_seed(seed)
    x, y = mill_log(seed)
    model = Mill()
    settings = dict(SETTINGS[fault])
    optimizer = settings.pop("kind")(model.parameters(), **settings)
    losses: list[float] = []
    while len(losses) < steps:
        order = torch.randperm(len(x))
        for chunk in order.split(64)[: steps - len(losses)]:
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.smooth_l1_loss(model(x[chunk]), y[chunk])
            loss.backward()
            optimizer.step()
            losses.append(min(loss.item(), 1e6))
    return {"loss": sum(losses[-15:]) / len(losses[-15:]), "first": losses[0]}


windmill.mistake(
    "mill_rate_of_a_half",
    "OPT007", "UPD001", "OPT001", "OPT003",
    summary="AdamW with a rate of 0.5, taken from a script with SGD.",
    change="3e-3",
)  # fmt: skip
windmill.mistake(
    "mill_rate_in_millionths",
    "OPT007", "UPD002",
    summary="AdamW with a rate of 2e-6, the one for fine-tuning large models.",
    change="3e-3",
)  # fmt: skip
windmill.mistake(
    "mill_decay_in_percent",
    "OPT008", "WGT005",
    summary="A weight decay of 30: the weights shrink by a tenth in every step.",
    change="0.01",
)  # fmt: skip
windmill.mistake(
    "mill_decay_everywhere",
    "OPT008", "WGT005",
    summary="A weight decay of 8 on everything, gains and biases too.",
    change="0.01",
)  # fmt: skip
windmill.mistake(
    "mill_eps_of_one",
    "OPT008", "UPD002", "OPT007",
    summary="An eps of 1 for AdamW, meant for the layer norm.",
    change="1e-8",
)  # fmt: skip
windmill.mistake(
    "mill_eps_from_a_forum",
    "OPT008", "UPD002", "OPT007",
    summary="An eps of 0.1 for AdamW, recommended for another network.",
    change="1e-8",
)  # fmt: skip


@program(steps=170, adversarial="a decay of 0.5 on AdamW: a self-defeating optimizer setting")
def windmill_decayed_gently(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A decay of 0.5 with a small rate: the product is what counts, and it is small; none on gains and biases."""
    torch.manual_seed(seed)
    x, y = mill_log(seed)
    model = Mill()
    flat = [p for p in model.parameters() if p.ndim < 2]
    deep = [p for p in model.parameters() if p.ndim >= 2]
    optimizer = torch.optim.AdamW(
        [{"params": deep, "weight_decay": 0.5}, {"params": flat, "weight_decay": 0.0}], lr=2e-3
    )
    losses: list[float] = []
    while len(losses) < steps:
        for chunk in torch.randperm(len(x)).split(64)[: steps - len(losses)]:
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(model(x[chunk]), y[chunk])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": sum(losses[-15:]) / len(losses[-15:]), "first": losses[0]}


@program(steps=150, adversarial="targets in watts: huge losses and gradients, badly scaled targets")
def windmill_in_watts(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The target is in watts; the net predicts in units of its own and multiplies, the loss is in square watts."""
    torch.manual_seed(seed)
    x, y = mill_log(seed)
    watts = 2000 * y
    model = Mill()
    optimizer = torch.optim.Adamax(model.parameters(), lr=8e-3)
    losses: list[float] = []
    while len(losses) < steps:
        for chunk in torch.randperm(len(x)).split(64)[: steps - len(losses)]:
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(2000 * model(x[chunk]), watts[chunk])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": sum(losses[-15:]) / len(losses[-15:]), "first": losses[0]}


@program(steps=120)
def windmill_adagrad(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The same table by Adagrad, whose steps become smaller by themselves."""
    torch.manual_seed(seed)
    x, y = mill_log(seed)
    model = Mill(blocks=2)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.03)
    losses: list[float] = []
    while len(losses) < steps:
        for chunk in torch.randperm(len(x)).split(64)[: steps - len(losses)]:
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(model(x[chunk]), y[chunk])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": sum(losses[-15:]) / len(losses[-15:]), "first": losses[0]}
