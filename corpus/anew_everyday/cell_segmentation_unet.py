"""Outline cells in micrographs with a U-Net; the losses for masks are home-made."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program


def micrographs(seed: int, count: int, size: int = 24) -> tuple[Tensor, Tensor]:
    """Pictures with two or three bright discs, and the mask (count × size × size) of what belongs to a disc."""
    g = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(float(size)), torch.arange(float(size)), indexing="ij")
    mask = torch.zeros(count, size, size)
    for _ in range(3):
        cy, cx = (4 + (size - 8) * torch.rand(2, count, 1, 1, generator=g)).unbind(0)
        radius = 2 + 2.5 * torch.rand(count, 1, 1, generator=g)
        mask = torch.maximum(mask, ((y - cy) ** 2 + (x - cx) ** 2 < radius**2).float())
    return (mask + 0.7 * torch.randn(mask.shape, generator=g)).unsqueeze(1), mask


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = double_conv(1, width), double_conv(width, 2 * width)
        self.bottom = double_conv(2 * width, 4 * width)
        self.up2, self.up1 = double_conv(6 * width, 2 * width), double_conv(3 * width, width)
        self.mask = nn.Conv2d(width, 1, 1)

    def forward(self, picture: Tensor) -> Tensor:
        fine = self.down1(picture)
        coarse = self.down2(F.max_pool2d(fine, 2))
        low = self.bottom(F.max_pool2d(coarse, 2))
        coarse = self.up2(torch.cat([F.interpolate(low, scale_factor=2.0), coarse], 1))
        return self.mask(self.up1(torch.cat([F.interpolate(coarse, scale_factor=2.0), fine], 1)))


def soft_dice(area: Tensor, mask: Tensor) -> Tensor:
    overlap = (area * mask).sum((1, 2))
    return 1 - ((2 * overlap + 1) / (area.sum((1, 2)) + mask.sum((1, 2)) + 1)).mean()


def focal(logits: Tensor, mask: Tensor, gamma: float = 2.0) -> Tensor:
    """Focal loss written out: pixels that are right already count little."""
    probability = torch.sigmoid(logits)
    missed = (mask - probability).abs()
    return -(missed**gamma * torch.log(1 - missed + 1e-6)).mean()


@torch.no_grad()
def intersection_over_union(model: nn.Module, pictures: Tensor, mask: Tensor) -> float:
    found = model(pictures).squeeze(1) > 0
    wanted = mask > 0.5
    return ((found & wanted).sum() / (found | wanted).sum().clamp(min=1)).item()


@program(steps=120, bites="overlap")
def cell_unet_with_dice(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """U-Net trained with Dice loss, Adam and a rate that falls in steps."""
    torch.manual_seed(seed)
    pictures, masks = micrographs(seed, 256)
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [80, 105], 0.3)
    for _ in range(steps):
        batch = torch.randint(256, (12,))
        output = model(pictures[batch]).squeeze(1)
        area = output if mistake == "cell_dice_of_logits" else torch.sigmoid(output)
        loss = soft_dice(area, masks[batch])  # at fault: cell_dice_of_logits
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"overlap": intersection_over_union(model, *micrographs(seed + 70, 96)), "loss": loss.item()}


cell_unet_with_dice.mistake(
    "cell_dice_of_logits",
    "LSS001",
    "LSS003",
    summary="The Dice loss is given logits where it needs probabilities.",
    change="sigmoid before the Dice loss",
)


@program(steps=120, bites="overlap")
def cell_unet_with_focal_loss(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """U-Net trained with a focal loss of its own and a decaying average of the gradient."""
    torch.manual_seed(seed)
    pictures, masks = micrographs(seed, 256)
    model = UNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3, momentum=0.5)
    for _ in range(steps):
        batch = torch.randint(256, (12,))
        output = model(pictures[batch])
        if mistake != "cell_focal_broadcast":
            output = output.squeeze(1)
        loss = focal(output, masks[batch])  # at fault: cell_focal_broadcast
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"overlap": intersection_over_union(model, *micrographs(seed + 70, 96)), "loss": loss.item()}


cell_unet_with_focal_loss.mistake(
    "cell_focal_broadcast",
    "LSS002",
    summary="Logits of N × 1 × H × W meet masks of N × H × W: every output is compared with every mask.",
    change="squeeze(1)",
)
