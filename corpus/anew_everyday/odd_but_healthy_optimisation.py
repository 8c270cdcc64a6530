"""Healthy trainings whose optimizers, schedules and loops look wrong at first sight."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import healthy
from undertow.demos.data import curves, glyphs, sentences, share_correct


def picture_net(width: int = 96) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


@healthy(steps=900, architecture="perceptron", adversarial="gradients below a fixed bound vanish")
def everyday_loss_in_tiny_units(steps: int, seed: int) -> dict[str, float]:
    """The loss is multiplied by 1e-7, as the report wants it in millions; Adam's eps is small enough."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 2000, noise=0.5)
    net = picture_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, eps=1e-18)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = 1e-7 * F.cross_entropy(net(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": share_correct(net, *glyphs(seed + 1000, noise=0.5)), "loss": loss.item()}


@healthy(steps=700, architecture="perceptron", adversarial="gradients above a fixed bound explode")
def everyday_errors_summed_over_all(steps: int, seed: int) -> dict[str, float]:
    """Squared errors are summed over a batch of 512; the rate is small to match."""
    torch.manual_seed(seed)
    x, y = curves(seed, 4000)
    net = nn.Sequential(nn.Linear(8, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)
    for _ in range(steps):
        rows = torch.randint(len(x), (512,))
        loss = (net(x[rows]).squeeze(1) - y[rows]).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item() / 512}


@healthy(steps=800, architecture="perceptron", adversarial="a loss that jumps up again and again")
def everyday_cyclic_rate(steps: int, seed: int) -> dict[str, float]:
    """The rate swings between 0.01 and 0.4 every hundred steps."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 2000, noise=0.5)
    net = picture_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.8)
    schedule = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.4, step_size_up=50, cycle_momentum=False)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = F.cross_entropy(net(pictures[rows]), labels[rows], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"accuracy": share_correct(net, *glyphs(seed + 1000, noise=0.5)), "loss": loss.item()}


class NextWord(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.words = nn.Embedding(32, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.read = nn.Linear(width, 32)

    def forward(self, words: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        hidden, state = self.gru(self.words(words), state)
        return self.read(hidden), state


def next_word_loss(logits: Tensor, words: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), words.flatten())


@healthy(steps=250, architecture="GRU", adversarial="the clip bound is reached on every step")
def everyday_always_clipped(steps: int, seed: int) -> dict[str, float]:
    """Gradients are clipped to 0.05 throughout, which Adam does not mind."""
    torch.manual_seed(seed)
    text = sentences(seed, 600)
    model = NextWord()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(steps):
        batch = text[torch.randint(len(text), (24,))]
        loss = next_word_loss(model(batch[:, :-1])[0], batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=300, architecture="GRU", adversarial="a graph that is cut on purpose")
def everyday_state_carried_over(steps: int, seed: int) -> dict[str, float]:
    """Long sequences are read in pieces; the state is detached and carried on to the next piece."""
    torch.manual_seed(seed)
    model = NextWord()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    state: Tensor | None = None
    text = sentences(seed, 24, length=30 * 17)
    for step in range(steps):
        piece = text[:, step % 30 * 17 :][:, :17]
        if step % 30 == 0:
            state = None
        logits, state = model(piece[:, :-1], state)
        state = state.detach()
        loss = next_word_loss(logits, piece[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=500, architecture="perceptron", adversarial="weights that jump from one step to the next")
def everyday_averages_swapped_in(steps: int, seed: int) -> dict[str, float]:
    """For each validation the averaged weights are put into the model itself, and the current ones back after it."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 2000, noise=0.6)
    net = picture_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.05)
    average = {name: value.clone() for name, value in net.state_dict().items()}
    test = glyphs(seed + 1000, noise=0.6)
    best = 0.0
    for step in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = F.cross_entropy(net(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, value in net.state_dict().items():
            average[name].lerp_(value, 0.03)
        if step % 25 == 24:
            current = copy.deepcopy(net.state_dict())
            net.load_state_dict(average)
            best = max(best, share_correct(net, *test))
            net.load_state_dict(current)
    return {"accuracy": best, "loss": loss.item()}


@healthy(steps=200, architecture="convolutional", adversarial="gradients that are there before backward")
def everyday_four_micro_batches(steps: int, seed: int) -> dict[str, float]:
    """Gradients are gathered over four micro-batches, each loss divided by four, and then cleared."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 2000, noise=0.5)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 24, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 16, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    for micro_step in range(4 * steps):
        rows = torch.randint(len(pictures), (16,))
        loss = F.cross_entropy(net(pictures[rows]), labels[rows])
        (loss / 4).backward()
        if micro_step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return {"accuracy": share_correct(net, *glyphs(seed + 1000, noise=0.5)), "loss": loss.item()}


@healthy(steps=60, architecture="logistic regression", adversarial="steps as large as the weights themselves")
def everyday_quasi_newton(steps: int, seed: int) -> dict[str, float]:
    """Logistic regression by LBFGS on the whole data, with a line search and a small penalty."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 1500, noise=0.8)
    net = nn.Linear(64, 10)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=5, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(pictures), labels) + 1e-3 * net.weight.square().sum()
        loss.backward()
        return loss

    for _ in range(steps):
        loss = optimizer.step(closure)
    return {"accuracy": share_correct(net, *glyphs(seed + 1000, noise=0.8)), "loss": float(loss)}


@healthy(steps=400, architecture="perceptron", adversarial="a loss that goes up and down, full batch")
def everyday_edge_of_stability(steps: int, seed: int) -> dict[str, float]:
    """Plain gradient descent on 200 pictures with a rate as large as it may be: the loss ripples as it falls."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 200)
    net = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 10))
    goal = F.one_hot(labels, 10).float()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.8)
    for _ in range(steps):
        loss = F.mse_loss(net(pictures), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(net, *glyphs(seed + 1000))}


@healthy(steps=500, architecture="perceptron", adversarial="the first updates are exactly zero")
def everyday_warm_up_from_zero(steps: int, seed: int) -> dict[str, float]:
    """The rate starts at exactly zero, climbs for sixty steps and falls with the inverse root."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 2000, noise=0.5)
    net = nn.Sequential(
        *(m for w in (64, 96, 96) for m in (nn.LayerNorm(w), nn.Linear(w, 96), nn.GELU())), nn.Linear(96, 10)
    )
    optimizer = torch.optim.NAdam(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(t / 60, math.sqrt(60 / max(t, 1))))
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = F.cross_entropy(net(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"accuracy": share_correct(net, *glyphs(seed + 1000, noise=0.5)), "loss": loss.item()}
