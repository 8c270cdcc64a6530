"""Graph networks written by hand with a dense adjacency matrix: which community does a node belong to?"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from corpus.case import program

COMMUNITIES, NODES = 4, 120


def community_graph(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features that say little, edges that say more."""
    generator = torch.Generator().manual_seed(seed)
    community = torch.randint(COMMUNITIES, (NODES,), generator=generator)
    same = community[:, None] == community[None]
    chance = torch.where(same, 0.5, 0.06)
    edges = (torch.rand(NODES, NODES, generator=generator) < chance).float().triu(1)
    features = torch.randn(NODES, 16, generator=generator)
    features[:, :COMMUNITIES] += 0.7 * nn.functional.one_hot(community, COMMUNITIES)
    return features, edges + edges.T + torch.eye(NODES), community


class GraphConv(nn.Module):
    def __init__(self, c_in: int, c_out: int, pool_everything: bool = False) -> None:
        super().__init__()
        self.lin = nn.Linear(c_in, c_out)
        self.pool_everything = pool_everything

    def forward(self, h: Tensor, adj: Tensor) -> Tensor:
        messages = adj @ self.lin(h)
        if self.pool_everything:  # meant: the mean over a node's neighbours
            return messages.mean(dim=0, keepdim=True).expand_as(messages)
        return messages


class GCN(nn.Module):
    def __init__(self, depth: int, pooled: int | None) -> None:
        super().__init__()
        widths = [16] + [32] * depth
        self.convs = nn.ModuleList(
            GraphConv(a, b, pool_everything=i == pooled) for i, (a, b) in enumerate(pairwise(widths))
        )
        self.classify = nn.Linear(32, COMMUNITIES)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.relu(conv(x, adj))
        return self.classify(x)


@program(steps=150, bites="accuracy")
def communities(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A three-layer graph convolution on one graph, all nodes in every step, a third of them labelled."""
    torch.manual_seed(seed)
    x, edges, y = community_graph(seed)
    degree = edges.sum(1)
    adj = edges if fault == "adjacency_not_normalised" else edges / (degree[:, None] * degree[None]).sqrt()
    model = GCN(
        depth=6 if fault == "adjacency_not_normalised" else 3, pooled=1 if fault == "mean_over_all_nodes" else None
    )
    known = torch.rand(NODES, generator=torch.Generator().manual_seed(seed)) < 0.33
    params = model.convs.parameters()
    if fault == "generator_used_up":
        _count = sum(p.numel() for p in params)  # the log line empties the generator
    groups = [{"params": params, "weight_decay": 5e-4}, {"params": model.classify.parameters()}]
    optimizer = torch.optim.Adam(groups, lr=0.01)
    start = torch.cat([p.detach().flatten() for p in model.convs.parameters()])
    loss = torch.tensor(0.0)
    for _ in range(steps):
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x, adj)[known], y[known])
        loss.backward()
        optimizer.step()
    accuracy = (model(x, adj).argmax(1) == y)[~known].float().mean().item()
    moved = (torch.cat([p.detach().flatten() for p in model.convs.parameters()]) - start).norm().item()
    return {"loss": loss.item() if loss.isfinite() else 1e9, "accuracy": accuracy, "moved": min(moved, 1e6)}


communities.mistake(
    "adjacency_not_normalised",
    "WGT003", "GRD002", "NUM001", "NUM002", "NUM004", "UPD001", "OPT001",
    summary="Six layers sum over neighbours without dividing by the degree: every layer multiplies by twenty.",
    change="divide by the degrees",
)  # fmt: skip
communities.mistake(
    "mean_over_all_nodes",
    "ACT003",
    summary="The second layer takes its mean over all nodes: every node leaves it with the same features.",
    change="the mean over neighbours",
    layers=("convs.1",),
)
communities.mistake(
    "generator_used_up",
    "UPD003",
    summary="The parameters are a generator that a count has used up: the first group of the optimizer is empty.",
    change="call parameters() again",
    layers=("convs",),
    bites="moved",
    silent=True,
)
