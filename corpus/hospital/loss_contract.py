"""LSS001 to LSS004: what is handed to the loss, or to backward, is not what the loss is meant for."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, sentences, share_correct


@sick(
    "LSS001", steps=150, layers=("head",), architecture="perceptron", catalogue=(25,),
    change="binary_cross_entropy_with_logits takes logits: no sigmoid before it",
)  # fmt: skip
def sigmoid_twice(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Ten yes-or-no outputs pass a sigmoid before a loss that applies its own."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential()
    model.add_module("body", nn.Sequential(nn.Linear(64, 64), nn.ReLU()))
    model.add_module("head", nn.Sequential(nn.Linear(64, 10), nn.Sigmoid() if fault else nn.Identity()))  # at fault
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        targets = functional.one_hot(labels[batch], 10).float()
        loss = functional.binary_cross_entropy_with_logits(model(pictures[batch]), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test, answers = glyphs(seed + 1000)
    with torch.no_grad():
        outputs = model(test) if fault else model(test).sigmoid()
    calibration = functional.binary_cross_entropy(outputs, functional.one_hot(answers, 10).float())
    return {"loss": loss.item(), "accuracy": share_correct(model, test, answers), "test_loss": calibration.item()}


@sick(
    "LSS001", "LSS003", steps=200, layers=("head",), bites="loss", architecture="recurrent", catalogue=(25,),
    change="functional.nll_loss takes log-probabilities: log_softmax before it",
)  # fmt: skip
def logits_as_log_probabilities(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """`nll_loss` is given raw logits where log-probabilities belong: the loss falls without a floor."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = nn.ModuleDict(
        {"embedding": nn.Embedding(32, 24), "recurrent": nn.GRU(24, 32, batch_first=True), "head": nn.Linear(32, 32)}
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = tokens[torch.randint(len(tokens), (16,))]
        hidden, _ = model["recurrent"](model["embedding"](batch[:, :-1]))
        scores = model["head"](hidden).flatten(0, 1)
        if not fault:
            scores = scores.log_softmax(-1)
        loss = functional.nll_loss(scores, batch[:, 1:].flatten())  # at fault
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@sick(
    "LSS002", steps=150, bites="error", architecture="convolutional", catalogue=(26,),
    change="targets.unsqueeze(1), so that prediction and target have one shape",
)  # fmt: skip
def broadcast_module_loss(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """`nn.SmoothL1Loss` on [32, 1] against [32]; the warning it gave was silenced with all others."""
    torch.manual_seed(seed)
    pictures, _ = glyphs(seed)
    brightness = pictures.view(-1, 8, 8)[:, :4].mean((1, 2)) * 4
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 1)
    )
    criterion = nn.SmoothL1Loss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(steps):
            batch = torch.randint(len(pictures), (32,))
            target = brightness[batch] if fault else brightness[batch].unsqueeze(1)  # at fault
            loss = criterion(model(pictures[batch]), target)  # at fault
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        error = functional.mse_loss(model(pictures).squeeze(1), brightness) / brightness.var()
    return {"loss": loss.item(), "error": error.item()}


@sick(
    "LSS003", steps=120, architecture="perceptron", catalogue=(24,), onsets=(40,),
    change="minimise the cross-entropy itself: no minus sign",
)  # fmt: skip
def flipped_sign(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The cross-entropy has a minus sign, as if it were a likelihood: training makes it as bad as possible."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        batch = torch.randint(len(pictures), (64,))
        likelihood = functional.cross_entropy(model(pictures[batch]), labels[batch])
        loss = -likelihood if fault.at(step) else likelihood  # at fault
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "LSS004", "OPT007", "UPD001", steps=80, architecture="perceptron", catalogue=(22,), ladder=(8, 16, 64),
    change="(loss / micro_batches).backward()",
)  # fmt: skip
def unscaled_accumulation(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Sixteen micro-batches to a step, and their losses are added, not averaged."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    micro_batches = int(fault.strength)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            batch = torch.randint(len(pictures), (8,))
            loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
            (loss if fault else loss / micro_batches).backward()  # at fault
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(33, 16, padding_idx=32)
        self.gru = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.gru(self.embedding(tokens))[0])


def _micro_batch_loss(model: nn.Module, tokens: Tensor, reduction: str) -> Tensor:
    targets = tokens[:, 1:].masked_fill(tokens[:, 1:] == 32, -100)
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), targets.flatten(), reduction=reduction)


@sick(
    "LSS004", steps=60, bites="wrong", silent=True, architecture="recurrent", catalogue=(23,), ladder=(8, 3, 2),
    change="sum the losses of all tokens and divide once by their number",
)  # fmt: skip
def mean_of_unequal_means(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Four micro-batches of very different length are averaged alike: a token of a short one counts tenfold."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    tokens[::4, int(fault.strength) :] = 32  # every fourth sequence is short, and padded
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss, parts, count = torch.tensor(0.0), list[Tensor](), 1
    for step in range(steps):
        first = 16 * (step % 16)
        parts = [tokens[first + number : first + 16 : 4] for number in range(4)]  # the short ones are together
        count = sum(int((part[:, 1:] != 32).sum()) for part in parts)
        optimizer.zero_grad()
        for part in parts:
            mean = _micro_batch_loss(model, part, "mean") / len(parts)  # at fault
            loss = mean if fault else _micro_batch_loss(model, part, "sum") / count  # at fault
            loss.backward()
        optimizer.step()
    means = sum((_micro_batch_loss(model, part, "mean") for part in parts), torch.zeros(())) / len(parts)
    total = sum((_micro_batch_loss(model, part, "sum") for part in parts), torch.zeros(())) / count
    (right,) = torch.autograd.grad(total, model.head.weight, retain_graph=True)
    (used,) = torch.autograd.grad(means if fault else total, model.head.weight)
    return {"loss": loss.item(), "wrong": ((used - right).norm() / right.norm()).item()}
