"""Who likes what: factors of users and of items, learned in turn."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program

USERS, ITEMS, RANK = 400, 300, 6


class Tastes:
    """A table of ratings with six hidden tastes, of which a fifth is known."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        users = torch.randn(USERS, RANK, generator=generator)
        items = torch.randn(ITEMS, RANK, generator=generator)
        ratings = users @ items.T / RANK**0.5
        ratings = ratings + 0.2 * torch.randn(ratings.shape, generator=generator)
        known = torch.rand(USERS, ITEMS, generator=generator) < 0.2
        self.rows = known.nonzero()
        self.ratings = ratings[known]
        hidden = (~known).nonzero()[::37]
        self.test = hidden, ratings[hidden[:, 0], hidden[:, 1]]

    def batch(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        at = torch.randint(len(self.rows), (size,))
        return self.rows[at, 0], self.rows[at, 1], self.ratings[at]


def factor_table(count: int) -> nn.Embedding:
    table = nn.Embedding(count, RANK)
    nn.init.normal_(table.weight, std=0.5)
    return table


@program(steps=6000, bites="error")
def tastes_in_turn(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Ten steps for the users, ten for the items, and so on: two optimizers that take turns."""
    torch.manual_seed(seed)
    tastes = Tastes(seed)
    users, items = factor_table(USERS), factor_table(ITEMS)
    decay = {"users": 1e-5, "items": 1e-5}
    if mistake == "decay_of_a_tenth":
        decay["items"] = 0.1  # at fault: decay_of_a_tenth
    for_users = torch.optim.Adam(users.parameters(), lr=1e-2, weight_decay=decay["users"])
    if mistake == "users_twice":
        for_items = torch.optim.Adam(users.parameters(), lr=1e-2, weight_decay=decay["items"])  # at fault: users_twice
    else:
        for_items = torch.optim.Adam(items.parameters(), lr=1e-2, weight_decay=decay["items"])

    def predict(user: Tensor, item: Tensor) -> Tensor:
        if mistake == "hashed_to_sixteen_rows":
            user = user * 31 % 16  # at fault: hashed_to_sixteen_rows
        return (users(user) * items(item)).sum(1)

    for step in range(steps):
        user, item, rating = tastes.batch(512)
        loss = functional.mse_loss(predict(user, item), rating)
        optimizer = for_users if step // 10 % 2 == 0 else for_items
        users.zero_grad()
        items.zero_grad()
        loss.backward()
        optimizer.step()
    (rows, ratings) = tastes.test
    with torch.no_grad():
        return {"error": functional.mse_loss(predict(rows[:, 0], rows[:, 1]), ratings).item()}


tastes_in_turn.mistake(
    "users_twice", "UPD003", layers=("items",),
    summary="Both optimizers are built over the users' table, copied and not changed.",
    change="Adam(items.parameters())",
)  # fmt: skip
tastes_in_turn.mistake(
    "hashed_to_sixteen_rows", "DAT006", layers=("users",),
    summary="Users are hashed to sixteen rows of a table of four hundred.",
    change="a row for each user",
)  # fmt: skip
tastes_in_turn.mistake(
    "decay_of_a_tenth", "OPT008", layers=("items",),
    summary="A weight decay of 0.1 on the items' table outweighs what the ratings say.",
    change="weight decay 1e-5",
)  # fmt: skip


@healthy(steps=2500, adversarial="most rows of a table have no gradient at a step, and ids follow a steep law")
def popular_and_rare(steps: int, seed: int) -> dict[str, float]:
    """Sparse gradients and SparseAdam; few items are asked for often, most are rare."""
    torch.manual_seed(seed)
    users, items = nn.Embedding(USERS, RANK, sparse=True), nn.Embedding(4000, RANK, sparse=True)
    nn.init.normal_(users.weight, std=0.3)
    nn.init.normal_(items.weight, std=0.3)
    true_users, true_items = torch.randn(USERS, RANK), torch.randn(4000, RANK)
    optimizer = torch.optim.SparseAdam([*users.parameters(), *items.parameters()], lr=1e-2)
    popularity = 1 / (torch.arange(4000) + 5.0)
    losses = []
    for _ in range(steps):
        user, item = torch.randint(USERS, (256,)), torch.multinomial(popularity, 256, replacement=True)
        rating = (true_users[user] * true_items[item]).sum(1) / 2.5
        loss = functional.mse_loss((users(user) * items(item)).sum(1), rating)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-100:]) / len(losses[-100:])}


@healthy(steps=250, adversarial="one table never gets a gradient and leaps at every step, solved for exactly")
def least_squares_in_turn(steps: int, seed: int) -> dict[str, float]:
    """Users are solved for in closed form; items take a gradient step in between."""
    torch.manual_seed(seed)
    tastes = Tastes(seed)
    users, items = factor_table(USERS), factor_table(ITEMS)
    mask = torch.zeros(USERS, ITEMS)
    table = torch.zeros(USERS, ITEMS)
    mask[tastes.rows[:, 0], tastes.rows[:, 1]] = 1.0
    table[tastes.rows[:, 0], tastes.rows[:, 1]] = tastes.ratings
    optimizer = torch.optim.SGD(items.parameters(), lr=20.0, momentum=0.5)
    for _ in range(steps):
        with torch.no_grad():
            gram = torch.einsum("ui,ij,ik->ujk", mask, items.weight, items.weight) + 0.5 * torch.eye(RANK)
            right = torch.einsum("ui,ij->uj", table * mask, items.weight)
            users.weight.copy_(torch.linalg.solve(gram, right))
        predicted = users.weight.detach() @ items.weight.T
        loss = ((predicted - table).square() * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rows, ratings = tastes.test
    with torch.no_grad():
        return {"loss": functional.mse_loss((users(rows[:, 0]) * items(rows[:, 1])).sum(1), ratings).item()}
