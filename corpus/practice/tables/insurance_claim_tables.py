"""Insurance claims: a table with categories and numbers. Is the claim false, and what will it cost?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

REGIONS, MAKES, NUMBERS = 12, 8, 6


def claims_table(seed: int, n: int = 6000) -> dict[str, Tensor]:
    gen = torch.Generator().manual_seed(seed)
    region = torch.randint(REGIONS, (n,), generator=gen)
    make = torch.randint(MAKES, (n,), generator=gen)
    numbers = torch.randn(n, NUMBERS, generator=gen)
    a, b, c = numbers[:, 0], numbers[:, 1], numbers[:, 2]
    suspicion = 3 * a * b + 1.5 * c + (region % 3 - 1).float() * 1.5
    cost = torch.sin(1.5 * a) + 0.7 * b - 0.4 * c * a + 0.3 * (make % 4).float() + 0.1 * torch.randn(n, generator=gen)
    return {"region": region, "make": make, "numbers": numbers, "false": (suspicion > 0).float(), "cost": cost}


def rows(table: dict[str, Tensor], index: Tensor) -> dict[str, Tensor]:
    return {column: values[index] for column, values in table.items()}


class ClaimNet(nn.Module):
    def __init__(self, depth: int = 3, width: int = 64, squash: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.region = nn.Embedding(REGIONS, 4)
        self.make = nn.Embedding(MAKES, 4)
        layers: list[nn.Module] = [nn.Linear(8 + NUMBERS, width), squash()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), squash()]
        self.body = nn.Sequential(*layers)
        self.out = nn.Linear(width, 1)

    def forward(self, row: dict[str, Tensor]) -> Tensor:
        x = torch.cat([self.region(row["region"]), self.make(row["make"]), row["numbers"]], 1)
        return self.out(self.body(x))


def linears(net: nn.Module) -> list[nn.Linear]:
    return [m for m in net.modules() if isinstance(m, nn.Linear)]


@program(steps=200, bites="accuracy")
def claims_false(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Is the claim false? Five ReLU layers, Adamax."""
    torch.manual_seed(seed)
    net = ClaimNet(depth=5)
    for layer in linears(net):
        if fault == "claims_unit_normal":
            nn.init.normal_(layer.weight)
        elif fault == "claims_all_alike":
            nn.init.constant_(layer.weight, 0.03)
            nn.init.zeros_(layer.bias)
        else:
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    data, fresh = claims_table(seed), claims_table(seed + 500, 600)
    criterion = nn.BCEWithLogitsLoss()
    opt = torch.optim.Adamax(net.parameters(), lr=5e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        batch = rows(data, torch.randint(6000, (64,)))
        loss = criterion(net(batch).squeeze(1), batch["false"])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        logits = net(fresh).squeeze(1)
        fresh_loss = criterion(logits, fresh["false"]).item()
    return {
        "loss": loss.item(),
        "fresh": min(fresh_loss, 1e6),
        "accuracy": ((logits > 0).float() == fresh["false"]).float().mean().item(),
    }


claims_false.mistake(
    "claims_unit_normal",
    "WGT003", "GRD002", "OPT001",
    summary="All weights come from a standard normal, whatever the width of the layer.",
    change="He initialisation",
    bites="fresh",
)  # fmt: skip
claims_false.mistake(
    "claims_all_alike",
    "WGT002",
    summary="All weights start at 0.03, so that 'runs are comparable'.",
    change="draw the weights",
)


@program(steps=200, bites="error")
def claims_cost(steps: int, seed: int, fault: str) -> dict[str, float]:
    """What will it cost? Three tanh layers, RAdam, the rate falls at the end."""
    torch.manual_seed(seed)
    scale = {"claims_in_pence": 100.0, "claims_columns_a_little_large": 30.0}.get(fault, 1.0)
    data, fresh = claims_table(seed), claims_table(seed + 500, 600)
    for table in (data, fresh):
        table["numbers"] = table["numbers"] * scale
    net = ClaimNet(depth=3, squash=nn.Tanh)
    opt = torch.optim.RAdam(net.parameters(), lr=1e-2)
    later = torch.optim.lr_scheduler.MultiStepLR(opt, [max(1, int(steps * 0.8))], gamma=0.2)
    loss = torch.zeros(())
    for _ in range(steps):
        batch = rows(data, torch.randint(6000, (64,)))
        guess = net(batch)
        if fault != "claims_column_against_row":
            guess = guess.squeeze(1)
        loss = (guess - batch["cost"]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        later.step()
    with torch.no_grad():
        error = (net(fresh).squeeze(1) - fresh["cost"]).square().mean().item()
    return {"loss": loss.item(), "error": error}


claims_cost.mistake(
    "claims_in_pence",
    "DAT001", "ACT002",
    summary="Amounts in pence: the numeric columns are a hundred times too large for the tanh layers.",
    change="standardise the columns",
    layers=("body.0", "body.1"),
)  # fmt: skip
claims_cost.mistake(
    "claims_columns_a_little_large",
    "DAT001", "ACT002",
    summary="The numeric columns are divided by the wrong deviation: thirty times too large.",
    change="standardise the columns",
    layers=("body.0", "body.1"),
)  # fmt: skip
claims_cost.mistake(
    "claims_column_against_row",
    "LSS002",
    summary="A column of guesses minus a row of costs: every guess is compared with every claim.",
    change="squeeze the guesses",
)


@program(steps=200, bites="loss", adversarial="gradients of hundreds explode: the loss is a sum in pence")
def claims_summed_in_pence(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The absolute error in pence, added over the batch; Adam does not mind."""
    torch.manual_seed(seed)
    data = claims_table(seed)
    net = ClaimNet(depth=2)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        batch = rows(data, torch.randint(6000, (64,)))
        loss = 100 * (net(batch).squeeze(1) - batch["cost"]).abs().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


@program(steps=200, bites="loss", adversarial="a parameter without gradient is cut off: the two parts take turns")
def claims_if_and_how_much(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Odd steps teach the classifier, even steps the cost; each has its own optimizer and net in one module."""
    torch.manual_seed(seed)
    data = claims_table(seed)
    both = nn.ModuleDict({"if": ClaimNet(depth=2), "much": ClaimNet(depth=2)})
    opts = [torch.optim.Adam(both["if"].parameters(), lr=3e-3), torch.optim.Adam(both["much"].parameters(), lr=3e-3)]
    losses = [1.0, 1.0]
    for i in range(steps):
        batch = rows(data, torch.randint(6000, (64,)))
        if i % 2 == 0:
            loss = nn.functional.binary_cross_entropy_with_logits(both["if"](batch).squeeze(1), batch["false"])
        else:
            loss = nn.functional.mse_loss(both["much"](batch).squeeze(1), batch["cost"])
        opts[i % 2].zero_grad()
        loss.backward()
        opts[i % 2].step()
        losses[i % 2] = loss.item()
    return {"loss": sum(losses)}


@program(steps=180, bites="loss", adversarial="one claim in thirty is false: few positive labels are sorted batches")
def claims_rarely_false(steps: int, seed: int, fault: str) -> dict[str, float]:
    """False claims are rare; they weigh ten times as much."""
    torch.manual_seed(seed)
    data = claims_table(seed, 3000)
    keep = (data["false"] == 0) | (torch.rand(3000) < 0.035)
    data = rows(data, keep.nonzero().squeeze(1))
    net = ClaimNet(depth=2)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(10.0))
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.05)
    recent: list[float] = []
    for _ in range(steps):
        batch = rows(data, torch.randint(len(data["cost"]), (128,)))
        loss = criterion(net(batch).squeeze(1), batch["false"])
        opt.zero_grad()
        loss.backward()
        opt.step()
        recent = [*recent[-19:], loss.item()]
    return {"loss": sum(recent) / len(recent)}
