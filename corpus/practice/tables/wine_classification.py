"""Which grower does a wine come from? A notebook turned into a script."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_wine
from torch import nn

from corpus.case import program


@program(steps=150, bites="accuracy")
def wine_growers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Thirteen measurements, two tanh layers, three growers; Adam, batches of 24."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)

    # --- data
    measured, grower = (np.asarray(part) for part in load_wine(return_X_y=True))
    order = rng.permutation(len(grower))
    data = measured[order].astype(np.float32)
    target = grower[order]
    if fault != "columns_as_they_come":
        data = (data - data.mean(0)) / data.std(0)
    x_train, x_test = torch.tensor(data[:130]), torch.tensor(data[130:])
    y_train, y_test = torch.tensor(target[:130]), torch.tensor(target[130:])

    # --- model
    net = nn.Sequential(nn.Linear(13, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))
    if fault == "probabilities_into_the_criterion":
        net.append(nn.Softmax(dim=1))
    if fault == "every_weight_a_tenth":
        for parameter in net.parameters():
            nn.init.constant_(parameter, 0.1)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()

    # --- training
    for _ in range(steps):
        idx = torch.from_numpy(rng.choice(len(x_train), 24, replace=False))
        out = net(x_train[idx])
        if fault == "log_likelihood_is_minimised":
            loss = torch.log_softmax(out, dim=1)[torch.arange(len(idx)), y_train[idx]].mean()
        else:
            loss = criterion(out, y_train[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()

    # --- result
    with torch.no_grad():
        scores = net(x_test)
        accuracy = (scores.argmax(1) == y_test).float().mean().item()
        training_loss = criterion(net(x_train), y_train).item()
    return {"accuracy": accuracy, "loss": training_loss}


wine_growers.mistake(
    "columns_as_they_come",
    "DAT001", "ACT002",
    summary="Proline is near 750, hue near 1, and nothing is standardised: the first tanh saturates.",
    change="standardise the columns",
)  # fmt: skip
wine_growers.mistake(
    "every_weight_a_tenth",
    "WGT002",
    summary="All weights start at 0.1: all units of a layer stay the same unit.",
    change="leave the default initialisation",
)
wine_growers.mistake(
    "probabilities_into_the_criterion",
    "LSS001",
    summary="A softmax stands before a cross-entropy that takes logits.",
    change="remove the softmax",
    layers=("4", "5"),
    bites="loss",
)
wine_growers.mistake(
    "log_likelihood_is_minimised",
    "LSS003", "OPT001",
    summary="The log-likelihood is minimised: the minus was forgotten.",
    change="put the minus back",
)  # fmt: skip
