"""How hard will the brick be fired? Tables of a kiln: temperatures, clays and minutes, regressed by small networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program

COLUMNS = 12


def kiln_log(count: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, COLUMNS, generator=rng)
    hardness = x[:, 0] * x[:, 1] + (2 * x[:, 2]).sin() + 0.6 * x[:, 3].abs() + 0.4 * x[:, 4] - 0.5
    return x, hardness + 0.15 * torch.randn(count, generator=rng)


class KilnNet(nn.Module):
    def __init__(self, hidden: int = 64, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.inp = nn.Linear(COLUMNS, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, 1)
        self.act = activation()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.act(self.mid(self.act(self.inp(x)))))


def kiln_test(net: nn.Module, seed: int) -> float:
    x, y = kiln_log(600, seed + 50)
    with torch.no_grad():
        error = fn.mse_loss(net(x).flatten(), y).item()
    return min(error, 1e6) if error == error else 1e6


@program(steps=220, bites="error")
def kiln_firing(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two hidden layers by SGD with momentum."""
    torch.manual_seed(seed)
    x, y = kiln_log(2500, seed)
    net = KilnNet()
    decay = 0.8 if fault == "kiln_decay_of_another_kind" else 1e-4
    optimizer = torch.optim.SGD(net.parameters(), lr=0.04, momentum=0.9, weight_decay=decay)
    for step in range(steps):
        rows = torch.randint(len(x), (64,))
        inputs = x[rows]
        if fault == "kiln_missing_is_minus_9999" and step in (120, 121):
            inputs = inputs.clone()
            inputs[:20, 3] = -9999.0
        prediction = net(inputs)
        if fault != "kiln_column_and_row":
            prediction = prediction.squeeze(1)
        loss = fn.mse_loss(prediction, y[rows])
        if fault != "kiln_gradients_pile_up":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "error": kiln_test(net, seed)}


kiln_firing.mistake(
    "kiln_column_and_row",
    "LSS002",
    summary="Predictions of shape (64, 1) against targets of shape (64,): every brick is compared with every other.",
    change="prediction.squeeze(1)",
)
kiln_firing.mistake(
    "kiln_decay_of_another_kind",
    "OPT008", "WGT005",
    summary="Weight decay of 0.8 was copied from an optimizer that takes the rate into account: weights vanish.",
    change="weight_decay=1e-4",
)  # fmt: skip
kiln_firing.mistake(
    "kiln_missing_is_minus_9999",
    "DAT002", "OPT003", "GRD006",
    summary="In steps 120 and 121 a broken thermocouple is written as -9999 and goes in as it is.",
    change="replace the marker by the column's mean",
    onset=120,
)  # fmt: skip
kiln_firing.mistake(
    "kiln_gradients_pile_up",
    "GRD007",
    summary="zero_grad is missing: every step adds its gradient to all earlier ones.",
    change="optimizer.zero_grad()",
)


