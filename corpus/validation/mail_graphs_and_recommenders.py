"""Letters between people: graphs, recommendations, sets and sessions, in the order in which the office grew."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program


def correspondence(people: int = 150, circles: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Who writes to whom, what is known of them, and the circle they belong to."""
    circle = torch.randint(circles, (people,))
    chance = torch.where(circle[:, None] == circle[None], 0.3, 0.015)
    edges = (torch.rand(people, people) < chance).float().triu(1)
    known = torch.randn(people, 12) + 1.2 * F.one_hot(circle, 12)
    return edges + edges.T + torch.eye(people), known, circle


class GraphAttention(nn.Module):
    def __init__(self, c_in: int, c_out: int, heads: int) -> None:
        super().__init__()
        self.lin = nn.Linear(c_in, c_out * heads, bias=False)
        self.source = nn.Parameter(torch.randn(heads, c_out) * 0.3)
        self.target = nn.Parameter(torch.randn(heads, c_out) * 0.3)
        self.heads = heads

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.lin(x).view(len(x), self.heads, -1).transpose(0, 1)
        score = (h * self.source[:, None]).sum(2)[:, :, None] + (h * self.target[:, None]).sum(2)[:, None]
        weight = F.leaky_relu(score, 0.2).masked_fill(edges == 0, -1e9).softmax(-1)
        return (weight @ h).transpose(0, 1).flatten(1)


@program(steps=120, bites="accuracy", adversarial="attention weights of exactly nought have collapsed")
def post_attends_to_friends(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Graph attention on the whole graph, half of the people labelled, with much dropout and decay."""
    torch.manual_seed(seed)
    edges, known, circle = correspondence()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = GraphAttention(12, 8, 4), GraphAttention(32, 5, 1)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            h = F.elu(self.one(F.dropout(x, 0.3, self.training), edges))
            return self.two(F.dropout(h, 0.3, self.training), edges)

    net = Net()
    labelled = torch.rand(150) < 0.5
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)
    loss = torch.zeros(())
    for _ in range(steps):
        net.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(known, edges)[labelled], circle[labelled])
        loss.backward()
        optimizer.step()
    net.eval()
    right = (net(known, edges).argmax(1) == circle)[~labelled].float().mean()
    return {"loss": loss.item(), "accuracy": right.item()}


@program(steps=160, bites="auc")
def post_samples_neighbours(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Will they write? Five sampled neighbours per person, two rounds of means, and negative pairs drawn at random."""
    torch.manual_seed(seed)
    edges, known, _ = correspondence(200)
    edges.fill_diagonal_(0)
    pairs = edges.triu().nonzero()

    class Sage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(24, 32), nn.Linear(64, 24)

        def forward(self, people: Tensor) -> Tensor:
            near = torch.multinomial(edges[people] + 1e-6, 5, replacement=True)
            return F.normalize(self.second(torch.cat([self.hop(people), self.hop(near).mean(1)], 1)), dim=1)

        def hop(self, people: Tensor) -> Tensor:
            near = torch.multinomial(edges[people.flatten()] + 1e-6, 5, replacement=True)
            around = known[near].mean(1).view(*people.shape, -1)
            return F.relu(self.first(torch.cat([known[people], around], -1)))

    net = Sage()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    loss, auc = torch.zeros(()), torch.zeros(())
    for _ in range(steps):
        batch = pairs[torch.randint(len(pairs), (64,))]
        others = torch.randint(200, (64,))
        a, b, c = net(batch[:, 0]), net(batch[:, 1]), net(others)
        good, bad = 5 * (a * b).sum(1), 5 * (a * c).sum(1)
        loss = (F.softplus(-good) + F.softplus(bad)).mean()
        auc = (good[:, None] > bad[None]).float().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "auc": auc.item()}


