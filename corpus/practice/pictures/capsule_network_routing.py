"""Small vectors that vote for larger ones: a capsule network with routing by agreement on scanned marks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

SIDE, MARKS, PRIMARY, POSE = 8, 4, 6, 6


def scans(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """One of four marks, moved by up to a pixel, on a page that is zero where nothing is printed."""
    g = torch.Generator().manual_seed(seed)
    marks = (torch.rand(MARKS, 6, 6, generator=torch.Generator().manual_seed(7)) > 0.55).float()
    label = torch.randint(MARKS, (n,), generator=g)
    page = torch.zeros(n, 1, SIDE, SIDE)
    for i in range(n):
        down, right = torch.randint(3, (2,), generator=g).tolist()
        page[i, 0, down : down + 6, right : right + 6] = marks[label[i]]
    return page * (1 + 0.3 * torch.randn(n, 1, SIDE, SIDE, generator=g)), label


class Squash(nn.Module):
    """Keep the direction, bring the length below one."""

    def __init__(self, eps: float = 1e-8) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, v: Tensor) -> Tensor:
        square = v.square().sum(-1, keepdim=True)
        return v * square / (1 + square) / torch.sqrt(square + self.eps)


class CapsuleNet(nn.Module):
    def __init__(self, eps: float = 1e-8, rounds: int = 2) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, bias=False)
        self.primary = nn.Conv2d(16, PRIMARY * POSE, 3, stride=2, bias=False)
        self.squash = Squash(eps)
        self.votes = nn.Parameter(0.3 * torch.randn(4 * PRIMARY, MARKS, POSE, POSE))
        self.redraw = nn.Sequential(nn.Linear(MARKS * POSE, 48), nn.ReLU(), nn.Linear(48, SIDE * SIDE))
        self.rounds = rounds

    def forward(self, page: Tensor) -> tuple[Tensor, Tensor]:
        primary = self.primary(torch.relu(self.conv(page)))
        capsules = self.squash(primary.view(len(page), PRIMARY, POSE, 4).transpose(2, 3).reshape(len(page), -1, POSE))
        votes = torch.einsum("bip,imqp->bimq", capsules, self.votes)
        agreement = torch.zeros(votes.shape[:3])
        marks = votes.mean(1)
        for _ in range(self.rounds):
            marks = self.squash((agreement.softmax(-1)[..., None] * votes).sum(1))
            agreement = agreement + (votes * marks[:, None]).sum(-1).detach()
        return torch.sqrt(marks.square().sum(-1) + 1e-8), self.redraw(marks.flatten(1))


def margin_loss(length: Tensor, label: Tensor) -> Tensor:
    here = nn.functional.one_hot(label, MARKS)
    return (here * torch.relu(0.9 - length) ** 2 + 0.5 * (1 - here) * torch.relu(length - 0.1) ** 2).sum(1).mean()


def share_read(net: nn.Module, seed: int) -> float:
    page, label = scans(300, seed + 60)
    with torch.no_grad():
        return (net(page)[0].nan_to_num(-1).argmax(1) == label).float().mean().item()


@program(steps=110, bites="accuracy")
def mark_capsules(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Margin loss and a small share of redrawing; blank pages are left out at first."""
    torch.manual_seed(seed)
    page, label = scans(500, seed)
    net = CapsuleNet(eps=0.0 if fault == "squash_of_nothing" else 1e-8)
    opt = torch.optim.Adam(net.parameters(), lr=0.3 if fault == "rate_of_three_tenths" else 5e-3)
    for step in range(steps):
        pick = torch.randint(500, (32,))
        pages = page[pick]
        if step >= 45 and step % 5 == 0:
            pages = pages.clone()
            pages[0] = 0.0  # a blank page between the others
        length, drawn = net(pages)
        redraw = (drawn - pages.flatten(1)).square()
        share = 5.0 * redraw.sum(1).mean() if fault == "redrawing_is_everything" else 0.05 * redraw.mean()
        loss = margin_loss(length, label[pick]) + share
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"accuracy": share_read(net, seed)}


mark_capsules.mistake(
    "squash_of_nothing",
    "NUM004", "NUM002", "NUM001", "NUM003",
    summary="Squashing divides by the length of a vector, and on a blank page that is zero.",
    change="an eps under the root",
    layers=("squash",),
    onset=45,
)  # fmt: skip
mark_capsules.mistake(
    "redrawing_is_everything",
    "GRD009",
    summary="The error of redrawing is summed over all pixels and weighs five: the margin loss drowns.",
    change="the mean, times 0.05",
)
mark_capsules.mistake(
    "rate_of_three_tenths",
    "OPT007", "UPD001", "OPT001", "OPT003",
    summary="Adam with a rate of 0.3: the filters are thrown to where no unit fires again.",
    change="a rate of 5e-3",
)  # fmt: skip


@program(steps=110, bites="accuracy", adversarial="detach in a forward pass cuts the graph")
def mark_capsules_three_rounds(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Three rounds of routing; agreement is detached, as it should be."""
    torch.manual_seed(seed)
    page, label = scans(500, seed)
    net = CapsuleNet(rounds=3)
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    for _ in range(steps):
        pick = torch.randint(500, (32,))
        length, drawn = net(page[pick])
        loss = margin_loss(length, label[pick]) + 0.05 * (drawn - page[pick].flatten(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"accuracy": share_read(net, seed)}