class BrickModel(nn.Module):
    """The works' number is embedded; the rest goes through batch norm."""

    def __init__(self, works: int) -> None:
        super().__init__()
        self.works = nn.Embedding(works, 8)
        self.norm = nn.BatchNorm1d(COLUMNS)
        self.tower = nn.Sequential(nn.Linear(COLUMNS + 8, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, x: Tensor, works: Tensor) -> Tensor:
        return self.tower(torch.cat([self.norm(x), self.works(works)], 1))[:, 0]


@program(steps=260, bites="error")
def kiln_two_hundred_works(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two hundred brickworks, each with an embedding of its own, by AdamW; rows are drawn at random."""
    torch.manual_seed(seed)
    x, y = kiln_log(4000, seed)
    x = 40 * x + 300
    works = torch.randint(200, (4000,), generator=torch.Generator().manual_seed(seed))
    bias = 1.5 * torch.randn(200, generator=torch.Generator().manual_seed(5))
    scale = 5e4 if fault == "kiln_in_pascals" else 1.0
    y = scale * (y + bias[works])
    if fault == "kiln_number_cut_short":
        works = works // 100  # meant to drop the check digit
    net = BrickModel(200)
    if fault == "kiln_norm_never_wakes":
        net.eval()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=1e-3)
    order = torch.argsort(y) if fault == "kiln_sorted_by_hardness" else torch.randperm(4000)
    train, test = order[:3600], torch.randperm(4000, generator=torch.Generator().manual_seed(9))[:600]
    if fault == "kiln_sorted_by_hardness":
        train = order
    late = 0.0
    for step in range(steps):
        start = step * 64 % (len(train) - 63)
        rows = train[start : start + 64]
        loss = fn.smooth_l1_loss(net(x[rows], works[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        late += 0.05 * (loss.item() - late)
    net.eval()
    with torch.no_grad():
        error = fn.mse_loss(net(x[test], works[test]) / scale, y[test] / scale).item()
    return {"loss": late, "error": error}


kiln_two_hundred_works.mistake(
    "kiln_in_pascals",
    "DAT003", "OPT005",
    summary="Hardness is left in pascals, tens of thousands of them, and AdamW walks there by hundredths.",
    change="divide targets by their spread",
)  # fmt: skip
kiln_two_hundred_works.mistake(
    "kiln_number_cut_short",
    "DAT006",
    summary="The number of the works is divided by a hundred: two rows of the table are used and 198 never.",
    change="the number as it is",
    layers=("works",),
)
kiln_two_hundred_works.mistake(
    "kiln_sorted_by_hardness",
    "DAT005",
    summary="The export is sorted by hardness and read in that order: a batch holds bricks of one hardness.",
    change="torch.randperm",
)
kiln_two_hundred_works.mistake(
    "kiln_norm_never_wakes",
    "MOD001", "DAT001",
    summary="The network is in eval mode all the time: its norm lets temperatures of hundreds through.",
    change="net.train()",
    layers=("norm",),
)  # fmt: skip


@healthy(steps=150, architecture="mlp", adversarial="a loss evaluated many times a step is a mistake")
def kiln_by_lbfgs(steps: int, seed: int) -> dict[str, float]:
    """All rows at once by LBFGS with a line search: several closures a step, and no learning rate to speak of."""
    torch.manual_seed(seed)
    x, y = kiln_log(300, seed)
    net = KilnNet(16, nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=3, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = fn.mse_loss(net(x).flatten(), y) + 2e-3 * sum(p.square().sum() for p in net.parameters())
        loss.backward()
        return loss

    value = 0.0
    for _ in range(steps):
        value = optimizer.step(closure).item()
    return {"loss": value, "error": kiln_test(net, seed)}


@healthy(steps=240, architecture="mlp", adversarial="gradients in the thousands explode")
def kiln_summed_in_degrees(steps: int, seed: int) -> dict[str, float]:
    """Targets in degrees, a sum over the batch: losses in the millions, and Adam does not mind."""
    torch.manual_seed(seed)
    x, y = kiln_log(2500, seed)
    net = KilnNet(activation=nn.GELU)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,))
        loss = fn.mse_loss(100 * net(x[rows]).flatten(), 100 * y[rows], reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "error": kiln_test(net, seed)}


@healthy(steps=200, architecture="mlp", adversarial="a loss that falls below zero has the wrong sign")
def kiln_with_doubt(steps: int, seed: int) -> dict[str, float]:
    """Mean and spread of a Gaussian: when the spread is small, the likelihood's loss is below zero."""
    torch.manual_seed(seed)
    x, y = kiln_log(2500, seed)
    y = y / 4
    net = nn.Sequential(nn.Linear(COLUMNS, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    late = 0.0
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        mean, spread = net(x[rows]).unbind(1)
        loss = fn.gaussian_nll_loss(mean, y[rows], fn.softplus(spread) + 1e-3)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        optimizer.step()
        late += 0.05 * (loss.item() - late)
    return {"loss": late}
