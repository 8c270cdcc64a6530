"""Whose print is it? A siamese network learns distances between noisy copies of a few patterns."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, relu

from corpus.case import program

PEOPLE, PIXELS = 10, 49


class Prints:
    """Noisy copies of one pattern per person, and triplets of them."""

    def __init__(self, seed: int, noise: float = 1.0) -> None:
        self.rng = torch.Generator().manual_seed(seed)
        self.patterns = torch.randn(PEOPLE, PIXELS, generator=self.rng)
        self.noise = noise

    def of(self, people: Tensor) -> Tensor:
        return self.patterns[people] + self.noise * torch.randn(len(people), PIXELS, generator=self.rng)

    def triplet(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        me = torch.randint(PEOPLE, (n,), generator=self.rng)
        other = (me + torch.randint(1, PEOPLE, (n,), generator=self.rng)) % PEOPLE
        return self.of(me), self.of(me), self.of(other)


class Embedder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(PIXELS, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU())
        self.project = nn.Linear(48, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.body(x))


@torch.no_grad()
def nearest_is_right(net: nn.Module, prints: Prints) -> float:
    """Share of new prints whose nearest reference is of the same person."""
    people = torch.arange(PEOPLE).repeat(20)
    reference, query = net(prints.of(torch.arange(PEOPLE))), net(prints.of(people))
    distance = (query[:, None] - reference[None]).norm(dim=-1).nan_to_num(1e9)
    return (distance.argmin(1) == people).float().mean().item()


def distance_by_hand(a: Tensor, b: Tensor) -> Tensor:
    return ((a - b) ** 2).sum(1).sqrt()


@program(steps=120, bites="accuracy")
def print_matcher(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Triplet loss with a margin of one."""
    torch.manual_seed(seed)
    prints = Prints(seed)
    net = Embedder()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        anchor, same, other = prints.triplet(40)
        if fault == "print_against_itself" and step >= 50:
            same[3] = anchor[3]  # the second shard holds a few prints twice
        a, s, o = net(anchor), net(same), net(other)
        near, far = nn.functional.pairwise_distance(a, s), nn.functional.pairwise_distance(a, o)
        if fault == "print_against_itself":
            near, far = distance_by_hand(a, s), distance_by_hand(a, o)
        if fault == "only_pulled_together":
            loss = near.square().mean()
        elif fault == "margin_the_wrong_way":
            loss = relu(far - near + 1.0).mean()
        else:
            loss = relu(near - far + 1.0).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"accuracy": nearest_is_right(net, prints)}


print_matcher.mistake(
    "print_against_itself",
    "NUM001", "NUM003", "NUM002", "NUM004",
    summary="The root of a distance of zero: its derivative is infinite when a print meets itself.",
    change="an eps under the root",
    onset=50,
)  # fmt: skip
print_matcher.mistake(
    "only_pulled_together",
    "ACT003",
    summary="Only equal pairs are in the loss, so everybody is mapped to one point.",
    change="push the others away",
    layers=("project", "body"),
)
print_matcher.mistake(
    "margin_the_wrong_way",
    "LSS003", "ACT003", "OPT005",
    summary="Near and far are exchanged in the margin: the same person is pushed away.",
    change="near minus far",
)  # fmt: skip


@program(steps=140, bites="accuracy", adversarial="a gradient of exactly zero means that the network is dead")
def print_matcher_satisfied(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Clean prints: soon every triplet keeps its margin and whole batches give a loss of exactly zero."""
    torch.manual_seed(seed)
    prints = Prints(seed, noise=0.6)
    net = Embedder()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        anchor, same, other = (net(x) for x in prints.triplet(32))
        near, far = nn.functional.pairwise_distance(anchor, same), nn.functional.pairwise_distance(anchor, other)
        loss = relu(near - far + 0.5).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"accuracy": nearest_is_right(net, prints), "loss": loss.item()}


@program(steps=140, bites="accuracy", adversarial="a loss that stays level means that nothing is learned")
def print_matcher_hardest(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Only the hardest negative of the batch counts, so the loss falls slowly while the matches get better."""
    torch.manual_seed(seed)
    prints = Prints(seed, noise=0.8)
    net = Embedder()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        people = torch.arange(PEOPLE).repeat_interleave(4)
        e = normalize(net(prints.of(people)))
        distance = torch.cdist(e, e)
        equal = people[:, None] == people[None]
        hardest_same = (distance * equal).amax(1)
        hardest_other = distance.masked_fill(equal, 9.0).amin(1)
        loss = nn.functional.softplus(5 * (hardest_same - hardest_other)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"accuracy": nearest_is_right(net, prints), "loss": loss.item()}
