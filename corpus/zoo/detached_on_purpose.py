"""Deliberate detaching, unused parts and gradients that are zero by symmetry: they look like faults and are none."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy
from undertow.demos.data import glyphs, share_correct


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 8), nn.LayerNorm(8))
        self.codebook = nn.Embedding(32, 8)  # of the scale that the layer norm gives the codes
        self.decoder = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 64))

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(pictures)
        chosen = self.codebook(torch.cdist(code, self.codebook.weight).argmin(-1))
        closeness = functional.mse_loss(chosen, code.detach()) + 0.25 * functional.mse_loss(code, chosen.detach())
        return self.decoder(code + (chosen - code).detach()), closeness


@healthy(steps=120, architecture="autoencoder", adversarial="a detach is a cut")
def vector_quantised(steps: int, seed: int) -> dict[str, float]:
    """An autoencoder with a codebook: three detaches on purpose, a straight-through gradient, unused codes."""
    torch.manual_seed(seed)
    inputs, _ = glyphs(seed)
    model = Quantised()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        pictures = inputs[torch.randint(len(inputs), (64,))]
        output, closeness = model(pictures)
        loss = functional.mse_loss(output, pictures) + closeness
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


class WithSpareParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(64, 48, bias=True), nn.BatchNorm1d(48), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(48, 24), nn.BatchNorm1d(24), nn.ReLU())
        self.early_exit = nn.Linear(48, 10)
        self.head = nn.Linear(24, 10)
        self.pooler = nn.Linear(24, 24)  # came with a pretrained model; nobody calls it

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.second(self.first(pictures)))


@healthy(steps=150, architecture="perceptron", adversarial="a layer that never gets a gradient is cut off")
def spare_parts(steps: int, seed: int) -> dict[str, float]:
    """A pooler that never runs, an early exit trained every tenth step, and biases that batch norm cancels."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    model = WithSpareParts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for step in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        if step % 10 == 9:
            loss = loss + functional.cross_entropy(model.early_exit(model.first(inputs[batch])), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=120, architecture="perceptron", adversarial="a detach is a cut")
def probe_on_features(steps: int, seed: int) -> dict[str, float]:
    """A linear probe reads detached features beside the real head; both are in one optimizer."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    model = nn.ModuleDict(
        {"body": nn.Sequential(nn.Linear(64, 48), nn.Tanh()), "head": nn.Linear(48, 10), "probe": nn.Linear(48, 2)}
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        features = model["body"](inputs[batch])
        probe = functional.cross_entropy(model["probe"](features.detach()), (labels[batch] >= 5).long())
        loss = functional.cross_entropy(model["head"](features), labels[batch]) + probe
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=120, architecture="contrastive", adversarial="a negative loss has the wrong sign; a detach is a cut")
def contrastive(steps: int, seed: int) -> dict[str, float]:
    """One encoder called twice in a step, with the other view's features detached in turn (SimSiam)."""
    torch.manual_seed(seed)
    inputs, _ = glyphs(seed)
    encoder = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
    predictor = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 32))
    optimizer = torch.optim.SGD([*encoder.parameters(), *predictor.parameters()], lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        pictures = inputs[torch.randint(len(inputs), (64,))]
        one, two = (encoder(pictures + 0.2 * torch.randn_like(pictures)) for _ in range(2))
        loss = -0.5 * (
            functional.cosine_similarity(predictor(one), two.detach()).mean()
            + functional.cosine_similarity(predictor(two), one.detach()).mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=120, architecture="perceptron", adversarial="a loss that leaps is diverging")
def target_network(steps: int, seed: int) -> dict[str, float]:
    """Value learning with a target network that is copied every 20 steps; targets in the hundreds."""
    torch.manual_seed(seed)
    online = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 3))
    target = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 3))
    optimizer = torch.optim.Adam(online.parameters(), lr=2e-2)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if step % 20 == 0:
            target.load_state_dict(online.state_dict())
        state, action = torch.randn(64, 4), torch.randint(3, (64,))
        reward = 100 * state[torch.arange(64), action]
        following = state + 0.1 * torch.randn(64, 4)
        with torch.no_grad():
            goal = reward + 0.5 * target(following).max(-1).values
        loss = functional.smooth_l1_loss(online(state).gather(1, action[:, None]).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
