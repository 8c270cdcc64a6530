"""Three questions about a household from one trunk, weighed by how uncertain each answer is."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program

FEATURES, DISTRICTS = 12, 4


def survey(n: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    truth = torch.Generator().manual_seed(4711)
    x = torch.randn(n, FEATURES, generator=g)
    mix = torch.randn(FEATURES, 6, generator=truth)
    hidden = torch.tanh(x @ mix / 2)
    income = hidden @ torch.randn(6, generator=truth) + 0.1 * torch.randn(n, generator=g)
    car = (hidden @ torch.randn(6, generator=truth) + 0.1 * torch.randn(n, generator=g) > 0).float()
    district = (hidden @ torch.randn(6, DISTRICTS, generator=truth)).argmax(1)
    return {"x": x, "income": income, "car": car, "district": district}


class Household(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(FEATURES, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.income = nn.Linear(width, 1)
        self.car = nn.Linear(width, 1)
        self.district = nn.Linear(width, DISTRICTS)
        self.log_var = nn.ParameterDict({task: torch.zeros(()) for task in ("income", "car", "district")})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.trunk(x)
        return {"income": self.income(h).squeeze(1), "car": self.car(h).squeeze(1), "district": self.district(h)}

    def losses(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        out = self(data["x"])
        return {
            "income": functional.mse_loss(out["income"], data["income"]),
            "car": functional.binary_cross_entropy_with_logits(out["car"], data["car"]),
            "district": functional.cross_entropy(out["district"], data["district"]),
        }

    def weighed(self, losses: dict[str, Tensor]) -> Tensor:
        return torch.stack([loss * (-self.log_var[t]).exp() + self.log_var[t] / 2 for t, loss in losses.items()]).sum()


def sample(data: dict[str, Tensor], n: int) -> dict[str, Tensor]:
    rows = torch.randint(len(data["x"]), (n,))
    return {key: value[rows] for key, value in data.items()}


@torch.no_grad()
def district_accuracy(model: Household, seed: int) -> float:
    data = survey(400, seed + 12)
    return (model(data["x"])["district"].argmax(1) == data["district"]).float().mean().item()


@program(steps=150, bites="accuracy")
def household_survey(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adam on the sum that the learned uncertainties weigh."""
    torch.manual_seed(seed)
    data = survey(1500, seed)
    if fault == "income_in_cents":
        data["income"] = 250_000 + 120_000 * data["income"]
    model = Household()
    if fault == "every_weight_alike":
        for module in model.trunk:
            if isinstance(module, nn.Linear):
                nn.init.constant_(module.weight, 0.05)
                nn.init.zeros_(module.bias)
    middle = cast(nn.Linear, model.trunk[2])
    if fault == "middle_never_fires":
        nn.init.constant_(middle.bias, -12.0)
    if fault == "middle_sixty_times":
        middle.weight.data.mul_(60.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    if fault == "car_head_came_later":
        model.car = nn.Linear(48, 1)
    start = model.car.weight.detach().clone()
    for _ in range(steps):
        losses = model.losses(sample(data, 64))
        optimizer.zero_grad()
        model.weighed(losses).backward()
        optimizer.step()
    return {"accuracy": district_accuracy(model, seed), "moved": (model.car.weight - start).norm().item()}


household_survey.mistake(
    "income_in_cents",
    "DAT003", "GRD009", "GRD002",
    summary="Income is in cents: its squared error is ten orders larger than the other two losses.",
    change="standardise the income",
)  # fmt: skip
household_survey.mistake(
    "every_weight_alike",
    "WGT002",
    summary="Every weight of the trunk starts at 0.05, so its units never differ.",
    change="random weights",
    layers=("trunk",),
)
household_survey.mistake(
    "middle_never_fires",
    "ACT001", "GRD004",
    summary="The bias of the middle layer starts at -12: none of its units ever fires.",
    change="the usual bias",
    layers=("trunk.2", "trunk.3"),
)  # fmt: skip
household_survey.mistake(
    "middle_sixty_times",
    "WGT003",
    summary="The middle layer was initialised by a formula with a wrong fan-in: it is sixty times too large.",
    change="the usual initialisation",
    layers=("trunk.2",),
)
household_survey.mistake(
    "car_head_came_later",
    "UPD003",
    summary="The head for cars is replaced after the optimizer was built.",
    change="build the optimizer last",
    layers=("car",),
    bites="moved",
    silent=True,
)


@program(steps=150, bites="accuracy", adversarial="a head whose gradient is None was forgotten")
def household_gaps(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Each batch comes from a survey that asked one question only, so two of the heads rest."""
    torch.manual_seed(seed)
    data = survey(1500, seed)
    model = Household()
    del model.log_var
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(steps):
        batch = sample(data, 64)
        h = model.trunk(batch["x"])
        if step % 3 == 0:
            loss = functional.mse_loss(model.income(h).squeeze(1), batch["income"])
        elif step % 3 == 1:
            loss = functional.binary_cross_entropy_with_logits(model.car(h).squeeze(1), batch["car"])
        else:
            loss = functional.cross_entropy(model.district(h), batch["district"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": district_accuracy(model, seed)}


@program(steps=150, bites="accuracy", adversarial="an update a hundred times that of its siblings is a mistake")
def household_fast_head(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """The uncertainties learn with a rate of their own, twenty times that of the weights; the weights with AMSGrad."""
    torch.manual_seed(seed)
    data = survey(1500, seed)
    model = Household()
    rest = [p for name, p in model.named_parameters() if not name.startswith("log_var")]
    groups = [{"params": rest, "lr": 4e-3}, {"params": list(model.log_var.values()), "lr": 0.08}]
    optimizer = torch.optim.Adam(groups, amsgrad=True)
    for _ in range(steps):
        loss = model.weighed(model.losses(sample(data, 64)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": district_accuracy(model, seed)}
