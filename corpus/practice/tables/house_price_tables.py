"""House prices from a table: categories through embeddings, numbers through an MLP, DataLoader with dict batches."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset

from corpus.case import program


class Row(TypedDict):
    categories: Tensor
    numbers: Tensor
    price: Tensor


class Houses(Dataset[Row]):
    """Price depends on the district (40), the street (300), the area, the age and the owner's income."""

    def __init__(
        self, seed: int, count: int = 1024, raw: bool = False, currency: float = 1.0, bug: bool = False
    ) -> None:
        effects = torch.Generator().manual_seed(2024)
        district, street = torch.randn(40, generator=effects), 0.5 * torch.randn(300, generator=effects)
        generator = torch.Generator().manual_seed(seed)
        self.categories = torch.stack(
            [torch.randint(40, (count,), generator=generator), torch.randint(300, (count,), generator=generator)], 1
        )
        self.numbers = torch.randn(count, 6, generator=generator)
        signal = district[self.categories[:, 0]] + street[self.categories[:, 1]]
        self.price = signal + self.numbers[:, 0] - 0.5 * self.numbers[:, 1] * self.numbers[:, 2]
        self.price = currency * (self.price + 0.1 * torch.randn(count, generator=generator))
        if raw:
            self.numbers = self.numbers * torch.tensor([40.0, 30.0, 3.0, 2e4, 1.0, 5e3]) + torch.tensor(
                [120.0, 60.0, 5.0, 6e4, 0.0, 2e4]
            )
        if bug:
            self.categories = self.categories // 1000  # the ids were meant to be thousands

    def __len__(self) -> int:
        return len(self.price)

    def __getitem__(self, index: int) -> Row:
        return {"categories": self.categories[index], "numbers": self.numbers[index], "price": self.price[index]}


class TabularNet(nn.Module):
    def __init__(self, keep_last_dimension: bool) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(40, 8), nn.Embedding(300, 12)])
        self.numeric = nn.Linear(6, 24)
        self.body = nn.Sequential(nn.Linear(44, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.out = nn.Linear(32, 1)
        self.keep_last_dimension = keep_last_dimension

    def forward(self, batch: Row) -> Tensor:
        parts = [table(batch["categories"][:, i]) for i, table in enumerate(self.embeddings)]
        hidden = self.body(torch.cat([*parts, torch.relu(self.numeric(batch["numbers"]))], dim=1))
        price = self.out(hidden)
        return price if self.keep_last_dimension else price.squeeze(1)


def initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.constant_(module.weight, 0.05)


@program(steps=160, bites="error")
def house_prices(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Regression on a table with a one-cycle schedule; the error is relative to the spread of the prices."""
    torch.manual_seed(seed)
    currency = 2e5 if fault == "prices_in_cents" else 1.0
    houses = Houses(seed, raw=fault == "income_not_scaled", currency=currency, bug=fault == "every_category_is_zero")
    loader = DataLoader(houses, batch_size=64, shuffle=True, num_workers=0)
    net = TabularNet(keep_last_dimension=fault == "prices_broadcast")
    if fault == "weights_all_the_same":
        net.apply(initialise)
    rate = 0.05
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    scheduler = OneCycleLR(optimizer, max_lr=rate, total_steps=steps + 1)
    done = 0
    while done < steps:
        for batch in loader:
            loss = ((net(batch) - batch["price"]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            done += 1
            if done == steps:
                break
    test = Houses(seed, raw=fault == "income_not_scaled", currency=currency, bug=fault == "every_category_is_zero")
    with torch.no_grad():
        prediction = net({"categories": test.categories, "numbers": test.numbers, "price": test.price}).flatten()
    error = ((prediction - test.price).square().mean().sqrt() / test.price.std()).item()
    return {"error": min(error, 10.0) if error == error else 10.0}


house_prices.mistake(
    "prices_broadcast",
    "LSS002",
    summary="The prediction is [N, 1] and the price [N]: the loss compares everyone with everyone.",
    change="squeeze the prediction",
)
house_prices.mistake(
    "income_not_scaled",
    "DAT001",
    summary="The numeric columns come raw: incomes of 60,000 beside a zero-one flag.",
    change="standardise the columns",
)
house_prices.mistake(
    "prices_in_cents",
    "DAT003",
    summary="Prices in cents, hundreds of thousands, under clipped SGD: the prediction never gets there.",
    change="standardise the target",
)
house_prices.mistake(
    "every_category_is_zero",
    "DAT006",
    summary="A wrong integer division maps every category to 0: one row of each table is ever used.",
    change="leave the division out",
    layers=("embeddings",),
)
house_prices.mistake(
    "weights_all_the_same",
    "WGT002",
    summary="An initialisation function gives every weight the value 0.05: all units of a layer are one unit.",
    change="the default initialisation",
)
