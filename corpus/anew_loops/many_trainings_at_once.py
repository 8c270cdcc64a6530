"""Several trainings in one process: ensembles, cross-validation, sweeps."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program
from undertow.demos.case import Fault, sick
from undertow.demos.data import curves, glyphs, share_correct


class Committee(nn.Module):
    """Members that see the same picture and are averaged."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)) for _ in range(size)
        )  # fmt: skip

    def forward(self, pictures: Tensor) -> Tensor:
        return torch.stack([member(pictures).softmax(1) for member in self.members]).mean(0)


@sick(
    "UPD003", steps=1000, bites="log_loss", architecture="ensemble",
    layers=("members.1", "members.2", "members.3", "committee.members.1", "committee.members.2", "committee.members.3"),
    change="each optimizer has the parameters of its own member",
)  # fmt: skip
def every_optimizer_has_the_first_member(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Four optimizers for four members of a committee, all built over the parameters of the first."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=1500, noise=0.6)
    committee = Committee(4)
    if fault:
        optimizers = [
            torch.optim.Adam(
                committee.members[0].parameters(), lr=2e-3
            )  # at fault: every_optimizer_has_the_first_member
            for _ in committee.members
        ]
    else:
        optimizers = [torch.optim.Adam(member.parameters(), lr=2e-3) for member in committee.members]
    for _ in range(steps):
        for member, optimizer in zip(committee.members, optimizers, strict=True):
            rows = torch.randint(len(pictures), (64,))  # each its own bootstrap
            loss = functional.cross_entropy(member(pictures[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    fresh, truth = glyphs(seed + 1000, noise=0.6)
    with torch.no_grad():
        log_loss = functional.nll_loss((committee(fresh) + 1e-9).log(), truth).item()
    return {"log_loss": log_loss, "accuracy": share_correct(committee, fresh, truth)}


def raw_table(seed: int) -> tuple[Tensor, Tensor]:
    """Pressures near a thousand, temperatures in kelvin, and so on: columns of very different units."""
    inputs, targets = curves(seed, count=1200)
    return inputs * torch.tensor([400.0, 30, 90, 250, 5, 800, 60, 10]) + 900, targets


@program(steps=3200, bites="error")
def four_folds(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Cross-validation over four folds, each with its own model, optimizer and scaling."""
    torch.manual_seed(seed)
    inputs, targets = raw_table(seed)
    folds = torch.randperm(len(inputs)).chunk(4)
    each = max(1, steps // 4)
    rate = 2e-3
    if mistake == "rate_divided_twice":
        rate = rate / len(inputs) / 4  # at fault: rate_divided_twice
    errors = []
    for number, held_out in enumerate(folds):
        training = torch.cat([fold for fold in folds if fold is not held_out])
        mean, spread = inputs[training].mean(0), inputs[training].std(0)
        scaled = (inputs - mean) / spread
        if mistake == "later_folds_unscaled" and number >= 2:
            scaled = inputs  # at fault: later_folds_unscaled
        model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)  # at fault: rate_divided_twice
        for _ in range(each):
            rows = training[torch.randint(len(training), (64,))]
            loss = functional.mse_loss(model(scaled[rows]).squeeze(1), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            errors.append(functional.mse_loss(model(scaled[held_out]).squeeze(1), targets[held_out]).item())
    return {"error": sum(errors) / len(errors)}


four_folds.mistake(
    "rate_divided_twice", "UPD002", "OPT007",
    summary="The learning rate is divided by the number of rows and by the number of folds: it is 4e-7.",
    change="rate 2e-3",
)  # fmt: skip
four_folds.mistake(
    "later_folds_unscaled", "DAT001", onset=1600,
    summary="From the third fold on the model is given the raw columns.",
    change="every fold is scaled",
)  # fmt: skip


@healthy(steps=4800, adversarial="twelve trainings in one process; losses leap at each start, some are far slower")
def sweep_of_widths_and_rates(steps: int, seed: int) -> dict[str, float]:
    """A sweep over four widths and three rates, one after the other, the best kept."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed)
    fresh, truth = curves(seed + 1000)
    scores = {}
    for width, rate in itertools.product((8, 16, 32, 64), (0.02, 0.05, 0.1)):
        model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.8)
        for _ in range(max(1, steps // 12)):
            rows = torch.randint(len(inputs), (64,))
            loss = functional.mse_loss(model(inputs[rows]).squeeze(1), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            scores[width, rate] = functional.mse_loss(model(fresh).squeeze(1), truth).item()
    return {"loss": min(scores.values())}


@healthy(
    steps=3000, adversarial="each member is trained for a few steps and left alone for long; weights leap to a mean"
)
def federated_averaging(steps: int, seed: int) -> dict[str, float]:
    """Five clients train copies of the server's model on their own shares, and the server takes the mean."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=1500, noise=0.5)
    shares = torch.randperm(1500).chunk(5)
    server = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    for _ in range(max(1, steps // 30)):
        clients = []
        for share in shares:
            client = copy.deepcopy(server)
            optimizer = torch.optim.SGD(client.parameters(), lr=0.1)
            for _ in range(6):
                rows = share[torch.randint(len(share), (32,))]
                loss = functional.cross_entropy(client(pictures[rows]), labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            clients.append(client.state_dict())
        server.load_state_dict({name: sum(one[name] for one in clients) / 5 for name in clients[0]})
    share = share_correct(server, *glyphs(seed + 1000, noise=0.5))
    return {"loss": 1 - share, "accuracy": share}