@program(steps=200, bites="recall", adversarial="a table of which one row in a hundred has a gradient is dead")
def post_two_towers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Readers and journals as sparse tables of thousands, in-batch softmax with the usual correction for popularity."""
    torch.manual_seed(seed)
    taste, topic = torch.randint(10, (3000,)), torch.randint(10, (2000,))
    by_topic = [(topic == t).nonzero()[:, 0] for t in range(10)]
    reader_table, journal_table = nn.Embedding(3000, 16, sparse=True), nn.Embedding(2000, 16, sparse=True)
    for table in (reader_table, journal_table):
        nn.init.normal_(table.weight, std=0.2)
    towers = nn.ModuleList(nn.Sequential(nn.Linear(26, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(2))
    sparse = torch.optim.SparseAdam([reader_table.weight, journal_table.weight], lr=5e-3)
    dense = torch.optim.Adam(towers.parameters(), lr=3e-3)
    seen = torch.ones(2000)
    loss, hit = torch.zeros(()), torch.zeros(())
    for _ in range(steps):
        reader = torch.randint(3000, (64,))
        # the popular journals of a topic are those at the front
        journal = torch.stack(
            [by_topic[t][int(len(by_topic[t]) * torch.rand(()) ** 2)] for t in taste[reader].tolist()]
        )
        seen[journal] += 1
        hint = F.one_hot(taste[reader], 10) * 2 + 0.6 * torch.randn(64, 10)
        about = F.one_hot(topic[journal], 10) * 2 + 0.6 * torch.randn(64, 10)
        a = towers[0](torch.cat([reader_table(reader), hint], 1))
        b = towers[1](torch.cat([journal_table(journal), about], 1))
        logits = a @ b.T - (seen[journal] / seen.sum()).log()[None] * 0.2
        loss = F.cross_entropy(logits, torch.arange(64))
        hit = (topic[journal][logits.argmax(1)] == taste[reader]).float().mean()
        for optimizer in (sparse, dense):
            optimizer.zero_grad()
        loss.backward()
        for optimizer in (sparse, dense):
            optimizer.step()
    return {"loss": loss.item(), "recall": hit.item()}


@program(steps=200, bites="loss", adversarial="rows that are renormalised after each step do not follow the optimizer")
def post_relations_as_shifts(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Facts as translations with a margin, entities put back on the sphere after each step, plain Adagrad."""
    torch.manual_seed(seed)
    place = torch.rand(200, 3)
    shift = 0.4 * torch.randn(6, 3)
    head, relation = torch.randint(200, (3000,)), torch.randint(6, (3000,))
    tail = torch.cdist(place[head] + shift[relation], place).argmin(1)
    entities, relations = nn.Embedding(200, 24), nn.Embedding(6, 24)
    nn.init.uniform_(relations.weight, -0.3, 0.3)
    optimizer = torch.optim.Adagrad([*entities.parameters(), *relations.parameters()], lr=0.1)
    loss = torch.zeros(())
    for _ in range(steps):
        with torch.no_grad():
            entities.weight.copy_(F.normalize(entities.weight, dim=1))
        rows = torch.randint(3000, (128,))
        start = entities(head[rows]) + relations(relation[rows])
        good = (start - entities(tail[rows])).norm(dim=1)
        bad = (start - entities(torch.randint(200, (128,)))).norm(dim=1)
        loss = F.relu(0.5 + good - bad).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=180, bites="loss", adversarial="the padding row never has a gradient")
def post_sessions(steps: int, seed: int, fault: str) -> dict[str, float]:
    """What is asked for next in a session of any length? A padded, packed recurrent network with a sampled softmax."""
    torch.manual_seed(seed)
    follows = torch.randint(1, 60, (60, 2))
    items, cell = nn.Embedding(60, 32, padding_idx=0), nn.GRU(32, 48, batch_first=True)
    out = nn.Linear(48, 32)
    model = nn.ModuleList([items, cell, out])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        lengths = torch.randint(3, 12, (32,))
        walk = [torch.randint(1, 60, (32,))]
        for _ in range(12):
            walk.append(follows[walk[-1], (torch.rand(32) < 0.2).long()])
        session = torch.stack(walk, 1)
        late = torch.arange(12)[None] >= lengths[:, None]
        packed = nn.utils.rnn.pack_padded_sequence(
            items(session[:, :12].masked_fill(late, 0)), lengths, batch_first=True, enforce_sorted=False
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(cell(packed)[0], batch_first=True, total_length=12)
        logits = out(states) @ items.weight.T
        loss = F.cross_entropy(logits.flatten(0, 1), session[:, 1:].masked_fill(late, -1).flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=180, bites="loss")
def post_weighs_a_bag(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A set transformer: how many letters of the first kind are in the bag, and how heavy is it?"""
    torch.manual_seed(seed)

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(9, 32)
            self.mix = nn.MultiheadAttention(32, 4, batch_first=True)
            self.norm = nn.LayerNorm(32)
            self.seed = nn.Parameter(torch.randn(1, 2, 32) * 0.2)
            self.pool = nn.MultiheadAttention(32, 4, batch_first=True)
            self.out = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

        def forward(self, x: Tensor) -> Tensor:
            h = F.relu(self.embed(x))
            h = self.norm(h + self.mix(h, h, h, need_weights=False)[0])
            return self.out(self.pool(self.seed.expand(len(x), -1, -1), h, h)[0].flatten(1))

    model = Bag()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        kind, weight = torch.randint(8, (64, 10)), torch.rand(64, 10, 1)
        bag = F.one_hot(kind, 8).float()
        target = torch.stack([bag[:, :, 0].sum(1) - 1.25, 8 * weight.mean(1)[:, 0] - 4], 1)
        loss = F.mse_loss(model(torch.cat([bag, weight * 2 - 1], 2)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
