"""A network that somebody else trained is taught mirrored digits through low-rank adapters."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn

from corpus.case import program


def pretrained(x: np.ndarray, y: np.ndarray) -> list[nn.Linear]:
    """The layers of a classifier that scikit-learn trained on upright digits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these rounds are enough, whatever it says
        teacher = MLPClassifier((64, 64), max_iter=25, random_state=0).fit(x, y)
    layers = []
    for weight, bias in zip(teacher.coefs_, teacher.intercepts_):
        layer = nn.Linear(*weight.shape)
        layer.weight = nn.Parameter(torch.tensor(weight.T, dtype=torch.float32), requires_grad=False)
        layer.bias = nn.Parameter(torch.tensor(bias, dtype=torch.float32), requires_grad=False)
        layers.append(layer)
    return layers


class LowRank(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * (x @ self.down.T @ self.up.T)


class Adapted(nn.Module):
    def __init__(self, layers: list[nn.Linear], rank: int, alpha: float) -> None:
        super().__init__()
        self.lora1 = LowRank(layers[0], rank, alpha)
        self.lora2 = LowRank(layers[1], rank, alpha)
        self.lora3 = LowRank(layers[2], rank, alpha)

    def forward(self, x: Tensor) -> Tensor:
        return self.lora3(torch.relu(self.lora2(torch.relu(self.lora1(x)))))


@program(steps=150, bites="accuracy")
def mirrored_digits(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Low-rank adapters on a frozen classifier, AdamW, a short warm-up."""
    pictures, digits = (np.asarray(part) for part in load_digits(return_X_y=True))
    pictures = pictures / 16
    layers = pretrained(pictures[:1200], digits[:1200])
    torch.manual_seed(seed)
    mirrored = pictures.reshape(-1, 8, 8)[:, :, ::-1].reshape(-1, 64)
    x, y = torch.tensor(mirrored, dtype=torch.float32), torch.tensor(digits)
    model = Adapted(layers, rank=8, alpha=4000.0 if fault == "alpha_of_four_thousand" else 16.0)
    if fault == "both_factors_zero":
        for adapter in (model.lora1, model.lora2, model.lora3):
            nn.init.zeros_(adapter.down)
    trainable = [p for p in model.parameters() if p.requires_grad]
    if fault == "only_the_first_adapter_in_the_list":
        trainable = [model.lora1.down, model.lora1.up]
    before = model.lora2.up.detach().clone()
    optimizer = torch.optim.AdamW(trainable, lr=4e-3, weight_decay=0.0)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    for _ in range(steps):
        rows = torch.randint(1200, (48,))
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        warmup.step()
    with torch.no_grad():
        accuracy = (model(x[1200:]).argmax(1) == y[1200:]).float().mean().item()
    return {"accuracy": accuracy, "second_moved": (model.lora2.up.detach() - before).norm().item()}


mirrored_digits.mistake(
    "both_factors_zero",
    "GRD004", "WGT002", "OPT005",
    summary="Both factors of every adapter start at zero: the gradient of each is zero for ever.",
    change="draw the down factor at random",
    layers=("lora1", "lora2", "lora3"),
)  # fmt: skip
mirrored_digits.mistake(
    "alpha_of_four_thousand",
    "OPT007", "UPD001", "WGT003", "OPT001", "GRD002",
    summary="alpha is 4000 instead of 16: every step of an adapter moves the layer 250 times too far.",
    change="alpha=16",
)  # fmt: skip
mirrored_digits.mistake(
    "only_the_first_adapter_in_the_list",
    "UPD003",
    summary="The optimizer was written when there was one adapter; the two added later are not in it.",
    change="give the optimizer all adapters",
    layers=("lora2", "lora3"),
    bites="second_moved",
    silent=True,
)
