"""Learning without labels, and learning what is near: two views of a thing should look alike."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program

KINDS = 8


class World:
    """Forty numbers that tell the kind; a view loses some and adds a large disturbance in six directions."""

    def __init__(self) -> None:
        self.kinds = torch.randn(KINDS, 40)
        self.mess = torch.randn(6, 40)

    def draw(self, n: int) -> tuple[Tensor, Tensor]:
        kind = torch.randint(KINDS, (n,))
        return self.kinds[kind] + 0.5 * torch.randn(n, 40), kind

    def view(self, x: Tensor) -> Tensor:
        return (x + 0.8 * torch.randn(len(x), 6) @ self.mess) * (torch.rand_like(x) > 0.2) / 2


def encoder(out: int = 24) -> nn.Sequential:
    return nn.Sequential(nn.Linear(40, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, out))


@torch.no_grad()
def neighbours(model: nn.Module, world: World) -> float:
    """How often is the nearest neighbour of the same kind?"""
    model.eval()
    x, kind = world.draw(300)
    z = F.normalize(model(world.view(x)), dim=1)
    alike = z @ z.T - 2 * torch.eye(300)
    return (kind[alike.argmax(1)] == kind).float().mean().item()


@program(steps=150, bites="neighbours", adversarial="a loss that cannot fall below two nats is a plateau")
def mirror_many_others(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Contrastive views at temperature 0.2; others of the same kind count as different, so the loss has a floor."""
    torch.manual_seed(seed)
    world, model = World(), encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        x, _ = world.draw(64)
        a, b = F.normalize(model(world.view(x)), dim=1), F.normalize(model(world.view(x)), dim=1)
        logits = a @ b.T / 0.2
        own = torch.arange(64)
        loss = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "neighbours": neighbours(model, world)}


@program(steps=160, bites="neighbours", adversarial="a branch cut off by detach gets no gradient")
def mirror_stops_one_side(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two views, a predictor on one side, no gradient through the other: the loss is minus a cosine."""
    torch.manual_seed(seed)
    world = World()
    model = nn.Sequential(*encoder(32), nn.BatchNorm1d(32))
    predictor = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32))
    both = nn.ModuleList([model, predictor])
    optimizer = torch.optim.SGD(both.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    loss = torch.zeros(())
    for _ in range(steps):
        x, _ = world.draw(96)
        a, b = model(world.view(x)), model(world.view(x))
        loss = (
            -(F.cosine_similarity(predictor(a), b.detach()) + F.cosine_similarity(predictor(b), a.detach())).mean() / 2
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "neighbours": neighbours(model, world)}


@program(
    steps=150, bites="neighbours", adversarial="a loss with weights of twenty-five starts large and has large gradients"
)
def mirror_spread_and_alike(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Variance, invariance, covariance with the published weights of twenty-five."""
    torch.manual_seed(seed)
    world = World()
    body = encoder(24)
    expand = nn.Sequential(nn.Linear(24, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 48))
    optimizer = torch.optim.Adam([*body.parameters(), *expand.parameters()], lr=2e-3)

    def spread(z: Tensor) -> Tensor:
        z = z - z.mean(0)
        cov = z.T @ z / (len(z) - 1)
        off = cov - torch.diag(cov.diag())
        return 25 * F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean() + off.pow(2).sum() / 48

    loss = torch.zeros(())
    for _ in range(steps):
        x, _ = world.draw(96)
        a, b = expand(body(world.view(x))), expand(body(world.view(x)))
        loss = 25 * F.mse_loss(a, b) + spread(a) + spread(b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "neighbours": neighbours(body, world)}


@program(steps=150, bites="neighbours", adversarial="a whole network without gradients is forgotten")
def mirror_slow_teacher(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A teacher that follows slowly, sharpened and centred; the pupil learns its distribution over twelve words."""
    torch.manual_seed(seed)
    world, pupil = World(), encoder(12)
    teacher = copy.deepcopy(pupil).requires_grad_(False)
    optimizer = torch.optim.AdamW(pupil.parameters(), lr=2e-3, weight_decay=0.04)
    centre, loss = torch.zeros(12), torch.zeros(())
    for _ in range(steps):
        x, _ = world.draw(96)
        with torch.no_grad():
            said = teacher(world.view(x))
            target = ((said - centre) / 0.07).softmax(1)
            centre = 0.9 * centre + 0.1 * said.mean(0)
        loss = -(target * (pupil(world.view(x)) / 0.2).log_softmax(1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(pupil.parameters(), 3.0)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), pupil.parameters()):
                slow.mul_(0.98).add_(0.02 * fast)
            for slow, fast in zip(teacher.buffers(), pupil.buffers()):
                slow.copy_(fast)
    return {"loss": loss.item(), "neighbours": neighbours(pupil, world)}


@program(
    steps=160, bites="neighbours", adversarial="a loss most of whose terms are exactly nought has stopped learning"
)
def mirror_triplets(steps: int, seed: int, fault: str) -> dict[str, float]:
    """All triplets of a batch with a margin: soon most of them are satisfied and give nothing."""
    torch.manual_seed(seed)
    world, model = World(), encoder(16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        x, kind = world.draw(64)
        z = F.normalize(model(world.view(x)), dim=1)
        far = torch.cdist(z, z)
        same = kind[:, None] == kind[None]
        triplets = (same & ~torch.eye(64).bool())[:, :, None] & ~same[:, None, :]
        loss = F.relu(far[:, :, None] - far[:, None, :] + 0.2)[triplets].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "neighbours": neighbours(model, world)}


@program(steps=180, bites="loss")
def mirror_masked_parts(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A masked autoencoder over ten parts of four numbers: the encoder sees four in ten, the decoder fills in."""
    torch.manual_seed(seed)
    world = World()

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Linear(4, 32), nn.Parameter(0.3 * torch.randn(10, 32))
            self.blank = nn.Parameter(0.1 * torch.randn(32))
            self.encoder = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
            self.decoder = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True, norm_first=True)
            self.paint = nn.Linear(32, 4)

        def forward(self, parts: Tensor, keep: Tensor) -> Tensor:
            rows = torch.arange(len(parts))[:, None]
            seen = self.encoder((self.embed(parts) + self.place)[rows, keep])
            whole = (self.blank + self.place).repeat(len(parts), 1, 1)
            whole = whole.scatter(1, keep[:, :, None].expand_as(seen), seen + self.place[keep])
            return self.paint(self.decoder(whole))

    model = Masked()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.05)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=15)
    loss = torch.zeros(())
    for _ in range(steps):
        parts = world.draw(48)[0].view(48, 10, 4)
        keep = torch.rand(48, 10).argsort(1)[:, :4]
        hidden = torch.ones(48, 10).scatter(1, keep, 0.0)
        error = (model(parts, keep) - parts).pow(2).mean(2)
        loss = (error * hidden).sum() / hidden.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm.step()
    return {"loss": loss.item()}
