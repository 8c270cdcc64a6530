"""A small U-Net outlines weather vanes, which cover little of a picture; bf16, two micro-batches a step."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy
from corpus.gpu.sizes import VANE


def double(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1, bias=False),
        nn.InstanceNorm2d(outer, affine=True),
        nn.LeakyReLU(0.1, inplace=True),
        nn.Conv2d(outer, outer, 3, padding=1, bias=False),
        nn.InstanceNorm2d(outer, affine=True),
        nn.LeakyReLU(0.1, inplace=True),
    )


class VaneNet(nn.Module):
    def __init__(self, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        sizes = [width * 2**at for at in range(depth)]
        self.down = nn.ModuleList(double(a, b) for a, b in zip([3, *sizes], sizes))
        self.lift = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(double(2 * a, a) for a in sizes[:-1])
        self.paint = nn.Conv2d(width, 1 + kinds, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for level in reversed(range(len(self.up))):
            x = self.up[level](torch.cat([self.lift[level](x), kept[level]], 1))
        return self.paint(x)


class Roofs:
    """Vanes of several colours and tilts before a sky with a gradient; most of every picture is sky."""

    def __init__(self, kinds: int, pixels: int, seed: int, device: torch.device) -> None:
        self.dice = torch.Generator(device).manual_seed(seed)
        self.colours = 0.5 + 0.5 * torch.eye(3, device=device).repeat(2, 1)[:kinds]
        self.colours[3:] = 0.0
        line = torch.linspace(-1, 1, pixels, device=device)
        self.y, self.x = torch.meshgrid(line, line, indexing="ij")

    def views(self, count: int) -> tuple[Tensor, Tensor]:
        device = self.colours.device
        kind = torch.randint(len(self.colours), (count,), generator=self.dice, device=device)
        left, top, tilt, haze = (torch.rand(count, 1, 1, generator=self.dice, device=device) for _ in range(4))
        x, y = self.x - (left - 0.5), self.y - (top - 0.5)
        cosine, sine = torch.cos(3 * tilt), torch.sin(3 * tilt)
        across, along = x * cosine + y * sine, y * cosine - x * sine
        vane = (across.abs() < 0.12) & (along.abs() < 0.6)
        sky = (0.5 + 0.3 * haze * self.y).unsqueeze(1).expand(-1, 3, -1, -1)
        pictures = torch.where(vane.unsqueeze(1), self.colours[kind][:, :, None, None], sky)
        pictures = pictures + 0.15 * torch.randn(pictures.shape, generator=self.dice, device=device)
        return 2 * pictures - 1, torch.where(vane, 1 + kind[:, None, None], 0)


@healthy(steps=VANE.steps, architecture="unet")
def vane_segments(steps: int, seed: int) -> dict[str, float]:
    """A small U-Net outlines weather vanes before the sky."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    roofs = Roofs(VANE.kinds, VANE.length, seed, device)
    model = VaneNet(VANE.width, VANE.depth, VANE.kinds).to(device)
    optimizer = torch.optim.RAdam(model.parameters(), lr=VANE.rate)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, VANE.steps, power=0.9)
    weights = torch.tensor([0.5, *(1.0 for _ in range(VANE.kinds))], device=device)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            pictures, outline = roofs.views(VANE.batch)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                painted = model(pictures)
            (functional.cross_entropy(painted.float(), outline, weight=weights) / 2).backward()
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        pictures, outline = roofs.views(64)
        painted = model(pictures)
        found = (painted.argmax(1) == outline) & (outline > 0)
        return {
            "loss": functional.cross_entropy(painted, outline).item(),
            "found": (found.sum() / (outline > 0).sum().clamp(min=1)).item(),
        }
