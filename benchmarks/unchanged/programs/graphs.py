"""Networks of torch-geometric on a small random graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.unchanged.program import Group, fit, mean_square

GROUP = Group("torch-geometric", ("torch_geometric.nn",))


def _edges() -> Tensor:
    return torch.randint(0, 12, (2, 40))


_LAYERS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "GCNConv": ((8, 4), {}), "SAGEConv": ((8, 4), {"aggr": "max"}), "GATConv": ((8, 4), {"heads": 2, "dropout": 0.2}),
    "GATv2Conv": ((8, 4), {"heads": 2}), "TransformerConv": ((8, 4), {"heads": 2, "beta": True}),
    "ChebConv": ((8, 4, 3), {}), "GraphConv": ((8, 4), {}), "TAGConv": ((8, 4), {}), "ARMAConv": ((8, 4), {}),
    "SGConv": ((8, 4), {"K": 2}), "ResGatedGraphConv": ((8, 4), {}), "GatedGraphConv": ((8, 2), {}),
    "ClusterGCNConv": ((8, 4), {}), "LEConv": ((8, 4), {}), "GENConv": ((8, 4), {}), "SuperGATConv": ((8, 4), {}),
}  # fmt: skip


def _layer(name: str) -> object:
    import torch_geometric.nn as graphs

    arguments, options = _LAYERS[name]
    model = getattr(graphs, name)(*arguments, **options)
    return fit(model, lambda: mean_square(model(torch.randn(12, 8), _edges())))


for name in _LAYERS:
    GROUP.add(name, partial(_layer, name))


def _whole(name: str) -> object:
    import torch_geometric.nn as graphs

    model = getattr(graphs, name)(8, 8, 2, 4, dropout=0.2, jk="cat", norm="batch")
    return fit(model, lambda: F.cross_entropy(model(torch.randn(12, 8), _edges()), torch.randint(0, 4, (12,))))


for name in ("GCN", "GIN", "GraphSAGE", "GAT"):
    GROUP.add(f"{name}-network", partial(_whole, name))


@GROUP.program()
def pooled_graphs_from_a_loader() -> object:
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GINConv, Sequential, global_mean_pool

    data = [
        Data(x=torch.randn(6, 8), edge_index=torch.randint(0, 6, (2, 12)), y=torch.tensor(i % 2)) for i in range(32)
    ]
    inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    parts: list[Any] = [(GINConv(inner, train_eps=True), "x, edge_index -> x"), (global_mean_pool, "x, batch -> x")]
    model: Any = Sequential("x, edge_index, batch", [*parts, nn.Linear(8, 2)])
    batches = iter([batch for _ in range(4) for batch in DataLoader(data, 8, shuffle=True)])

    def loss() -> Tensor:
        batch = next(batches)
        return F.cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y)

    return fit(model, loss)


@GROUP.program()
def graph_autoencoder() -> object:
    from torch_geometric.nn import VGAE, GCNConv

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.deviation = GCNConv(8, 4), GCNConv(8, 4)

        def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
            return self.mean(x, edges), self.deviation(x, edges)

    model = VGAE(Encoder())

    def loss() -> Tensor:
        z = model.encode(torch.randn(12, 8), edges := _edges())
        return model.recon_loss(z, edges) + model.kl_loss() / 12

    return fit(model, loss)


@GROUP.program()
def a_heterogeneous_graph() -> object:
    from torch_geometric.nn import HeteroConv, SAGEConv

    kinds = [("user", "buys", "item"), ("item", "sold_to", "user")]
    model = HeteroConv({kind: SAGEConv((8, 8), 4) for kind in kinds})
    make: Callable[[], Tensor] = lambda: torch.randn(6, 8)  # noqa: E731

    def loss() -> Tensor:
        edges = {kind: torch.randint(0, 6, (2, 10)) for kind in kinds}
        return mean_square(list(model({"user": make(), "item": make()}, edges).values()))

    return fit(model, loss)
