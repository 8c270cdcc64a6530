"""Sort support tickets: a bag of words, a student of a larger model, and networks with rounded activations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program
from undertow.demos.case import Fault, sick

WORDS, LENGTH, TOPICS = 300, 16, 8


def tickets(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Words of a ticket, and its topic: each topic has words of its own, and a third of the words is one of them."""
    own = torch.randint(WORDS, (TOPICS, 25), generator=torch.Generator().manual_seed(44))
    g = torch.Generator().manual_seed(seed)
    topic = torch.randint(TOPICS, (count,), generator=g)
    words = torch.randint(WORDS, (count, LENGTH), generator=g)
    typical = own[topic].gather(1, torch.randint(25, (count, LENGTH), generator=g))
    return torch.where(torch.rand(count, LENGTH, generator=g) < 0.3, typical, words), topic


def accuracy(model: nn.Module, seed: int) -> float:
    words, topic = tickets(seed + 77, 1500)
    model.eval()
    with torch.no_grad():
        return (model(words).argmax(1) == topic).float().mean().item()


class BagOfWords(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, TOPICS))

    def forward(self, words: Tensor) -> Tensor:
        return self.mlp(self.words(words))


class Fit:
    """One call per batch; keeps whatever a batch needs."""

    def __init__(self, model: nn.Module, afresh: bool, **settings: Any) -> None:
        self.model, self.afresh, self.settings = model, afresh, settings
        self.optimizer = self.make_optimizer()

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), **self.settings)

    def __call__(self, words: Tensor, topic: Tensor) -> float:
        if self.afresh:
            self.optimizer = self.make_optimizer()  # at fault: tickets_optimizer_for_each_batch
        loss = F.cross_entropy(self.model(words), topic)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


@program(steps=800, bites="loss")
def ticket_bag_of_words(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Bag of embedded words with a hidden layer; a callable object makes the steps."""
    torch.manual_seed(seed)
    words, topic = tickets(seed, 40000)
    if mistake == "tickets_debug_slice":
        words, topic = words[:48], topic[:48]  # at fault: tickets_debug_slice
    model = BagOfWords()
    fit = Fit(model, afresh=mistake == "tickets_optimizer_for_each_batch", lr=1e-2)
    validation_words, validation_topic = tickets(seed + 50, 500)
    for step in range(steps):
        model.train()
        rows = torch.randint(len(words), (64,))
        fit(words[rows], topic[rows])
        if step % 20 == 19:
            model.eval()
            with torch.no_grad():
                F.cross_entropy(model(validation_words), validation_topic)
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(validation_words), validation_topic).item()
    return {"accuracy": accuracy(model, seed), "loss": loss}


ticket_bag_of_words.mistake(
    "tickets_optimizer_for_each_batch",
    "OPT008",
    summary="Adam is made anew for every batch, so that it never has a memory.",
    change="one optimizer",
)
ticket_bag_of_words.mistake(
    "tickets_debug_slice",
    "OPT006",
    summary="The slice of 48 tickets from a debugging session is still there.",
    change="all tickets",
)


class Teacher(nn.Module):
    """Knows which words belong to which topic: stands for a large model that is only asked."""

    def __init__(self) -> None:
        super().__init__()
        own = torch.randint(WORDS, (TOPICS, 25), generator=torch.Generator().manual_seed(44))
        votes = torch.zeros(WORDS, TOPICS)
        for topic in range(TOPICS):
            votes[own[topic], topic] += 1.0
        self.votes = nn.EmbeddingBag.from_pretrained(votes, freeze=True, mode="sum")

    def forward(self, words: Tensor) -> Tensor:
        return 1.2 * self.votes(words)


@sick(
    "LSS001", "LSS003", steps=800, change="log_softmax for the student", bites="divergence", architecture="bag of words"
)
def tickets_divergence(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """kl_div is given the student's probabilities where it wants their logarithms."""
    torch.manual_seed(seed)
    words, _ = tickets(seed, 40000)
    teacher, student = Teacher(), BagOfWords()
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    temperature = 2.0
    squash = F.softmax if fault else F.log_softmax
    for _ in range(steps):
        batch = words[torch.randint(len(words), (64,))]
        with torch.no_grad():
            wanted = F.softmax(teacher(batch) / temperature, dim=1)
        given = squash(student(batch) / temperature, dim=1)
        loss = temperature**2 * F.kl_div(given, wanted, reduction="batchmean")  # at fault: tickets_divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test, _ = tickets(seed + 77, 1500)
    student.eval()
    with torch.no_grad():
        wanted, given = (F.log_softmax(m(test) / temperature, dim=1) for m in (teacher, student))
        divergence = F.kl_div(given, wanted, reduction="batchmean", log_target=True).item()
    return {"divergence": divergence, "accuracy": accuracy(student, seed), "loss": loss.item()}


class RoundStraightThrough(torch.autograd.Function):
    """Rounds to sixteen levels on the way forward and lets the gradient pass on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x * 4).clamp(-8, 7) / 4

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class FourBits(nn.Module):
    def __init__(self, own_function: bool) -> None:
        super().__init__()
        self.own_function = own_function

    def forward(self, x: Tensor) -> Tensor:
        if self.own_function:
            return RoundStraightThrough.apply(x)
        return torch.round(x * 4).clamp(-8, 7) / 4  # at fault: tickets_rounded_without_estimator


@sick(
    "GRD004",
    steps=800,
    change="a straight-through estimator",
    layers=("0", "2", "3"),
    bites="accuracy",
    architecture="bag of words",
)
def tickets_rounded_without_estimator(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Activations are rounded to four bits by torch.round, whose gradient is zero everywhere."""
    torch.manual_seed(seed)
    words, topic = tickets(seed, 40000)
    own = not fault
    model = nn.Sequential(
        nn.EmbeddingBag(WORDS, 48),
        FourBits(own),
        nn.Linear(48, 48),
        nn.LayerNorm(48),
        FourBits(own),
        nn.Linear(48, TOPICS),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        rows = torch.randint(len(words), (64,))
        loss = F.cross_entropy(model(words[rows]), topic[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": accuracy(model, seed), "loss": loss.item()}
