"""Who is whose aunt? Embeddings of a knowledge graph with one relation for each way people are related."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding, logsigmoid

from corpus.case import program

PEOPLE, RELATIONS, DIM = 120, 4, 24


def family_facts(seed: int) -> Tensor:
    """(head, relation, tail): every relation is a fixed shift on a hidden circle."""
    g = torch.Generator().manual_seed(seed)
    place = torch.randperm(PEOPLE, generator=g)
    at = place.argsort()
    shift = torch.tensor([1, 7, 30, 53])
    heads = torch.arange(PEOPLE).repeat_interleave(RELATIONS)
    relations = torch.arange(RELATIONS).repeat(PEOPLE)
    tails = at[(place[heads] + shift[relations]) % PEOPLE]
    return torch.stack([heads, relations, tails], 1)


class Rotations(nn.Module):
    """A relation turns each pair of coordinates; a fact is likely when the turned head is near the tail."""

    def __init__(self, rows: int = PEOPLE, sparse: bool = False) -> None:
        super().__init__()
        self.entities = nn.Embedding(rows, 2 * DIM, sparse=sparse)
        self.angles = nn.Embedding(RELATIONS, DIM, sparse=sparse)
        nn.init.normal_(self.entities.weight, std=0.3)
        nn.init.uniform_(self.angles.weight, -3.1, 3.1)

    def forward(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        a, b = self.entities(head).chunk(2, -1)
        c, d = self.entities(tail).chunk(2, -1)
        angle = self.angles(relation)
        x, y = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
        return 3.0 - torch.sqrt((x - c) ** 2 + (y - d) ** 2 + 1e-6).sum(-1)


@torch.no_grad()
def hits_at_ten(model: nn.Module, facts: Tensor, keys: Tensor | None = None) -> float:
    keys = torch.arange(PEOPLE) if keys is None else keys
    head, relation, tail = facts[:160].T
    scores = model(keys[head, None], relation[:, None], keys[None, :]).nan_to_num(-1e9)
    rank = (scores > scores.gather(1, tail[:, None])).sum(1)
    return (rank < 10).float().mean().item()


@program(steps=150, bites="hits")
def family_rotations(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Self-adversarial negatives are too much for a toy: five random tails for each fact."""
    torch.manual_seed(seed)
    facts = family_facts(seed)
    keys = torch.arange(PEOPLE)
    rows = PEOPLE
    if fault == "hashed_into_a_corner":
        keys, rows = torch.arange(PEOPLE) % 13, 3000  # a hash meant for 3,000 buckets, taken modulo the wrong number
    model = Rotations(rows)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    used = torch.zeros(rows)
    for _ in range(steps):
        head, relation, tail = facts[torch.randint(len(facts), (128,))].T
        wrong = torch.randint(PEOPLE, (128, 5))
        used[keys[head]] = 1
        good = model(keys[head], relation, keys[tail])
        bad = model(keys[head, None], relation[:, None], keys[wrong])
        loss = -logsigmoid(good).mean()
        if fault != "no_wrong_facts":
            loss = loss - logsigmoid(-bad).mean()
        if fault == "penalty_rewards_size":
            loss = loss - 0.02 * model.entities.weight.square().sum() / DIM
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {
        "hits": hits_at_ten(model, facts, keys),
        "used": used.mean().item(),
        "size": model.entities.weight.norm(dim=1).mean().item(),
    }


family_rotations.mistake(
    "hashed_into_a_corner",
    "DAT006", "GRD004",
    summary="The hash of people is taken modulo 13: of 3,000 rows only 13 are ever looked up.",
    change="one row for each person",
    layers=("entities",),
    bites="used",
    silent=True,
)  # fmt: skip
family_rotations.mistake(
    "no_wrong_facts",
    "WGT005", "ACT003",
    summary="Only true facts are in the loss, so all people shrink into one point.",
    change="add wrong facts",
    layers=("entities",),
)  # fmt: skip
family_rotations.mistake(
    "penalty_rewards_size",
    "WGT001", "LSS003", "OPT001",
    summary="The penalty on the size of the embeddings has the wrong sign: they grow without end.",
    change="add the penalty",
    layers=("entities",),
    bites="size",
    silent=True,
)  # fmt: skip


@program(steps=150, bites="hits", adversarial="a gradient that is almost all zeros is dead")
def family_sparse(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """A sparse table under SparseAdam: a step touches a few rows only."""
    torch.manual_seed(seed)
    facts = family_facts(seed)
    model = Rotations(sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.03)
    for _ in range(steps):
        head, relation, tail = facts[torch.randint(len(facts), (96,))].T
        wrong = torch.randint(PEOPLE, (96, 5))
        good, bad = model(head, relation, tail), model(head[:, None], relation[:, None], wrong)
        loss = -logsigmoid(good).mean() - logsigmoid(-bad).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"hits": hits_at_ten(model, facts)}


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(0.3 * torch.randn(PEOPLE, DIM))
        self.right = nn.Parameter(0.3 * torch.randn(PEOPLE, DIM))
        self.relation = nn.Parameter(0.3 * torch.randn(RELATIONS, DIM, DIM))

    def forward(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        turned = embedding(head, self.left)[..., None, :] @ self.relation[relation]
        return (turned.squeeze(-2) * embedding(tail, self.right)).sum(-1)


@program(steps=150, bites="hits", adversarial="a summed loss in the hundreds with large gradients explodes")
def family_bilinear(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """A bilinear score and a loss that is summed over all pairs, under Adagrad."""
    torch.manual_seed(seed)
    facts = family_facts(seed)
    model = Bilinear()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.2)
    for _ in range(steps):
        head, relation, tail = facts[torch.randint(len(facts), (160,))].T
        wrong = torch.randint(PEOPLE, (160, 4))
        logits = torch.cat([model(head, relation, tail)[:, None], model(head[:, None], relation[:, None], wrong)], 1)
        target = torch.tensor([1.0, 0, 0, 0, 0]).expand(160, 5)
        loss = binary_cross_entropy_with_logits(logits, target, reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"hits": hits_at_ten(model, facts)}
