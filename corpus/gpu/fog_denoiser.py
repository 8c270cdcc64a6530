"""A small U-Net takes noise from drawings of a known kind; an average of its weights does the drawing."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program
from corpus.gpu.sizes import FOG


class ResBlock(nn.Module):
    def __init__(self, inner: int, outer: int, hint: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(4, inner)
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1)
        self.hint_proj = nn.Linear(hint, 2 * outer)
        self.norm2 = nn.GroupNorm(4, outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, hint: Tensor | None = None) -> Tensor:
        h = self.norm2(self.conv1(functional.silu(self.norm1(x))))
        if hint is not None:
            scale, shift = self.hint_proj(functional.silu(hint))[:, :, None, None].chunk(2, dim=1)
            h = h * (1 + scale) + shift
        return self.skip(x) + self.conv2(functional.silu(h))


class TimeEmbedding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("speeds", torch.exp(torch.linspace(0, 5, width // 2)))
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, 2 * width)

    def forward(self, time: Tensor) -> Tensor:
        angles = time[:, None] * self.get_buffer("speeds")
        return self.fc2(functional.silu(self.fc1(torch.cat([angles.sin(), angles.cos()], 1))))


class FogNet(nn.Module):
    def __init__(self, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        hint = 2 * width
        self.hinted = True
        self.time_embed = TimeEmbedding(width)
        self.kind_embed = nn.Embedding(kinds, hint)
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.fine = [ResBlock(width, width, hint) for _ in range(depth)]
        self.coarse = [ResBlock(width if not at else 2 * width, 2 * width, hint) for at in range(depth + 1)]
        self.back = [ResBlock(3 * width if not at else width, width, hint) for at in range(depth)]
        self.down = nn.ModuleList(self.fine)
        self.middle = nn.ModuleList(self.coarse)
        self.up = nn.ModuleList(self.back)
        self.leave = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor, kind: Tensor) -> Tensor:
        embedded = self.time_embed(time) + self.kind_embed(kind)
        hint = embedded if self.hinted else None
        x = self.enter(x)
        for module in self.down:
            x = module(x, hint)
        kept = x
        x = functional.avg_pool2d(x, 2)
        for module in self.middle:
            x = module(x, hint)
        x = torch.cat([functional.interpolate(x, scale_factor=2.0), kept], 1)
        for module in self.up:
            x = module(x, hint)
        return self.leave(x)


class Drawings:
    """A drawing of kind k is a flower with k petals, or a ring; where it stands and how it is turned is chance."""

    def __init__(self, kinds: int, pixels: int, seed: int, device: torch.device) -> None:
        self.dice = torch.Generator(device).manual_seed(seed)
        self.kinds = kinds
        line = torch.linspace(-1, 1, pixels, device=device)
        self.y, self.x = torch.meshgrid(line, line, indexing="ij")

    def random(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.dice, device=self.x.device)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        kind = torch.randint(self.kinds, (size,), generator=self.dice, device=self.x.device)
        x = self.x - 0.3 * (self.random(size, 1, 1) - 0.5)
        y = self.y - 0.3 * (self.random(size, 1, 1) - 0.5)
        far, angle = (x * x + y * y + 1e-6).sqrt(), torch.atan2(y, x)
        petals = kind[:, None, None].float()
        edge = 0.35 + 0.05 * petals / self.kinds + 0.2 * torch.cos(petals * angle + 6.28 * self.random(size, 1, 1))
        bright = torch.where(kind % 2 == 0, 1.0, -1.0)[:, None, None]
        return (bright * torch.tanh(8 * (edge - far))).unsqueeze(1), kind

    def noised(self, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Noisy drawings, the times they are seen at, their kinds, and the velocity to be told."""
        clean, kind = self.batch(size)
        noise = torch.randn(clean.shape, generator=self.dice, device=clean.device)
        time = self.random(size)
        signal, fog = (torch.cos(time * math.pi / 2), torch.sin(time * math.pi / 2))
        signal, fog = signal[:, None, None, None], fog[:, None, None, None]
        return signal * clean + fog * noise, time, kind, signal * noise - fog * clean


class Average:
    def __init__(self, model: FogNet, decay: float) -> None:
        self.model = copy.deepcopy(model)
        self.decay = decay

    @torch.no_grad()
    def follow(self, model: FogNet) -> None:
        for mean, weight in zip(self.model.parameters(), model.parameters()):
            mean.lerp_(weight, 1 - self.decay)


@torch.no_grad()
def score(model: FogNet, batches: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> float:
    model.eval()
    loss = sum(functional.mse_loss(model(*batch[:3]), batch[3]).item() for batch in batches) / len(batches)
    model.train()
    return loss if math.isfinite(loss) else 20.0


@program(steps=FOG.steps)
def fog_denoiser(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A small U-Net learns to take noise from drawings, told their kind and how much noise there is."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    drawings = Drawings(FOG.kinds, FOG.length, seed, device)
    judges = [drawings.noised(128) for _ in range(4)]
    model = FogNet(FOG.width, FOG.depth, FOG.kinds).to(device)
    model.hinted = mistake != "fog_denoiser_untold"
    average = Average(model, 0.995 if FOG.steps > 1000 else 0.95)
    optimizer = torch.optim.AdamW(model.parameters(), lr=FOG.rate, weight_decay=1e-3)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = FOG.rate * min(1.0, (step + 1) / 50)
        noisy, time, kind, velocity = drawings.noised(FOG.batch)
        loss = functional.mse_loss(model(noisy, time, kind), velocity)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.follow(model)
        if step == FOG.late - 1:
            model, average.model = average.model, model
            score(model, judges)
            if mistake != "fog_denoiser_swapped":
                model, average.model = average.model, model
    return {"loss": min(score(model, judges), score(average.model, judges))}


BLOCKS = [f"{part}.{at}" for part, extra in (("down", 0), ("middle", 1), ("up", 0)) for at in range(FOG.depth + extra)]
fog_denoiser.mistake(
    "fog_denoiser_untold",
    "GRD003",
    summary="Time and kind are embedded, but no block is given what comes out.",
    change="every block is told",
    layers=["time_embed", "kind_embed", *(f"{block}.hint_proj" for block in BLOCKS)],
)
fog_denoiser.mistake(
    "fog_denoiser_swapped",
    "UPD003",
    summary="The average of the weights is swapped in for a look at it, and trained from there on by mistake.",
    change="the weights are swapped back",
    onset=FOG.late,
)
