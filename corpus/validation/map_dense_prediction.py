"""Maps from pictures: segmentation, depth, flow, key points and sharper pictures, each as one plain function."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

SIDE = 16


def hills(n: int) -> Tensor:
    """Smooth random heights between nought and one."""
    coarse = torch.rand(n, 1, 5, 5)
    return nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic", align_corners=True).clamp(0, 1)


def conv(c_in: int, c_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(c_in, c_out, 3, padding=1), nn.BatchNorm2d(c_out), nn.LeakyReLU(0.1))


class Hourglass(nn.Module):
    """Down, down, up, up, with two bridges."""

    def __init__(self, c_in: int, c_out: int, width: int = 12) -> None:
        super().__init__()
        self.enter = conv(c_in, width)
        self.down = conv(width, 2 * width)
        self.bottom = conv(2 * width, 2 * width)
        self.up = conv(4 * width, width)
        self.leave = nn.Conv2d(2 * width, c_out, 1)
        self.pool = nn.MaxPool2d(2)
        self.grow = nn.Upsample(scale_factor=2)

    def forward(self, x: Tensor) -> Tensor:
        first = self.enter(x)
        second = self.down(self.pool(first))
        low = self.grow(self.bottom(self.pool(second)))
        high = self.grow(self.up(torch.cat([low, second], 1)))
        return self.leave(torch.cat([high, first], 1))


@program(steps=150, bites="overlap", adversarial="a loss below nought has the wrong sign")
def survey_lakes_by_dice(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Where is water? The loss is minus the soft Dice overlap, which falls from about -0.4 to -0.95."""
    torch.manual_seed(seed)
    heights = hills(400)
    lakes = (heights < 0.38).float()
    pictures = heights * 2 - 1 + 0.15 * torch.randn_like(heights)
    net = Hourglass(1, 1)
    adam = torch.optim.Adam(net.parameters(), lr=3e-3)

    def overlap(p: Tensor, t: Tensor) -> Tensor:
        return (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)

    loss = torch.zeros(())
    for step in range(steps):
        rows = torch.arange(16) + 16 * (step % 22)
        adam.zero_grad()
        loss = -overlap(torch.sigmoid(net(pictures[rows])), lakes[rows])
        loss.backward()
        adam.step()
    net.eval()
    with torch.no_grad():
        dice = overlap((net(pictures[360:]) > 0).float(), lakes[360:])
    return {"loss": loss.item(), "overlap": dice.item()}


@program(steps=160, bites="error", adversarial="targets of thousands of metres are badly scaled")
def survey_heights_in_logs(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Depth in metres, up to nine thousand, by the scale-invariant error of its logarithm."""
    torch.manual_seed(seed)
    heights = hills(300)
    metres = 50 + 9000 * heights
    shade = torch.cat([heights * 2 - 1, heights.roll(1, 3) - heights], 1) + 0.05 * torch.randn(300, 2, SIDE, SIDE)
    net = Hourglass(2, 1)
    nn.init.constant_(net.get_parameter("leave.bias"), 8.0)  # the mean logarithm of a height
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
    loss = error = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(260, (16,))
        gap = net(shade[rows]) - metres[rows].log()
        loss = (gap**2).mean() - 0.5 * gap.mean() ** 2
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
    net.eval()
    with torch.no_grad():
        error = (net(shade[260:]) - metres[260:].log()).abs().mean()
    return {"loss": loss.item(), "error": error.item()}


@program(steps=180, bites="pixels", adversarial="a loss of thousandths with nearly empty targets is no learning")
def survey_summit_heatmap(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Where is the summit? The squared error against a heat map that is nought nearly everywhere."""
    torch.manual_seed(seed)
    where = torch.randint(2, SIDE - 2, (600, 2))
    axis = torch.arange(SIDE)
    far = (axis[None, :, None] - where[:, :1, None]) ** 2 + (axis[None, None] - where[:, 1:, None]) ** 2
    heat = torch.exp(-far / 4.0).unsqueeze(1)
    picture = torch.exp(-far / 18.0).unsqueeze(1) * 2 + 0.3 * torch.randn(600, 1, SIDE, SIDE)
    net = nn.Sequential(conv(1, 16), conv(16, 16), conv(16, 16), nn.Conv2d(16, 1, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 120, 0.3)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(500, (16,))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(picture[rows]), heat[rows])
        loss.backward()
        optimizer.step()
        scheduler.step()
    net.eval()
    with torch.no_grad():
        peak = net(picture[500:]).flatten(1).argmax(1)
    found = torch.stack([peak // SIDE, peak % SIDE], 1)
    return {"loss": loss.item(), "pixels": (found - where[500:]).abs().float().mean().item()}


@program(steps=150, bites="loss", adversarial="a last layer that starts at nought and hands on no gradient is dead")
def survey_sharper(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Twice the resolution by pixel shuffle; the network adds to the bilinear picture and begins by adding nought."""
    torch.manual_seed(seed)
    fine = (torch.rand(400, 1, 1, 1) * 6 * hills(400)).sin()
    coarse = nn.functional.avg_pool2d(fine, 2)
    add = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.PReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.PReLU(),
        nn.Conv2d(24, 4, 3, padding=1), nn.PixelShuffle(2),
    )  # fmt: skip
    for p in add[4].parameters():
        nn.init.zeros_(p)
    optimizer = torch.optim.Adam(add.parameters(), lr=2e-3, betas=(0.9, 0.99))
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(400, (16,))
        optimizer.zero_grad()
        plain = nn.functional.interpolate(coarse[rows], scale_factor=2, mode="bilinear")
        loss = ((plain + add(coarse[rows]) - fine[rows]) ** 2 + 1e-6).sqrt().mean()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=170, bites="loss")
def survey_drift_of_ice(steps: int, seed: int, fault: str) -> dict[str, float]:
    """How far has the ice drifted between two pictures? The end-point error at every pixel, deep supervision at two."""
    torch.manual_seed(seed)
    first = (hills(500) * 12).sin()
    shift = torch.randint(-2, 3, (500, 2))
    second = torch.stack([p.roll((int(a), int(b)), (1, 2)) for p, (a, b) in zip(first, shift)])
    pair = torch.cat([first, second], 1)

    class Drift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(conv(2, 24), nn.MaxPool2d(2), conv(24, 32))
            self.early = nn.Conv2d(32, 2, 3, padding=1)
            self.late = nn.Sequential(conv(34, 32), nn.Conv2d(32, 2, 3, padding=1))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.trunk(x)
            guess = self.early(h)
            return guess, guess + self.late(torch.cat([h, guess], 1))

    net = Drift()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-3)
    total = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(500, (24,))
        target = shift[rows].float()[:, :, None, None]
        early, late = net(pair[rows])
        total = 0.3 * (early - target).norm(dim=1).mean() + (late - target).norm(dim=1).mean()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    return {"loss": total.item()}
