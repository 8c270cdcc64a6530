"""Healthy: trainings that do something to gradients, losses, weights or optimizers with their own hands."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gumbel_softmax, mse_loss

from corpus.case import program


def screws(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Twelve measurements of a screw; its kind of six, and the torque it bears."""
    rng = torch.Generator().manual_seed(seed)
    kind = torch.randint(6, (count,), generator=rng)
    centre = 1.3 * torch.randn(6, 12, generator=torch.Generator().manual_seed(8))
    x = centre[kind] + torch.randn(count, 12, generator=rng)
    torque = torch.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] / (1 + x[:, 3].abs())
    return x, kind, torque


@program(steps=120, adversarial="without a backward pass nothing can be learned")
def climbs_by_guessing(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An evolution strategy: thirty pairs of guesses a step make the gradient that the optimizer is given."""
    torch.manual_seed(seed)
    x, kind, _ = screws(256, seed)
    net = nn.Linear(12, 6)
    flat = nn.utils.parameters_to_vector(net.parameters()).detach()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    loss = 0.0
    for _ in range(steps):
        noise = torch.randn(30, len(flat))
        weights = torch.cat([flat + 0.1 * noise, flat - 0.1 * noise])
        scores = torch.einsum("bi,goi->gbo", x, weights[:, :72].view(60, 6, 12)) + weights[:, None, 72:]
        losses = cross_entropy(scores.flatten(0, 1), kind.repeat(60), reduction="none").view(60, -1).mean(1)
        slope = ((losses[:30] - losses[30:])[:, None] * noise).mean(0) / 0.2
        for p, g in zip(net.parameters(), slope.split([72, 6]), strict=True):
            p.grad = g.view_as(p)
        optimizer.step()
        flat = nn.utils.parameters_to_vector(net.parameters()).detach()
        loss = losses.mean().item()
    return {"loss": loss}


class Workshop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 48), nn.Softplus(), nn.Linear(48, 32), nn.Softplus())
        self.kind, self.torque = nn.Linear(32, 6), nn.Linear(32, 1)
        self.doubt = nn.Parameter(torch.zeros(2))  # the logarithm of the variance of either task

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.kind(h), self.torque(h).squeeze(1)


@program(steps=150, adversarial="one loss a hundred times as large as the other drowns it")
def weighs_its_own_losses(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two tasks in different units; how much each counts is learned along with them."""
    torch.manual_seed(seed)
    x, kind, torque = screws(900, seed)
    net = Workshop()
    rest = [p for name, p in net.named_parameters() if name != "doubt"]
    optimizer = torch.optim.Adam([{"params": [net.doubt], "lr": 0.05}, {"params": rest}], lr=5e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(900, (64,))
        scores, bears = net(x[rows])
        each = torch.stack([cross_entropy(scores, kind[rows]), mse_loss(10 * bears, 10 * torque[rows])])
        loss = (torch.exp(-net.doubt) * each + net.doubt).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=140, adversarial="activations that are nearly one-hot are saturated")
def cools_into_choices(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An autoencoder through four choices of eight; the choices are soft at first and sharp in the end."""
    torch.manual_seed(seed)
    x, _, _ = screws(900, seed)
    encoder = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 32))
    decoder = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 12))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=4e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        batch = x[torch.randint(900, (64,))]
        heat = max(0.4, 2.0 * 0.985**step)
        choice = gumbel_softmax(encoder(batch).view(64, 4, 8), tau=heat)
        loss = mse_loss(decoder(choice.flatten(1)), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


def round_by_chance(exact: Tensor) -> Tensor:
    """To bfloat16, up or down with the chance that keeps the mean."""
    bits = exact.view(torch.int32) + torch.randint(1 << 16, exact.shape, dtype=torch.int32)
    return (bits & -65536).view(torch.float32).bfloat16()


@program(steps=150, adversarial="weights in bfloat16 lose small updates")
def rounds_by_chance(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Weights are kept in bfloat16 and rounded up or down by chance, so that small updates count on average."""
    torch.manual_seed(seed)
    x, kind, _ = screws(900, seed)
    net = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 6)).bfloat16()
    velocity = [torch.zeros(p.shape) for p in net.parameters()]
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(900, (64,))
        loss = cross_entropy(net(x[rows].bfloat16()).float(), kind[rows])
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p, v in zip(net.parameters(), velocity, strict=True):
                if p.grad is not None:
                    v.mul_(0.9).add_(p.grad.float())
                    p.copy_(round_by_chance(p.float() - 0.02 * v))
    return {"loss": loss.item()}


@program(steps=140, adversarial="an optimizer whose state begins anew is rebuilt by mistake")
def changes_horses(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adam for the first half, plain momentum for the second, as some recommend."""
    torch.manual_seed(seed)
    x, kind, _ = screws(900, seed)
    net = nn.Sequential(nn.Linear(12, 48), nn.Hardswish(), nn.Linear(48, 48), nn.Hardswish(), nn.Linear(48, 6))
    optimizer: torch.optim.Optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if step == steps // 2:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
        rows = torch.randint(900, (64,))
        loss = cross_entropy(net(x[rows]), kind[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=140, adversarial="most samples without gradient are lost data")
def only_the_hardest(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Of every batch the hardest quarter is learned from, with labels smoothed a little."""
    torch.manual_seed(seed)
    x, kind, _ = screws(900, seed)
    net = nn.Sequential(nn.Linear(12, 64), nn.PReLU(), nn.Linear(64, 6))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(900, (96,))
        each = cross_entropy(net(x[rows]), kind[rows], reduction="none", label_smoothing=0.05)
        loss = each.topk(24).values.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return {"loss": cross_entropy(net(x), kind).item()}


@program(steps=130)
def screws_by_committee(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four small nets in one, each on its own draw of the data; the loss is their mean."""
    torch.manual_seed(seed)
    x, kind, _ = screws(900, seed)
    nets = nn.ModuleList(nn.Sequential(nn.Linear(12, 24), nn.ELU(), nn.Linear(24, 6)) for _ in range(4))
    optimizer = torch.optim.ASGD(nets.parameters(), lr=0.5, lambd=1e-5)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        draws = torch.randint(900, (4, 48))
        loss = torch.stack([cross_entropy(net(x[d]), kind[d]) for net, d in zip(nets, draws, strict=True)]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
