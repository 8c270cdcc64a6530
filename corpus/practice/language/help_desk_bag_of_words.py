"""Which desk gets the ticket? Bags of words with a small tower behind them; a help desk's first own model."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from corpus.case import program

VOCABULARY, DESKS, WORDS = 300, 5, 12


def tickets_of(seed: int, n: int = 1600) -> TensorDataset:
    g = torch.Generator().manual_seed(seed + 31)
    desk = torch.randint(DESKS, (n,), generator=g)
    liked = torch.stack([torch.randperm(VOCABULARY, generator=g)[:25] for _ in range(DESKS)])
    own = liked[desk][torch.arange(n)[:, None], torch.randint(25, (n, WORDS), generator=g)]
    any_word = torch.randint(VOCABULARY, (n, WORDS), generator=g)
    return TensorDataset(torch.where(torch.rand(n, WORDS, generator=g) < 0.35, own, any_word), desk)


class Tower(nn.Module):
    def __init__(self, width: int, depth: int, in_a_list: bool) -> None:
        super().__init__()
        layers = [nn.Linear(width, width) for _ in range(depth)]
        self.layers = layers if in_a_list else nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


class Router(nn.Module):
    def __init__(self, fault: str = "", width: int = 24) -> None:
        super().__init__()
        if fault == "tickets_table_is_a_tensor":
            self.table = torch.randn(VOCABULARY, width, requires_grad=True)
        else:
            self.table = nn.Parameter(torch.randn(VOCABULARY, width))
        self.tower = Tower(width, 3, fault == "tickets_layers_in_a_list")
        self.out = nn.Linear(width, DESKS)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.tower(self.table[words].mean(1)))


def validate(model: nn.Module, data: TensorDataset) -> float:
    words, desk = data.tensors
    with torch.no_grad():
        return (model(words[1200:]).argmax(1) == desk[1200:]).float().mean().item()


def batches_of(data: TensorDataset, seed: int) -> DataLoader[tuple[Tensor, ...]]:
    train = TensorDataset(*(t[:1200] for t in data.tensors))
    return DataLoader(train, batch_size=48, shuffle=True, generator=torch.Generator().manual_seed(seed))


@program(steps=175, bites="accuracy")
def tickets(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Seven epochs of twenty-five batches; after the second the best weights so far are put back."""
    torch.manual_seed(seed)
    data = tickets_of(seed)
    model = Router(fault)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    tower: list[nn.Parameter] = [layer.weight for layer in model.tower.layers]  # pyright: ignore
    start = [w.detach().clone() for w in tower]
    done, best, kept, loss = 0, -1.0, {}, torch.tensor(0.0)
    while done < steps:
        for words, desk in batches_of(data, seed + done):
            if done == steps:
                break
            loss = functional.cross_entropy(model(words), desk)
            if fault == "tickets_cleared_too_late":
                loss.backward()
                optimizer.zero_grad()
            else:
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            done += 1
        score = validate(model, data)
        if score > best:
            best, kept = score, copy.deepcopy(dict(model.named_parameters()))
        if done == 50:
            for name, value in kept.items():
                if fault == "tickets_puts_back_new_parameters":
                    owner, _, leaf = name.rpartition(".")
                    setattr(model.get_submodule(owner), leaf, nn.Parameter(value.detach().clone()))
                else:
                    model.get_parameter(name).data.copy_(value)
    moved = sum((w.detach() - s).norm().item() for w, s in zip(tower, start))
    return {"loss": loss.item(), "accuracy": validate(model, data), "moved": moved}


tickets.mistake(
    "tickets_layers_in_a_list",
    "UPD003",
    summary="The tower's layers are in a plain list: parameters() does not know them, and they are never trained.",
    change="nn.ModuleList",
    layers=("tower",),
    bites="moved",
    silent=True,
)
tickets.mistake(
    "tickets_table_is_a_tensor",
    "UPD003",
    summary="The word table is a tensor that requires a gradient, but no parameter: the optimizer never saw it.",
    change="nn.Parameter",
    layers=("table",),
)
tickets.mistake(
    "tickets_cleared_too_late",
    "UPD003", "GRD003", "GRD004", "UPD002", "OPT005",
    summary="The gradients are cleared between backward and step: the optimizer has nothing to do.",
    change="clear them before backward",
)  # fmt: skip
tickets.mistake(
    "tickets_puts_back_new_parameters",
    "UPD003",
    summary="After the second epoch the best weights come back as new parameters; the optimizer moves the old ones.",
    change="copy the values into the parameters",
    onset=50,
)


@program(steps=150, bites="accuracy", adversarial="rows of a table that get no gradient are dead")
def tickets_averaged(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A sum of words through EmbeddingBag; the mean of the weights is swapped in to validate and out again."""
    torch.manual_seed(seed)
    data = tickets_of(seed)
    model = nn.Sequential(nn.EmbeddingBag(VOCABULARY, 24, mode="sum"), nn.LayerNorm(24), nn.Linear(24, DESKS))
    mean = copy.deepcopy(model)
    optimizer = torch.optim.NAdam(model.parameters(), lr=4e-3)
    loss, done, score = torch.tensor(0.0), 0, 0.0
    while done < steps:
        for words, desk in batches_of(data, seed + done):
            if done == steps:
                break
            loss = functional.cross_entropy(model(words), desk)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            with torch.no_grad():
                for m, p in zip(mean.parameters(), model.parameters()):
                    m.lerp_(p, 0.05)
        now = {k: v.clone() for k, v in model.state_dict().items()}
        model.load_state_dict(mean.state_dict())
        score = validate(model, data)
        model.load_state_dict(now)
    return {"loss": loss.item(), "accuracy": score}


@program(steps=150, bites="accuracy", adversarial="parameters without a gradient in most steps are cut off")
def tickets_of_two_towns(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two towns have a head each, and a step sees tickets of one town: the other head has no gradient then."""
    torch.manual_seed(seed)
    data = tickets_of(seed)
    words, desk = data.tensors
    body = nn.Sequential(nn.EmbeddingBag(VOCABULARY, 24), nn.Linear(24, 24), nn.ReLU())
    heads = nn.ModuleList([nn.Linear(24, DESKS), nn.Linear(24, DESKS)])
    optimizer = torch.optim.Adam([*body.parameters(), *heads.parameters()], lr=8e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        town = 0 if step % 4 else 1
        rows = torch.randint(1200, (48,))
        goal = desk[rows] if town == 0 else (desk[rows] + 2) % DESKS
        loss = functional.cross_entropy(heads[town](body(words[rows])), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = (heads[0](body(words[1200:])).argmax(1) == desk[1200:]).float().mean().item()
    return {"loss": loss.item(), "accuracy": right}
